"""The writing end of one consume queue, and the loops that fill the log and the queues.

These are the readable forms; `_kernel` has compiled twins which take the ordinary cases and hand the rest back.
A queue entry is 20 bytes: position of the record (8), its size (4), tag code (8).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyromq import accelerated
from pyromq.model.ids import LogPosition, QueueOffset
from pyromq.model.message import AppendedAt, Draft
from pyromq.records import layout, record
from pyromq.records.java_hash import tag_code
from pyromq.records.plain import plain_records

ACCELERATED = accelerated.load("append_batch")
ACCELERATED_QUEUES = accelerated.load("queues")

ENTRY = struct.Struct(">qiq")

_NO_BUFFER = memoryview(b"")


class ReadableQueueCursor:
    """The position of the next message of a queue.

    `next_append` is the offset that the next appended message gets; `next_dispatch` the offset of the next entry
    to be written; `next_dispatch ≤ next_append`. Entries from `first` on lie in `buffer`, and those below `limit`
    have room on the disk. The next entry that is written puts `name` into the list `awaited`, once.
    """

    __slots__ = ("awaited", "buffer", "first", "limit", "name", "next_append", "next_dispatch")

    awaited: list[object] | None
    name: object

    def __init__(self) -> None:
        self.next_append = 0
        self.next_dispatch = 0
        self.buffer = _NO_BUFFER
        self.first = 0
        self.limit = 0
        self.awaited = None
        self.name = None

    def point_at(self, buffer: memoryview, first: int, limit: int) -> None:
        self.buffer = buffer
        self.first = first
        self.limit = limit

    def put(self, position: int, size: int, tag_code: int) -> None:
        """Write the next entry. There must be room."""
        assert self.first <= self.next_dispatch < self.limit
        ENTRY.pack_into(self.buffer, (self.next_dispatch - self.first) * ENTRY.size, position, size, tag_code)
        self.next_dispatch += 1
        if self.awaited is not None:
            self.awaited.append(self.name)
            self.awaited = None


def queue_key(topic: bytes, queue_id: int) -> bytes:
    """Return the key of a queue."""
    return topic + queue_id.to_bytes(4, "big")


class Filled(NamedTuple):
    """The result of `append_drafts`: the number of drafts taken, and the end in the buffer."""

    taken: int
    offset: int
    #: The next draft needs more room than is left before the end of the segment.
    is_full: bool


def append_drafts_readable(
    buffer: memoryview,
    offset: int,
    base: int,
    drafts: Sequence[Draft],
    start: int,
    cursors: dict[bytes, ReadableQueueCursor],
    now_ms: int,
    with_crc: bool,
    max_body: int,
    receipts: list[AppendedAt],
) -> Filled:
    """Encode drafts one behind the other until the buffer is full or a draft's queue has no cursor yet."""
    for index in range(start, len(drafts)):
        draft = drafts[index]
        cursor = cursors.get(queue_key(draft.topic, draft.queue_id))
        if cursor is None:
            return Filled(index, offset, is_full=False)
        counted = layout.has_queue_offset(draft.storage_flags)
        queue_offset = cursor.next_append if counted else 0
        data = record.encode(draft, base + offset, queue_offset, now_ms, with_crc)
        if offset + len(data) + layout.BLANK_RESERVE > len(buffer):
            return Filled(index, offset, is_full=True)
        buffer[offset : offset + len(data)] = data
        receipts.append(AppendedAt(LogPosition(base + offset), len(data), QueueOffset(queue_offset)))
        cursor.next_append += counted
        offset += len(data)
    return Filled(len(drafts), offset, is_full=False)


class Dispatched(NamedTuple):
    """The result of `dispatch`: its end, the number of records, and the store time of the last record seen."""

    offset: int
    records: int
    last_timestamp_ms: int


def dispatch_readable(
    buffer: memoryview, start: int, end: int, cursors: dict[bytes, ReadableQueueCursor]
) -> Dispatched:
    """Write queue entries for the records in `[start, end)`; stop before the first that is not ordinary.

    `Dispatcher.dispatch_one` is the definition, and knows all the cases.
    """
    at, taken, stored_ms = start, 0, 0
    for position, size, key, queue_offset, timestamp_ms, topic, (tag, _, _) in plain_records(buffer, start, end):
        cursor = cursors.get(key)
        if cursor is None or cursor.next_dispatch != queue_offset or queue_offset >= cursor.limit:
            break
        if topic == layout.SCHEDULE_TOPIC:
            break
        cursor.put(position, size, tag_code(tag) if tag else 0)
        at, taken, stored_ms = at + size, taken + 1, timestamp_ms
    return Dispatched(at, taken, stored_ms)


if TYPE_CHECKING or ACCELERATED is None or ACCELERATED_QUEUES is None:
    QueueCursor = ReadableQueueCursor
    append_drafts = append_drafts_readable
    dispatch = dispatch_readable
else:
    QueueCursor = ACCELERATED.QueueCursor

    def append_drafts(*arguments):
        return Filled(*ACCELERATED.append_drafts(*arguments))

    def dispatch(*arguments):
        return Dispatched(*ACCELERATED_QUEUES.dispatch(*arguments))


COMPILED = ACCELERATED is not None and ACCELERATED_QUEUES is not None
