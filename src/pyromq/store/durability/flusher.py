"""Makes appended bytes durable: at intervals, or at once for those who wait (group commit).

Everything that was appended while one sync ran is covered by the next: waiting sends share it. A sync that fails
fences the store: the state of the page cache is unknown from then on, so nothing later may be acknowledged, and
trying again could report a success that is none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import NamedTuple

from pyromq.clock import Clock
from pyromq.config import FlushConfig
from pyromq.errors import StoreFenced
from pyromq.files.uninterrupted import uninterrupted
from pyromq.files.work_thread import WorkThread
from pyromq.metrics import Telemetry
from pyromq.store.durability.sync_thread import MAX_FILES, SyncThread
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.segmented_file import Segment
from pyromq.store.watermarks import Watermarks

#: After this many turns of the loop without a new message, the flusher expects no more senders.
QUIET_TURNS = 3


class _Pending(NamedTuple):
    """The next sync: its end position, the store time of its last record, and its files."""

    target: int
    timestamp_ms: int
    segments: list[Segment]


class Flusher:
    """Moves `synced` towards `appended`."""

    def __init__(
        self,
        config: FlushConfig,
        commit_log: CommitLog,
        marks: Watermarks,
        clock: Clock,
        telemetry: Telemetry,
        fence: Callable[[BaseException], StoreFenced],
        commit: Callable[[], None],
    ) -> None:
        self._config = config
        self._log = commit_log
        self._marks = marks
        self._clock = clock
        self._fence = fence
        #: Brings gathered records into the page cache first, where a transient pool is in use.
        self._commit = commit
        self._wake = asyncio.Event()
        self._syncing = Lock()
        self._failure: OSError | None = None
        self._thread: SyncThread | None = None
        #: The duration of the last sync, and the number of bytes it made durable.
        self._last_seconds = 0.0
        self._last_bytes = 0
        self._seconds = telemetry.histogram("pyromq_store_flush_seconds")
        #: Store time of the last record that is known to be durable.
        self.last_timestamp_ms = 0

    def wake(self) -> None:
        """Sync as soon as the last sync has ended: a sender waits, or many bytes are unsynced."""
        self._wake.set()

    def grew(self) -> None:
        """The log has grown."""
        unsynced = self._marks.appended.value - self._marks.synced.value
        if unsynced >= (1 if self._config.sync else self._config.amount_bytes):
            self._wake.set()

    def sync_now(self) -> None:
        """Sync everything that is appended, on this thread. Raises StoreFenced."""
        if self._thread is not None:
            self._failure = self._thread.finish() or self._failure
        pending = self._pending()
        if pending.segments:
            try:
                self._sync(pending.segments)
            except OSError as error:
                raise self._fence(error) from error
            self._reached(pending)

    async def run(self, thread: WorkThread | SyncThread) -> None:
        """Sync again and again, on another thread, until cancelled."""
        self._thread = thread if isinstance(thread, SyncThread) else None
        while True:
            await self._due()
            if self._config.sync:
                await self._gather()
            pending = self._pending(MAX_FILES)
            self._wake.clear()  # whatever woke us is in it, also what it brought into the page cache itself
            if pending.target < self._marks.written.value:
                self._wake.set()  # the next portion follows at once
            if pending.segments:
                try:
                    await uninterrupted(self._sync_beside(thread, pending))
                except OSError as error:
                    raise self._fence(error) from error
                except asyncio.CancelledError:
                    self._reached(pending)
                    raise
                self._reached(pending)

    def _sync_beside(self, thread: WorkThread | SyncThread, pending: _Pending) -> asyncio.Future[None]:
        if isinstance(thread, WorkThread):
            return thread.submit(partial(self._sync, pending.segments))
        self._raise_failure()
        files = [segment.file.sync_descriptor() for segment in pending.segments]
        return thread.sync(files, partial(self._ended, self._clock.monotonic(), pending))

    def _ended(self, started: float, pending: _Pending, error: OSError | None) -> None:
        """Move the mark in the same turn of the loop, before the sync task continues."""
        self._synced(started, error)
        if error is None:
            self._reached(pending)

    def _synced(self, started: float, error: OSError | None) -> None:
        """A sync has ended, on whichever thread."""
        if error is not None:
            self._failure = error
        self._last_seconds = self._clock.monotonic() - started
        self._seconds.record(self._last_seconds)

    def _raise_failure(self) -> None:
        """The system tells of a failure once: a second attempt would report a success that is none."""
        if self._failure is not None:
            raise self._failure

    async def _due(self) -> None:
        """Wait until there is something to sync."""
        if self._config.sync:
            await self._wake.wait()  # every append wakes us
            return
        # Not `wait_for`: before Python 3.12 it can swallow a cancellation that meets the event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.interval_ms / 1000):
                await self._wake.wait()

    async def _gather(self) -> None:
        """Wait for more messages before a sync: senders that the last sync released are likely to send again at once,
        and one sync for many costs each of them less. Waits at most as long as the last sync took, and not at all if no
        message is unsynced."""
        marks = self._marks
        waiting = self._log.written_to - marks.synced.value
        if not waiting:
            return
        until = self._clock.monotonic() + self._last_seconds
        quiet_turns = 0
        while waiting < self._last_bytes and quiet_turns < QUIET_TURNS and self._clock.monotonic() < until:
            await asyncio.sleep(0)
            more = self._log.written_to - marks.synced.value
            quiet_turns = quiet_turns + 1 if more == waiting else 0
            waiting = more

    def _pending(self, max_segments: int | None = None) -> _Pending:
        """Return the unsynced part of the log, at most `max_segments` of its oldest segments."""
        self._commit()
        target, synced = self._marks.written.value, self._marks.synced.value
        touched: list[Segment] = []
        for segment in reversed(self._log.files.segments):
            if segment.end <= synced or synced == target:
                break
            if segment.base < target:
                touched.append(segment)
        touched.reverse()
        if max_segments is not None and len(touched) > max_segments:
            # The store time of the portion's last record is not known; an older one is always true.
            portion = touched[:max_segments]
            return _Pending(portion[-1].end, self.last_timestamp_ms, portion)
        return _Pending(target, self._log.last_timestamp_ms, touched)

    def _sync(self, segments: list[Segment]) -> None:
        started = self._clock.monotonic()
        error: OSError | None = None
        with self._syncing:  # the owner's `sync_now` and the thread's sync may meet
            self._raise_failure()
            try:
                # Oldest first: a crash in between leaves no durable record behind one that is not.
                for segment in segments:
                    segment.file.sync()
            except OSError as problem:
                error = problem
                raise
            finally:
                self._synced(started, error)

    def _reached(self, pending: _Pending) -> None:
        # `sync_now` may have synced more in the mean time; and no success counts after the store is fenced.
        synced = self._marks.synced
        if pending.target > synced.value and not synced.has_failed:
            self.last_timestamp_ms = pending.timestamp_ms
            self._last_bytes = pending.target - synced.value
            synced.advance(pending.target)
