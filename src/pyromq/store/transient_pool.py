"""The transient pool: records gathered in anonymous memory, and committed to the page cache in batches.

A writer that shares the page cache with heavy readers or a busy disk can wait long for a single page; anonymous memory
never makes it wait. The price: a process that is killed loses what was gathered and not yet committed (with the
default settings at most the last 200 ms), where the mapped path loses nothing. A send that waits for the disk
(`flush.sync`) is acknowledged after its commit and sync, so nothing acknowledged is lost there.

Readers see committed bytes only. Memory behind the committed position is given back as the writer moves on.
"""

from __future__ import annotations

import mmap

from pyromq.store import platform
from pyromq.store.segmented_file import Segment

#: Memory is given back in steps of this size.
_RELEASE_STEP = 4 << 20


class TransientPool:
    """The gathered part of the log: from `committed` to the writer's position."""

    def __init__(self) -> None:
        #: Everything below this position is in the page cache.
        self.committed = 0
        self._active: list[tuple[Segment, mmap.mmap]] = []
        self._released = 0

    def attach(self, segment: Segment, offset: int) -> memoryview:
        """The memory that stands for a segment; writing begins at `offset`."""
        memory = mmap.mmap(-1, segment.size)
        if not self._active:
            self.committed = self._released = segment.base + offset
        self._active.append((segment, memory))
        return memoryview(memory)

    def commit(self, end: int) -> int:
        """Write everything below `end` to the page cache; the new committed position. Raises OSError."""
        while self._active and self.committed < end:
            segment, memory = self._active[0]
            start, stop = self.committed, min(end, segment.end)
            with memoryview(memory) as view:
                segment.file.write_at(start - segment.base, view[start - segment.base : stop - segment.base])
            self.committed = stop
            if stop == segment.end and len(self._active) > 1:
                self._active.pop(0)
                self._released = stop
            elif stop - self._released >= _RELEASE_STEP:
                platform.release_pages(platform.address_of(memory), self._released - segment.base, stop - segment.base)
                self._released = stop - stop % platform.PAGE
        return self.committed
