"""What happens to a group of brokers, one fault a round: machines die, stop, lose disks and cables, and change places.

Each fault leaves the group hurt for a moment, under load. Then everything is well again, and the group must be too:
the slaves level, all logs the same, sends acknowledged. A fault with a promotion also says what it may have cost.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from chaos.support.crowd import deck
from chaos.support.pair_cluster import COPY_SECONDS, SILENCE_SECONDS, Mode, Node, Pair
from chaos.support.pair_load import Load, Promotion
from proving import call_with_proof, epochs_of
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.roles import PromoteBroker, StepDown

SHORT, LONG = COPY_SECONDS / 2, SILENCE_SECONDS + 0.7
PROMOTION_SECONDS = 15.0

Fault = Callable[["Weather"], Awaitable[None]]
FAULTS: dict[str, Fault] = {}
#: Only where every log has all that is acknowledged: the old master goes on serving for a moment.
ONLY_IF_ALL: set[str] = set()


def fault(name: str, *, only_if_all: bool = False) -> Callable[[Fault], Fault]:
    def keep(work: Fault) -> Fault:
        FAULTS[name] = work
        if only_if_all:
            ONLY_IF_ALL.add(name)
        return work

    return keep


def faults_of(seed: int, rounds: int, mode: Mode) -> list[str]:
    """Which come in a run, none of them twice before all have come."""
    kinds = sorted(FAULTS) if mode.every_log_has_all else sorted(FAULTS.keys() - ONLY_IF_ALL)
    return list(itertools.islice(deck(random.Random(seed), kinds), rounds))


class Weather:
    """`counts` says how often each fault happened, `schedule` when and to whom."""

    def __init__(self, pair: Pair, load: Load, rng: random.Random) -> None:
        self.pair = pair
        self.load = load
        self.rng = rng
        self.counts: Counter[str] = Counter()
        self.schedule: list[str] = []
        self._began = load.history.now()

    async def round(self, kind: str) -> None:
        """One fault, and the way back."""
        await asyncio.sleep(self.rng.uniform(0.1, 0.4))
        self.pair.slave = self.rng.choice(self.pair.slaves)
        self.note(f"{kind} (the master is {self.pair.master.name}, the slave {self.pair.slave.name})")
        self.counts[kind] += 1
        await FAULTS[kind](self)
        await self.heal()
        await self.pair.level()
        await self.load.until_sending_works()
        self.pair.compare()
        self.load.check_alive()

    async def heal(self) -> None:
        self.note("heal")
        if not all(node.server.is_running() for node in self.pair.nodes):
            await asyncio.sleep(0.03)  # answers of one that is dead have come by then
            self.fault("started again", forgets_progress=True)
        await self.pair.heal()

    def note(self, what: str) -> None:
        self.schedule.append(f"{self.load.history.now() - self._began:7.2f} s  {what}")

    def fault(self, what: str, *, forgets_progress: bool = False) -> None:
        self.load.history.fault(what, forgets_progress=forgets_progress)

    async def last(self, least: float, most: float) -> None:
        await asyncio.sleep(self.rng.uniform(least, most))

    # --- tools -------------------------------------------------------------------------------------------------------

    def kill(self, *nodes: Node) -> None:
        for node in nodes:
            self.fault(f"kill {node.name}", forgets_progress=True)
            node.kill()

    def destroy(self, node: Node) -> None:
        self.kill(node)
        node.throw_away()
        self.pair.forget_comparison()

    async def paused(self, node: Node, seconds: float) -> None:
        self.fault(f"pause {node.name}")
        node.pause()
        await asyncio.sleep(seconds)
        node.go_on()

    async def asked(self) -> tuple[float, int, int]:
        """When the master was asked, its end, and how many bytes its slave lacks, by its own word."""
        now = self.load.history.now()
        figures = await self.pair.master.figures()
        return now, int(figures["commitLogMaxOffset"]), int(figures["pyromq.replicationLagBytes"])

    def cut_from_slaves(self, node: Node) -> None:
        for slave in self.pair.slaves:
            self.pair.network.cut(node.machine, slave.machine)

    async def longest(self) -> Node:
        """The slave whose log goes furthest: the one to promote."""
        figures = {node.name: await node.try_figures() for node in self.pair.slaves}
        return max(self.pair.slaves, key=lambda node: int(figures[node.name].get("commitLogMaxOffset", -1)))

    async def promote(self, asked: tuple[float, int, int]) -> int:
        """The slave with the longest log leads from now on; from which position."""
        pair, old = self.pair, self.pair.master
        pair.slave = await self.longest()
        async with pair.slave.local_wire() as wire:
            number = (await epochs_of(wire.call)).newest + 1
            request = PromoteBroker(epoch=number, role=pair.mode.role, reason="chaos")
            answer = await call_with_proof(wire.call, request, PROMOTION_SECONDS)
            if answer.code != ResponseCode.SUCCESS:  # it says what may be lost, and is told to lead all the same
                request = PromoteBroker(epoch=number, role=pair.mode.role, reason="chaos", force=True)
                answer = await call_with_proof(wire.call, request, PROMOTION_SECONDS)
        assert answer.code == ResponseCode.SUCCESS, f"{pair.slave.name} is not promoted: {answer.reason}"
        await self._has_changed(old, int(answer.fields["position"]), asked)
        return int(answer.fields["position"])

    async def hand_over(self) -> None:
        pair, old = self.pair, self.pair.master
        async with old.local_wire() as wire:
            answer = await call_with_proof(wire.call, StepDown(to=pair.slave.address, reason="chaos"), 20.0)
        assert answer.code == ResponseCode.SUCCESS, f"{old.name} does not hand over: {answer.reason}"
        now = self.load.history.now()
        await self._has_changed(old, int(answer.fields["position"]), (now, int(answer.fields["position"]), 0))

    async def found_leading(self, old: Node, asked: tuple[float, int, int]) -> None:
        """A slave leads, and no person told it to: the old master did."""
        try:
            async with asyncio.timeout(PROMOTION_SECONDS):
                while (new := await self._leading_slave()) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.03)
        except TimeoutError:
            tails = [node.server.tail() for node in self.pair.nodes]
            raise AssertionError("\n".join(["no slave leads", *tails])) from None
        self.pair.slave = new
        async with new.wire() as wire:
            told = await epochs_of(wire.call)
        await self._has_changed(old, told.entries[-1].start, asked)

    async def _leading_slave(self) -> Node | None:
        for node in self.pair.slaves:
            if (await node.try_figures()).get("pyromq.role") not in (None, "SLAVE"):
                return node
        return None

    async def _has_changed(self, old: Node, position: int, asked: tuple[float, int, int]) -> None:
        self.note(f"{self.pair.slave.name} leads from {position} on")
        self.fault("promotion", forgets_progress=True)
        self.load.promotions.append(
            Promotion(self.load.history.now(), old.machine.address, self.pair.slave.machine.address, position, *asked)
        )
        self.pair.swap()
        try:
            async with asyncio.timeout(PROMOTION_SECONDS):
                while (await self.pair.master.try_figures()).get("pyromq.role") in (None, "SLAVE"):  # noqa: ASYNC110
                    await asyncio.sleep(0.03)
        except TimeoutError:
            raise AssertionError(f"{self.pair.master.name} does not lead:\n{self.pair.master.server.tail()}") from None

    def extra_bytes(self, node: Node, position: int) -> bytes:
        """What its log has from a position on."""
        found, at = b"", position
        while some := node.log.read(at, 1 << 20):
            found, at = found + some, at + len(some)
        return found.rstrip(b"\0")

    async def came_back_as_slave(self, node: Node, extra: bytes) -> None:
        """What it had and nobody else has is kept aside."""
        await self.heal()
        await self.pair.level()
        if extra:
            kept = [file.read_bytes() for file in _aside(node.store)]
            head = extra[: 1 << 16]
            assert any(head in file for file in kept), (
                f"{len(extra)} bytes of {node.name} are not kept aside: {[len(file) for file in kept]}"
            )


def _aside(store: Path) -> Iterable[Path]:
    for name in ("cutoff", "aside"):
        yield from (file for file in (store / name).rglob("*") if file.is_file())


# --- processes -------------------------------------------------------------------------------------------------------


@fault("kill the master")
async def _(weather: Weather) -> None:
    weather.kill(weather.pair.master)
    await weather.last(0.0, 1.0)


@fault("kill the slave")
async def _(weather: Weather) -> None:
    weather.kill(weather.pair.slave)
    await weather.last(0.0, 1.0)


@fault("kill all")
async def _(weather: Weather) -> None:
    weather.kill(*weather.rng.sample(weather.pair.nodes, len(weather.pair.nodes)))
    await weather.last(0.0, 0.5)


@fault("pause the master briefly")
async def _(weather: Weather) -> None:
    await weather.paused(weather.pair.master, SHORT)


@fault("pause the master for long")
async def _(weather: Weather) -> None:
    await weather.paused(weather.pair.master, LONG)


@fault("pause the slave briefly")
async def _(weather: Weather) -> None:
    await weather.paused(weather.pair.slave, SHORT)


@fault("pause the slave for long")
async def _(weather: Weather) -> None:
    await weather.paused(weather.pair.slave, LONG)


# --- the network -----------------------------------------------------------------------------------------------------


@fault("cut between master and slave")
async def _(weather: Weather) -> None:
    weather.fault("cut")
    weather.pair.network.cut(weather.pair.master.machine, weather.pair.slave.machine)
    await weather.last(0.5, LONG)


@fault("cut what the master sends to the slave")
async def _(weather: Weather) -> None:
    weather.fault("cut")
    weather.pair.network.cut(weather.pair.master.machine, weather.pair.slave.machine, only_from_one=True)
    await weather.last(0.5, LONG)


@fault("cut what the slave sends to the master")
async def _(weather: Weather) -> None:
    weather.fault("cut")
    weather.pair.network.cut(weather.pair.slave.machine, weather.pair.master.machine, only_from_one=True)
    await weather.last(0.5, LONG)


@fault("cut the master from clients and name server")
async def _(weather: Weather) -> None:
    weather.fault("cut")
    weather.pair.network.cut(weather.pair.base, weather.pair.master.machine, only_from_one=weather.rng.random() < 0.5)
    await weather.last(0.5, LONG)


@fault("unplug the slave")
async def _(weather: Weather) -> None:
    weather.fault("unplug")
    weather.pair.network.unplug(weather.pair.slave.machine)
    await weather.last(0.5, LONG)


@fault("unplug the master")
async def _(weather: Weather) -> None:
    weather.fault("unplug")
    weather.pair.network.unplug(weather.pair.master.machine)
    await weather.last(0.5, LONG)


@fault("a long line")
async def _(weather: Weather) -> None:
    weather.fault("delay")
    node = weather.rng.choice(weather.pair.nodes)
    weather.pair.network.slow(node.machine, weather.rng.choice([0.02, 0.1, 0.3]), weather.rng.choice([0.0, 0.05]))
    await weather.last(1.0, 2.0)


@fault("a bad line")
async def _(weather: Weather) -> None:
    weather.fault("loss")
    node = weather.rng.choice(weather.pair.nodes)
    weather.pair.network.slow(node.machine, 0.002, 0.005, loss=weather.rng.choice([0.02, 0.1, 0.3]))
    await weather.last(1.0, 2.0)


@fault("a narrow line")
async def _(weather: Weather) -> None:
    weather.fault("narrow")
    node = weather.rng.choice(weather.pair.nodes)
    weather.pair.network.narrow(node.machine, weather.rng.choice([20_000, 60_000, 200_000]))
    await weather.last(1.0, 2.0)


# --- disks -----------------------------------------------------------------------------------------------------------


@fault("the slave's disk is full")
async def _(weather: Weather) -> None:
    weather.fault("disk full")
    weather.pair.slave.machine.fill_disk(leave=weather.rng.choice([0, 100_000, 1_500_000]))
    await weather.last(1.0, 2.0)


@fault("the master's disk is full")
async def _(weather: Weather) -> None:
    weather.fault("disk full")
    weather.pair.master.machine.fill_disk(leave=weather.rng.choice([0, 100_000, 1_500_000]))
    await weather.last(1.0, 2.0)


@fault("the slave's disk is full and it is killed")
async def _(weather: Weather) -> None:
    weather.pair.slave.machine.fill_disk(leave=weather.rng.choice([0, 1_500_000]))
    await weather.last(0.3, 0.8)
    weather.kill(weather.pair.slave)


@fault("the slave's disk is slow")
async def _(weather: Weather) -> None:
    weather.fault("slow disk")
    weather.pair.slave.slow_disk(weather.rng.choice([0.05, 0.3, 1.2]), weather.rng.choice([0.0, 0.005]))
    await weather.last(1.0, 2.0)


@fault("the master's disk is slow")
async def _(weather: Weather) -> None:
    weather.fault("slow disk")
    weather.pair.master.slow_disk(weather.rng.choice([0.05, 0.3, 1.2]), weather.rng.choice([0.0, 0.005]))
    await weather.last(1.0, 2.0)


@fault("the slave's store is destroyed")
async def _(weather: Weather) -> None:
    weather.destroy(weather.pair.slave)


# --- another one leads -----------------------------------------------------------------------------------------------


@fault("the master's store is destroyed, the slave promoted")
async def _(weather: Weather) -> None:
    asked = await weather.asked()
    weather.destroy(weather.pair.master)
    await weather.promote(asked)


@fault("the master's store is destroyed while its slave lags")
async def _(weather: Weather) -> None:
    """The lag is not nothing then, and it must be what is lost, at most."""
    weather.fault("delay")
    weather.pair.network.slow(weather.pair.slave.machine, 0.1)
    await weather.last(0.3, 0.8)
    asked = await weather.asked()
    weather.destroy(weather.pair.master)
    weather.pair.network.heal()
    await weather.promote(asked)


@fault("the master's store is destroyed and nobody promoted")
async def _(weather: Weather) -> None:
    """It comes back empty, as a master by its settings: it must not lead over the only copy that there is."""
    asked = await weather.asked()
    old = weather.pair.master
    weather.destroy(old)
    await weather.last(0.0, 0.5)
    if not old.is_slave_by_settings:
        await weather.heal()
        await weather.found_leading(old, asked)
    else:  # nobody would lead: somebody has to be told
        await weather.promote(asked)


@fault("the master is killed, the slave promoted")
async def _(weather: Weather) -> None:
    """It had bytes that its slave never got."""
    old = weather.pair.master
    weather.cut_from_slaves(old)
    await weather.last(0.1, 0.5)
    asked = await weather.asked()
    weather.kill(old)
    weather.pair.network.heal()
    position = await weather.promote(asked)
    await weather.came_back_as_slave(old, weather.extra_bytes(old, position))


@fault("the master is cut off, the slave promoted", only_if_all=True)
async def _(weather: Weather) -> None:
    """Nobody reaches it; it does not know, and comes back as a master."""
    old = weather.pair.master
    weather.fault("cut")
    asked = await weather.asked()
    weather.cut_from_slaves(old)
    if weather.rng.random() < 0.5:
        weather.pair.network.cut(old.machine, weather.pair.base)
    await weather.last(0.2, 0.8)
    await weather.promote(asked)
    await weather.last(0.3, 1.0)


@fault("the master is paused, the slave promoted", only_if_all=True)
async def _(weather: Weather) -> None:
    """It goes on in the middle of a sentence, when another one has long been leading."""
    old = weather.pair.master
    weather.fault("pause")
    asked = await weather.asked()
    old.pause()
    await weather.promote(asked)
    await weather.last(0.2, 1.0)


@fault("the master hands over")
async def _(weather: Weather) -> None:
    await weather.hand_over()
