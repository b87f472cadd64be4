"""The share of each queue in a stream's batch. Pure: sizes in, shares out.

A limit is divided among queues in proportion to their backlogs. A queue with a backlog gets at least one message, so
that a short queue does not starve. A batch exceeds its limit only when the limit is below the number of queues.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pyromq.model.queue import MessageQueue
from pyromq.spark.source.offsets import Span

Key = TypeVar("Key", bound=Hashable)


def shares(waiting: Mapping[Key, int], limit: int) -> dict[Key, int]:
    """The part of each; together exactly the limit, or all there is, or one each when the limit is below that."""
    some = {key: size for key, size in waiting.items() if size > 0}
    total = sum(some.values())
    if total <= limit:
        return dict(some)
    rest, pool = max(limit - len(some), 0), max(total - len(some), 1)
    given: dict[Key, int] = {}
    behind = 0
    for key, size in some.items():  # rounded where it adds up, so that the parts of all make the whole
        before, behind = behind, behind + size - 1
        given[key] = 1 + behind * rest // pool - before * rest // pool
    return given


def within_rows(spans: Sequence[Span], limit: int) -> dict[MessageQueue, int]:
    """The end of each queue's part."""
    given = shares({span.queue: span.count for span in spans}, limit)
    return {span.queue: span.start + given.get(span.queue, 0) for span in spans}


def within_bytes(spans: Sequence[Span], sizes: Mapping[MessageQueue, float], limit: int) -> dict[MessageQueue, int]:
    """The same with a limit in bytes, where `sizes` has how large a message is in each queue."""
    each = {span.queue: max(sizes.get(span.queue, 1.0), 1.0) for span in spans}
    given = shares({span.queue: int(span.count * each[span.queue]) for span in spans}, limit)
    return {
        span.queue: span.start + min(max(int(given.get(span.queue, 0) / each[span.queue]), 1), span.count)
        for span in spans
    }


def earlier(one: Mapping[MessageQueue, int], other: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """Return the ends at which both limits hold."""
    return {queue: min(end, other[queue]) for queue, end in one.items()}


@dataclass(slots=True)
class Patience:
    """`minOffsetsPerTrigger` and `maxTriggerDelay`: whether a batch is worth it, or waits for more."""

    min_rows: int
    max_delay_s: float
    #: The monotonic time of the last batch.
    last_s: float

    def is_enough(self, waiting: int, now_s: float) -> bool:
        is_due = waiting >= self.min_rows or (waiting > 0 and now_s - self.last_s >= self.max_delay_s)
        if is_due:
            self.last_s = now_s
        return is_due
