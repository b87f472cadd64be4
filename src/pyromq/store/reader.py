"""The reading half of the store's door: by queue offset, position, message id, key and time.

Answers are views of the log: they copy nothing, and stay valid while they are referenced. A reader never sees past
`readable`. The `…_soon` forms have data that left the page cache fetched by a thread first, so that the loop never
waits for a disk.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from pyromq.errors import CorruptLog, CorruptQueue, OffsetNotFound, QueueRebuilding
from pyromq.model.message import StoredMessage
from pyromq.records import layout, record
from pyromq.records.java_hash import java_hash
from pyromq.records.message_id import decode_message_id
from pyromq.store.key_index import KeyIndex, keys_of
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.page_cache import Warmth
from pyromq.store.log.segmented_file import Segment
from pyromq.store.queues.consume_queue import CHECKED_ENTRIES, ConsumeQueue, QueueEntry
from pyromq.store.queues.queue_cursor import ENTRY
from pyromq.store.queues.queue_reader import MAX_ENTRIES_LOOKED_AT, MAX_FRESH_CHECKS, ReadResult, ReadStatus, read_queue
from pyromq.store.queues.queue_table import QueueTable
from pyromq.store.recovery import log_recovery
from pyromq.store.watermarks import Watermarks

#: Data this close to the end of the log is taken to be in memory without asking the system.
HOT_BYTES = 256 << 20
#: More than one read could ever return.
MAX_READ = 1 << 31
#: RocketMQ's limit for one query by key.
MAX_QUERY_RESULTS = 64
#: Entries of the index that one query looks at: keys can be made to share a hash.
MAX_CANDIDATES = 4096
#: Bytes fetched from a cold disk for a record of unknown size.
COLD_LOOK_BYTES = 64 * 1024


class StoreReader:
    """The queries of a store. `MessageStore` is one, and adds the writing half."""

    log: CommitLog
    queues: QueueTable
    index: KeyIndex | None
    marks: Watermarks
    warmth: Warmth
    #: Records below this position were found on disk: they are checked when they are read.
    found_below: int

    def _check_open(self) -> None:
        """Raise StoreClosed when there is nothing to read from."""
        raise NotImplementedError

    def _check_readable(self, queue: ConsumeQueue) -> None:
        """Raise QueueRebuilding while a damaged queue is derived again."""
        raise NotImplementedError

    def _found_damage(self, queue: ConsumeQueue, damage: CorruptQueue) -> None:
        """See that a damaged queue is derived again. Raises QueueRebuilding; or the damage, if that has not helped."""
        raise NotImplementedError

    async def _wait_readable(self, queue: ConsumeQueue) -> None:
        """Return once a damaged queue was derived again."""
        raise NotImplementedError

    def _try_dispatch(self) -> bool:
        """Bring the queues up to date; False when that cannot be done now."""
        raise NotImplementedError

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = 256 * 1024,
        tags: Iterable[str] | None = None,
        tag_codes: frozenset[int] | None = None,
    ) -> ReadResult:
        """Messages of a queue from an offset on, as views of the log; with `tags` (or their hashes as `tag_codes`),
        those whose tag may be one of them.

        Tags are compared by hash: look at the tag itself before you rely on it. Raises CorruptLog; QueueRebuilding
        while a damaged queue is derived again, and CorruptQueue if that has not helped.
        """
        self._check_open()
        queue = self.queue(topic, queue_id)
        if queue is None:
            return ReadResult(ReadStatus.NO_QUEUE, 0, 0, 0)
        max_messages, max_bytes = min(max(max_messages, 1), MAX_READ), min(max(max_bytes, 0), MAX_READ)
        codes = tag_codes if tags is None else frozenset(map(java_hash, tags))
        self._check_readable(queue)
        try:
            return self._read(queue, offset, max_messages, max_bytes, codes)
        except CorruptQueue as damage:
            self._found_damage(queue, damage)
            return self._read(queue, offset, max_messages, max_bytes, codes)

    def _read(
        self, queue: ConsumeQueue, offset: int, max_messages: int, max_bytes: int, tag_codes: frozenset[int] | None
    ) -> ReadResult:
        return read_queue(
            self.log,
            queue,
            offset,
            readable=self.marks.written.value,
            checked_below=self.found_below,
            max_messages=max_messages,
            max_bytes=max_bytes,
            tag_codes=tag_codes,
        )

    async def read_soon(self, topic: str, queue_id: int, offset: int, **limits: Any) -> ReadResult:
        """Like `read`, but data that has left the page cache is fetched by a thread first: the loop never waits. Waits
        while a damaged queue is derived again."""
        queue = self.queue(topic, queue_id)
        if queue is not None:
            await self._wait_readable(queue)
        try:
            return await self._read_soon(topic, queue_id, offset, **limits)
        except QueueRebuilding:
            if queue is not None:
                await self._wait_readable(queue)
            return await self._read_soon(topic, queue_id, offset, **limits)

    async def _read_soon(self, topic: str, queue_id: int, offset: int, **limits: Any) -> ReadResult:
        for segment, start, end in merged(self._cold_spans(topic, queue_id, offset, **limits)):
            await asyncio.to_thread(segment.file.read_at, start, end - start)
        return self.read(topic, queue_id, offset, **limits)

    def is_cold(self, topic: str, queue_id: int, offset: int) -> bool:
        """May a read from this offset have to wait for the disk? Then `read_soon` is the way."""
        hot_from = self.hot_from()
        if hot_from <= self.log.files.start:
            return False
        queue = self.queue(topic, queue_id)
        entry = queue.entry(offset) if queue is not None and queue.min_offset <= offset < queue.max_offset else None
        if entry is None or entry.position >= hot_from:
            return False
        return any(True for _ in self._cold_span(entry.position, max(entry.size, COLD_LOOK_BYTES)))

    def warm_stretch(self, position: int) -> tuple[int, int] | None:
        """A part of the log around a position that needs neither waiting nor checking; None: take a closer look."""
        if position >= self.hot_from():
            return self.hot_from(), self.marks.written.value
        if position < self.found_below:
            return None
        return self.warmth.stretch(position)

    def hot_from(self) -> int:
        """Return the position from which records are in memory: recent ones of this process, none found on disk."""
        return max(self.marks.written.value - HOT_BYTES, self.found_below)

    def _cold_spans(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = 256 * 1024,
        tag_codes: frozenset[int] | None = None,
        **_: Any,
    ) -> Iterator[tuple[Segment, int, int]]:
        """Return the nonresident spans that a read is about to touch, record by record."""
        queue = self.queue(topic, queue_id)
        if queue is None or not queue.min_offset <= offset:
            return
        hot_from = self.hot_from()
        if tag_codes is not None:
            yield from self._unchecked_spans(queue, offset, hot_from)
        for position, size, code in _entries(queue, offset, min(offset + MAX_ENTRIES_LOOKED_AT, queue.max_offset)):
            if position >= hot_from or max_messages <= 0 or max_bytes < 0:
                return
            if tag_codes is None or code in tag_codes:
                max_messages -= 1
                max_bytes -= size
                yield from self._cold_span(position, size)

    def _unchecked_spans(self, queue: ConsumeQueue, offset: int, hot_from: int) -> Iterator[tuple[Segment, int, int]]:
        """Return the spans that a filtered read compares with the log before it skips entries."""
        start = max(offset - offset % CHECKED_ENTRIES, queue.min_offset)
        for chunk_at in range(
            start - start % CHECKED_ENTRIES, start + MAX_FRESH_CHECKS * CHECKED_ENTRIES, CHECKED_ENTRIES
        ):
            if not queue.is_checked(chunk_at):
                end = min(chunk_at + CHECKED_ENTRIES, queue.found_below)
                for position, size, _ in _entries(queue, max(chunk_at, queue.min_offset), end):
                    if position < hot_from:
                        yield from self._cold_span(position, size)

    def _cold_span(self, position: int, size: int) -> Iterator[tuple[Segment, int, int]]:
        segment = self.log.files.find(position)
        if segment is not None:
            start = position - segment.base
            end = min(start + max(size, 0), segment.size)
            if not segment.file.is_resident(start, end):
                yield segment, start, end

    async def message_soon(self, position: int) -> memoryview:
        """Like `message_at`, with cold data fetched by a thread first."""
        for segment, start, end in self._cold_span(position, COLD_LOOK_BYTES):
            await asyncio.to_thread(segment.file.read_at, start, end - start)
        return self.message_at(position)

    async def query_soon(self, topic: str, key: str, **limits: Any) -> list[memoryview]:
        """Like `query`, with cold data fetched by a thread first."""
        for position in self._candidates(topic, key, **limits):
            for segment, start, end in self._cold_span(position, COLD_LOOK_BYTES):
                await asyncio.to_thread(segment.file.read_at, start, end - start)
        return self.query(topic, key, **limits)

    def message_at(self, position: int) -> memoryview:
        """The record that begins at a position. Raises OffsetNotFound when no message does."""
        self._check_open()
        try:
            data = self.log.record_at(position, self.marks.written.value)
        except CorruptLog as error:
            raise OffsetNotFound(f"no message begins at position {position}: {error.what}") from None
        if not self._is_message(data, position):
            raise OffsetNotFound(f"no message begins at position {position}: what looks like one is inside another")
        return data

    def _is_message(self, data: memoryview, position: int) -> bool:
        """Bytes inside a body can look like a record; a real one is in its queue."""
        spans = record.spans_of(data, 0, len(data))
        assert not isinstance(spans, str)
        if not layout.has_queue_offset(spans.storage_flags):
            # A half of a transaction is in no queue. Following the log to it takes longer, and they are few.
            return log_recovery.is_boundary(self.log.files, position)
        if position >= self.marks.dispatched.value and not self._try_dispatch():
            return False
        head = layout.HEAD.unpack_from(data)
        queue = self.queues.get(bytes(data[spans.topic : spans.topic_end]), head[3])
        if queue is None:
            return False
        entry = queue.entry(head[5])
        if entry is not None and entry.position == position:
            return True
        is_there = entry is not None and head[5] < queue.max_offset and not entry.is_blank
        if queue.is_suspect or (is_there and not self._is_in_log(queue, head[5], entry)):
            return log_recovery.is_boundary(self.log.files, position)  # the queue is damaged, and tells nothing
        return False

    def _is_in_log(self, queue: ConsumeQueue, offset: int, entry: QueueEntry | None) -> bool:
        return entry is not None and log_recovery.entry_matches(self.log.files, queue, offset, entry)

    def message_by_id(self, message_id: str) -> memoryview:
        """The record that a message id names. Raises OffsetNotFound."""
        return self.message_at(decode_message_id(message_id)[1])

    def query(
        self, topic: str, key: str, *, begin_ms: int = 0, end_ms: int = 1 << 62, max_messages: int = MAX_QUERY_RESULTS
    ) -> list[memoryview]:
        """Messages of a topic with a key or unique key, stored in a time range; newest first."""
        self._check_open()
        wanted_topic, wanted = to_bytes(topic), to_bytes(key)
        found: list[memoryview] = []
        for position in self._candidates(topic, key, begin_ms=begin_ms, end_ms=end_ms):
            if len(found) >= max_messages:
                break
            # Keys that share a hash are distinguished before anything is checked: a sender can make many of them.
            if self._has_key(position, wanted_topic, wanted, begin_ms, end_ms):
                with contextlib.suppress(OffsetNotFound):
                    found.append(self.message_at(position))
        return found

    def _candidates(
        self, topic: str, key: str, *, begin_ms: int = 0, end_ms: int = 1 << 62, max_messages: int = 0
    ) -> list[int]:
        """Positions that the index names for a key, newest first, each once."""
        if self.index is None:
            return []
        positions = self.index.positions(to_bytes(topic), to_bytes(key), begin_ms, end_ms)
        return list(dict.fromkeys(islice(positions, MAX_CANDIDATES)))

    def _has_key(self, position: int, topic: bytes, key: bytes, begin_ms: int, end_ms: int) -> bool:
        segment = self.log.files.find(position)
        if segment is None or position >= self.marks.written.value:
            return False
        data = segment.buffer
        spans = record.spans_of(data, position - segment.base, segment.size)
        if isinstance(spans, str) or data[spans.topic : spans.topic_end] != topic:
            return False
        (stored_ms,) = layout.STORED_AT.unpack_from(data, spans.store_timestamp_at)
        properties = bytes(data[spans.properties : spans.properties_end])
        return begin_ms <= stored_ms <= end_ms and key in keys_of(properties)

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """The first offset stored at or after a time (the maximum if there is none);
        with `upper`, the last one stored at or before it (the minimum if there is none)."""
        queue = self.queue(topic, queue_id)
        if queue is None:
            return 0
        first = self._first_stored(queue, timestamp_ms + (1 if upper else 0))
        return max(first - 1, queue.min_offset) if upper else first

    def _first_stored(self, queue: ConsumeQueue, timestamp_ms: int) -> int:
        """The first offset stored at or after a time. Times grow along a queue; a hole in it has none."""
        low, high = queue.min_offset, queue.max_offset
        answer = high
        while low < high:
            middle = offset = (low + high) // 2
            while (stored_ms := self.store_time(queue, offset)) is None and offset + 1 < high:
                offset += 1
            if stored_ms is None:
                high = middle
            elif stored_ms < timestamp_ms:
                low = offset + 1
            else:
                high, answer = middle, offset
        return answer

    def store_time(self, queue: ConsumeQueue, offset: int) -> int | None:
        """Return the store time of the message at an offset; None for a hole."""
        entry = queue.entry(offset)
        segment = self.log.files.find(entry.position) if entry is not None and not entry.is_blank else None
        if entry is None or segment is None:
            return None
        return record.stored_at_ms(segment.buffer, entry.position - segment.base, segment.size)

    async def offset_at_soon(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """Like `offset_at`, with cold data fetched by a thread first."""
        await self._fetch_probes(topic, queue_id, timestamp_ms + (1 if upper else 0))
        return self.offset_at(topic, queue_id, timestamp_ms, upper=upper)

    async def earliest_store_time_soon(self, topic: str, queue_id: int) -> int | None:
        """Return the store time of a queue's oldest message; None when there is none. Cold data is fetched first."""
        queue = self.queue(topic, queue_id)
        if queue is None:
            return None
        await self._fetch_record(queue, queue.min_offset)
        return self.store_time(queue, queue.min_offset)

    async def _fetch_probes(self, topic: str, queue_id: int, timestamp_ms: int) -> None:
        """Bring in the records that a search by time will look at: it halves the same range in the same way."""
        queue = self.queue(topic, queue_id)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        while queue is not None and low < high:
            middle = (low + high) // 2
            await self._fetch_record(queue, middle)
            stored_ms = self.store_time(queue, middle)
            if stored_ms is None or stored_ms < timestamp_ms:
                low = middle + 1
            else:
                high = middle

    async def _fetch_record(self, queue: ConsumeQueue, offset: int) -> None:
        entry = queue.entry(offset)
        if entry is not None and not entry.is_blank and entry.position < self.hot_from():
            for segment, start, end in self._cold_span(entry.position, entry.size):
                await asyncio.to_thread(segment.file.read_at, start, end - start)

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self.queue(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self.queue(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def given_out(self, topic: str, queue_id: int) -> int:
        """Behind the newest message of a queue, shown to readers or not."""
        queue = self.queue(topic, queue_id)
        return queue.cursor.next_append if queue is not None else 0

    def newest_indexed(self) -> tuple[int, int]:
        """Return store time and position of the newest message in the key index; zeros if there is none."""
        if self.index is None or not self.index.files:
            return 0, 0
        cursor = self.index.files[-1].cursor
        return cursor.end_ms, cursor.end_position

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a consume queue; `None` if no message was ever appended to it."""
        self._check_open()
        return self.queues.get(to_bytes(topic), queue_id)

    def queue_list(self, topic: str | None = None) -> list[ConsumeQueue]:
        """Return all consume queues, or those of a topic in the order of their numbers."""
        return list(self.queues) if topic is None else self.queues.of_topic(to_bytes(topic))


def _entries(queue: ConsumeQueue, offset: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Position, size and tag code of many entries."""
    at = offset * ENTRY.size
    while at < end * ENTRY.size and (segment := queue.files.find(at)) is not None:
        stop = min(end * ENTRY.size, segment.end)
        yield from ENTRY.iter_unpack(segment.buffer[at - segment.base : stop - segment.base])
        at = stop


def merged(spans: Iterable[tuple[Segment, int, int]]) -> list[tuple[Segment, int, int]]:
    """Spans that lie one behind the other, as one."""
    result: list[tuple[Segment, int, int]] = []
    for segment, start, end in spans:
        if result and result[-1][0] is segment and result[-1][2] == start:
            result[-1] = (segment, result[-1][1], end)
        else:
            result.append((segment, start, end))
    return result


def to_bytes(text: str) -> bytes:
    """A name or key as the store has it. One that no record can hold is simply not found."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return b""


def decode(view: memoryview) -> StoredMessage:
    """A record that a read returned, as a value."""
    return record.decode(view)
