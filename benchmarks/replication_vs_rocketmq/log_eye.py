"""Looks at a broker's log and queues from outside: their files, through the page cache that both share.

The record formats are RocketMQ's, so that the same eye looks at both systems, and no module of ours is asked.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path

#: Length and magic: all that there is of a blank, which ends a file.
BLANK = struct.Struct(">ii")
#: Queue, flag, offset in the queue.
QUEUE, QUEUE_AT = struct.Struct(">iiq"), 12
#: Store time, behind the address and time of birth.
TIME, STORED_AT = struct.Struct(">q"), 56
MAGIC_BLANK = -875286124
QUEUE_ENTRY_BYTES = 20
SMALLEST_RECORD = 88


@dataclass(slots=True)
class LogEye:
    """Walks one log, record by record, as it grows."""

    directory: Path
    position: int = 0
    #: Records seen so far, and the newest offset of each queue of the topic that is looked at.
    records: int = 0
    queue_offsets: dict[int, int] = field(default_factory=dict)
    _base: int = -1
    _file: mmap.mmap | None = None

    def stored_at(self, most: int = 1 << 30) -> list[int]:
        """Store times, in ms, of the records that have come since the last look: whole ones."""
        found: list[int] = []
        while len(found) < most and (data := self._segment()) is not None:
            at = self.position - self._base
            size, magic = BLANK.unpack_from(data, at)
            if magic == MAGIC_BLANK:
                self.position = self._base + len(data)
                continue
            # A record comes in pieces perhaps: its last byte belongs to its properties, and is not 0.
            if size < SMALLEST_RECORD or not data[at + size - 1]:
                break
            queue, _, offset = QUEUE.unpack_from(data, at + QUEUE_AT)
            found.append(TIME.unpack_from(data, at + STORED_AT)[0])
            self.queue_offsets[queue] = offset
            self.position += size
        self.records += len(found)
        return found

    def has(self, position: int) -> bool:
        """Is the byte before this position there? It is the last one of a record."""
        before, self.position = self.position, position - 1
        try:
            data = self._segment()
            return data is not None and bool(data[self.position - self._base])
        finally:
            self.position = before

    def _segment(self) -> mmap.mmap | None:
        """The file that holds the position, mapped; None when there is none yet."""
        if self._file is None or not self._base <= self.position < self._base + len(self._file):
            self.close()
            self._open()
        return self._file

    def _open(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for path in sorted(self.directory.glob("[0-9]*")):
                size = path.stat().st_size
                if int(path.name) <= self.position < int(path.name) + size:
                    with path.open("rb") as file:
                        self._file, self._base = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), int(path.name)
                        # Whoever looks ahead of the writer must not have the system read ahead of both: that keeps a
                        # processor for 20 ms at a time.
                        self._file.madvise(mmap.MADV_RANDOM)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def queue_has(store: Path, topic: str, queue: int, offset: int) -> bool:
    """Is the entry of an offset in its consume queue? What it points at is never 0 bytes long."""
    at = offset * QUEUE_ENTRY_BYTES
    for path in sorted((store / "consumequeue" / topic / str(queue)).glob("[0-9]*"), reverse=True):
        if int(path.name) <= at:
            with path.open("rb") as file:
                file.seek(at - int(path.name))
                return any(file.read(QUEUE_ENTRY_BYTES)[8:12])
    return False
