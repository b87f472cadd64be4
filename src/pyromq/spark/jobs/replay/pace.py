"""A rate over a whole job: each of its tasks has an equal part of it, and keeps it by a clock that is handed in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from pyromq.clock import Clock

#: Rows go out in portions of about this time, so that the rate is even.
PORTION_S = 0.1


def portion(rate: float) -> int:
    """Rows that go out at once."""
    return max(1, int(rate * PORTION_S))


def paced(
    batches: Iterable[pa.RecordBatch], rate: float, clock: Clock, wait: Callable[[float], object]
) -> Iterator[pa.RecordBatch]:
    """Yield the same rows at most `rate` per second from the first on. 0 is unlimited.

    A row is never early: after a slow consumer the delay is made up in bursts of at most one portion.
    """
    if rate <= 0:
        yield from batches
        return
    due = clock.monotonic()
    for batch in batches:
        for start in range(0, batch.num_rows, portion(rate)):
            some = batch.slice(start, portion(rate))
            now = clock.monotonic()
            if due > now:
                wait(due - now)
            due = max(due, now) + some.num_rows / rate
            yield some
