"""Finds damaged consume queues, and derives them again from the log while the store serves.

A queue is suspected when a start misses files of it or finds other first offsets than the recover point says, when the
check of its files after a start finds an entry that is not the log's, or when a reader does. Readers of a suspected
queue wait, or get an error that asks them to retry; every other queue is served.

One pass over the log derives the entries of all queues and writes those that differ, in place, a slice a turn of the
loop. The ends of the queues are never touched: they decide which offsets new messages get, and a start that does not
know them derives the queues before it serves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor

from pyromq.clock import Clock
from pyromq.config import StoreConfig, parse_delay_levels
from pyromq.errors import QueueRebuilding
from pyromq.files.platform import what_to_do
from pyromq.records import layout, record
from pyromq.records.scan import Scan, Stop, scan
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.segmented_file import Segment
from pyromq.store.offline.derive_queues import DerivedQueue, QueueDeriver
from pyromq.store.queues.consume_queue import BLANK_SIZE, ConsumeQueue, QueueEntry
from pyromq.store.queues.queue_cursor import ENTRY
from pyromq.store.queues.queue_table import QueueTable
from pyromq.store.recovery import log_recovery
from pyromq.store.watermarks import Watermarks

log = logging.getLogger("pyromq.store")

#: Derive at most this much of the log in one turn of the loop.
SLICE_BYTES = 1 << 20
#: Entries checked by the thread between two checks for a stop of the store.
CHECK_ENTRIES = 256
#: The least time between two passes for the same damage: a pass that does not help must not run in a loop.
PASS_SECONDS = 60.0
#: And after one that found nothing to write: then the log itself is damaged.
VAIN_PASS_SECONDS = 3600.0
#: A pass that found the disk full is tried again after this long.
RETRY_SECONDS = 1.0
#: Bytes of a record that the check brings into memory: its head and topic.
HEAD_BYTES = 1024
_BLANK = ENTRY.pack(0, BLANK_SIZE, 0)


class _Mended(DerivedQueue):
    """A queue derived from the log, to compare with the served one."""

    def __init__(self, file_bytes: int, live: ConsumeQueue | None) -> None:
        super().__init__(file_bytes)
        self.live = live


class QueueMender(QueueDeriver[_Mended]):
    """Compares every entry below `goal` with the log, and writes those that differ. Raises OSError."""

    def __init__(self, config: StoreConfig, commit_log: CommitLog, table: QueueTable, goal: int) -> None:
        super().__init__(parse_delay_levels(config.delay_levels))
        self._file_bytes = config.queue_file_entries * ENTRY.size
        self._files = commit_log.files
        self._table = table
        self.goal = goal
        #: The end of each queue when the pass began.
        self._ends = {queue: queue.max_offset for queue in table}
        self.position = int(commit_log.start)
        #: Entries that were written.
        self.mended = 0
        #: Segments whose records cannot be followed.
        self.damaged_segments = 0

    # --- along the log -----------------------------------------------------------------------------------------------

    def segment(self) -> Segment | None:
        """Return the segment to go on in; `None` at the end."""
        self.position = max(self.position, self._files.start)  # retention may have been faster
        return self._files.find(self.position) if self.position < self.goal else None

    def step(self, segment: Segment, max_bytes: int) -> None:
        """Derive the next records of a segment, at most `max_bytes` if one is not longer."""
        at, limit = self.position - segment.base, min(self.goal - segment.base, segment.size)
        found = self._scan(segment, at, limit, min(at + max_bytes, limit))
        if found.end > at:
            self.take(segment.buffer, at, found.end)
            self.position = segment.base + found.end
            return
        is_blank = found.stop is Stop.BLANK and at + layout.BLANK.unpack_from(segment.buffer, at)[0] == segment.size
        if not is_blank:
            # The queue's entries for these records may be right: they stay, and readers get an error.
            self.damaged_segments += 1
            log.error("queues cannot be derived from position %d to %d: no record", segment.base + at, segment.end)
        self.position = segment.end

    @staticmethod
    def _scan(segment: Segment, at: int, limit: int, slice_end: int) -> Scan:
        """Return how far the records are good. A damaged one must not decide where a message is."""
        found = scan(segment.buffer, at, slice_end, segment.base, True)
        if found.end == at and found.stop is Stop.BAD and slice_end < limit:
            spans = record.spans_of(segment.buffer, at, limit)
            if not isinstance(spans, str):
                return scan(segment.buffer, at, at + spans.total_size, segment.base, True)
        return found

    def finish(self) -> None:
        """Write the last entries, and say where each queue begins."""
        firsts: dict[ConsumeQueue, int] = {}
        for derived in self.queues.values():
            self.complete(derived)
            if derived.live is not None and derived.first >= 0:
                firsts[derived.live] = derived.first
        for queue, end in self._ends.items():
            if queue.files.segments and not self.damaged_segments:
                queue.begin_at(min(firsts.get(queue, end), queue.max_offset))
                queue.drop_before(self._files.start)
            elif queue.is_suspect:
                queue.min_offset = queue.files.start // ENTRY.size

    # --- a queue -----------------------------------------------------------------------------------------------------

    def new_queue(self, topic: bytes, number: int) -> _Mended:
        return _Mended(self._file_bytes, self._table.get(topic, number))

    def jump(self, queue: _Mended, offset: int, position: int) -> None:
        self.complete(queue)
        if offset < queue.cursor.next_dispatch:
            queue.first = offset  # a topic that was removed and made again
        elif queue.live is not None and not self.damaged_segments:
            self._blank(queue.live, queue.cursor.next_dispatch, offset)
        queue.aim(offset)

    def complete(self, queue: _Mended) -> None:
        live, first, data = queue.live, queue.cursor.first, queue.gathered()
        if live is None or not live.files.segments or not data:
            return
        size = min(len(data), (live.max_offset - first) * ENTRY.size)
        segment = live.segment_for(first) if size > 0 else None
        if segment is None:
            return
        at = first * ENTRY.size - segment.base
        if segment.buffer[at : at + size] != data[:size]:
            for offset, expected in enumerate(ENTRY.iter_unpack(data[:size]), first):
                self._mend(live, offset, QueueEntry(*expected))

    def _mend(self, live: ConsumeQueue, offset: int, expected: QueueEntry) -> None:
        found = live.entry(offset)
        if found == expected:
            return
        if (
            found is not None
            and found.position > expected.position
            and log_recovery.entry_matches(self._files, live, offset, found)
        ):
            return  # of a topic that was made again: the older record belongs to the removed one
        live.overwrite(offset, ENTRY.pack(*expected))
        self.mended += 1

    def _blank(self, live: ConsumeQueue, start: int, end: int) -> None:
        """The log has no records for these offsets: neither has the queue."""
        for offset in range(max(start, live.files.start // ENTRY.size), min(end, live.max_offset)):
            found = live.entry(offset)
            if found is None or found.is_blank or log_recovery.entry_matches(self._files, live, offset, found):
                continue
            live.overwrite(offset, _BLANK)
            self.mended += 1


class QueueRepair:
    """The suspected queues of a store, and the passes that mend them."""

    def __init__(
        self, config: StoreConfig, commit_log: CommitLog, queues: QueueTable, marks: Watermarks, clock: Clock
    ) -> None:
        self._config = config
        self._log = commit_log
        self._queues = queues
        self._marks = marks
        self._clock = clock
        self._wanted = asyncio.Event()
        self._passed = asyncio.Event()
        self._last_pass: float | None = None
        self._pause_seconds = PASS_SECONDS
        #: The files that the start found have been checked.
        self.is_checked = False
        #: Passes since the start.
        self.passes = 0

    def suspect(self, queues: Iterable[ConsumeQueue], why: str) -> None:
        """Serve these queues no more until a pass has derived them."""
        for queue in queues:
            if not queue.is_suspect:
                log.error("queue %s is derived again from the log: %s", queue.id, why)
                queue.suspect()
        self._wanted.set()

    def found_damage(self, queue: ConsumeQueue, damage: Exception) -> None:
        """A reader met an entry that is not the log's. Raises the damage itself if a pass has not helped."""
        if self._last_pass is not None and self._clock.monotonic() - self._last_pass < self._pause_seconds:
            raise damage
        self.suspect([queue], str(damage))

    @staticmethod
    def check(queue: ConsumeQueue) -> None:
        """Raise QueueRebuilding if a queue is suspected."""
        if queue.is_suspect:
            raise QueueRebuilding(f"the queue {queue.id} was damaged and is being derived from the log: try again soon")

    async def wait(self, queue: ConsumeQueue) -> None:
        """Return once a queue may be read."""
        while queue.is_suspect:
            self._passed.clear()
            await self._passed.wait()

    # --- passes ------------------------------------------------------------------------------------------------------

    def run_now(self) -> None:
        """Derive all queues on this thread, where no loop runs. Raises OSError."""
        mender = self._mender()
        while (segment := mender.segment()) is not None:
            mender.step(segment, segment.size)
        self._finish(mender)

    async def run(self, executor: Executor, writing: asyncio.Lock) -> None:
        """Check the files found at the start, and repair suspected queues, until cancelled. `writing` is held while
        entries are written: a recover point must not pass over them."""
        await self._check_files(executor)
        while True:
            await self._wanted.wait()
            try:
                await self._pass(executor, writing)
            except OSError as error:
                log.warning("queues cannot be derived now, and are tried again: %s", what_to_do(error))
                await asyncio.sleep(RETRY_SECONDS)
                self._wanted.set()

    async def _pass(self, executor: Executor, writing: asyncio.Lock) -> None:
        mender = self._mender()
        while (segment := mender.segment()) is not None:
            at = mender.position - segment.base
            end = min(at + SLICE_BYTES, segment.size)
            await asyncio.get_running_loop().run_in_executor(executor, segment.file.warm, at, end)
            async with writing:
                mender.step(segment, SLICE_BYTES)
        async with writing:
            self._finish(mender)

    def _mender(self) -> QueueMender:
        self._wanted.clear()
        return QueueMender(self._config, self._log, self._queues, self._marks.dispatched.value)

    def _finish(self, mender: QueueMender) -> None:
        mender.finish()
        for queue in self._queues:
            queue.is_suspect = False
        self.passes += 1
        self._last_pass = self._clock.monotonic()
        self._pause_seconds = PASS_SECONDS if mender.mended else VAIN_PASS_SECONDS
        self._passed.set()
        log.warning("queues were derived again from the log: %d entries were wrong", mender.mended)

    # --- the check after a start -------------------------------------------------------------------------------------

    async def _check_files(self, executor: Executor) -> None:
        """Compare the first and the last entry of each file with the log, on another thread."""
        loop = asyncio.get_running_loop()
        edges = self._edges()
        while some := [edge for _, edge in zip(range(CHECK_ENTRIES), edges, strict=False)]:
            for queue in await loop.run_in_executor(executor, self._wrong, some):
                self.suspect([queue], "a file of it holds entries that are not the log's")
        self.is_checked = True

    def check_now(self) -> None:
        """The same on this thread."""
        self.suspect(self._wrong(self._edges()), "a file of it holds entries that are not the log's")
        self.is_checked = True

    def _edges(self) -> Iterator[tuple[ConsumeQueue, int]]:
        for queue in self._queues:
            yield from ((queue, offset) for offset in queue.edges())

    def _wrong(self, edges: Iterable[tuple[ConsumeQueue, int]]) -> list[ConsumeQueue]:
        return list({id(queue): queue for queue, offset in edges if not self._is_right(queue, offset)}.values())

    def _is_right(self, queue: ConsumeQueue, offset: int) -> bool:
        entry = queue.entry(offset)
        if entry is None or entry.is_blank or queue.is_suspect:
            return True
        start = self._log.files.start
        if entry.position < start:
            # Of a message that is gone: its neighbour, the first that is not, is checked as well.
            return entry.size > 0 and entry.position >= 0 and offset < queue.min_offset
        segment = self._log.files.find(entry.position)
        if segment is not None:
            at = entry.position - segment.base
            segment.file.read_at(at, min(HEAD_BYTES, segment.size - at))  # without the interpreter lock
        return log_recovery.entry_matches(self._log.files, queue, offset, entry)
