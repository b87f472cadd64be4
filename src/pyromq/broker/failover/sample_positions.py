"""Positions of messages by which two logs are compared that have no epochs in common."""

from __future__ import annotations

import bisect

from pyromq.store.message_store import MessageStore
from pyromq.store.queues.consume_queue import ConsumeQueue

#: Of a log that came without its epochs, the first messages of at most this many files are compared.
MOST_COMPARED = 32


def sample_positions(store: MessageStore, start: int, end: int) -> list[int]:
    """Return the positions of the first message of each file, and of the last message, from `start` to `end`."""
    store.dispatch()
    lasts = [position for queue in store.queue_list() if (position := _last_before(queue, end)) is not None]
    heads = [one.base for one in store.log_files().segments[-MOST_COMPARED:] if one.base < store.positions().log_end]
    return sorted(one for one in {*heads, *([max(lasts)] if lasts else [])} if start <= one < end)


def _last_before(queue: ConsumeQueue, end: int) -> int | None:
    """Return the position of the last message of a queue that begins before `end`; `None` if there is none."""

    def position(offset: int) -> int:
        entry = queue.entry(offset)
        return entry.position if entry is not None else 0

    offsets = range(queue.min_offset, queue.max_offset)
    before = bisect.bisect_left(offsets, end, key=position)
    return position(offsets[before - 1]) if before else None
