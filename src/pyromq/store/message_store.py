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
import errno
import functools
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from pyromq.clock import Clock, SystemClock
from pyromq.config import RetentionConfig, StoreConfig
from pyromq.errors import (
    CorruptLog,
    CorruptQueue,
    DiskFull,
    IllegalMessage,
    NotNow,
    OffsetNotFound,
    StoreClosed,
    StoreFenced,
    StoreGone,
    TooManyFiles,
)
from pyromq.files import platform
from pyromq.files.disk import Disk, OsDisk, Usage
from pyromq.files.platform import SYNCS_WITH_FDATASYNC, what_to_do
from pyromq.files.uninterrupted import end_if_cancelled, uninterrupted
from pyromq.files.work_thread import WorkThread
from pyromq.metrics import Telemetry
from pyromq.model.message import AppendedAt, Draft
from pyromq.store.cleaner import Cleaner
from pyromq.store.dispatch_timing import DispatchTiming
from pyromq.store.dispatcher import Dispatcher
from pyromq.store.durability.checkpoint import AbortMark, CheckpointFile, RecoverPoint, RecoverPointFile
from pyromq.store.durability.flusher import Flusher
from pyromq.store.durability.presence import CHECK_SECONDS, Presence
from pyromq.store.durability.recover_points import RecoverPoints
from pyromq.store.durability.reserve import RESERVE_BYTES, Reserve
from pyromq.store.durability.sync_thread import SyncThread
from pyromq.store.key_index import KeyIndex
from pyromq.store.log import log_place
from pyromq.store.log.allocator import Allocator, Result, Runner
from pyromq.store.log.append_batch import AppendBatch
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.page_cache import Warmth
from pyromq.store.log.segmented_file import SegmentedFile
from pyromq.store.log.transient_pool import TransientPool
from pyromq.store.paths import StorePaths
from pyromq.store.queues.arrivals import Arrivals, OnArrival
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.queues.queue_cursor import queue_key
from pyromq.store.queues.queue_repair import QueueRepair
from pyromq.store.queues.queue_table import QueueTable, is_safe_topic
from pyromq.store.reader import StoreReader, decode, to_bytes
from pyromq.store.recovery.log_recovery import RecoveryReport
from pyromq.store.recovery.start import Start
from pyromq.store.store_views import StoreFigures, TableFiles
from pyromq.store.watermarks import Positions, Watermark, Watermarks

__all__ = ["InlineRunner", "MessageStore", "decode"]

log = logging.getLogger("pyromq.store")

#: Index at most this much in one turn of the loop when it has fallen behind (after a crash): sends come first.
INDEX_SLICE_BYTES = 1 << 20
#: A stop does not wait for more than this to be indexed: the next start goes on with it.
MAX_INDEXED_AT_STOP = 256 << 20
#: Rounds of retention that one request may ask for.
MAX_ROUNDS = 1000
#: Work that found the disk full is tried again so often.
RETRY_SECONDS = 1.0
#: So many files can still be opened when new queues are refused: the queues that are there need some to go on.
RESERVED_FILES = 128


Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


class _ThreadRunner:
    """A thread pool, seen as a runner."""

    def __init__(self, threads: ThreadPoolExecutor | None) -> None:
        assert threads is not None
        self._threads = threads

    def submit(self, work: Callable[[], Result], /) -> Future[Result]:
        return self._threads.submit(work)


class InlineRunner:
    """Runs background work at once, on the caller's thread: for tests that repeat to the byte, and for tools."""

    def submit(self, work: Callable[[], Result], /) -> Future[Result]:
        future: Future[Result] = Future()
        try:
            future.set_result(work())
        except OSError as error:
            future.set_exception(error)
        return future


def gated(
    method: Callable[Concatenate[MessageStore, Arguments], Returned],
) -> Callable[Concatenate[MessageStore, Arguments], Returned]:
    """Close the append batch before a method of the store runs. Methods without this read only committed bytes or
    dispatched messages, which an open batch does not change."""

    @functools.wraps(method)
    def closed_first(store: MessageStore, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Returned:
        store.close_batch()
        return method(store, *arguments, **named)

    return closed_first


class MessageStore(StoreReader):
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
        self.paths = StorePaths.of(config)
        self.disk: Disk = disk or OsDisk(self.paths.staging, {self.paths.commit_log: self.paths.log_staging})
        self.clock: Clock = clock or SystemClock()
        self.telemetry = telemetry or Telemetry()
        self.marks = Watermarks(visible_is_synced=config.flush.sync)
        self.report = RecoveryReport()
        self._threads = None if runner is not None else ThreadPoolExecutor(2, "pyromq-store")
        background: Runner = runner if runner is not None else _ThreadRunner(self._threads)
        self._transient = TransientPool() if config.transient_pool else None
        files = SegmentedFile(self.disk, self.paths.commit_log, config.segment_bytes)
        # A log that is synced all the time has small pages, which come in with the writes themselves.
        warm_bytes = 0 if config.flush.sync else config.prefault_bytes
        allocator = Allocator(files, background, self.clock, self.telemetry, warm_bytes)
        self.log = CommitLog(config, files, allocator, self._transient)
        self.queues = QueueTable(self.disk, self.paths.queues, config.queue_file_entries)
        self.index = KeyIndex(config, self.disk, self.clock) if config.index_enabled else None
        self.warmth = Warmth(files, self.clock)
        #: Whoever waits for messages in a queue.
        self.arrivals = Arrivals(self.queues)
        self.dispatcher = Dispatcher(config, self.log, self.queues, self.index, self.marks)
        self.repair = QueueRepair(config, self.log, self.queues, self.marks, self.clock)
        self.flusher = Flusher(
            config.flush, self.log, self.marks, self.clock, self.telemetry, self.fence, self.commit_gathered
        )
        self._point_file = RecoverPointFile(self.disk, self.paths.recover_point)
        self._checkpoint_file = CheckpointFile(self.disk, self.paths.checkpoint)
        self._abort = AbortMark(self.disk, self.paths.abort)
        self.reserve = Reserve(self.disk, self.paths.reserve, min(RESERVE_BYTES, config.segment_bytes // 4))
        self.points = RecoverPoints(
            config.flush, self.log, self.queues, self.index, self.marks, self.flusher, self.dispatcher,
            (self._point_file, self._checkpoint_file), self.fence,
        )  # fmt: skip
        self.cleaner = Cleaner(
            config, self.disk, self.paths, self.clock, background, self.log, self.queues, self.index, self.marks,
            self.points, self.telemetry,
        )  # fmt: skip
        self._presence = Presence(self.disk, self.paths, self.log)
        self._locks: contextlib.ExitStack | None = None
        self._is_open = self._is_closed = False
        #: What the disk did not confirm; None: everything was.
        self._fenced: BaseException | None = None
        #: Why queue entries cannot be written; None: they can.
        self._blocked: OSError | None = None
        #: Records below this position were found on disk: they are checked when they are read.
        self._found_below = 0
        #: How many topics were removed: their files get names of their own until they are gone.
        self._removals = 0
        self._batch = AppendBatch(
            self.log, self.queues, self.marks, self.flusher, self.clock, self.fence, self._grew, self._may_append,
            self._batch_is_due, is_sync=config.flush.sync,
        )  # fmt: skip
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timing = DispatchTiming(self.marks, self._dispatch_now, lambda: self._batch.open_s)
        #: Readers may see more than when it was cleared last.
        self._more_is_visible = asyncio.Event()
        self._follow_marks()
        self._append_seconds = self.telemetry.histogram("pyromq_store_append_seconds")
        self._describe_figures()

    def _follow_marks(self) -> None:
        self.marks.visible_moved = self._shown_moved
        if self.config.flush.sync:
            self.marks.synced.listen(self._synced_moved)
        self.arrivals.watched = self._timing.watched

    def _describe_figures(self) -> None:
        marks = self.marks
        gauge = self.telemetry.gauge
        gauge("pyromq_store_log_end_bytes", lambda: marks.appended.value)
        gauge("rocketmq_storage_flush_behind_bytes", lambda: marks.appended.value - marks.synced.value)
        gauge("rocketmq_storage_dispatch_behind_bytes", lambda: marks.undispatched)
        gauge("pyromq_store_unindexed_bytes", lambda: marks.written.value - marks.indexed.value)
        gauge("pyromq_store_recover_bytes", lambda: marks.appended.value - self.points.current.queues_to)
        gauge("pyromq_store_disk_used_ratio", lambda: max(usage.share for usage in self.disk_usage()))

    def disk_usage(self) -> tuple[Usage, Usage]:
        """How full the file systems are: that of the log, and that of everything else. Often they are one."""
        return log_place.usage(self.disk, self.paths), self.disk.usage(self.paths.root)

    def positions(self) -> Positions:
        """Return where the log starts and ends, and all watermarks."""
        marks = self.marks
        return Positions(
            self.log.start, self.log.end, marks.appended.value, marks.synced.value, marks.written.value, marks.visible,
            marks.dispatched.value, marks.indexed.value, self.copyable.value,
        )  # fmt: skip

    def figures(self) -> StoreFigures:
        """Return the measurements that operators read."""
        return StoreFigures(
            disk_usage=self.disk_usage(),
            log_directory=self.paths.commit_log,
            recover_bytes=self.marks.appended.value - self.points.current.queues_to,
            retention_paused=self.cleaner.why_nothing_expires,
            append_seconds=self._append_seconds,
            flush_seconds=self.telemetry.histogram("pyromq_store_flush_seconds"),
        )

    def table_files(self) -> TableFiles:
        """Return where a broker keeps its tables."""
        return TableFiles(self.disk, self.paths.config, self.reserve.write)

    def log_files(self) -> SegmentedFile:
        """Return the log's segments, for readers that scan it."""
        return self.log.files

    def on_arrival(self, listener: OnArrival) -> None:
        """Call `listener` with the watched queues that have grown. It must return quickly and not raise."""
        self.arrivals.listen(listener)

    def watch(self, topic: str, queue_id: int) -> None:
        """Report the next message of a queue to the listeners of `on_arrival`, once."""
        self.arrivals.watch(topic, queue_id)

    def set_retention(self, retention: RetentionConfig) -> None:
        """Change how long data stays."""
        self.cleaner.retention = retention

    # --- opening and closing -----------------------------------------------------------------------------------------

    def open(self, *, truncate_at: int | None = None, rebuild: bool = False, hold_back: bool = False) -> RecoveryReport:
        """Lock the directory and recover it. Raises StoreLocked, StoreError, CorruptLog, DiskFull.

        `truncate_at` gives up everything from a position on; `rebuild` throws queues and index away and makes them
        anew from the log. Neither happens unless asked for. `hold_back`: what readers were not shown before is not
        shown until the broker says which mark they follow (`marks.limit_visible`, `marks.lift_visible_limit`).
        """
        if self._is_closed:
            raise StoreClosed("a store is opened once: make a new MessageStore for the same directory")
        started = self.clock.monotonic()
        self.disk.make_dir(self.config.root)
        self._locks = log_place.lock(self.disk, self.paths)
        try:
            self._presence.note()
            platform.raise_open_file_limit()
            self.disk.remove_tree(self.paths.staging)
            self.disk.remove_tree(self.paths.log_staging)
            self._recover(truncate_at, rebuild, hold_back)
            self.reserve.take()
            self._presence.note()
        except BaseException as error:
            self._close_files()
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise DiskFull(f"the store cannot start without room on the disk ({error}); make some") from error
            raise
        self._is_open = True
        self.report.seconds = self.clock.monotonic() - started
        return self.report

    def _recover(self, truncate_at: int | None, rebuild: bool, hold_back: bool) -> None:
        start = Start(
            paths=self.paths,
            threads=self.config.recovery_threads,
            log=self.log,
            queues=self.queues,
            index=self.index,
            dispatcher=self.dispatcher,
            marks=self.marks,
            checkpoint_file=self._checkpoint_file,
            repair=self.repair,
        )
        point = self._point_file.load()
        if truncate_at is None:
            log_place.refuse_another(self.disk, self.paths, point)
        clean = not self._abort.is_set()
        point, found, self.report = start.examine(point, clean=clean, truncate_at=truncate_at)
        self.reserve.give_up()
        log_place.note(self.disk, self.paths)
        self._abort.set()
        start.put_in_order(point, found, self.report, rebuild=rebuild, hold_back=hold_back)
        self._found_below = found.end
        self.flusher.last_timestamp_ms = self.log.last_timestamp_ms
        self.cleaner.trusted_clock.start(self.log.last_timestamp_ms)
        self.points.current = point or RecoverPoint()
        self.points.save()  # from now on a crash starts from here

    def close(self) -> None:
        """Stop cleanly: everything synced, and all that readers may see dispatched and indexed: the next start has
        nothing to do."""
        if not self._is_open:
            self._close_files()
            return
        with contextlib.suppress(StoreFenced):  # it is logged, and the marks have failed
            self.close_batch()
        self.check_presence()
        self._is_open = False
        try:
            if self._fenced is None:
                self._finish()
        finally:
            self._close_files()
            if self._fenced is None:
                self.marks.fail(lambda: StoreClosed("the store was closed"))

    def _finish(self) -> None:
        self.commit_gathered()
        self.flusher.sync_now()  # first: under sync flush queues follow the synced mark
        self._complete()
        try:
            if self.index is not None:
                self.index.sync_all()
            self.points.save(clean=True)
        except OSError as error:
            log.warning("the recover point could not be written; the next start has more to scan: %s", error)
        else:
            self._abort.clear()

    def _complete(self) -> None:
        """Queues and index can be built again: whatever is wrong with them, the log itself must be synced."""
        try:
            self.dispatcher.dispatch()
            if self.marks.written.value - self.marks.indexed.value <= MAX_INDEXED_AT_STOP:
                self.dispatcher.index()
        except CorruptLog as damage:
            log.error("the key index is not complete: %s", damage)
        except OSError as error:
            log.warning("queues or index are not complete, the next start completes them: %s", what_to_do(error))

    def _close_files(self) -> None:
        self._is_closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=True)
        self.log.close()
        self.queues.close()
        if self.index is not None:
            self.index.close(write_header=self._fenced is None)
        self._point_file.close()
        self._checkpoint_file.close()
        if self._locks is not None:
            self._locks.close()
            self._locks = None

    def __enter__(self) -> MessageStore:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- damaged queues ----------------------------------------------------------------------------------------------

    def _check_readable(self, queue: ConsumeQueue) -> None:
        if queue.is_suspect and self._loop is None:
            self.repair.run_now()
        self.repair.check(queue)

    def _found_damage(self, queue: ConsumeQueue, damage: CorruptQueue) -> None:
        self.repair.found_damage(queue, damage)
        self._check_readable(queue)

    async def _wait_readable(self, queue: ConsumeQueue) -> None:
        if self._loop is not None:
            await self.repair.wait(queue)

    # --- appending ---------------------------------------------------------------------------------------------------

    @gated
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
                    self._add_queue(rest[0])
        except DiskFull as full:
            full.receipts = receipts
            raise
        finally:
            self._grew(len(receipts))
        self._append_seconds.record(self.clock.monotonic() - started)
        return receipts

    @gated
    def append_together(self, drafts: list[Draft]) -> list[AppendedAt]:
        """The same, all of them or none: a few, that are small beside a segment."""
        self._check_writable()
        for draft in drafts:
            if queue_key(draft.topic, draft.queue_id) not in self.queues.cursors:
                self._add_queue(draft)
        self.log.make_room(drafts)
        return self.append(drafts)

    # --- copying another log -----------------------------------------------------------------------------------------

    @gated
    def follow(self) -> None:
        """From now on the log grows by `append_copy` alone: it is a copy of another one.

        A copy may begin anywhere in the other log, and so may its queues.
        """
        self.dispatcher.recovering = True

    @gated
    def lead(self) -> None:
        """From now on the log grows by messages again: each goes behind the last of its queue.

        Raises DiskFull, StoreFenced.
        """
        self._sync_if_visibility_waits()
        self.dispatch()
        self.log.end_copying()
        self.dispatcher.recovering = False
        for queue in self.queues:
            queue.cursor.next_append = queue.max_offset

    @gated
    def start_copy_at(self, position: int) -> None:
        """An empty log is to begin where the other one does. Raises OSError."""
        assert position % self.config.segment_bytes == 0, f"no segment begins at {position}"
        self.log.begin_copy_at(position)
        for queue in list(self.queues):
            self.queues.discard(queue)  # it has no messages, and is to begin wherever its first one does
        for mark in self.marks.all():
            if position < mark.value:
                mark.value = position  # it has never shown a byte
            mark.advance(position)  # also for those of a running store who wait for what comes

    @gated
    def append_copy(self, data: memoryview, records: int, last_timestamp_ms: int) -> None:
        """Append whole records of another log, bytes that were checked, for the position where this one ends.

        Raises DiskFull (what has been written counts), StoreFenced, StoreClosed.
        """
        self._check_writable()
        before = self.log.end
        try:
            self.log.append_copy(data, last_timestamp_ms)
        except OSError as error:
            raise self.fence(error) from error
        finally:
            if self.log.end > before:
                self._grew(max(records, 1))

    @property
    def copyable(self) -> Watermark:
        """Everything below is in the log's files, for replicas. The messages of a committed batch are there before
        readers see them."""
        return self.marks.appended if self._transient is None else self.marks.written

    def log_range(self, position: int, most: int) -> memoryview:
        """What the log has from a position on, in one segment. Nothing when it ends there. Raises OffsetNotFound."""
        end = self.copyable.value
        segment = self.log.files.find(position)
        if segment is None or not self.log.start <= position <= end:
            if position == end:
                return memoryview(b"")
            raise OffsetNotFound(f"the log has the positions {self.log.start} to {end}, and not {position}")
        at = position - segment.base
        return segment.buffer[at : min(at + most, segment.size, end - segment.base)]

    # --- the append batch --------------------------------------------------------------------------------------------

    def batch(self) -> AppendBatch:
        """Return the append batch. Open it to append messages one by one; see `append_batch`."""
        return self._batch

    def _may_append(self) -> bool:
        return self._fenced is None and self._is_open and self.cleaner.refusal is None and self._blocked is None

    def end_turn(self) -> None:
        """Commit the append batch at the end of a turn of the loop; close it if a long poll waits for one of its
        messages. Raises StoreFenced."""
        if not self._batch.end_turn():
            self.catch_up()

    def close_batch(self) -> None:
        """The gate: close the append batch if it is open. Raises StoreFenced."""
        self._batch.close()

    def _batch_is_due(self) -> None:
        self.close_batch()
        self._timing.batch_closed()

    @gated
    def catch_up(self) -> None:
        """Dispatch everything that was appended in this turn, for a reader that asks in the same turn."""
        self._timing.if_due()

    def _add_queue(self, draft: Draft) -> None:
        """A queue's first file is there before its first message is in the log. Raises DiskFull."""
        if self.disk.files_left() < RESERVED_FILES:
            name = draft.topic.decode(errors="replace")
            raise TooManyFiles(
                f"the queue {name}/{draft.queue_id} cannot be made: it needs open files, and this process may open "
                f"fewer than {RESERVED_FILES} more; raise its limit (ulimit -n) and restart, or use fewer queues. "
                "Queues that are there go on"
            )
        queue = self.queues.get_or_create(draft.topic, draft.queue_id)
        try:
            queue.make_room()
            self.arrivals.queue_made(draft.topic, draft.queue_id)
        except OSError as error:
            self.queues.forget(queue)
            raise DiskFull(f"the queue {queue.id} cannot be made: {what_to_do(error)}") from error

    def _check_writable(self) -> None:
        self._check_unfenced()
        self._check_open()
        if self.cleaner.refusal is not None:
            raise DiskFull(self.cleaner.refusal)
        if self._blocked is not None and not self._try_dispatch():
            raise DiskFull(f"queue entries cannot be written: {what_to_do(self._blocked)}")

    def _check_unfenced(self) -> None:
        if self._fenced is not None:
            raise StoreFenced(self._fenced)

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreClosed("the store is not open")

    def _grew(self, messages: int, *, may_be_awaited: bool = True) -> None:
        if not messages:
            return
        self._timing.came(may_be_awaited=may_be_awaited)
        self.marks.appended.advance(self.log.end)
        if self._transient is None:
            self._show(self.log.end)
        self.flusher.grew()

    def _show(self, position: int) -> None:
        """The log can be read up to a position, and the queues follow; under sync flush, up to the synced mark."""
        self.marks.written.advance(position)
        if self.config.flush.sync:
            self._timing.synced_moved()
        else:
            self._timing.written_moved()

    def _shown_moved(self) -> None:
        self._timing.visible_moved()
        self._more_is_visible.set()

    def _synced_moved(self, _: int) -> None:
        self._timing.synced_moved()
        self._more_is_visible.set()

    @gated
    def commit_gathered(self) -> None:
        """With the transient pool: write the gathered bytes to the log's file."""
        if self._transient is None:
            return
        try:
            committed = self._transient.commit(self.log.end)
        except OSError as error:
            raise self.fence(error) from error
        if committed > self.marks.written.value:
            self._timing.came(may_be_awaited=True)  # it has been gathered for long enough
            self._show(committed)

    def fence(self, error: BaseException) -> StoreFenced:
        """A write was not confirmed: from here on nothing is acknowledged."""
        with contextlib.suppress(StoreFenced):
            self.close_batch()
        if self._fenced is None:
            self._fenced = error
            log.critical("%s", StoreFenced(error))
            self.marks.fail(lambda: StoreFenced(error))
        return StoreFenced(self._fenced)

    def check_presence(self) -> None:
        """Fence the store if its directory, its lock or its open segment is no longer the one that was opened."""
        if self._fenced is None:
            try:
                self._presence.check()
            except StoreGone as gone:
                self.disk.abandon()  # the directory of this name may be another process's
                self.fence(gone)

    @gated
    def flush(self) -> None:
        """Make everything that was appended durable, now, on this thread. Raises StoreFenced."""
        self._check_unfenced()
        self._check_open()
        self.flusher.sync_now()

    def _sync_if_visibility_waits(self) -> None:
        """Under sync flush only what is synced gets into its queue. Raises StoreFenced."""
        if self.config.flush.sync:
            self.flush()

    async def wait_synced(self, receipt: AppendedAt) -> None:
        """Return once a message is durable. All who wait share one sync. Raises StoreFenced."""
        if self.marks.synced.value >= receipt.end:
            return
        if self._loop is None:
            self.flush()  # nobody flushes beside us
        else:
            self.flusher.wake()
            await self.marks.synced.wait(receipt.end)

    # --- what runs beside --------------------------------------------------------------------------------------------

    @gated
    def dispatch(self) -> None:
        """Bring queues and index up to date, now. Raises DiskFull when there is no room for them."""
        self._check_open()
        self.commit_gathered()
        if not self._try_dispatch():
            assert self._blocked is not None
            raise DiskFull(f"queue entries cannot be written: {what_to_do(self._blocked)}")

    def _try_dispatch(self) -> bool:
        """False when the disk is full: the log has everything, and a later attempt goes on where this one stopped."""
        try:
            self.dispatcher.dispatch()
            self._timing.dispatched()
            self.arrivals.tell()
            if self._loop is None:
                self.dispatcher.index()
            elif self.marks.indexed.value >= self._found_below and not self.dispatcher.index(INDEX_SLICE_BYTES):
                self._timing.later()
        except OSError as error:
            if self._blocked is None:
                log.error("messages are refused, queue entries cannot be written: %s", what_to_do(error))
            self._blocked = error
            return False
        self._blocked = None
        return True

    def _dispatch_now(self) -> None:
        """One turn of the loop: all queues, and a slice of the index."""
        if self._is_open:
            try:
                self._try_dispatch()
            except Exception as error:
                log.critical("messages are no longer put into their queues", exc_info=error)
                self.fence(error)

    @contextlib.asynccontextmanager
    async def running(self, *, truncate_at: int | None = None, hold_back: bool = False) -> AsyncIterator[MessageStore]:
        """Open, and keep flushing, dispatching, cleaning and moving the recover point until the block ends; then close.

        When the store is fenced, whoever waits gets StoreFenced, and so does the block's end.
        """
        self._loop = asyncio.get_running_loop()
        self._timing.start(self._loop)
        self._batch.runs_on(self._loop)
        try:
            if not self._is_open:
                opening = asyncio.to_thread(self.open, truncate_at=truncate_at, hold_back=hold_back)
                await uninterrupted(asyncio.ensure_future(opening))
            self._timing.later()
            with (
                ThreadPoolExecutor(1, "pyromq-points") as executor,
                contextlib.closing(self._sync_thread()) as syncing,
            ):
                work = [
                    self.flusher.run(syncing),
                    self.points.run(executor),
                    self._run_retention(executor),
                    self._catch_up_index(executor),
                    self._watch_presence(),
                    self.repair.run(executor, self.points.lock),
                ]
                if self._transient is not None:
                    work.append(self._run_commits())
                tasks = [self._loop.create_task(one) for one in work]
                for task in tasks:
                    task.add_done_callback(self._task_ended)
                try:
                    yield self
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._timing.stop()
            self._batch.runs_on(None)
            self._loop = None
            self.close()
        self._check_unfenced()

    def _sync_thread(self) -> WorkThread | SyncThread:
        """Compiled where it can be; a simulated disk has no descriptors."""
        is_real = isinstance(self.disk, OsDisk) and SYNCS_WITH_FDATASYNC
        return SyncThread() if is_real and SyncThread.is_possible() else WorkThread("pyromq-sync")

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Nothing that runs beside the store may end unseen: without it a promise would no longer be kept."""
        error = None if task.cancelled() else task.exception()
        if error is not None and self._fenced is None:
            log.critical("a part of the store stopped working", exc_info=error)
            self.fence(error)

    async def _catch_up_index(self, executor: Executor) -> None:
        """After a crash: index the old part of the log, a slice a turn, its pages brought in by a thread first."""
        mark = self.marks.indexed
        while mark.value < self._found_below:
            segment = self.log.files.find(mark.value)
            assert segment is not None
            at = mark.value - segment.base
            size = min(INDEX_SLICE_BYTES, segment.size - at)
            await asyncio.get_running_loop().run_in_executor(executor, segment.file.warm, at, at + size)
            before = mark.value
            self._more_is_visible.clear()
            try:
                self.dispatcher.index(size)
                if mark.value == before:  # readers are held back until copies are heard of
                    await self._more_is_visible.wait()
            except CorruptLog as damage:
                goal = min(segment.end, self._found_below)
                log.error("keys of the messages from %d to %d are not indexed: %s", mark.value, goal, damage)
                mark.advance(goal)
            except OSError as error:
                log.warning("the key index waits for room on the disk: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
        self._timing.later()

    async def _watch_presence(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self.check_presence()

    async def _run_commits(self) -> None:
        while True:
            await asyncio.sleep(self.config.transient_commit_ms / 1000)
            self.commit_gathered()

    async def _run_retention(self, executor: Executor) -> None:
        while True:
            await asyncio.sleep(self.config.retention.interval_ms / 1000)
            if not self.repair.is_checked:
                continue  # a damaged queue could tell that it needs none of its files
            try:
                async with self.points.lock:
                    await self.cleaner.clean_beside(executor)
            except OSError as error:
                end_if_cancelled()
                log.warning("old segments could not be removed: %s", error)
            if self._blocked is not None:
                self._try_dispatch()

    async def clean_soon(self, *, at_any_hour: bool = False) -> None:
        """Remove all expired segments now, in the background. Raises OSError, StoreFenced."""
        for _ in range(MAX_ROUNDS):
            self._check_open()
            async with self.points.lock:
                if not await self.cleaner.clean_beside(None, at_any_hour=at_any_hour):
                    return

    async def remove_topic(self, topic: str, agreed: Callable[[], bool] = lambda: True) -> bool:
        """Forget a topic's queues and remove their files. Its messages stay in the log until their time is over.

        `agreed` is called in the very turn in which the queues go: what was appended before belongs to the topic that
        goes, what is appended later to a new one. When it says no, nothing happens, and False is returned. On return
        the topic does not come back by a crash. Raises DiskFull, StoreFenced, and NotNow while there are messages that
        are not visible yet.
        """
        self._check_open()
        name = to_bytes(topic)
        if not is_safe_topic(name):
            raise IllegalMessage(f"the topic {topic!r} cannot be the name of a directory")
        async with self.points.lock:
            self._check_unfenced()
            self._sync_if_visibility_waits()
            self.dispatch()
            if self.marks.dispatched.value < self.marks.written.value:  # an entry to come would be the new topic's
                raise NotNow(f"the topic {topic} is not removed: messages before it are not acknowledged; try again")
            if not agreed():
                return False
            self._removals += 1
            aside = self.paths.staging / f"removed-{self._removals}"
            try:
                self._take_topic(name, aside)
                await self._forget_below(self.marks.appended.value)
            except OSError as error:
                raise DiskFull(f"a crash may still bring the topic {topic} back: {what_to_do(error)}") from error
            finally:
                loop = asyncio.get_running_loop()
                await uninterrupted(loop.run_in_executor(None, self.disk.remove_tree, aside))
        return True

    def _take_topic(self, name: bytes, aside: Path) -> None:
        watched = [queue.id for queue in self.queues.of_topic(name) if queue.cursor.awaited is not None]
        self.queues.take_topic(name, aside)
        for queue in watched:
            self.arrivals.watch(queue.topic, queue.number)  # whoever waits is told of the new topic's messages

    async def _forget_below(self, end: int) -> None:
        """No start looks at the log below a position again. Raises OSError, StoreFenced."""
        if self._loop is None:
            self.flush()
        else:
            self.flusher.wake()
            await self.marks.synced.wait(end)
        await self.points.carry_out_beside(self.points.plan(), None)

    @gated
    def save_recover_point(self) -> None:
        """Sync the queues and note how far everything is, where nothing does so beside. Raises OSError, StoreFenced."""
        self._check_open()
        assert not self.points.lock.locked(), "a recover point is being written beside"
        self.points.save()

    @gated
    def clean(self) -> None:
        """Remove what is too old, and decide whether messages are refused, where nothing does so beside. A full disk is
        no error here."""
        self._check_open()
        assert not self.points.lock.locked(), "segments are being removed beside"
        try:
            self.cleaner.clean()
        except OSError as error:
            log.warning("old segments could not be removed: %s", error)
