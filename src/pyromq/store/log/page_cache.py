"""The resident parts of the log, as of the last look at each.

The system is asked for a stretch at a time, and its answer is believed for a moment: asking for every read would cost
more than the read. A stretch that is given up by the system within that moment costs one reader a short wait.
"""

from __future__ import annotations

from pyromq.clock import Clock
from pyromq.store.log.segmented_file import SegmentedFile

#: The size of a stretch: the messages of one read usually lie within it.
STRETCH_BYTES = 4 << 20
#: An answer stays valid for this many seconds.
BELIEVED_SECONDS = 1.0
#: Stretches remembered: a log of some 40 GiB.
MAX_STRETCHES = 10_000


class Warmth:
    """Remembers which stretches of a log were in memory."""

    def __init__(self, files: SegmentedFile, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        #: Until when a stretch is taken to be in memory; its number is that of its first byte.
        self._warm_until: dict[int, float] = {}

    def stretch(self, position: int) -> tuple[int, int] | None:
        """A part of the log around a position that is in memory; None when it may not be."""
        start = position - position % STRETCH_BYTES
        now = self._clock.monotonic()
        if not self._is_warm(start, now):
            return None
        end = start + STRETCH_BYTES
        # A read that begins near the end of one stretch continues in the next.
        return start, end + STRETCH_BYTES if self._is_warm(end, now) else end

    def _is_warm(self, start: int, now: float) -> bool:
        until = self._warm_until.get(start)
        if until is not None and now < until:
            return True
        segment = self._files.find(start)
        if segment is None:
            return False
        first = start - segment.base
        if not segment.file.is_resident(first, min(first + STRETCH_BYTES, segment.size)):
            self._warm_until.pop(start, None)
            return False
        if len(self._warm_until) >= MAX_STRETCHES:
            self._warm_until.clear()
        self._warm_until[start] = now + BELIEVED_SECONDS
        return True
