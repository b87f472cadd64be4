"""Keeps the recover point moving: how much a restart has to scan.

A recover point is three steps, in this order: sync the queues, and that removed ones are gone; sync index files that
are full; write the point. What it says was on the disk before it said so. Decided on the store's thread (`plan`),
carried out on any (`write`).

A sync that fails fences the store here too: the system may drop the pages and report success the next time, and a
point that moved over lost queue entries would hide messages. A sync that could not even begin, for want of open files,
promised nothing and lost nothing: the last point holds, and the next attempt makes up for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from pyromq.config import FlushConfig
from pyromq.errors import StoreFenced
from pyromq.files.disk import NotTried
from pyromq.files.platform import what_to_do
from pyromq.files.uninterrupted import end_if_cancelled, uninterrupted
from pyromq.records import layout
from pyromq.store.dispatcher import Dispatcher
from pyromq.store.durability.checkpoint import UNKNOWN, Checkpoint, CheckpointFile, RecoverPoint, RecoverPointFile
from pyromq.store.durability.flusher import Flusher
from pyromq.store.key_index import IndexFile, KeyIndex
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.queues.queue_table import QueueTable
from pyromq.store.watermarks import Watermarks

log = logging.getLogger("pyromq.store")

#: After a failed attempt (a full disk) wait this long.
RETRY_SECONDS = 1.0


class SyncFailed(Exception):
    """A queue or index file could not be synced."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class Plan:
    """The inputs of one recover point."""

    queues: list[tuple[ConsumeQueue, int]]
    index_files: list[IndexFile]
    point: RecoverPoint
    checkpoint: Checkpoint


class RecoverPoints:
    """The current recover point, and the next one."""

    def __init__(
        self,
        config: FlushConfig,
        commit_log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        marks: Watermarks,
        flusher: Flusher,
        dispatcher: Dispatcher,
        files: tuple[RecoverPointFile, CheckpointFile],
        fence: Callable[[BaseException], StoreFenced],
    ) -> None:
        self._config = config
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._marks = marks
        self._flusher = flusher
        self._dispatcher = dispatcher
        self._point_file, self._checkpoint_file = files
        self._fence = fence
        self._index_ms = 0
        #: Held while a point is being written: retention writes one too.
        self.lock = asyncio.Lock()
        self.current = RecoverPoint()
        #: The last attempt failed, and the log says so.
        self._in_trouble = False

    def save(self, *, clean: bool = False) -> None:
        """Now, on this thread. Raises OSError when the point's own file cannot be written, StoreFenced."""
        self.carry_out(self.plan(clean=clean))

    def carry_out(self, plan: Plan) -> None:
        """On this thread."""
        self._marks.synced.check()  # a fenced store promises nothing more
        try:
            self.write(plan)
        except SyncFailed as failure:
            raise self._fence(failure.error) from failure
        self.current = plan.point

    async def carry_out_beside(self, plan: Plan, executor: Executor | None) -> None:
        """On another thread. Raises OSError, StoreFenced. The caller holds the lock."""
        self._marks.synced.check()
        try:
            await uninterrupted(asyncio.get_running_loop().run_in_executor(executor, self.write, plan))
        except SyncFailed as failure:
            raise self._fence(failure.error) from failure
        except asyncio.CancelledError:
            self.current = plan.point
            raise
        self.current = plan.point

    def plan_log_start(self, start: int) -> Plan:
        """Before files are removed: a crash may bring them back, and this tells that they are not wanted."""
        plan = self.plan()
        point = replace(plan.point, log_start=start, start_digest=self._queues.start_digest(start))
        if point.index_file and self._index is not None:
            digest = self._index.digest(point.index_file, start)
            point = replace(point, index_to=max(point.index_to, start), index_digest=digest)
        return replace(plan, point=point)

    def plan(self, *, clean: bool = False) -> Plan:
        synced, dispatched = self._marks.synced.value, self._marks.dispatched.value
        index_to, index_file, index_files = self._index_progress(clean)
        queues = [(queue, queue.max_offset) for queue in self._queues]
        point = RecoverPoint(
            log_start=self._log.start,
            synced=synced,
            queues_to=min(dispatched, synced),
            index_to=min(index_to, synced),
            index_file=index_file,
            timestamp_ms=self._flusher.last_timestamp_ms,
            queue_digest=self._queues.digest() if dispatched <= synced else -1,
            clean=clean,
            start_digest=self._queues.start_digest(),
            index_digest=self._index.digest(index_file, self._log.start) if self._index is not None else UNKNOWN,
        )
        checkpoint = Checkpoint(self._flusher.last_timestamp_ms, self._dispatcher.last_timestamp_ms, self._index_ms)
        return Plan(queues, index_files, point, checkpoint)

    def _index_progress(self, clean: bool) -> tuple[int, int, list[IndexFile]]:
        """Up to where the index will be durable, its last durable file, and the files to sync for it."""
        if self._index is None:
            return 0, 0, []
        # The file that is being written is synced at a clean stop only: its pages are dirty all over.
        files = self._index.files if clean else self._index.files[:-1]
        while files and self._behind(files[-1].cursor.end_position) > self._marks.synced.value:
            files = files[:-1]  # it points to records that a crash may still take away
        if not files:
            return (self._marks.indexed.value, 0, []) if clean else (0, 0, [])
        last = files[-1]
        self._index_ms = last.cursor.end_ms
        reached = self._marks.indexed.value if clean else self._behind(last.cursor.end_position)
        return reached, int(last.name), [file for file in files if not file.is_synced]

    def _behind(self, position: int) -> int:
        """Behind the record at a position: its keys are all in one file."""
        segment = self._log.files.find(position)
        if segment is None:
            return position
        size: int = layout.total_size_of(segment.buffer, position - segment.base)
        return position + size

    def write(self, plan: Plan) -> None:
        """Raises SyncFailed; or OSError when the point's own files cannot be made, or a sync could not begin."""
        try:
            self._queues.sync_removals()
            for queue, offset in plan.queues:
                queue.sync(offset)
            for file in plan.index_files:
                file.sync()
        except NotTried:
            raise
        except OSError as error:
            raise SyncFailed(error) from error
        self._point_file.save(plan.point)
        self._checkpoint_file.save(plan.checkpoint)

    async def run(self, executor: Executor) -> None:
        """A point every interval, or sooner when much has come since; until cancelled."""
        while True:
            distance = self.current.synced + self._config.recover_point_bytes
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.recover_point_interval_ms / 1000):
                    await self._marks.synced.wait(distance)
            async with self.lock:
                plan = self.plan()
                if plan.point == self.current:
                    continue
                try:
                    await self.carry_out_beside(plan, executor)
                    self._in_trouble = False
                    continue
                except OSError as error:
                    end_if_cancelled()
                    self._tell(error)
            await asyncio.sleep(RETRY_SECONDS)

    def _tell(self, error: OSError) -> None:
        """Once, however long it lasts."""
        if not self._in_trouble:
            why = what_to_do(error)
            log.warning("the recover point could not be written, the last one still holds; trying again: %s", why)
        self._in_trouble = True
