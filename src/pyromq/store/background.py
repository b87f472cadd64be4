"""The background work of a running store: flush, recover points, retention, indexing, repair and checks.

Each is a task on the store's event loop. A task that ends with an error fences the store: without it messages would be
acknowledged that are not safe, or files would grow without end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING

from pyromq.errors import CorruptLog
from pyromq.files.disk import OsDisk
from pyromq.files.platform import SYNCS_WITH_FDATASYNC
from pyromq.files.uninterrupted import end_if_cancelled
from pyromq.files.work_thread import WorkThread
from pyromq.store.durability.presence import CHECK_SECONDS
from pyromq.store.durability.sync_thread import SyncThread

if TYPE_CHECKING:
    from pyromq.store.message_store import MessageStore

log = logging.getLogger("pyromq.store")

#: Bytes that are indexed in one turn of the loop while the index catches up: sends come first.
INDEX_SLICE_BYTES = 1 << 20
#: Pause before work that found the disk full is tried again.
RETRY_SECONDS = 1.0
#: Rounds of retention that one request may ask for.
MAX_ROUNDS = 1000


class Background:
    """The tasks of one store."""

    def __init__(self, store: MessageStore, retry_dispatch: Callable[[], None]) -> None:
        """`retry_dispatch` dispatches again if a full disk has stopped it."""
        self._store = store
        self._retry_dispatch = retry_dispatch
        #: Set when `visible` may have moved.
        self.visible_moved = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all tasks until the block ends."""
        store, loop = self._store, asyncio.get_running_loop()
        with (
            ThreadPoolExecutor(1, "pyromq-points") as executor,
            contextlib.closing(self._sync_thread()) as syncing,
        ):
            work = [
                store.flusher.run(syncing),
                store.points.run(executor),
                self._run_retention(executor),
                self._catch_up_index(executor),
                self._watch_presence(),
                store.repair.run(executor, store.points.lock),
            ]
            if store.config.transient_pool:
                work.append(self._run_commits())
            tasks = [loop.create_task(one) for one in work]
            for task in tasks:
                task.add_done_callback(self._task_ended)
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _sync_thread(self) -> WorkThread | SyncThread:
        """Return the compiled thread if there is one; a simulated disk has no descriptors for it."""
        is_real = isinstance(self._store.disk, OsDisk) and SYNCS_WITH_FDATASYNC
        return SyncThread() if is_real and SyncThread.is_possible() else WorkThread("pyromq-sync")

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._store.is_fenced:
            log.critical("a part of the store stopped working", exc_info=error)
            self._store.fence(error)

    async def _catch_up_index(self, executor: Executor) -> None:
        """After a crash: index the old part of the log, a slice per turn, after a thread has read its pages."""
        store = self._store
        mark = store.marks.indexed
        while mark.value < store.found_below:
            segment = store.log.files.find(mark.value)
            assert segment is not None
            at = mark.value - segment.base
            size = min(INDEX_SLICE_BYTES, segment.size - at)
            await asyncio.get_running_loop().run_in_executor(executor, segment.file.warm, at, at + size)
            before = mark.value
            self.visible_moved.clear()
            try:
                store.dispatcher.index(size)
                if mark.value == before:  # the messages become visible after replicas confirm them
                    await self.visible_moved.wait()
            except CorruptLog as damage:
                goal = min(segment.end, store.found_below)
                log.error("keys of the messages from %d to %d are not indexed: %s", mark.value, goal, damage)
                mark.advance(goal)
            except OSError as error:
                log.warning("the key index waits for room on the disk: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
        store.timing.later()

    async def _watch_presence(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self._store.check_presence()

    async def _run_commits(self) -> None:
        while True:
            await asyncio.sleep(self._store.config.transient_commit_ms / 1000)
            self._store.commit_gathered()

    async def _run_retention(self, executor: Executor) -> None:
        store = self._store
        while True:
            await asyncio.sleep(store.config.retention.interval_ms / 1000)
            if not store.repair.is_checked:
                continue  # a damaged queue may name files as unused that it needs
            try:
                async with store.points.lock:
                    await store.cleaner.clean_beside(executor)
            except OSError as error:
                end_if_cancelled()
                log.warning("old segments could not be removed: %s", error)
            self._retry_dispatch()

    async def remove_expired(self, check_open: Callable[[], None], *, at_any_hour: bool) -> None:
        """Remove all expired segments. Raises OSError, StoreFenced."""
        for _ in range(MAX_ROUNDS):
            check_open()
            async with self._store.points.lock:
                if not await self._store.cleaner.clean_beside(None, at_any_hour=at_any_hour):
                    return
