"""Makes the next segment, and the next pages of the current one, before they are needed.

Making a segment of 1 GiB or touching a page for the first time would stop everything else; a thread does both ahead of
the writer. A full disk is remembered, not raised: the writer hears of it only when it really needs the room, and the
attempt is repeated then, so that writing continues without help once there is room again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from pyromq.clock import Clock
from pyromq.errors import DiskFull
from pyromq.metrics import Telemetry
from pyromq.store.log.segmented_file import Segment, SegmentedFile

Result = TypeVar("Result")

#: After a failed attempt the writer tries again itself, at most this often.
RETRY_SECONDS = 1.0


class Runner(Protocol):
    """Runs work in the background: a thread pool, or a test that runs it at once."""

    def submit(self, work: Callable[[], Result], /) -> Future[Result]: ...


class Allocator:
    """One step ahead of the writer of one segmented file."""

    def __init__(
        self, files: SegmentedFile, runner: Runner, clock: Clock, telemetry: Telemetry, warm_bytes: int
    ) -> None:
        self._files = files
        self._runner = runner
        self._clock = clock
        self._warm_bytes = warm_bytes
        self._next: tuple[int, Future[Segment]] | None = None
        self._warmed_to = 0
        self._failed_at: float | None = None
        self._seconds = telemetry.histogram("pyromq_store_segment_allocation_seconds")
        self._failures = telemetry.counter("pyromq_store_segment_allocation_failures_total")

    def look_ahead(self, current: Segment, offset: int, *, warms: bool = True) -> None:
        """Called after every append: start what will be needed soon. Cheap when there is nothing to do.

        Only those who write through the mapping need its pages.
        """
        if self._next is None and offset * 2 >= current.size:
            self._next = (current.end, self._runner.submit(lambda: self._create(current.end, warms=warms)))
        wanted = current.base + offset + self._warm_bytes // 2
        if warms and self._warm_bytes and self._warmed_to < wanted and self._warmed_to < current.end:
            start = max(self._warmed_to, current.base + offset)
            end = min(start + self._warm_bytes, current.end)
            self._warmed_to = end
            file = current.file
            self._runner.submit(lambda: file.warm(start - current.base, end - current.base))

    def take(self, base: int) -> Segment:
        """The segment that begins at `base`, made ahead or now. Raises DiskFull."""
        prepared, self._next = self._next, None
        if prepared is not None and prepared[0] == base:
            try:
                return prepared[1].result()
            except OSError:
                pass  # there may be room by now
        if self._failed_at is not None and self._clock.monotonic() - self._failed_at < RETRY_SECONDS:
            raise DiskFull(self._refusal(base))
        try:
            segment = self._create(base, warms=False)
        except OSError as error:
            self._failed_at = self._clock.monotonic()
            raise DiskFull(f"{self._refusal(base)} ({error.strerror})") from error
        self._failed_at = None
        return segment

    def _create(self, base: int, *, warms: bool) -> Segment:
        started = self._clock.monotonic()
        try:
            segment = self._files.create(base, reserve=True)
        except OSError:
            self._failures.add()
            raise
        if warms:
            segment.file.warm(0, self._warm_bytes)
        self._seconds.record(self._clock.monotonic() - started)
        return segment

    def _refusal(self, base: int) -> str:
        return (
            f"there is no room for the next segment of {self._files.file_bytes} bytes ({self._files.path_of(base)}); "
            "make room on the disk and sending goes on by itself"
        )

    def discard(self) -> None:
        """Forget a segment that was made ahead and is not needed, and take its file away."""
        prepared, self._next = self._next, None
        if prepared is not None:
            try:
                segment = prepared[1].result()
            except OSError:
                return
            self._files.disk.remove(segment.path)
            segment.close()
