"""A `MessageStore` as replication uses it: a log to copy from, and a log that is a copy."""

from __future__ import annotations

from typing import NamedTuple

from pyromq.store.message_store import MessageStore

#: Bytes of the log that are shown before a damage.
SHOWN_BYTES = 32


class InFile(NamedTuple):
    """The place of log bytes in a file, for the operating system's `sendfile`."""

    descriptor: int
    offset: int


class StoreLog:
    """Both sides; a broker's role says which is used."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._copyable = store.copyable

    @property
    def log_start(self) -> int:
        return self._store.log.start

    @property
    def log_end(self) -> int:
        return self._copyable.value

    @property
    def last_segment_start(self) -> int:
        end, size = self.log_end, self.segment_bytes
        return max(end - 1 - (end - 1) % size, self.log_start) if end else 0

    @property
    def segment_bytes(self) -> int:
        return self._store.config.segment_bytes

    @property
    def copy_end(self) -> int:
        return self._store.log.end

    @property
    def copy_safe(self) -> int:
        """Return the position a replica reports: synced under sync flush, else written, which survives the process."""
        marks = self._store.marks
        return marks.synced.value if self._store.config.flush.sync else marks.written.value

    @property
    def is_empty(self) -> bool:
        return self.log_start == self._store.log.end

    def log_bytes(self, position: int, most: int) -> memoryview:
        return self._store.log_range(position, most)

    def in_file(self, position: int) -> InFile | None:
        """Return the place in the file; None for recent bytes, which are sent from the mapping: reading a file at its
        end reads ahead, and would fill the preallocated room after the log with zeroes again and again."""
        segment = self._store.log.files.find(position)
        if segment is None or position >= self._store.hot_from():
            return None
        descriptor = segment.file.sync_descriptor()
        return InFile(descriptor, position - segment.base) if descriptor >= 0 else None

    def is_warm(self, position: int, length: int) -> bool:
        """Return whether bytes are resident: recent ones are; for others the system is asked, one stretch at a time."""
        store = self._store
        if position >= store.hot_from():
            return True
        warm = store.warmth.stretch(position)
        return warm is not None and position + length <= warm[1]

    def fetch(self, position: int, length: int) -> None:
        segment = self._store.log.files.find(position)
        if segment is not None:
            at = position - segment.base
            segment.file.read_at(at, min(length, segment.size - at))

    def start_copy_at(self, position: int) -> None:
        self._store.start_copy_at(position)

    def append_copy(self, data: memoryview, records: int, last_timestamp_ms: int) -> None:
        self._store.append_copy(data, records, last_timestamp_ms)

    def before(self, position: int) -> tuple[str, bytes]:
        files = self._store.log.files
        base = position - position % self.segment_bytes
        holder = files.find(position - 1) if position else None
        at = position - holder.base if holder is not None else 0
        shown = bytes(holder.buffer[max(at - SHOWN_BYTES, 0) : at]) if holder is not None else b""
        return str(files.path_of(base)), shown
