"""Values that the store hands out to other packages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from pyromq.files.disk import Disk, Usage
from pyromq.metrics import Histogram

Result = TypeVar("Result")


class WriteTable(Protocol):
    """Calls a function that writes a file; on a full disk again, after giving up the reserve file."""

    def __call__(self, write: Callable[[], Result], /) -> Result: ...


class TableFiles(NamedTuple):
    """Where a broker keeps its small tables."""

    disk: Disk
    directory: Path
    write: WriteTable


class StoreFigures(NamedTuple):
    """Measurements for operators."""

    #: Of the file system of the log, and of the one of queues and tables. Often they are one.
    disk_usage: tuple[Usage, Usage]
    log_directory: Path
    #: Bytes that a start after a crash would scan.
    recover_bytes: int
    #: Why expired segments stay; empty if they do not.
    retention_paused: str
    append_seconds: Histogram
    flush_seconds: Histogram
