"""The findings of `insight` as plain values: sentences and page are made from them alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: Stands for all topics that are not shown one by one: no topic is called so.
OTHERS = ""


@dataclass(frozen=True, slots=True)
class Latency:
    """A duration's percentiles in ms, from buckets about 9 % wide."""

    p50: float
    p90: float
    p99: float
    p999: float
    most: float


@dataclass(frozen=True, slots=True)
class TopicFacts:
    topic: str
    messages: int
    bytes: int
    latency: Latency | None = None
    #: Messages that were born after they were stored, by the clocks of client and broker.
    early: int = 0

    @property
    def mean_size(self) -> float:
        return self.bytes / self.messages if self.messages else 0.0


@dataclass(frozen=True, slots=True)
class TagFacts:
    topic: str
    #: Empty for messages without one.
    tag: str
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class QueueFacts:
    topic: str
    broker: str
    queue_id: int
    messages: int
    #: 1 is what each queue would get if all got the same.
    times_fair: float


@dataclass(frozen=True, slots=True)
class ConsumeFacts:
    """The message trace of one group and topic."""

    group: str
    topic: str
    messages: int
    failed: int
    #: From the send to the first handling, and the handling itself.
    wait: Latency | None
    handling: Latency | None


@dataclass(frozen=True, slots=True)
class FailedFacts:
    """Messages of one group that came back, or that it gave up."""

    group: str
    #: Their original topic.
    topic: str
    messages: int
    most_tries: int
    oldest_ms: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    group: str
    topic: str
    message_id: str
    keys: str
    tries: int
    #: The time of the dead letter.
    at_ms: int


@dataclass(frozen=True, slots=True)
class LagFacts:
    """The lag of a query: one value for each window, None for a window without a report."""

    group: str
    topic: str
    values: Sequence[int | None]

    @property
    def last(self) -> int:
        return next((value for value in reversed(self.values) if value is not None), 0)

    @property
    def most(self) -> int:
        return max((value for value in self.values if value is not None), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Topics are those of users, the largest first; the brokers' own are not counted."""

    source: str
    made_ms: int
    window_ms: int
    #: The beginning of each window. Every sequence below has one value for each of them.
    starts: Sequence[int]
    topics: Sequence[TopicFacts] = ()
    #: By topic, those of the smaller ones together as OTHERS.
    messages: Mapping[str, Sequence[int]] = field(default_factory=dict)
    bytes: Sequence[int] = ()
    latency: Sequence[Latency | None] = ()
    tags: Sequence[TagFacts] = ()
    queues: Sequence[QueueFacts] = ()
    consuming: Sequence[ConsumeFacts] = ()
    retries: Sequence[FailedFacts] = ()
    dead: Sequence[FailedFacts] = ()
    letters: Sequence[DeadLetter] = ()
    lag: Sequence[LagFacts] = ()
    lag_starts: Sequence[int] = ()
    #: Parts that could not be read, in sentences.
    notes: Sequence[str] = ()

    @property
    def total(self) -> int:
        return sum(one.messages for one in self.topics)

    @property
    def total_bytes(self) -> int:
        return sum(one.bytes for one in self.topics)

    @property
    def span_ms(self) -> int:
        return self.starts[-1] + self.window_ms - self.starts[0] if self.starts else 0

    @property
    def rate(self) -> float:
        """Messages a second, on average."""
        return self.total * 1000 / self.span_ms if self.span_ms else 0.0

    @property
    def windows(self) -> list[int]:
        """Messages of all topics in each window."""
        return [sum(column) for column in zip(*self.messages.values(), strict=True)] or [0] * len(self.starts)

    @property
    def dead_count(self) -> int:
        return sum(one.messages for one in self.dead)

    @property
    def retry_count(self) -> int:
        return sum(one.messages for one in self.retries)
