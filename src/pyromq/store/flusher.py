"""Makes appended bytes durable: at intervals, or at once for those who wait (group commit).

Everything that was appended while one sync ran is covered by the next: waiting sends share it. A sync that fails
fences the store: the state of the page cache is unknown from then on, so nothing later may be acknowledged, and
trying again could report a success that is none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from threading import Lock

from pyromq.clock import Clock
from pyromq.config import FlushConfig
from pyromq.errors import StoreFenced
from pyromq.store.beside import uninterrupted
from pyromq.store.commit_log import CommitLog
from pyromq.store.segmented_file import Segment
from pyromq.store.watermarks import Watermarks
from pyromq.telemetry import Telemetry


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
        self._seconds = telemetry.histogram("store.flush_seconds")
        #: Store time of the last record that is known to be durable.
        self.last_timestamp_ms = 0

    def wake(self) -> None:
        """Somebody waits, or much has gathered: sync as soon as the last sync is over."""
        self._wake.set()

    def grew(self) -> None:
        """The log has grown."""
        if self._config.sync or self._marks.appended.value - self._marks.synced.value >= self._config.amount_bytes:
            self._wake.set()

    def sync_now(self) -> None:
        """Sync everything that is appended, on this thread. Raises StoreFenced."""
        target, timestamp_ms, segments = self._pending()
        if segments:
            try:
                self._sync(segments)
            except OSError as error:
                raise self._fence(error) from error
            self._reached(target, timestamp_ms)

    async def run(self, executor: Executor) -> None:
        """Sync again and again, on another thread, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            # Not `wait_for`: before Python 3.12 it can swallow a cancellation that meets the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.interval_ms / 1000):
                    await self._wake.wait()
            self._wake.clear()
            target, timestamp_ms, segments = self._pending()
            if segments:
                try:
                    await uninterrupted(loop.run_in_executor(executor, self._sync, segments))
                except OSError as error:
                    raise self._fence(error) from error
                except asyncio.CancelledError:
                    self._reached(target, timestamp_ms)
                    raise
                self._reached(target, timestamp_ms)

    def _pending(self) -> tuple[int, int, list[Segment]]:
        """What to sync: up to where, the time of its last record, and in which files."""
        self._commit()
        target, synced = self._marks.readable.value, self._marks.synced.value
        touched: list[Segment] = []
        for segment in reversed(self._log.files.segments):
            if segment.end <= synced or synced == target:
                break
            if segment.base < target:
                touched.append(segment)
        return target, self._log.last_timestamp_ms, touched[::-1]

    def _sync(self, segments: list[Segment]) -> None:
        started = self._clock.monotonic()
        with self._syncing:  # the owner's `sync_now` and the thread's sync may meet
            if self._failure is not None:
                # The system tells of a failure once: a second attempt would report a success that is none.
                raise self._failure
            try:
                # Oldest first: a crash in between leaves no durable record behind one that is not.
                for segment in segments:
                    segment.file.sync()
            except OSError as error:
                self._failure = error
                raise
        self._seconds.record(self._clock.monotonic() - started)

    def _reached(self, target: int, timestamp_ms: int) -> None:
        # `sync_now` may have come further meanwhile; and once the store is fenced no success counts any more.
        if target > self._marks.synced.value and not self._marks.synced.has_failed:
            self.last_timestamp_ms = timestamp_ms
            self._marks.synced.advance(target)
