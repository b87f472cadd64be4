"""Reading a queue: from entries to views of the records, with the tag filter applied to the entries.

Entries that this process wrote are trusted; those found on disk at the start are checked against the log as they are
read: the record's position, its checksum, and that the entry is the record's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from pyromq import accelerated
from pyromq.errors import CorruptQueue
from pyromq.records import layout, record
from pyromq.records.java_hash import tag_code
from pyromq.records.properties import split_properties
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.queues.consume_queue import CHECKED_ENTRIES, ConsumeQueue
from pyromq.store.queues.queue_cursor import ENTRY

ACCELERATED = accelerated.load("queues")


class ReadStatus(Enum):
    FOUND = "found"
    #: Entries were looked at, none passed the filter: go on at `next_offset`.
    NO_MATCH = "no match"
    #: Nothing there yet: wait for the next message.
    AT_END = "at end"
    #: Older than anything that is left: go on at `min_offset`.
    TOO_SMALL = "too small"
    #: Beyond the end: go on at `max_offset`.
    TOO_LARGE = "too large"
    NO_QUEUE = "no queue"


@dataclass(slots=True)
class ReadResult:
    """The result of a read. The views stay valid while they are referenced, also when retention removes the file."""

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: list[memoryview] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(map(len, self.records))


#: A filtered read looks at this many entries at most: one request must not delay the others.
MAX_ENTRIES_LOOKED_AT = 16_000


#: A filtered read compares at most this many of these chunks of entries with the log: the loop has other work.
MAX_FRESH_CHECKS = 2


def collect_readable(
    entries: memoryview,
    index: int,
    end: int,
    first_base: int,
    segment_bytes: int,
    buffers: list[memoryview | None],
    readable: int,
    checked_below: int,
    topic: bytes,
    queue_id: int,
    first_offset: int,
    tag_codes: frozenset[int] | None,
    max_messages: int,
    max_bytes: int,
    views: list[memoryview],
) -> int:
    """Add views of the records that entries point to; the index of the first entry that was not taken or skipped."""
    total = 0
    while index < end and len(views) < max_messages:
        position, size, code = ENTRY.unpack_from(entries, index * ENTRY.size)
        if position < first_base or size <= 0 or position + size > readable:
            break
        if tag_codes is not None and code not in tag_codes:
            index += 1
            continue
        if views and total + size > max_bytes:
            break
        number, at = divmod(position - first_base, segment_bytes)
        buffer = buffers[number] if number < len(buffers) else None
        if buffer is None or at + size > segment_bytes:
            break
        view = buffer[at : at + size]
        if position < checked_below and not _entry_is_right(
            view, position, topic, queue_id, first_offset + index, code
        ):
            break
        views.append(view)
        total += size
        index += 1
    return index


def _entry_is_right(view: memoryview, position: int, topic: bytes, queue_id: int, offset: int, code: int) -> bool:
    spans = record.verify(view, 0, len(view), position)
    if isinstance(spans, str) or spans.total_size != len(view):
        return False
    head = layout.HEAD.unpack_from(view)
    if head[3] != queue_id or head[5] != offset or view[spans.topic : spans.topic_end] != topic:
        return False
    if topic == layout.SCHEDULE_TOPIC:
        return True  # the code is a due time
    tag = dict(split_properties(bytes(view[spans.properties : spans.properties_end]))).get(b"TAGS")
    return code == (tag_code(tag) if tag else 0)


if TYPE_CHECKING or ACCELERATED is None:
    collect = collect_readable
else:
    collect = ACCELERATED.collect


def read_queue(
    log: CommitLog,
    queue: ConsumeQueue,
    offset: int,
    *,
    readable: int,
    checked_below: int,
    max_messages: int,
    max_bytes: int,
    tag_codes: frozenset[int] | None,
) -> ReadResult:
    """Up to `max_messages` records from an offset on; at least one if there is one, even above `max_bytes`."""
    result = ReadResult(ReadStatus.FOUND, offset, queue.min_offset, queue.max_offset)
    if offset < queue.min_offset:
        result.status, result.next_offset = ReadStatus.TOO_SMALL, queue.min_offset
        return result
    if offset >= queue.max_offset:
        result.status = ReadStatus.AT_END if offset == queue.max_offset else ReadStatus.TOO_LARGE
        result.next_offset = queue.max_offset
        return result
    last = min(queue.max_offset, offset + MAX_ENTRIES_LOOKED_AT)
    at, fresh_checks = offset, 0
    while at < last and len(result.records) < max_messages:
        segment = queue.files.find(at * ENTRY.size)
        assert segment is not None, f"queue {queue.id} has no file for offset {at}"
        first = segment.base // ENTRY.size
        end = min(last, segment.end // ENTRY.size)
        is_found = at < queue.found_below  # an entry that was on disk may point anywhere, also at new records
        if is_found:
            end = min(end, queue.found_below)
            if tag_codes is not None:
                if not queue.is_checked(at):
                    if fresh_checks == MAX_FRESH_CHECKS:
                        break
                    fresh_checks += 1
                    _check_tags(log, queue, at, readable)
                end = min(end, at - at % CHECKED_ENTRIES + CHECKED_ENTRIES)
        reached = first + collect(
            segment.buffer,
            at - first,
            end - first,
            log.files.start,
            log.files.file_bytes,
            log.files.buffers,
            readable,
            readable if is_found else checked_below,
            queue.topic,
            queue.id.number,
            first,
            tag_codes,
            max_messages,
            max_bytes - sum(map(len, result.records)),
            result.records,
        )
        at = reached
        is_enough = len(result.records) >= max_messages
        if reached < end and not is_enough and not _maps_more(log, queue, reached, readable):
            if result.records:
                break
            at = _step_over(log, queue, reached, readable)
    result.next_offset = at
    result.status = ReadStatus.FOUND if result.records else ReadStatus.NO_MATCH
    return result


def _check_tags(log: CommitLog, queue: ConsumeQueue, offset: int, readable: int) -> None:
    """Compare the entries around an offset with their records, once since the start. Raises CorruptQueue.

    A filtered read believes the tag hashes: with a damaged one it would pass over a message without a look at it.
    """
    chunk = offset // CHECKED_ENTRIES
    at = max(chunk * CHECKED_ENTRIES, queue.min_offset)
    end = min((chunk + 1) * CHECKED_ENTRIES, queue.found_below)
    files = log.files
    while at < end:
        segment = queue.files.find(at * ENTRY.size)
        assert segment is not None, f"queue {queue.id} has no file for offset {at}"
        first = segment.base // ENTRY.size
        stop = min(end, segment.end // ENTRY.size)
        at = first + collect(
            segment.buffer, at - first, stop - first, files.start, files.file_bytes, files.buffers, readable, readable,
            queue.topic, queue.id.number, first, None, CHECKED_ENTRIES, 1 << 62, [],
        )  # fmt: skip
        if at < stop and not _maps_more(log, queue, at, readable):
            if _has_other_record(log, queue, at, readable):
                raise _damaged(queue, at)
            at += 1  # a blank, or damage that decides nothing here
    queue.checked(chunk)


def _has_other_record(log: CommitLog, queue: ConsumeQueue, offset: int, readable: int) -> bool:
    """Does an entry that is not right point to a whole record?"""
    entry = queue.entry(offset)
    segment = log.files.find(entry.position) if entry is not None and not entry.is_blank else None
    if entry is None or segment is None or entry.position >= readable:
        return False
    at = entry.position - segment.base
    return not isinstance(record.verify(segment.buffer, at, segment.size, entry.position), str)


def _maps_more(log: CommitLog, queue: ConsumeQueue, offset: int, readable: int) -> bool:
    """Did the read stop only because a segment was never looked at before? Then it is mapped now."""
    entry = queue.entry(offset)
    return entry is not None and entry.position < readable and log.files.map(entry.position)


def _step_over(log: CommitLog, queue: ConsumeQueue, offset: int, readable: int) -> int:
    """An entry that cannot be served and is the first in line: a blank is skipped, anything else is damage."""
    entry = queue.entry(offset)
    assert entry is not None
    if entry.is_blank:
        return offset + 1
    segment = log.files.find(entry.position)
    if segment is not None and entry.position < readable:
        at = entry.position - segment.base
        spans = record.spans_of(segment.buffer, at, segment.size)
        if not isinstance(spans, str) and layout.queue_offset_of(segment.buffer, at) == offset:
            log.record_at(entry.position, readable)  # the entry is right: raises the fault of the record
    raise _damaged(queue, offset)


def _damaged(queue: ConsumeQueue, offset: int) -> CorruptQueue:
    segment = queue.files.find(offset * ENTRY.size)
    assert segment is not None
    return CorruptQueue(
        segment.path,
        offset * ENTRY.size,
        f"the entry of offset {offset} does not match the log",
        "stop the broker and run `pyromq store recover --rebuild-queues` on the directory: nothing is lost",
    )
