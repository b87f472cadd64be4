"""The consume queues' entries, derived from the log alone: for checks of queues, and for their repair.

Records are passed in the log's order, from any one on. Their entries are made by the functions with which a broker
fills its queues, collected in chunks of one queue each, and passed to the subclass (`complete`). A record that does
not have the next offset of its queue is reported (`jump`): its meaning is not decided here.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from pyromq.records import layout, record
from pyromq.store.dispatcher import queue_code
from pyromq.store.queues.queue_cursor import ENTRY, QueueCursor, dispatch, queue_key
from pyromq.store.queues.queue_table import is_safe_topic

#: Entries of one queue that are gathered: a store may have thousands of queues.
QUEUE_CHUNK = 512


class DerivedQueue:
    """A chunk of the entries that the log asks for, of one queue. Its cursor knows which offsets they have."""

    def __init__(self, file_bytes: int) -> None:
        self.file_bytes = file_bytes
        self.expected = memoryview(bytearray(QUEUE_CHUNK * ENTRY.size))
        self.cursor = QueueCursor()
        #: The first offset that the log has a record for; -1: none.
        self.first = -1

    def aim(self, offset: int) -> None:
        """The next entries are from an offset on, and all in one file."""
        file_end = (offset * ENTRY.size // self.file_bytes + 1) * self.file_bytes // ENTRY.size
        limit = min(offset + QUEUE_CHUNK, file_end)
        self.cursor.point_at(self.expected, offset, limit)
        self.cursor.next_dispatch = offset

    def gathered(self) -> bytes:
        """The entries of this chunk: those of the offsets from `cursor.first` on."""
        return bytes(self.expected[: (self.cursor.next_dispatch - self.cursor.first) * ENTRY.size])


Queue = TypeVar("Queue", bound=DerivedQueue)


class QueueDeriver(Generic[Queue]):
    """Goes along the log. A subclass uses the entries."""

    def __init__(self, delays_ms: tuple[int, ...]) -> None:
        self._delays_ms = delays_ms
        self.queues: dict[bytes, Queue] = {}
        self._cursors: dict[bytes, QueueCursor] = {}

    # --- to be said --------------------------------------------------------------------------------------------------

    def new_queue(self, topic: bytes, number: int) -> Queue:
        """A queue that was not met before."""
        raise NotImplementedError

    def complete(self, queue: Queue) -> None:
        """Entries of a queue are there; others take their place."""
        raise NotImplementedError

    def jump(self, queue: Queue, offset: int, position: int) -> None:
        """Handle a jump over offsets of a queue: complete the present chunk, and begin one at the new offset."""
        raise NotImplementedError

    def in_no_queue(self, topic: bytes, number: int, offset: int, position: int) -> None:
        """A record that says a queue, or an offset, that cannot be."""

    # --- going along the log -----------------------------------------------------------------------------------------

    def take(self, buffer: memoryview, start: int, end: int) -> None:
        """Good records, from one boundary to another."""
        at = start
        while at < end:
            at = dispatch(buffer, at, end, self._cursors).offset
            if at < end:
                spans = record.spans_of(buffer, at, end)
                assert not isinstance(spans, str), spans
                self._take_one(buffer, at, spans)
                at += spans.total_size

    def _take_one(self, buffer: memoryview, at: int, spans: record.Spans) -> None:
        """Any record: a new queue, a full chunk, a delayed message, a half of a transaction."""
        _, _, _, queue_id, _, offset, position, flags, _ = layout.HEAD.unpack_from(buffer, at)
        if not layout.has_queue_offset(flags):
            return
        topic = bytes(buffer[spans.topic : spans.topic_end])
        if not is_safe_topic(topic) or queue_id < 0 or offset < 0:
            self.in_no_queue(topic, queue_id, offset, position)
            return
        queue = self.queue(topic, queue_id)
        cursor = queue.cursor
        if queue.first < 0:
            queue.first = offset
            queue.aim(offset)
        elif offset != cursor.next_dispatch:
            self.jump(queue, offset, position)
        elif offset >= cursor.limit:
            self.complete(queue)
            queue.aim(offset)
        (timestamp_ms,) = layout.STORED_AT.unpack_from(buffer, spans.store_timestamp_at)
        properties = bytes(buffer[spans.properties : spans.properties_end])
        cursor.put(position, spans.total_size, queue_code(topic, properties, timestamp_ms, self._delays_ms))

    def queue(self, topic: bytes, number: int) -> Queue:
        key = queue_key(topic, number)
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = self.new_queue(topic, number)
            self._cursors[key] = queue.cursor
        return queue
