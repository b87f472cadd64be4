"""The results of the story, for people and for scripts."""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.demo.lanes import Lane
from pyromq.demo.ledger import Account


@dataclass(frozen=True, slots=True)
class LaneFigures:
    """One way to sign up in one act."""

    came: int
    done: int
    failed: int
    gave_up: int
    per_second: float
    p50_ms: float
    p99_ms: float
    max_ms: float


def figures_of(lane: Lane) -> LaneFigures:
    p50, p99, most = (round(one * 1000, 2) for one in (
        lane.latencies.quantile(0.5), lane.latencies.quantile(0.99), lane.latencies.largest,
    ))  # fmt: skip
    return LaneFigures(lane.came, lane.done, lane.failed, lane.gave_up, round(lane.rate, 1), p50, p99, most)


@dataclass(frozen=True, slots=True)
class Compared:
    """The same visitors, both ways."""

    in_line: LaneFigures
    with_queue: LaneFigures


@dataclass(frozen=True, slots=True)
class Backlog:
    """The largest backlog of any service, and the time until it was drained."""

    service: str
    peak: int
    drained_s: float


@dataclass(frozen=True, slots=True)
class Burst:
    usual_per_second: float
    burst_per_second: float
    burst_s: float
    lanes: Compared
    backlog: Backlog


@dataclass(frozen=True, slots=True)
class Outage:
    stopped_s: float
    lanes: Compared
    backlog: Backlog


@dataclass(frozen=True, slots=True)
class Messages:
    acknowledged: int
    send_p50_ms: float
    send_p99_ms: float
    services: dict[str, Account]

    @property
    def lost(self) -> int:
        return sum(account.lost for account in self.services.values())

    @property
    def twice(self) -> int:
        return sum(account.twice for account in self.services.values())


@dataclass(frozen=True, slots=True)
class Outcome:
    seconds: float
    #: Acts 1 and 2.
    sign_up: Compared
    burst: Burst
    outage: Outage
    messages: Messages

    @property
    def times_sooner(self) -> float:
        return self.sign_up.in_line.p50_ms / max(self.sign_up.with_queue.p50_ms, 0.001)
