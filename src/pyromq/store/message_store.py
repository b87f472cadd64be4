"""The door to the store: append, read, query; open and close.

    store = MessageStore(StoreConfig(root=Path("data")))
    store.open()                                  # lock, recover
    receipts = store.append([Draft(...), …])      # in the log, in this order
    store.flush()                                 # durable
    store.read("orders", 0, offset=0)             # views of the records
    store.close()

In a broker the same object runs on its event loop: `async with store.running()` flushes, dispatches, cleans and moves
the recover point beside it, and `await store.wait_synced(receipt)` holds an answer until the promise is true.

One thread owns the store. Others only sync, allocate, warm and read cold data for it, and hold no state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from pyromq.clock import Clock, SystemClock
from pyromq.config import StoreConfig
from pyromq.errors import CorruptLog, DiskFull, OffsetNotFound, StoreClosed, StoreFenced, StoreLocked
from pyromq.model.message import AppendedAt, Draft, StoredMessage
from pyromq.records import layout, record
from pyromq.records.java_hash import java_hash
from pyromq.records.message_id import decode_message_id
from pyromq.store import platform, recovery
from pyromq.store.allocator import Allocator, Result, Runner
from pyromq.store.checkpoint import AbortMark, Checkpoint, CheckpointFile, RecoverPoint, RecoverPointFile
from pyromq.store.commit_log import CommitLog
from pyromq.store.consume_queue import ConsumeQueue
from pyromq.store.disk import DirectoryLock, Disk, Locked, OsDisk
from pyromq.store.dispatcher import Dispatcher
from pyromq.store.flusher import Flusher
from pyromq.store.key_index import IndexFile, KeyIndex, keys_of
from pyromq.store.paths import StorePaths
from pyromq.store.queue_reader import ReadResult, ReadStatus, read_queue
from pyromq.store.queue_table import QueueTable
from pyromq.store.recovery import LogEnd, RecoveryReport
from pyromq.store.retention import SegmentAge, decide
from pyromq.store.segmented_file import SegmentedFile
from pyromq.store.transient_pool import TransientPool
from pyromq.store.watermarks import Watermarks
from pyromq.telemetry import Telemetry

log = logging.getLogger("pyromq.store")

#: Index at most this much in one turn of the loop when it has fallen behind (after a crash): sends come first.
INDEX_SLICE_BYTES = 1 << 20
#: Data this close to the end of the log is taken to be in memory without asking the system.
HOT_BYTES = 256 << 20
#: RocketMQ's limit for one query by key.
MAX_QUERY_RESULTS = 64


class InlineRunner:
    """Runs background work at once, on the caller's thread: for tests that repeat to the byte, and for tools."""

    def submit(self, work: Callable[[], Result], /) -> Future[Result]:
        future: Future[Result] = Future()
        try:
            future.set_result(work())
        except OSError as error:
            future.set_exception(error)
        return future


class MessageStore:
    """One store directory, opened for writing."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        telemetry: Telemetry | None = None,
        runner: Runner | None = None,
    ) -> None:
        self.config = config
        self.paths = StorePaths(config.root)
        self.disk: Disk = disk or OsDisk(self.paths.staging)
        self.clock: Clock = clock or SystemClock()
        self.telemetry = telemetry or Telemetry()
        self.marks = Watermarks()
        self.report = RecoveryReport()
        self._pool_threads = None if runner else ThreadPoolExecutor(2, "pyromq-store")
        self._runner: Runner = runner or self._pool_threads  # type: ignore[assignment]
        self._transient = TransientPool() if config.transient_pool else None
        files = SegmentedFile(self.disk, self.paths.commit_log, config.segment_bytes)
        allocator = Allocator(files, self._runner, self.clock, self.telemetry, config.warm_bytes)
        self.log = CommitLog(config, files, allocator, self._transient)
        self.queues = QueueTable(self.disk, self.paths.queues, config.queue_file_entries)
        self.index = KeyIndex(config, self.disk, self.clock) if config.index_enabled else None
        self.dispatcher = Dispatcher(config, self.log, self.queues, self.index, self.marks)
        self.flusher = Flusher(
            config.flush, self.log, self.marks, self.clock, self.telemetry, self.fence, self.commit_gathered
        )
        self._recover_point_file = RecoverPointFile(self.disk, self.paths.recover_point)
        self._checkpoint_file = CheckpointFile(self.disk, self.paths.checkpoint)
        self._abort = AbortMark(self.disk, self.paths.abort)
        self._lock: DirectoryLock | None = None
        self._is_open = False
        self._fenced: StoreFenced | None = None
        self._refusal: str | None = None
        self._blocked: OSError | None = None
        self._point = RecoverPoint()
        self._index_ms = 0
        #: Records below this position were found on disk: they are checked when they are read.
        self._found_below = 0
        self._dispatch_is_due = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._append_seconds = self.telemetry.histogram("store.append_seconds")
        self._messages = self.telemetry.counter("store.appended_messages")
        self._describe_figures()

    def _describe_figures(self) -> None:
        marks = self.marks
        gauge = self.telemetry.gauge
        gauge("store.log_end", lambda: marks.appended.value)
        gauge("store.unsynced_bytes", lambda: marks.appended.value - marks.synced.value)
        gauge("store.undispatched_bytes", lambda: marks.readable.value - marks.dispatched.value)
        gauge("store.unindexed_bytes", lambda: marks.readable.value - marks.indexed.value)
        gauge("store.recover_point_bytes", lambda: marks.appended.value - self._point.queues_to)
        gauge("store.disk_used_share", lambda: self.disk.usage(self.config.root).share)

    # --- opening and closing -----------------------------------------------------------------------------------------

    def open(self, *, truncate_at: int | None = None, rebuild: bool = False) -> RecoveryReport:
        """Lock the directory and recover it. Raises StoreLocked, CorruptLog.

        `truncate_at` gives up everything from a position on; `rebuild` throws queues and index away and makes them
        anew from the log. Neither happens unless asked for.
        """
        started = self.clock.monotonic()
        self.disk.make_dir(self.config.root)
        try:
            self._lock = self.disk.lock(self.paths.lock)
        except Locked as locked:
            raise StoreLocked(self.config.root, locked.pid) from None
        try:
            platform.raise_open_file_limit()
            self.disk.remove_tree(self.paths.staging)
            self._recover(truncate_at, rebuild)
        except BaseException:
            self._close_files()
            raise
        self._is_open = True
        self.report.seconds = self.clock.monotonic() - started
        return self.report

    def _recover(self, truncate_at: int | None, rebuild: bool) -> None:
        clean = not self._abort.is_set()
        point = self._recover_point_file.load()
        files = self.log.files
        files.load()
        point = self._forget_removed(point)
        start = self._scan_start(point, clean)
        found = recovery.find_log_end(files, start, self.config.recovery_threads)
        if truncate_at is not None:
            found, point = self._give_up_from(truncate_at, found, point)
        recovery.refuse_damage(files, found, point)
        self.report = RecoveryReport(
            clean=clean,
            scanned_from=start,
            log_start=files.start,
            log_end=found.end,
            records_scanned=found.records,
        )
        self._abort.set()
        self._cut_log(found, clean)
        start = min(start, found.end)
        self._recover_queues(found, start, clean=clean and found.end == start, rebuild=rebuild)
        self._recover_index(point, found.end, clean=clean, rebuild=rebuild)
        self._save_first_point(point, found)

    def _forget_removed(self, point: RecoverPoint | None) -> RecoverPoint | None:
        """A crash can bring a file back that retention had removed."""
        files = self.log.files
        while point is not None and files.segments and files.segments[0].end <= point.log_start:
            files.remove_first()
        return point

    def _scan_start(self, point: RecoverPoint | None, clean: bool) -> int:
        files = self.log.files
        if point is not None:
            start = max(min(point.queues_to, point.synced), files.start)
            if start <= files.end and recovery.starts_at_record(files, start):
                return start
        if clean:
            return recovery.clean_scan_start(files.segments)
        return recovery.crash_scan_start(files.segments, self._checkpoint_file.load())

    def _give_up_from(
        self, position: int, found: LogEnd, point: RecoverPoint | None
    ) -> tuple[LogEnd, RecoverPoint | None]:
        """Somebody decided to lose what follows a position: it must be where a record would begin."""
        segment = self.log.files.find(position)
        across = recovery.scan_segment(segment, segment.base) if segment else None
        ends_before = position > found.end or segment is None or across is None
        if ends_before or (position < found.end and not recovery.starts_at_record(self.log.files, position)):
            raise CorruptLog(
                self.paths.commit_log,
                position,
                "no record begins there",
                f"give the position that the error named, or {found.end}, where the log ends now",
            )
        log.warning("giving up the log from position %d on, as asked", position)
        if point is not None:
            point = RecoverPoint(
                log_start=point.log_start,
                synced=min(point.synced, position),
                queues_to=min(point.queues_to, position),
                timestamp_ms=point.timestamp_ms,
            )
        return LogEnd(position, found.records, found.last_timestamp_ms, "given up as asked"), point

    def _cut_log(self, found: LogEnd, clean: bool) -> None:
        """Behind the end there must be nothing. A clean stop leaves nothing but a segment made ahead."""
        files = self.log.files
        if clean and found.damage is None:
            files.remove_from(found.end if found.end > files.start else files.start + 1)
        else:
            self.report.bytes_cut, self.report.cut_kept_in = recovery.cut_log(files, found.end, self.paths.cut_off)
            if self.report.bytes_cut:
                log.warning(
                    "cut %d bytes from the end of the log at position %d: %s (kept in %s)",
                    self.report.bytes_cut, found.end, found.damage or "stale bytes", self.report.cut_kept_in,
                )  # fmt: skip
        if not clean:
            # A killed process leaves bytes that only the page cache has: from here on they count as synced.
            for segment in files.segments:
                if segment.end > self.report.scanned_from:
                    segment.file.sync()
        self._found_below = found.end
        self.log.start_writing_at(found.end, found.last_timestamp_ms or self._last_timestamp(found.end))
        for mark in (self.marks.appended, self.marks.synced, self.marks.readable):
            mark.reset(found.end)

    def _last_timestamp(self, end: int) -> int:
        """Nothing was scanned: the recover point or the checkpoint knows when the last record came."""
        point = self._recover_point_file.load()
        return max(point.timestamp_ms if point else 0, 0)

    def _recover_queues(self, found: LogEnd, start: int, *, clean: bool, rebuild: bool) -> None:
        self.queues.load()
        if rebuild:
            start = self.log.start
            for queue in self.queues:
                queue.discard()
                self.queues.cursors[queue.topic + queue.id.number.to_bytes(4, "big")] = queue.cursor
        for queue in self.queues:
            recovery.cut_queue(self.log.files, queue, start, trust=clean)
            queue.found_below = queue.max_offset
        self.marks.dispatched.reset(start)
        self.dispatcher.recovering = True
        self.dispatcher.dispatch()
        self.dispatcher.recovering = False
        self.dispatcher.last_timestamp_ms = self.dispatcher.last_timestamp_ms or self.log.last_timestamp_ms
        for queue in self.queues:
            queue.cursor.next_append = queue.cursor.next_dispatch
            queue.drop_before(self.log.start)

    def _recover_index(self, point: RecoverPoint | None, end: int, *, clean: bool, rebuild: bool) -> None:
        """Keep what was synced whole; the rest is built again later, while the store serves."""
        start = self.log.start
        if self.index is not None:
            self.index.load()
            if rebuild:
                self.index.discard()
            elif point is not None and self.index.keep_synced(point.index_to, point.index_file):
                start = max(start, min(point.index_to, end))  # type: ignore[assignment]
            elif point is None and clean and self.index.files:
                start = end  # type: ignore[assignment]
            else:
                self.index.discard()
            self.index.drop_before(self.log.start)
        self.marks.indexed.reset(start)
        self.report.index_from = start

    def _save_first_point(self, point: RecoverPoint | None, found: LogEnd) -> None:
        """From now on a crash starts from here."""
        self._point = point or RecoverPoint()
        self.flusher.last_timestamp_ms = self.log.last_timestamp_ms
        if found.end or point is not None:
            self.save_recover_point()

    def close(self) -> None:
        """Stop cleanly: everything dispatched, indexed and synced, so that the next start has nothing to do."""
        if not self._is_open:
            self._close_files()
            return
        self._is_open = False
        try:
            if self._fenced is None:
                self._finish()
        finally:
            self._close_files()

    def _finish(self) -> None:
        try:
            self.commit_gathered()
            self.dispatcher.dispatch()
            self.dispatcher.index()
        except OSError as error:
            # Queues and index can be built again: the log itself is whole, and it is what must be synced.
            log.warning("the disk is full, queues or index are not complete; the next start completes them: %s", error)
        self.flusher.sync_now()
        if self.index is not None:
            self.index.sync_all()
        self.save_recover_point(clean=True)
        self._abort.clear()

    def _close_files(self) -> None:
        if self._pool_threads is not None:
            self._pool_threads.shutdown(wait=True)
        self.log.close()
        self.queues.close()
        if self.index is not None:
            self.index.close()
        self._recover_point_file.close()
        self._checkpoint_file.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> MessageStore:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- appending ---------------------------------------------------------------------------------------------------

    def append(self, drafts: list[Draft]) -> list[AppendedAt]:
        """Append messages in order; where each of them is. They are in the log, not yet durable.

        Raises IllegalMessage (nothing is appended), DiskFull (its `receipts` say what was), StoreFenced, StoreClosed.
        """
        self._check_writable()
        started = self.clock.monotonic()
        self.log.check(drafts)
        receipts: list[AppendedAt] = []
        rest = drafts
        try:
            while rest:
                taken = self.log.append(rest, self.queues.cursors, self.clock.now_ms(), receipts)
                rest = rest[taken:]
                if rest:
                    self.queues.get_or_create(rest[0].topic, rest[0].queue_id)
        except DiskFull as full:
            full.receipts = receipts
            raise
        finally:
            self._grew(len(receipts))
        self._append_seconds.record(self.clock.monotonic() - started)
        return receipts

    def _check_writable(self) -> None:
        if self._fenced is not None:
            raise self._fenced
        if not self._is_open:
            raise StoreClosed("the store is not open")
        if self._refusal is not None:
            raise DiskFull(self._refusal)
        if self._blocked is not None and not self._try_dispatch():
            raise DiskFull(
                f"there is no room for queue entries ({self._blocked}); make room and sending goes on by itself"
            )

    def _grew(self, messages: int) -> None:
        if not messages:
            return
        self._messages.add(messages)
        self.marks.appended.advance(self.log.end)
        if self._transient is None:
            self.marks.readable.advance(self.log.end)
        self.flusher.grew()
        if self._loop is not None and not self._dispatch_is_due:
            self._dispatch_is_due = True
            self._loop.call_soon(self._dispatch_soon)

    def commit_gathered(self) -> None:
        """With the transient pool: bring what was gathered into the page cache, and show it to readers."""
        if self._transient is None:
            return
        try:
            committed = self._transient.commit(self.log.end)
        except OSError as error:
            raise self.fence(error) from error
        self.marks.readable.advance(max(committed, self.marks.readable.value))

    def fence(self, error: BaseException) -> StoreFenced:
        """A write was not confirmed: from here on nothing is acknowledged."""
        if self._fenced is None:
            self._fenced = StoreFenced(error)
            log.critical("%s", self._fenced)
            self.marks.fail(self._fenced)
        return self._fenced

    def flush(self) -> None:
        """Make everything that was appended durable, now, on this thread. Raises StoreFenced."""
        if self._fenced is not None:
            raise self._fenced
        self.flusher.sync_now()

    async def wait_synced(self, receipt: AppendedAt) -> None:
        """Return once a message is durable. All who wait share one sync. Raises StoreFenced."""
        if self.marks.synced.value < receipt.end:
            self.flusher.wake()
            await self.marks.synced.wait(receipt.end)

    # --- what runs beside --------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Bring queues and index up to date, now. Raises DiskFull when there is no room for them."""
        self.commit_gathered()
        if not self._try_dispatch():
            raise DiskFull(f"there is no room for queue entries: {self._blocked}")

    def _try_dispatch(self) -> bool:
        """False when the disk is full: the log has everything, and a later attempt goes on where this one stopped."""
        try:
            self.dispatcher.dispatch()
            self.dispatcher.index()
        except OSError as error:
            if self._blocked is None:
                log.error("queue entries cannot be written: %s; messages are refused until there is room", error)
            self._blocked = error
            return False
        self._blocked = None
        return True

    def _dispatch_soon(self) -> None:
        """One turn of the loop: all queues, and a slice of the index."""
        self._dispatch_is_due = False
        if not self._is_open or self._loop is None:
            return
        try:
            self.dispatcher.dispatch()
            done = self.dispatcher.index(INDEX_SLICE_BYTES)
        except OSError as error:
            if self._blocked is None:
                log.error("queue entries cannot be written: %s; messages are refused until there is room", error)
            self._blocked = error
            return
        self._blocked = None
        if not done and not self._dispatch_is_due:
            self._dispatch_is_due = True
            self._loop.call_soon(self._dispatch_soon)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[MessageStore]:
        """Open, and keep flushing, dispatching, cleaning and checkpointing until the block ends; then close."""
        if not self._is_open:
            await asyncio.to_thread(self.open)
        self._loop = asyncio.get_running_loop()
        self._dispatch_soon()
        self.marks.readable.listen(self._on_readable)
        with ThreadPoolExecutor(2, "pyromq-sync") as executor:
            tasks = [
                asyncio.create_task(self.flusher.run(executor), name="flusher"),
                asyncio.create_task(self._run_recover_points(executor), name="recover points"),
                asyncio.create_task(self._run_retention(executor), name="retention"),
            ]
            if self._transient is not None:
                tasks.append(asyncio.create_task(self._run_commits(), name="transient pool"))
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self._loop = None
        self.close()

    def _on_readable(self, _position: int) -> None:
        if self._loop is not None and not self._dispatch_is_due:
            self._dispatch_is_due = True
            self._loop.call_soon(self._dispatch_soon)

    async def _run_commits(self) -> None:
        while True:
            await asyncio.sleep(self.config.transient_commit_ms / 1000)
            self.commit_gathered()

    async def _run_recover_points(self, executor: Executor) -> None:
        """Every interval, or sooner when much has come since."""
        loop = asyncio.get_running_loop()
        interval = self.config.flush.recover_point_interval_ms / 1000
        while True:
            distance = self._point.queues_to + self.config.flush.recover_point_bytes
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.marks.dispatched.wait(distance), interval)
            if self.marks.synced.value != self._point.synced or self.marks.dispatched.value != self._point.queues_to:
                await self._guarded(loop.run_in_executor(executor, self._plan_recover_point()))
            else:
                await asyncio.sleep(0)

    async def _guarded(self, work: Any) -> None:
        """A recover point that cannot be written is late, not lost: the old one still holds."""
        try:
            self._point = await work
        except OSError as error:
            log.warning("the recover point could not be written: %s", error)

    async def _run_retention(self, executor: Executor) -> None:
        while True:
            await asyncio.sleep(self.config.retention.interval_ms / 1000)
            self.clean()

    # --- recover point -----------------------------------------------------------------------------------------------

    def save_recover_point(self, *, clean: bool = False) -> None:
        """Sync the queues and note how far everything is. Raises OSError."""
        self._point = self._plan_recover_point(clean=clean)()

    def _plan_recover_point(self, *, clean: bool = False) -> Callable[[], RecoverPoint]:
        """Decided on the store's thread; the returned work may run on another."""
        synced, dispatched = self.marks.synced.value, self.marks.dispatched.value
        queues = [(queue, queue.cursor.next_dispatch) for queue in self.queues]
        index_to, index_file, full_files = self._index_progress(clean)
        point = RecoverPoint(
            log_start=self.log.start,
            synced=synced,
            queues_to=min(dispatched, synced),
            index_to=min(index_to, synced),
            index_file=index_file,
            timestamp_ms=self.flusher.last_timestamp_ms,
            clean=clean,
        )
        checkpoint = Checkpoint(self.flusher.last_timestamp_ms, self.dispatcher.last_timestamp_ms, self._index_ms)
        return lambda: self._write_recover_point(queues, full_files, point, checkpoint)

    def _index_progress(self, clean: bool) -> tuple[int, int, list[IndexFile]]:
        """Up to where the index will be durable, its last durable file, and the files to sync for it."""
        if self.index is None:
            return self.marks.indexed.value, 0, []
        if clean:
            files = self.index.files
            self._index_ms = files[-1].cursor.end_ms if files else 0
            return self.marks.indexed.value, int(files[-1].name) if files else 0, []
        full = self.index.unsynced_full_files()
        if not full:
            return self._point.index_to, self._point.index_file, []
        # A record's keys may go on in the next file: that one counts from its own beginning.
        last = full[-1]
        self._index_ms = last.cursor.end_ms
        return last.cursor.end_position, int(last.name), full

    def _write_recover_point(
        self,
        queues: list[tuple[ConsumeQueue, int]],
        full_files: list[IndexFile],
        point: RecoverPoint,
        checkpoint: Checkpoint,
    ) -> RecoverPoint:
        for queue, offset in queues:
            queue.sync(offset)
        for file in full_files:
            file.file.sync()
            file.is_synced = True
        self._recover_point_file.save(point)
        self._checkpoint_file.save(checkpoint)
        return point

    # --- retention ---------------------------------------------------------------------------------------------------

    def clean(self) -> None:
        """Remove what is too old, and decide whether messages are refused. Never raises for a full disk."""
        files = self.log.files
        removable = [segment for segment in files.segments[:-1] if segment.end <= self.marks.synced.value]
        ages = [SegmentAge(segment.size, self.disk.modified_ms(segment.path)) for segment in removable]
        usage = self.disk.usage(self.config.root)
        refusing = self._refusal is not None
        decision = decide(self.config.retention, ages, usage.share, usage.total, refusing, self.clock.now_ms())
        if decision.remove:
            self._remove_segments(decision.remove)
            self.telemetry.counter("store.removed_segments").add(decision.remove)
            self.telemetry.counter("store.removed_unexpired_segments").add(decision.remove_unexpired)
        self._refuse(decision.refuse_appends, usage.share)

    def _remove_segments(self, count: int) -> None:
        """Note the new start of the log first: a crash may bring a removed file back."""
        segments = self.log.files.segments[:count]
        start = segments[-1].end
        if start > min(self.marks.dispatched.value, self.marks.indexed.value):
            return
        try:
            self._point = self._write_recover_point([], [], self._with_log_start(start), Checkpoint(
                self.flusher.last_timestamp_ms, self.dispatcher.last_timestamp_ms, self._index_ms
            ))  # fmt: skip
        except OSError as error:
            log.warning("segments are not removed: the recover point could not be written: %s", error)
            return
        for segment in segments:
            self.log.files.forget_first()
            path = segment.path
            self._runner.submit(lambda path=path: self.disk.remove(path))  # type: ignore[misc]
            log.info("removed segment %s", path)
        for queue in self.queues:
            queue.drop_before(start)
        if self.index is not None:
            self.index.drop_before(start)

    def _with_log_start(self, start: int) -> RecoverPoint:
        point = self._point
        return RecoverPoint(
            log_start=start,
            synced=max(point.synced, start),
            queues_to=max(point.queues_to, start),
            index_to=max(point.index_to, start),
            index_file=point.index_file,
            timestamp_ms=point.timestamp_ms,
        )

    def _refuse(self, refuse: bool, share: float) -> None:
        if refuse and self._refusal is None:
            self._refusal = (
                f"the disk of {self.config.root} is {share:.0%} full and messages are refused from "
                f"{self.config.retention.refuse_at:.0%} on; make room and sending goes on by itself below "
                f"{self.config.retention.resume_below:.0%}"
            )
            log.error("%s", self._refusal)
        elif not refuse and self._refusal is not None:
            self._refusal = None
            log.info("the disk is %.0f%% full: messages are accepted again", share * 100)

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = 256 * 1024,
        tags: Iterable[str] | None = None,
    ) -> ReadResult:
        """Messages of a queue from an offset on, as views of the log; with `tags`, those whose tag may be one of them.

        Tags are compared by hash: look at the tag itself before you rely on it. Raises CorruptQueue, CorruptLog.
        """
        queue = self._queue(topic, queue_id)
        if queue is None:
            return ReadResult(ReadStatus.NO_QUEUE, 0, 0, 0)
        return read_queue(
            self.log,
            queue,
            offset,
            readable=self.marks.readable.value,
            checked_below=self._found_below,
            max_messages=max_messages,
            max_bytes=max_bytes,
            tag_codes=None if tags is None else frozenset(map(java_hash, tags)),
        )

    async def read_soon(self, topic: str, queue_id: int, offset: int, **limits: Any) -> ReadResult:
        """Like `read`, but data that has left the page cache is fetched by a thread first: the loop never waits."""
        for segment, start, end in self._cold_spans(topic, queue_id, offset, **limits):
            await asyncio.to_thread(segment.file.read_at, start, end - start)
        return self.read(topic, queue_id, offset, **limits)

    def _cold_spans(
        self, topic: str, queue_id: int, offset: int, max_messages: int = 32, max_bytes: int = 256 * 1024, **_: Any
    ) -> Iterator[tuple[Any, int, int]]:
        """The part of the log that a read is about to touch, where the system says that it is not in memory."""
        queue = self._queue(topic, queue_id)
        first = queue.entry(offset) if queue is not None and offset < queue.max_offset else None
        if queue is None or first is None or first.position >= self.marks.readable.value - HOT_BYTES:
            return
        last = queue.entry(min(offset + max_messages, queue.max_offset) - 1) or first
        position, goal = first.position, min(last.end, first.position + max_bytes)
        while position < goal:
            segment = self.log.files.find(position)
            if segment is None:
                return
            start, end = position - segment.base, min(goal, segment.end) - segment.base
            if not segment.file.is_resident(start, end):
                yield segment, start, end
            position = segment.end

    def message_at(self, position: int) -> memoryview:
        """The record that begins at a position. Raises OffsetNotFound when no message does."""
        try:
            data = self.log.record_at(position, self.marks.readable.value)
        except CorruptLog as error:
            raise OffsetNotFound(f"no message begins at position {position}: {error.what}") from None
        message = record.decode(data)
        if layout.has_queue_offset(message.storage_flags) and position < self.marks.dispatched.value:
            # Bytes inside a body can look like a record: a real one is in its queue.
            queue = self.queues.get(message.topic.encode("utf-8", "surrogateescape"), message.queue_id)
            entry = queue.entry(message.queue_offset) if queue is not None else None
            if queue is not None and (entry is None or entry.position != position):
                raise OffsetNotFound(f"no message begins at position {position}: its queue does not know it")
        return data

    def message_by_id(self, message_id: str) -> memoryview:
        """The record that a message id names. Raises OffsetNotFound."""
        return self.message_at(decode_message_id(message_id)[1])

    def query(
        self, topic: str, key: str, *, begin_ms: int = 0, end_ms: int = 1 << 62, max_messages: int = MAX_QUERY_RESULTS
    ) -> list[memoryview]:
        """Messages of a topic with a key or unique key, stored in a time range; newest first."""
        found: list[memoryview] = []
        if self.index is None:
            return found
        wanted, wanted_topic = key.encode("utf-8", "surrogatepass"), topic.encode("utf-8", "surrogateescape")
        for position in self.index.positions(wanted_topic, wanted, begin_ms, end_ms):
            if len(found) >= max_messages:
                break
            with contextlib.suppress(OffsetNotFound):
                data = self.message_at(position)
                if self._has_key(data, wanted_topic, wanted, begin_ms, end_ms):
                    found.append(data)
        return found

    @staticmethod
    def _has_key(data: memoryview, topic: bytes, key: bytes, begin_ms: int, end_ms: int) -> bool:
        spans = record.spans_of(data, 0, len(data))
        assert not isinstance(spans, str)
        (stored_ms,) = layout.STORED_AT.unpack_from(data, spans.store_timestamp_at)
        properties = bytes(data[spans.properties : spans.properties_end])
        return (
            begin_ms <= stored_ms <= end_ms
            and data[spans.topic : spans.topic_end] == topic
            and key in keys_of(properties)
        )

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """The first offset stored at or after a time (the maximum if there is none);
        with `upper`, the last one stored at or before it (the minimum if there is none)."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            stored_ms = self.store_time(queue, middle)
            if stored_ms is None or stored_ms < timestamp_ms or (upper and stored_ms == timestamp_ms):
                low = middle + 1
            else:
                high = middle
        return max(low - 1, queue.min_offset) if upper else low

    def store_time(self, queue: ConsumeQueue, offset: int) -> int | None:
        """When the message of an offset was stored; None for a hole."""
        entry = queue.entry(offset)
        segment = self.log.files.find(entry.position) if entry is not None and not entry.is_blank else None
        if entry is None or segment is None:
            return None
        at = entry.position - segment.base
        spans = record.spans_of(segment.buffer, at, segment.size)
        if isinstance(spans, str):
            return None
        (stored_ms,) = layout.STORED_AT.unpack_from(segment.buffer, spans.store_timestamp_at)
        return int(stored_ms)

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queue(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queue(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self.queues.get(topic.encode("utf-8", "surrogateescape"), queue_id)


def decode(view: memoryview) -> StoredMessage:
    """A record that a read returned, as a value."""
    return record.decode(view)
