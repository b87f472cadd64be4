"""Time series of the current act: waiting times of visitors, backlogs of services, traffic."""

from __future__ import annotations

from pyromq.demo.frame import LaneView, ServiceView
from pyromq.demo.lanes import Lane
from pyromq.demo.stage import Greeter, Stage

#: Interval between two figures.
TICK_SECONDS = 0.1
#: Over how many of these the speed of a service is taken.
RATE_TICKS = 10


class Charts:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.clear()

    def clear(self) -> None:
        self._waits: dict[str, list[float]] = {lane.name: [] for lane in self._stage.lanes}
        self._backlogs: dict[str, list[int]] = {one.name: [] for one in self._stage.greeters}
        self._handled: dict[str, list[int]] = {one.name: [] for one in self._stage.greeters}
        self.traffic: list[float] = []

    def tick(self, rate: float) -> None:
        self.traffic.append(rate)
        for lane in self._stage.lanes:
            waits = lane.take_fresh()
            before = self._waits[lane.name][-1:]
            self._waits[lane.name].append(sum(waits) / len(waits) if waits else before[0] if before else 0.0)
        for greeter in self._stage.greeters:
            self._backlogs[greeter.name].append(self._stage.ledger.backlog(greeter.name))
            self._handled[greeter.name].append(self._stage.ledger.handled(greeter.name))

    def peak(self, service: str) -> int:
        return max(self._backlogs[service], default=0)

    def busiest(self) -> str:
        """The service with the largest backlog of the act."""
        return max(self._backlogs, key=self.peak)

    def lane(self, lane: Lane) -> LaneView:
        return LaneView(
            name=lane.name, done=lane.done, rate=lane.rate, p50_s=lane.latencies.quantile(0.5),
            p99_s=lane.latencies.quantile(0.99), waiting=lane.waiting, failed=lane.failed, gave_up=lane.gave_up,
            history=tuple(self._waits[lane.name]), steps=lane.steps.medians(),
        )  # fmt: skip

    def service(self, greeter: Greeter) -> ServiceView:
        ledger, handled = self._stage.ledger, self._handled[greeter.name][-RATE_TICKS:]
        seconds = max(len(handled) - 1, 1) * TICK_SECONDS
        return ServiceView(
            name=greeter.name, is_up=greeter.is_up, backlog=ledger.backlog(greeter.name), peak=self.peak(greeter.name),
            handled=ledger.handled(greeter.name), rate=(handled[-1] - handled[0]) / seconds if handled else 0.0,
            history=tuple(self._backlogs[greeter.name]),
        )  # fmt: skip
