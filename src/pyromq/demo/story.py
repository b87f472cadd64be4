"""The four acts: in line, with a queue, a burst, an outage.

Each act lets people in, watches what happens to them, and keeps what it measured. `frame` is what there is to see
right now; another thread may read it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from pyromq.demo.charts import TICK_SECONDS, Charts
from pyromq.demo.frame import Frame, LaneView
from pyromq.demo.lanes import Lane
from pyromq.demo.outcome import Backlog, Burst, Compared, LaneFigures, Messages, Outage, Outcome, figures_of
from pyromq.demo.script import Script
from pyromq.demo.stage import Greeter, Stage
from pyromq.demo.traffic import Visitors

STOPPED_SERVICE = "coupon"
TITLES = (
    "A sign-up calls four services, one after another",
    "The same sign-up, with a queue",
    "A burst: ten times the usual traffic",
    "One service is stopped, and started again",
)


class Story:
    """One performance."""

    def __init__(self, stage: Stage, script: Script, visitors: Visitors) -> None:
        self._stage = stage
        self._script = script
        self._visitors = visitors
        self._charts = Charts(stage)
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._act, self._told, self._now = 1, "", ""
        #: The lanes that are open in this act, and one of the act before to compare with.
        self._open: tuple[Lane, ...] = ()
        self._past: LaneView | None = None
        self._findings: list[str] = []
        self._ticked = asyncio.Event()
        self.frame = self._picture()

    async def tell(self) -> Outcome:
        """All four acts. Raises what stops a broker or a client for good."""
        watching = self._loop.create_task(self._watch())
        try:
            sign_up = Compared(await self._in_line(), await self._with_queue())
            burst = await self._burst()
            outage = await self._outage()
            messages = await self._close_the_books()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return Outcome(round(self._loop.time() - self._began, 1), sign_up, burst, outage, messages)

    # --- the acts ----------------------------------------------------------------------------------------------------

    async def _in_line(self) -> LaneFigures:
        lane, desks = self._stage.in_line, self._script.desks
        self._begin(
            1, [lane],
            f"{desks} people at a time sign up. Each waits for the registration itself, then for SMS, push, coupon and "
            "gift, before the page says welcome.",
        )  # fmt: skip
        self._now = f"{desks} people at a time, everything in line"
        await self._visitors.take_turns(lane, desks, self._script.turns_s)
        figures = figures_of(lane)
        self._past = replace(self._charts.lane(lane), is_live=False)
        self._findings.append(f"in line        {figures.p50_ms:.0f} ms, {figures.per_second:.0f} sign-ups a second")
        return figures

    async def _with_queue(self) -> LaneFigures:
        lane, desks = self._stage.queued, self._script.desks
        self._begin(
            2, [lane],
            "It registers, sends one message, and is done when the broker has it. The four services "
            "follow behind, each as a consumer group of its own.",
        )  # fmt: skip
        self._now = f"{desks} people at a time, one message each"
        await self._visitors.take_turns(lane, desks, self._script.turns_s)
        figures = figures_of(lane)
        self._past = None
        self._findings.append(f"with a queue   {figures.p50_ms:.0f} ms, {figures.per_second:.0f} sign-ups a second")
        return figures

    async def _burst(self) -> Burst:
        script, both = self._script, self._stage.lanes
        self._begin(
            3, both,
            "Visitors now come on their own, the same to both. In line they wait for each other, and leave after "
            f"{script.patience_s:g} s; with a queue it is the backlog that waits.",
        )  # fmt: skip
        async with self._stream(both):
            await self._go_on(f"the usual traffic: {script.usual_rate:.0f} visitors a second", script.calm_s)
            self._visitors.rate = script.burst_rate
            await self._go_on(f"the burst: {script.burst_rate:.0f} visitors a second", script.burst_s)
            self._visitors.rate = script.usual_rate
            self._now = "the burst is over, the backlog drains"
            drained_s = await self._drained(self._stage.greeters)
            await self._go_on("the backlog is gone", script.calm_s / 2)
        await self._settled()
        backlog = Backlog(self._charts.busiest(), self._charts.peak(self._charts.busiest()), drained_s)
        lanes = self._compared()
        self._findings.append(
            f"in the burst   p99 {lanes.in_line.p99_ms:,.0f} ms in line, {lanes.with_queue.p99_ms:,.0f} ms with a queue"
        )
        return Burst(script.usual_rate, script.burst_rate, round(script.burst_s, 2), lanes, backlog)

    async def _outage(self) -> Outage:
        script, both = self._script, self._stage.lanes
        greeter, called = self._stage.greeter(STOPPED_SERVICE), self._stage.called_service(STOPPED_SERVICE)
        self._begin(
            4, both,
            f"The {STOPPED_SERVICE} service goes away for a while. In line nobody can sign up; with a queue its "
            "messages wait for it, and nobody notices.",
        )  # fmt: skip
        async with self._stream(both):
            await self._go_on("all services are up", script.calm_s / 2)
            called.is_up = False
            await greeter.stop()
            await self._go_on(f"the {STOPPED_SERVICE} service is stopped", script.outage_s)
            called.is_up = True
            await greeter.start()
            self._now = f"the {STOPPED_SERVICE} service is back and works off its backlog"
            drained_s = await self._drained([greeter])
            await self._go_on("the backlog is gone", script.calm_s / 2)
        await self._settled()
        backlog = Backlog(STOPPED_SERVICE, self._charts.peak(STOPPED_SERVICE), drained_s)
        return Outage(round(script.outage_s, 2), self._compared(), backlog)

    async def _close_the_books(self) -> Messages:
        """Wait until every service has handled every acknowledged sign-up, as long as that may take."""
        self._now = "the doors are closed: was every sign-up handled by every service?"
        ledger, sends = self._stage.ledger, self._stage.sends
        await self._until(lambda: ledger.is_complete)
        p50, p99 = (round(sends.quantile(share) * 1000, 2) for share in (0.5, 0.99))
        return Messages(ledger.acknowledged, p50, p99, ledger.accounts())

    # --- what acts are made of ---------------------------------------------------------------------------------------

    def _begin(self, act: int, lanes: Sequence[Lane], told: str) -> None:
        self._act, self._told, self._open = act, told, tuple(lanes)
        self._charts.clear()
        for lane in lanes:
            lane.reset()

    async def _go_on(self, now: str, seconds: float) -> None:
        self._now = now
        await asyncio.sleep(seconds)

    @contextlib.asynccontextmanager
    async def _stream(self, lanes: Sequence[Lane]) -> AsyncIterator[None]:
        self._visitors.rate = self._script.usual_rate
        stream = self._loop.create_task(self._visitors.stream(lanes))
        try:
            yield
        finally:
            self._visitors.rate = 0.0
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)

    async def _drained(self, greeters: Sequence[Greeter]) -> float:
        """Return the seconds until the backlog of each of these services was at most its capacity."""
        began, ledger = self._loop.time(), self._stage.ledger
        await self._until(lambda: all(ledger.backlog(one.name) <= one.service.kind.capacity for one in greeters))
        return round(self._loop.time() - began, 2)

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition, at most for the script's drain limit; the ledger shows the failure."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._script.drain_limit_s):
                while not holds():
                    await self._ticked.wait()

    async def _settled(self) -> None:
        await asyncio.gather(*(lane.settled() for lane in self._open))

    def _compared(self) -> Compared:
        return Compared(figures_of(self._stage.in_line), figures_of(self._stage.queued))

    # --- what there is to see ----------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            self._charts.tick(self._visitors.rate)
            self.frame = self._picture()
            self._ticked.set()
            self._ticked.clear()
            await asyncio.sleep(TICK_SECONDS)

    def _picture(self) -> Frame:
        stage, charts = self._stage, self._charts
        in_line = charts.lane(stage.in_line) if stage.in_line in self._open else self._past
        return Frame(
            act=self._act, title=TITLES[self._act - 1], told=self._told, now=self._now,
            elapsed_s=self._loop.time() - self._began, name_servers=stage.cluster.name_servers, in_line=in_line,
            queued=charts.lane(stage.queued) if stage.queued in self._open else None,
            services=tuple(charts.service(one) for one in stage.greeters) if stage.queued in self._open else (),
            traffic=tuple(charts.traffic) if len(self._open) > 1 else (),
            acknowledged=stage.ledger.acknowledged, findings=tuple(self._findings),
        )  # fmt: skip
