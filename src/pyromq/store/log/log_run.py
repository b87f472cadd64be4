"""What comes next in the log: messages laid one behind the other, straight from where they were received.

`MessageStore.open_run` says where and under which rules; `end_turn` and `close_run` take over what was written. This is
the readable form of `_kernel.LogRun`. What it writes is what `record.encode` makes of the same message, to the byte; a
message that needs a closer look is not written, and the ordinary way takes it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyromq.records import layout
from pyromq.records.checksum import crc32
from pyromq.records.plain import PLAIN_HEAD, PlainRecord, Terms
from pyromq.records.record import crc_property, stored_crc
from pyromq.store.queues.queue_cursor import QueueCursor, queue_key

_MAX_PROPERTIES = layout.MAX_PROPERTIES - layout.CRC_PROPERTY_SIZE - 1
_POSITIVE = 0x7FFFFFFF
_NO_BUFFER = memoryview(b"")


class RecordPattern:
    """What many messages have in common in their records, worked out once."""

    __slots__ = (
        "fixed_bytes", "magic", "queue_id", "queue_key", "reconsume_times", "storage_flags", "store_host", "topic",
        "topic_name", "user_flag",
    )  # fmt: skip

    def __init__(
        self, topic: bytes, queue_id: int, user_flag: int, storage_flags: int, reconsume_times: int, store_host: bytes
    ) -> None:
        """Both hosts of the record are IPv4 addresses, and it belongs to no transaction."""
        assert len(store_host) == layout.HOST_V4
        assert not storage_flags & layout.FLAG_TRANSACTION_MASK
        is_short = len(topic) <= layout.MAX_TOPIC_V1
        self.magic = layout.MAGIC_V1 if is_short else layout.MAGIC_V2
        self.queue_id = queue_id
        self.queue_key = queue_key(topic, queue_id)
        self.user_flag = user_flag
        self.storage_flags = storage_flags & ~(layout.FLAG_BORN_HOST_V6 | layout.FLAG_STORE_HOST_V6)
        self.reconsume_times = reconsume_times
        self.store_host = store_host
        self.topic_name = topic
        #: As the record has it, behind its length.
        self.topic = len(topic).to_bytes(1 if is_short else 2, "big") + topic
        #: All of a record but its body and its properties.
        self.fixed_bytes = PLAIN_HEAD.size + len(self.topic) + 2


class ReadableLogRun:
    """The writing end of the log while a run is open."""

    #: The compiled form can bring what it wrote to the disk by itself.
    synced_to = -1
    sync_count = 0
    sync_seconds = 0.0
    failure = 0

    def __init__(self) -> None:
        self.is_open = False
        #: Somebody waits for a queue that a message was written to.
        self.is_awaited = False
        #: The log's position at the beginning of the buffer, and where the next message goes in it.
        self.base = self.offset = 0
        self.now_ms = self.count = 0
        #: What was written and not yet taken over, for whoever would have to read it again.
        self.records: list[PlainRecord] = []
        self._view = _NO_BUFFER
        self._cursors: Mapping[bytes, QueueCursor] = {}

    def open(
        self,
        view: memoryview,
        base: int,
        offset: int,
        now_ms: int,
        with_crc: bool,
        max_body: int,
        cursors: Mapping[bytes, QueueCursor],
    ) -> None:
        if not 0 <= offset <= len(view):
            raise IndexError("append outside of the buffer")
        self._view = view
        self._room = len(view) - layout.BLANK_RESERVE
        self.now_ms = now_ms
        self._with_crc = with_crc
        self._crc_bytes = layout.CRC_PROPERTY_SIZE if with_crc else 0
        self._max_body = max_body
        self._cursors = cursors
        self.base = base
        self.offset = offset
        self.count = 0
        self.records = []
        self.is_awaited = False
        self.is_open = True

    def renew(self, now_ms: int, least_ms: int) -> None:
        """Time has gone on; where the clock was set back, what is stored has no earlier time than what was before."""
        self.now_ms = max(now_ms, least_ms)

    def go_on(self, room: int) -> None:
        """What was written is taken over; what comes next goes to the buffer's beginning. The log has so much room."""
        self.base, self.offset = self.base + self.offset, 0
        self._room = min(room, len(self._view)) - layout.BLANK_RESERVE
        self.records = []

    def close(self) -> None:
        self._view, self._cursors = _NO_BUFFER, {}
        self.is_open = False

    def append(
        self,
        pattern: RecordPattern,
        born_ms: int,
        born_host: bytes,
        body: memoryview,
        properties: bytes,
        terms: Terms,
    ) -> tuple[int, int] | None:
        """Write one message: its position and its offset in the queue; None when the ordinary way must take it.

        The properties end with a separator, and say what `terms` says.
        """
        cursor = self._cursors.get(pattern.queue_key)
        body_size, properties_size, offset = len(body), len(properties), self.offset
        end = offset + pattern.fixed_bytes + body_size + properties_size + self._crc_bytes
        if cursor is None or body_size > self._max_body or properties_size > _MAX_PROPERTIES or end > self._room:
            return None
        if not self._with_crc and stored_crc(memoryview(properties), 0, properties_size) is not None:
            return None
        position, queue_offset = self.base + offset, cursor.next_append
        next_append = queue_offset + 1
        head = PLAIN_HEAD.pack(
            end - offset, pattern.magic, crc32(body, 0) & _POSITIVE, pattern.queue_id, pattern.user_flag,
            queue_offset, position, pattern.storage_flags, born_ms, born_host, self.now_ms, pattern.store_host,
            pattern.reconsume_times, 0, body_size,
        )  # fmt: skip
        properties_size += self._crc_bytes
        record = b"".join((head, body, pattern.topic, properties_size.to_bytes(2, "big"), properties))
        if self._with_crc:
            record += crc_property(crc32(record, 0) & _POSITIVE)
        self._view[offset:end] = record
        self.records.append(
            (position, end - offset, pattern.queue_key, queue_offset, self.now_ms, pattern.topic_name, terms)
        )
        # Nothing can fail any more: whatever did before has left the log and the queue as they were.
        self.offset, cursor.next_append = end, next_append
        self.count += 1
        self.is_awaited = self.is_awaited or cursor.awaited is not None
        return position, queue_offset
