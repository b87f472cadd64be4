"""The transient pool: records gathered in anonymous memory, and committed to the page cache in batches.

A writer that shares the page cache with heavy readers or a busy disk can wait long for a single page; anonymous memory
never makes it wait. The price: a process that is killed loses the records that are not yet committed (with the
default settings at most the last 200 ms), where the mapped path loses nothing. A send that waits for the disk
(`flush.sync`) is acknowledged after its commit and sync, so nothing acknowledged is lost there.

Readers see committed bytes only. A window of memory before the writer is locked where the system's limits allow it, so
that it is there and stays; memory behind the committed position is given back as the writer moves on.
"""

from __future__ import annotations

import mmap

from pyromq.files import platform
from pyromq.store.log.segmented_file import Segment

#: Memory is made ready and given back in steps of this size.
STEP = 4 << 20


class _Memory:
    """The anonymous memory that stands for one segment."""

    __slots__ = ("address", "locked_to", "mapping", "released_to", "segment")

    def __init__(self, segment: Segment, offset: int) -> None:
        self.segment = segment
        # Private: shared memory, which is the default, cannot be given back in parts.
        self.mapping = mmap.mmap(-1, segment.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = platform.address_of(self.mapping)
        self.locked_to = self.released_to = offset - offset % platform.PAGE

    def lock_ahead(self, offset: int) -> None:
        if offset + STEP > self.locked_to < self.segment.size:
            end = min(self.locked_to + 2 * STEP, self.segment.size)
            platform.lock_in_memory(self.address, self.locked_to, end)
            self.locked_to = end

    def release_behind(self, offset: int) -> None:
        if offset - self.released_to >= STEP:
            offset -= offset % platform.PAGE
            platform.release_pages(self.address, self.released_to, offset)
            self.released_to = offset


class TransientPool:
    """The gathered part of the log: from `committed` to the writer's position."""

    def __init__(self) -> None:
        #: Everything below this position is in the page cache.
        self.committed = 0
        self._active: list[_Memory] = []

    def attach(self, segment: Segment, offset: int) -> memoryview:
        """The memory that stands for a segment; writing begins at `offset`."""
        memory = _Memory(segment, offset)
        memory.lock_ahead(offset)
        if not self._active:
            self.committed = segment.base + offset
        self._active.append(memory)
        return memoryview(memory.mapping)

    def commit(self, end: int) -> int:
        """Write everything below `end` to the page cache; the new committed position. Raises OSError."""
        while self._active and self.committed < end:
            if self.committed == self._active[0].segment.end:  # there was no next one when it was full
                self._active.pop(0)
                continue
            memory = self._active[0]
            segment = memory.segment
            start, stop = self.committed - segment.base, min(end, segment.end) - segment.base
            assert stop > start, "the memory that holds the next record is missing"
            with memoryview(memory.mapping) as view:
                segment.file.write_at(start, view[start:stop])
            self.committed = segment.base + stop
            if stop == segment.size and len(self._active) > 1:
                self._active.pop(0)
            else:
                memory.release_behind(stop)
                memory.lock_ahead(stop)
        return self.committed
