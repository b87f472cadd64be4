"""Follows the log and derives from it: the consume queues, and behind them the key index.

Driven only by "the log is readable up to P". Both can be thrown away and built again by starting it further back.
Queue offsets come from the records alone, and are asserted to be gap-free as they are written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

from pyromq.config import StoreConfig, parse_delay_levels
from pyromq.errors import CorruptLog
from pyromq.records import layout, record
from pyromq.records.java_hash import tag_code
from pyromq.records.properties import split_properties
from pyromq.store.key_index import KeyIndex
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.segmented_file import Segment
from pyromq.store.queues.consume_queue import ConsumeQueue, QueueEntry
from pyromq.store.queues.queue_cursor import dispatch
from pyromq.store.queues.queue_table import QueueTable, is_safe_topic
from pyromq.store.watermarks import Watermark, Watermarks

log = logging.getLogger("pyromq.store")

#: A delay level of more digits is too large anyway, and Python refuses to read one of thousands.
_LEVEL_DIGITS = 10

#: A queue that another writer left with a hole is filled with blanks, up to this many: a larger one is nonsense.
MAX_GAP = 1_000_000

#: Take the records in `[from, to)` of a buffer; where it stopped.
TakeSpan = Callable[[memoryview, int, int], int]


def queue_code(topic: bytes, properties: bytes, store_timestamp_ms: int, delays_ms: tuple[int, ...]) -> int:
    """Return the third field of a record's entry: the tag's hash, or the due time of a delayed message."""
    found = dict(split_properties(properties))
    level = found.get(b"DELAY", b"")
    if topic == layout.SCHEDULE_TOPIC and level.isdigit() and (number := int(level[:_LEVEL_DIGITS])) > 0:
        return store_timestamp_ms + delays_ms[min(number, len(delays_ms)) - 1]
    tag = found.get(b"TAGS")
    return tag_code(tag) if tag else 0


class Fit(Enum):
    """The relation of a record to a queue whose next offset is not the record's."""

    NEXT = "its entry is the next one now"
    GAP = "its entry is the next one now, and those of offsets before it are missing"
    NOWHERE = "there is nothing to write: its entry is there, or cannot be"


def line_up(queue: ConsumeQueue, offset: int, entry: QueueEntry) -> Fit:
    """Make a queue ready for an entry that is not its next: cut it back, or go on behind a gap. Raises OSError."""
    if not queue.files.segments:
        queue.start_at(offset)
        return Fit.GAP
    if offset < queue.max_offset:
        if queue.entry(offset) != entry:
            queue.cut(offset)
            return Fit.NEXT
        if not _is_last_topic(queue, entry.position):
            queue.cut(offset + 1)
        return Fit.NOWHERE
    if offset - queue.max_offset > MAX_GAP:
        log.error("the message at position %d is in no queue: %s has no offset %d", entry.position, queue.id, offset)
        return Fit.NOWHERE
    log.error(
        "queue %s has no messages from offset %d to %d: the log goes on at %d (position %d)",
        queue.id, queue.max_offset, offset - 1, offset, entry.position,
    )  # fmt: skip
    queue.skip_to(offset)
    return Fit.GAP


def _is_last_topic(queue: ConsumeQueue, position: int) -> bool:
    """Return False if the entries after this one belong to a removed topic. Positions grow along a queue: if its last
    entry is older than one of its records, the topic was removed and created again."""
    last = queue.entry(queue.max_offset - 1)
    return last is None or last.is_blank or last.position >= position


class Dispatcher:
    """Moves `dispatched` and `indexed` towards `readable`, as far as readers may see."""

    def __init__(
        self,
        config: StoreConfig,
        commit_log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        marks: Watermarks,
    ) -> None:
        self._delays_ms = parse_delay_levels(config.delay_levels)
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._marks = marks
        #: Store time of the last record that was dispatched.
        self.last_timestamp_ms = 0
        #: Recovery may meet records that are in their queue already, and gaps that another writer left.
        self.recovering = False
        #: Queues that lacked entries which the log says they had.
        self.gaps = 0

    # --- queues ------------------------------------------------------------------------------------------------------

    def dispatch(self, max_bytes: int | None = None) -> bool:
        """Put visible records into their queues; True when nothing is left. Raises OSError when the disk is full."""
        return self._follow(self._marks.dispatched, self._dispatch_span, max_bytes)

    def _dispatch_span(self, buffer: memoryview, start: int, end: int) -> int:
        """Dispatch until the end, or a blank. Raises OSError only for the first record: earlier ones count as done."""
        at = start
        while at < end:
            done = dispatch(buffer, at, end, self._queues.cursors)
            if done.records:
                self.last_timestamp_ms = done.last_timestamp_ms
            at = done.offset
            if at >= end:
                break
            spans = record.spans_of(buffer, at, end)
            if isinstance(spans, str):
                break
            try:
                self.dispatch_one(buffer, at, spans)
            except OSError:
                if at == start:
                    raise
                break
            at += spans.total_size
        return at

    def dispatch_one(self, buffer: memoryview, at: int, spans: record.Spans) -> None:
        """Any record: a new queue, a full file, a delayed message, a half of a transaction."""
        _, _, _, queue_id, _, queue_offset, position, flags, _ = layout.HEAD.unpack_from(buffer, at)
        (timestamp_ms,) = layout.STORED_AT.unpack_from(buffer, spans.store_timestamp_at)
        self.last_timestamp_ms = timestamp_ms
        if not layout.has_queue_offset(flags):
            return
        topic = bytes(buffer[spans.topic : spans.topic_end])
        if not is_safe_topic(topic) or queue_id < 0 or queue_offset < 0:
            log.error(
                "the message at position %d is in no queue: there is no offset %d in queue %d of topic %r",
                position, queue_offset, queue_id, topic,
            )  # fmt: skip
            return
        queue = self._queues.get_or_create(topic, queue_id)
        properties = bytes(buffer[spans.properties : spans.properties_end])
        code = queue_code(topic, properties, timestamp_ms, self._delays_ms)
        self._put(queue, queue_offset, position, spans.total_size, code)

    def _put(self, queue: ConsumeQueue, offset: int, position: int, size: int, code: int) -> None:
        cursor = queue.cursor
        if offset != cursor.next_dispatch:
            if not self._line_up(queue, offset, QueueEntry(position, size, code)):
                return
            cursor = queue.cursor
        if cursor.next_dispatch >= cursor.limit:
            queue.make_room()
        cursor.put(position, size, code)
        cursor.next_append = max(cursor.next_append, cursor.next_dispatch)

    def _line_up(self, queue: ConsumeQueue, offset: int, entry: QueueEntry) -> bool:
        """A record that is not the next of its queue: only recovery meets one. False: it is there already."""
        position = entry.position
        assert self.recovering, f"queue {queue.id} expects offset {queue.max_offset}, position {position} has {offset}"
        fit = line_up(queue, offset, entry)
        self.gaps += fit is Fit.GAP
        return fit in (Fit.NEXT, Fit.GAP)

    # --- key index ---------------------------------------------------------------------------------------------------

    def index(self, max_bytes: int | None = None) -> bool:
        """Put visible records into the key index; True when nothing is left. Raises OSError."""
        if self._index is None:
            self._marks.indexed.advance(max(self._marks.visible, self._marks.indexed.value))
            return True
        return self._follow(self._marks.indexed, self._index.index_span, max_bytes)

    # --- walking the log ---------------------------------------------------------------------------------------------

    def _follow(self, mark: Watermark, take: TakeSpan, max_bytes: int | None) -> bool:
        """Pass the records between a mark and the visible end to `take`, segment by segment, and move the mark."""
        goal = self._marks.visible
        soon = goal if max_bytes is None else min(goal, mark.value + max_bytes)
        while mark.value < soon:
            segment = self._log.files.find(mark.value)
            assert segment is not None, f"no segment holds position {mark.value}"
            at = mark.value - segment.base
            reached = take(segment.buffer, at, min(soon, segment.end) - segment.base)
            if reached == at:
                # Nothing was taken: a blank, or a record that is longer than the slice.
                magic = layout.BLANK.unpack_from(segment.buffer, at)[1]
                if magic == layout.MAGIC_BLANK:
                    reached = segment.size
                else:
                    end = self._record_end(segment, at)
                    if segment.base + end > goal:
                        return True  # only its beginning may be shown
                    reached = take(segment.buffer, at, end)
                    assert reached > at, f"position {mark.value} of the log was not taken"
            mark.advance(segment.base + reached)
        return mark.value >= goal

    @staticmethod
    def _record_end(segment: Segment, at: int) -> int:
        """Behind the record there. Raises CorruptLog when there is none: old data is not scanned at each start."""
        spans = record.spans_of(segment.buffer, at, segment.size)
        if isinstance(spans, str):
            position = segment.base + at
            raise CorruptLog(
                segment.path, position, f"no record ({spans})", "restore the file from a replica or a backup"
            )
        return at + spans.total_size
