"""The store's interface: append, read, query; open and close.

    store = MessageStore(StoreConfig(root=Path("data")))
    store.open()                                  # lock, recover
    receipts = store.append([Draft(...), …])      # in the log, in this order
    store.flush()                                 # durable
    store.read("orders", 0, offset=0)             # views of the records
    store.close()

A broker runs the same object on its event loop: `async with store.running()` flushes, dispatches, applies retention and
moves the recover point in the background, and `await store.wait_synced(receipt)` returns once a message is durable.

`reader` is the reading half; `store_views` has positions and figures; `background`, `log_copy`, `topic_removal` and
`recovery.opening` do what their names say. One thread owns the store. Others only sync, allocate, prefault and read
cold data for it, and hold no state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from pyromq.clock import Clock, SystemClock
from pyromq.config import StoreConfig
from pyromq.errors import CorruptQueue, DiskFull, StoreClosed, StoreFenced, StoreGone
from pyromq.files.disk import Disk, OsDisk
from pyromq.files.platform import what_to_do
from pyromq.files.uninterrupted import uninterrupted
from pyromq.metrics import Telemetry
from pyromq.model.message import AppendedAt, Draft
from pyromq.store.background import INDEX_SLICE_BYTES, Background
from pyromq.store.cleaner import Cleaner
from pyromq.store.dispatch_timing import DispatchTiming
from pyromq.store.dispatcher import Dispatcher
from pyromq.store.durability.flusher import Flusher
from pyromq.store.durability.recover_points import RecoverPoints
from pyromq.store.durability.reserve import RESERVE_BYTES, Reserve
from pyromq.store.gate import gated
from pyromq.store.key_index import KeyIndex
from pyromq.store.log.allocator import Allocator, Runner
from pyromq.store.log.append_batch import AppendBatch
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.page_cache import Warmth
from pyromq.store.log.segmented_file import SegmentedFile
from pyromq.store.log.transient_pool import TransientPool
from pyromq.store.log_copy import LogCopy
from pyromq.store.paths import StorePaths
from pyromq.store.queues.arrivals import Arrivals
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.queues.new_queue import add_queue
from pyromq.store.queues.queue_cursor import queue_key
from pyromq.store.queues.queue_repair import QueueRepair
from pyromq.store.queues.queue_table import QueueTable
from pyromq.store.reader import decode
from pyromq.store.recovery.log_recovery import RecoveryReport
from pyromq.store.recovery.opening import Opening
from pyromq.store.runners import InlineRunner, ThreadRunner
from pyromq.store.store_views import StoreViews
from pyromq.store.topic_removal import TopicRemoval
from pyromq.store.watermarks import Watermarks

__all__ = ["InlineRunner", "MessageStore", "decode"]

log = logging.getLogger("pyromq.store")


class MessageStore(StoreViews):
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
        self._threads = ThreadRunner() if runner is None else None
        background: Runner = runner or self._threads or InlineRunner()
        self._transient = TransientPool() if config.transient_pool else None
        files = SegmentedFile(self.disk, self.paths.commit_log, config.segment_bytes)
        # A log that is synced all the time has small pages, which come in with the writes themselves.
        warm_bytes = 0 if config.flush.sync else config.prefault_bytes
        allocator = Allocator(files, background, self.clock, self.telemetry, warm_bytes)
        self.log = CommitLog(config, files, allocator, self._transient)
        self.queues = QueueTable(self.disk, self.paths.queues, config.queue_file_entries)
        self.index = KeyIndex(config, self.disk, self.clock) if config.index_enabled else None
        self.warmth = Warmth(files, self.clock)
        self.arrivals = Arrivals(self.queues)
        self.dispatcher = Dispatcher(config, self.log, self.queues, self.index, self.marks)
        self.repair = QueueRepair(config, self.log, self.queues, self.marks, self.clock)
        self.flusher = Flusher(
            config.flush, self.log, self.marks, self.clock, self.telemetry, self.fence, self.commit_gathered
        )
        self.opening = Opening(self)
        self.reserve = Reserve(self.disk, self.paths.reserve, min(RESERVE_BYTES, config.segment_bytes // 4))
        self.points = RecoverPoints(
            config.flush, self.log, self.queues, self.index, self.marks, self.flusher, self.dispatcher,
            (self.opening.point_file, self.opening.checkpoint_file), self.fence,
        )  # fmt: skip
        self.cleaner = Cleaner(
            config, self.disk, self.paths, self.clock, background, self.log, self.queues, self.index, self.marks,
            self.points, self.telemetry,
        )  # fmt: skip
        self._is_open = self._is_closed = False
        #: The write that the disk did not confirm; `None` if there is none.
        self._fenced: BaseException | None = None
        #: Why queue entries cannot be written; `None` if they can.
        self._blocked: OSError | None = None
        #: Records below this position were found on disk: they are checked when they are read.
        self.found_below = 0
        self._copy = LogCopy(self, self._grew)
        self._removal = TopicRemoval(self, self._check_unfenced)
        self._background = Background(self, self._retry_dispatch)
        self._batch = AppendBatch(
            self.log, self.queues, self.marks, self.flusher, self.clock, self.fence, self._grew, self._may_append,
            self._batch_is_due, is_sync=config.flush.sync,
        )  # fmt: skip
        self._loop: asyncio.AbstractEventLoop | None = None
        self.timing = DispatchTiming(self.marks, self._dispatch_now, lambda: self._batch.open_s)
        self._follow_marks()
        self.append_seconds = self.telemetry.histogram("pyromq_store_append_seconds")
        self._register_gauges()

    def _follow_marks(self) -> None:
        self.marks.visible_moved = self._visible_moved
        if self.config.flush.sync:
            self.marks.synced.listen(self._synced_moved)
        self.arrivals.watched = self.timing.watched

    # --- opening and closing -----------------------------------------------------------------------------------------

    def open(self, *, truncate_at: int | None = None, rebuild: bool = False, hold_back: bool = False) -> RecoveryReport:
        """Lock the directory and recover it. Raises StoreLocked, StoreError, CorruptLog, DiskFull.

        `truncate_at` gives up everything from a position on; `rebuild` removes queues and index and derives them again
        from the log. Both happen only on request. `hold_back`: messages that were not visible before stay invisible
        until the broker says which mark readers follow (`marks.limit_visible`, `marks.lift_visible_limit`).
        """
        if self._is_closed:
            raise StoreClosed("a store is opened once: make a new MessageStore for the same directory")
        try:
            self.report = self.opening.open(truncate_at=truncate_at, rebuild=rebuild, hold_back=hold_back)
        except BaseException:
            self._close_files()
            raise
        self._is_open = True
        return self.report

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
                self.opening.finish()
        finally:
            self._close_files()
            if self._fenced is None:
                self.marks.fail(lambda: StoreClosed("the store was closed"))

    def _close_files(self) -> None:
        self._is_closed = True
        if self._threads is not None:
            self._threads.close()
        self.opening.close()

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

        Raises IllegalMessage (nothing is appended), DiskFull (`receipts` lists the appended), StoreFenced, StoreClosed.
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
        self.append_seconds.record(self.clock.monotonic() - started)
        return receipts

    @gated
    def append_together(self, drafts: list[Draft]) -> list[AppendedAt]:
        """Append all of them or none. For a few messages that are small compared to a segment."""
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
        """Let the log grow by messages again. Raises DiskFull, StoreFenced."""
        self._copy.end()

    @gated
    def start_copy_at(self, position: int) -> None:
        """Let an empty log begin where the other one does. Raises OSError."""
        self._copy.start_at(position)

    @gated
    def append_copy(self, data: memoryview, records: int, last_timestamp_ms: int) -> None:
        """Append whole records of another log. Raises DiskFull, StoreFenced, StoreClosed."""
        self._check_writable()
        self._copy.append(data, records, last_timestamp_ms)

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
        self.timing.batch_closed()

    @gated
    def catch_up(self) -> None:
        """Dispatch everything that was appended in this turn, for a reader that asks in the same turn."""
        self.timing.if_due()

    def _add_queue(self, draft: Draft) -> None:
        """A queue's first file is there before its first message is in the log. Raises DiskFull."""
        add_queue(self.disk, self.queues, self.arrivals, draft)

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
        self.timing.came(may_be_awaited=may_be_awaited)
        self.marks.appended.advance(self.log.end)
        if self._transient is None:
            self._show(self.log.end)
        self.flusher.grew()

    def _show(self, position: int) -> None:
        """The log can be read up to a position, and the queues follow; under sync flush, up to the synced mark."""
        self.marks.written.advance(position)
        if self.config.flush.sync:
            self.timing.synced_moved()
        else:
            self.timing.written_moved()

    def _visible_moved(self) -> None:
        self.timing.visible_moved()
        self._background.visible_moved.set()

    def _synced_moved(self, _: int) -> None:
        self.timing.synced_moved()
        self._background.visible_moved.set()

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
            self.timing.came(may_be_awaited=True)  # it has been gathered for long enough
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

    @property
    def is_fenced(self) -> bool:
        """Return True if a write was not confirmed: nothing is acknowledged any more."""
        return self._fenced is not None

    def check_presence(self) -> None:
        """Fence the store if its directory, its lock or its open segment is no longer the one that was opened."""
        if self._fenced is None:
            try:
                self.opening.presence.check()
            except StoreGone as gone:
                self.disk.abandon()  # the directory of this name may be another process's
                self.fence(gone)

    @gated
    def flush(self) -> None:
        """Make everything that was appended durable, now, on this thread. Raises StoreFenced."""
        self._check_unfenced()
        self._check_open()
        self.flusher.sync_now()

    async def wait_synced(self, receipt: AppendedAt) -> None:
        """Return once a message is durable. All who wait share one sync. Raises StoreFenced."""
        if self.marks.synced.value >= receipt.end:
            return
        if self._loop is None:
            self.flush()  # without a loop there is no flusher
        else:
            self.flusher.wake()
            await self.marks.synced.wait(receipt.end)

    # --- background work ---------------------------------------------------------------------------------------------

    @gated
    def dispatch(self) -> None:
        """Bring queues and index up to date, now. Raises DiskFull when there is no room for them."""
        self._check_open()
        self.commit_gathered()
        if not self._try_dispatch():
            assert self._blocked is not None
            raise DiskFull(f"queue entries cannot be written: {what_to_do(self._blocked)}")

    def _try_dispatch(self) -> bool:
        """False when the disk is full: the log has everything, and a later attempt continues at the same record."""
        try:
            self.dispatcher.dispatch()
            self.timing.dispatched()
            self.arrivals.tell()
            if self._loop is None:
                self.dispatcher.index()
            elif self.marks.indexed.value >= self.found_below and not self.dispatcher.index(INDEX_SLICE_BYTES):
                self.timing.later()
        except OSError as error:
            if self._blocked is None:
                log.error("messages are refused, queue entries cannot be written: %s", what_to_do(error))
            self._blocked = error
            return False
        self._blocked = None
        return True

    def _retry_dispatch(self) -> None:
        """Dispatch again if a full disk has stopped it."""
        if self._blocked is not None:
            self._try_dispatch()

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

        Every waiter gets StoreFenced when the store is fenced, and so does the block's end.
        """
        self._loop = asyncio.get_running_loop()
        self.timing.start(self._loop)
        self._batch.runs_on(self._loop)
        try:
            if not self._is_open:
                opening = asyncio.to_thread(self.open, truncate_at=truncate_at, hold_back=hold_back)
                await uninterrupted(asyncio.ensure_future(opening))
            self.timing.later()
            async with self._background.running():
                yield self
        finally:
            self.timing.stop()
            self._batch.runs_on(None)
            self._loop = None
            self.close()
        self._check_unfenced()

    async def clean_soon(self, *, at_any_hour: bool = False) -> None:
        """Remove all expired segments now, in the background. Raises OSError, StoreFenced."""
        await self._background.remove_expired(self._check_open, at_any_hour=at_any_hour)

    async def remove_topic(self, topic: str, agreed: Callable[[], bool] = lambda: True) -> bool:
        """Forget a topic's queues and remove their files. Its messages stay in the log until their time is over.

        `agreed` is called in the turn of the loop that removes the queues: earlier messages belong to the removed
        topic, later ones to a new topic. If it returns False, nothing happens, and False is returned. After the return
        no crash restores the topic. Raises DiskFull, StoreFenced, and NotNow while there are messages that are not
        visible yet.
        """
        self._check_open()
        return await self._removal.remove(topic, agreed)

    @gated
    def save_recover_point(self) -> None:
        """Sync the queues and save a recover point. Only without background tasks. Raises OSError, StoreFenced."""
        self._check_open()
        assert not self.points.lock.locked(), "a recover point is being written beside"
        self.points.save()

    @gated
    def clean(self) -> None:
        """Remove expired segments, and decide if messages are refused. Only without background tasks. A full disk is no
        error here."""
        self._check_open()
        assert not self.points.lock.locked(), "segments are being removed beside"
        try:
            self.cleaner.clean()
        except OSError as error:
            log.warning("old segments could not be removed: %s", error)
