"""The port of replication to a store: the ends of its log, its bytes, and appends of another log's bytes.

`StoreLog` shows a `MessageStore` so; a simulation hands in its own.
"""

from __future__ import annotations

from typing import Protocol

from pyromq.store.store_log import InFile


class ReadLog(Protocol):
    """A log that is copied."""

    @property
    def log_start(self) -> int:
        """The oldest position that is still there."""
        ...

    @property
    def log_end(self) -> int:
        """Everything below may be shown."""
        ...

    @property
    def last_segment_start(self) -> int:
        """The start of the newest file of the log."""
        ...

    def log_bytes(self, position: int, most: int) -> memoryview:
        """Return the log's bytes from a position on, at most to the end of its segment. Raises OffsetNotFound."""
        ...

    def in_file(self, position: int) -> InFile | None:
        """The same in its file. None: it is to be taken from `log_bytes`. Good until the loop's next turn."""
        ...

    def is_warm(self, position: int, length: int) -> bool:
        """Would reading these bytes wait for no disk? Answered from memory, as far as it can be."""
        ...

    def fetch(self, position: int, length: int) -> None:
        """Bring bytes into memory; called on another thread. Those that are gone are no error. Raises OSError."""
        ...


class CopyLog(Protocol):
    """A log that is a copy."""

    @property
    def log_start(self) -> int: ...

    def log_bytes(self, position: int, most: int) -> memoryview: ...

    @property
    def copy_end(self) -> int:
        """The position of the next byte."""
        ...

    @property
    def copy_safe(self) -> int:
        """Everything below is as safe as this store promises: in memory or on the disk."""
        ...

    @property
    def segment_bytes(self) -> int: ...

    @property
    def is_empty(self) -> bool: ...

    def start_copy_at(self, position: int) -> None: ...

    def append_copy(self, data: memoryview, records: int, last_timestamp_ms: int) -> None:
        """Raises DiskFull, StoreFenced, StoreClosed."""
        ...

    def before(self, position: int) -> tuple[str, bytes]:
        """The file that holds (or would) a position, and the last bytes before it: for people to compare."""
        ...
