"""The commit log: every message of every topic, one behind the other, in segments of fixed length.

Format: records (see `records.layout`), then in each full segment a blank that fills the rest. A record never crosses
a segment's end, so every segment begins with one.

Crash policy: appended bytes are in the page cache (or, with the transient pool, in this process's memory until it
is committed) and becomes durable when the flusher syncs it. `log_recovery` finds the end again and cuts a torn tail.

One writer, no locks: only the thread that owns the store may call this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pyromq import accelerated
from pyromq.config import StoreConfig
from pyromq.errors import CorruptLog, DiskFull, IllegalMessage
from pyromq.files.platform import what_to_do
from pyromq.model.ids import LogPosition
from pyromq.model.message import AppendedAt, Draft
from pyromq.records import layout, record
from pyromq.store.log.allocator import Allocator
from pyromq.store.log.segmented_file import Segment, SegmentedFile
from pyromq.store.log.transient_pool import TransientPool
from pyromq.store.queues.queue_cursor import QueueCursor, append_drafts, append_drafts_readable, queue_key

ACCELERATED = accelerated.load("append_batch")


def look_at_all(drafts: Sequence[Draft], start: int, max_body: int) -> int:
    """The readable form of `first_unusual`: every draft is checked in full."""
    return start


if TYPE_CHECKING or ACCELERATED is None:
    first_unusual = look_at_all
else:
    first_unusual = ACCELERATED.first_unusual

#: More than everything in a record but its body, and the blank behind it, can ever need.
_MOST_AROUND_BODY = 34_000

#: Memory of an append batch: more than all connections send in one turn of the loop.
BATCH_BYTES = 4 << 20


class BatchWriter(Protocol):
    """Appends messages to memory one by one, as `record.encode` would encode them, and counts their queues' offsets.

    A message that it does not append, for lack of room or because it needs a decision, changes nothing.
    """

    #: Position in the log of the memory's first byte, and the bytes that it has appended from there on.
    @property
    def base(self) -> int: ...
    @property
    def offset(self) -> int: ...

    #: Messages since `open`.
    @property
    def count(self) -> int: ...

    #: Store time of the next message.
    @property
    def now_ms(self) -> int: ...

    #: A long poll waits for one of the messages.
    @property
    def is_awaited(self) -> bool: ...

    def open(
        self, view: memoryview, base: int, offset: int, now_ms: int, with_crc: bool, max_body: int,
        cursors: dict[bytes, Any], /,
    ) -> None: ...  # fmt: skip

    def renew(self, now_ms: int, /) -> None: ...

    def go_on(self, room: int, /) -> None:
        """Begin again at the memory's start: everything before is in the log, which has `room` bytes left."""

    def close(self) -> None: ...


class CommitLog:
    """The writing side, and access to the bytes by position."""

    def __init__(
        self, config: StoreConfig, files: SegmentedFile, allocator: Allocator, pool: TransientPool | None
    ) -> None:
        self._max_body = config.max_body_bytes
        # A larger body may not fit in a segment together with the largest topic and properties: look closely.
        self._max_plain_body = min(self._max_body, files.file_bytes - _MOST_AROUND_BODY)
        self._with_crc = config.record_crc
        self._allocator = allocator
        self._pool = pool
        self._current: Segment | None = None
        self._buffer = memoryview(b"")
        self._writer: BatchWriter | None = None
        #: Memory of an append batch. One write for many messages costs less than to touch the mapped pages: each faults
        #: once, and again after each sync.
        self._batch_memory = memoryview(b"")
        self.files = files
        #: Behind the last appended byte.
        self.end = LogPosition(0)
        #: Store time of the last record: never goes back, so that a queue can be searched by time.
        self.last_timestamp_ms = 0

    @property
    def start(self) -> LogPosition:
        """The oldest position that is still there; of a log without bytes, where it is to begin."""
        return LogPosition(self.files.start) if self.files.segments else self.end

    def start_writing_at(self, position: int, last_timestamp_ms: int) -> None:
        """Recovery says where the log ends."""
        self.end = LogPosition(position)
        self.last_timestamp_ms = last_timestamp_ms
        segment = self.files.find(position)
        if segment is not None:
            self._current, self._buffer = segment, self._buffer_of(segment, position - segment.base)

    def check(self, drafts: list[Draft]) -> None:
        """Raise IllegalMessage for the first draft that cannot be stored; nothing is appended then."""
        at = 0
        while (at := first_unusual(drafts, at, self._max_plain_body)) < len(drafts):
            draft = drafts[at]
            record.check_draft(draft, self._max_body)
            size = record.encoded_size(draft, self._with_crc)
            if size + layout.BLANK_RESERVE > self.files.file_bytes:
                raise IllegalMessage(f"the record of {size} bytes does not fit in a segment of {self.files.file_bytes}")
            at += 1

    def make_room(self, drafts: list[Draft]) -> None:
        """See that all of these go into one segment, so that no full disk comes between them.

        Raises DiskFull, and IllegalMessage rather than begin a segment for what cannot be stored.
        """
        room = 0 if self._current is None else self._current.end - self.end - layout.BLANK_RESERVE
        if room >= len(drafts) * (self._max_body + _MOST_AROUND_BODY):
            return
        if room < sum([record.encoded_size(draft, self._with_crc) for draft in drafts]):
            self.check(drafts)
            self._roll()

    def append(
        self, drafts: list[Draft], cursors: dict[bytes, QueueCursor], now_ms: int, receipts: list[AppendedAt]
    ) -> int:
        """Append until a draft's queue is unknown; how many were appended. Raises DiskFull between two drafts.

        `receipts` gets one entry per appended draft, also when the call ends in an error.
        """
        now_ms = self.last_timestamp_ms = max(now_ms, self.last_timestamp_ms)
        done_before = len(receipts)
        try:
            taken = self._fill(drafts, cursors, now_ms, receipts)
        except BaseException:
            if len(receipts) > done_before:
                self._believe(drafts[len(receipts) - done_before - 1], receipts[-1], cursors)
            raise
        if self._current is not None:
            self._allocator.look_ahead(self._current, self.end - self._current.base)
        return taken

    def _fill(
        self, drafts: list[Draft], cursors: dict[bytes, QueueCursor], now_ms: int, receipts: list[AppendedAt]
    ) -> int:
        taken = 0
        while taken < len(drafts):
            segment = self._current
            if segment is None:
                self._roll()
                continue
            arguments = (cursors, now_ms, self._with_crc, self._max_body, receipts)
            offset = self.end - segment.base
            filled = append_drafts(self._buffer, offset, segment.base, drafts, taken, *arguments)
            if filled.taken == taken and not filled.is_full:
                filled = append_drafts_readable(
                    self._buffer, offset, segment.base, drafts[: taken + 1], taken, *arguments
                )
                if filled.taken == taken and not filled.is_full:
                    break
            taken = filled.taken
            self.end = LogPosition(segment.base + filled.offset)
            if filled.is_full:
                self._roll()
        return taken

    def begin_batch(self, writer: BatchWriter, cursors: dict[bytes, Any], now_ms: int) -> bool:
        """Let a writer append messages to memory for the end of the log; False if there is no segment yet."""
        segment = self._current
        if segment is None:
            return False
        if self._pool is None and not self._batch_memory:
            self._batch_memory = memoryview(bytearray(BATCH_BYTES))
        self.last_timestamp_ms = max(now_ms, self.last_timestamp_ms)
        offset = self.end - segment.base
        view = self._batch_memory[: segment.size - offset] if self._pool is None else self._buffer[offset:]
        writer.open(view, self.end, 0, self.last_timestamp_ms, self._with_crc, self._max_body, cursors)
        self._writer = writer
        return True

    def renew_batch(self, writer: BatchWriter, now_ms: int) -> None:
        """Set the store time of the messages that follow. It never goes back."""
        self.last_timestamp_ms = max(now_ms, self.last_timestamp_ms)
        writer.renew(self.last_timestamp_ms)

    @property
    def written_to(self) -> int:
        """Return the position after the last message, those of an open batch included."""
        writer = self._writer
        return self.end if writer is None else writer.base + writer.offset

    def commit_batch(self, writer: BatchWriter) -> None:
        """Write the messages of a batch to the log's file. Raises OSError: drop the batch then."""
        segment, end = self._current, self.written_to
        assert segment is not None
        if end == self.end:
            return
        if self._pool is None:
            segment.file.write_at(writer.base - segment.base, self._batch_memory[: writer.offset])
        self.end = LogPosition(end)
        if self._pool is None:
            writer.go_on(segment.end - end)

    def end_batch(self, writer: BatchWriter) -> None:
        """Commit a batch, and take no more of its writer. Raises OSError."""
        try:
            self.commit_batch(writer)
        finally:
            self.drop_batch(writer)
        assert self._current is not None
        self._allocator.look_ahead(self._current, self.end - self._current.base, warms=False)

    def drop_batch(self, writer: BatchWriter) -> None:
        """Take no more of a batch's writer; its uncommitted messages are lost."""
        writer.close()
        self._writer = None

    def append_copy(self, data: memoryview, last_timestamp_ms: int) -> None:
        """Append bytes of another log as they are: whole records, checked before, and what ends its segments.

        Raises DiskFull, OSError: bytes written before the error count, up to `end`.
        """
        self.last_timestamp_ms = max(last_timestamp_ms, self.last_timestamp_ms)
        while data:
            segment = self._current
            if segment is None or self.end == segment.end:
                segment = self._enter_next()
            part = data[: segment.end - self.end]
            offset = self.end - segment.base
            if self._pool is None:
                segment.file.write_at(offset, part)
            else:  # it brings everything that it stands for into the page cache, and this with it
                self._buffer[offset : offset + len(part)] = part
            self.end = LogPosition(self.end + len(part))
            data = data[len(part) :]
            self._allocator.look_ahead(segment, self.end - segment.base, warms=False)

    def begin_copy_at(self, position: int) -> None:
        """Begin an empty log at another position. Removes a file without records, left by a start, because the files of
        a log have no gaps. Raises OSError."""
        assert self.end in (0, self.start) or not self.files.segments, "only an empty log can begin elsewhere"
        self._allocator.discard()
        self._current, self._buffer = None, memoryview(b"")
        self.files.remove_from(0)
        self.start_writing_at(position, 0)

    def end_copying(self) -> None:
        """Switch from copied bytes to messages. If the copy ends with its segment, they begin in the next one."""
        if self._current is not None and self.end == self._current.end:
            self._current.file.let_pages_grow()
            self._current, self._buffer = None, memoryview(b"")

    def _enter_next(self) -> Segment:
        """The segment at whose beginning the log ends. The one before has its blank already, if there is one."""
        following = self.files.find(self.end) or self._allocator.take(self.end)
        buffer = self._buffer_of(following, 0)
        if self._current is not None:
            self._current.file.let_pages_grow()
        if following.base >= self.files.end:
            self.files.add(following)
        self._current, self._buffer = following, buffer
        return following

    def _believe(self, draft: Draft, receipt: AppendedAt, cursors: dict[bytes, QueueCursor]) -> None:
        """Count a message with a receipt after an error in the middle of a batch: the next message follows it."""
        self.end = max(self.end, receipt.end)
        if layout.has_queue_offset(draft.storage_flags):
            cursors[queue_key(draft.topic, draft.queue_id)].next_append = receipt.queue_offset + 1

    def _roll(self) -> None:
        """Go on in the next segment. The current one is closed only when everything for the next is there."""
        current = self._current
        base = current.end if current is not None else self.end
        following = self.files.find(base) or self._allocator.take(base)
        buffer = self._buffer_of(following, 0)
        if current is not None:
            offset = self.end - current.base
            layout.BLANK.pack_into(self._buffer, offset, current.size - offset, layout.MAGIC_BLANK)
            current.file.let_pages_grow()
        if following.base >= self.files.end:
            self.files.add(following)
        self.end = LogPosition(base)
        self._current, self._buffer = following, buffer

    def _buffer_of(self, segment: Segment, offset: int) -> memoryview:
        """Return the buffer for the records of a segment. Raises DiskFull when there is no memory for it."""
        segment.file.keep_pages_small()
        if self._pool is None:
            return segment.buffer
        try:
            return self._pool.attach(segment, offset)
        except OSError as error:
            raise DiskFull(f"there is no memory to gather records in: {what_to_do(error)}") from error

    def record_at(self, position: int, readable: int) -> memoryview:
        """The bytes of the record that begins at a position, checked to be one. Raises CorruptLog if they are not."""
        segment = self.files.find(position)
        if segment is None:
            raise CorruptLog(self.files.directory, position, "no segment holds this byte", "it was never written")
        at = position - segment.base
        limit = min(segment.size, readable - segment.base)
        spans = record.verify(segment.buffer, at, limit, position)
        if isinstance(spans, str):
            raise CorruptLog(segment.path, position, spans, "no message begins there, or it is damaged")
        return segment.buffer[at : at + spans.total_size]

    def close(self) -> None:
        self._buffer = memoryview(b"")
        self._current = None
        self._allocator.discard()
        self.files.close()
