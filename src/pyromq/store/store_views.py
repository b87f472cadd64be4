"""The store as other packages see it without changing it: positions, figures, tables, the bytes of the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from pyromq.config import RetentionConfig, StoreConfig
from pyromq.errors import OffsetNotFound
from pyromq.files.disk import Disk, Usage
from pyromq.metrics import Histogram, Telemetry
from pyromq.store.cleaner import Cleaner
from pyromq.store.durability.recover_points import RecoverPoints
from pyromq.store.durability.reserve import Reserve
from pyromq.store.log import log_place
from pyromq.store.log.segmented_file import SegmentedFile
from pyromq.store.paths import StorePaths
from pyromq.store.queues.arrivals import Arrivals, OnArrival
from pyromq.store.reader import StoreReader
from pyromq.store.watermarks import Positions, Watermark

Result = TypeVar("Result")


class WriteTable(Protocol):
    """Calls a function that writes a file; on a full disk again, after giving up the reserve file."""

    def __call__(self, write: Callable[[], Result], /) -> Result: ...


class TableFiles(NamedTuple):
    """The directory of a broker's small tables."""

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


class StoreViews(StoreReader):
    """Adds to the reading half of the store what describes it."""

    config: StoreConfig
    paths: StorePaths
    disk: Disk
    telemetry: Telemetry
    arrivals: Arrivals
    reserve: Reserve
    points: RecoverPoints
    cleaner: Cleaner
    append_seconds: Histogram

    def _register_gauges(self) -> None:
        marks = self.marks
        gauge = self.telemetry.gauge
        gauge("pyromq_store_log_end_bytes", lambda: marks.appended.value)
        gauge("rocketmq_storage_flush_behind_bytes", lambda: marks.appended.value - marks.synced.value)
        gauge("rocketmq_storage_dispatch_behind_bytes", lambda: marks.undispatched)
        gauge("pyromq_store_unindexed_bytes", lambda: marks.written.value - marks.indexed.value)
        gauge("pyromq_store_recover_bytes", lambda: marks.appended.value - self.points.current.queues_to)
        gauge("pyromq_store_disk_used_ratio", lambda: max(usage.share for usage in self.disk_usage()))

    def disk_usage(self) -> tuple[Usage, Usage]:
        """The usage of the file systems: that of the log, and that of everything else. Often they are one."""
        return log_place.usage(self.disk, self.paths), self.disk.usage(self.paths.root)

    def positions(self) -> Positions:
        """Return where the log starts and ends, and all watermarks."""
        marks = self.marks
        return Positions(
            self.log.start, self.log.end, marks.appended.value, marks.synced.value, marks.written.value, marks.visible,
            marks.dispatched.value, marks.indexed.value, self.copyable.value,
        )  # fmt: skip

    def figures(self) -> StoreFigures:
        """Return the measurements that operators read."""
        return StoreFigures(
            disk_usage=self.disk_usage(),
            log_directory=self.paths.commit_log,
            recover_bytes=self.marks.appended.value - self.points.current.queues_to,
            retention_paused=self.cleaner.why_nothing_expires,
            append_seconds=self.append_seconds,
            flush_seconds=self.telemetry.histogram("pyromq_store_flush_seconds"),
        )

    def table_files(self) -> TableFiles:
        """Return where a broker keeps its tables."""
        return TableFiles(self.disk, self.paths.config, self.reserve.write)

    def log_files(self) -> SegmentedFile:
        """Return the log's segments, for readers that scan it."""
        return self.log.files

    def on_arrival(self, listener: OnArrival) -> None:
        """Call `listener` with the watched queues that have grown. It must return quickly and not raise."""
        self.arrivals.listen(listener)

    def watch(self, topic: str, queue_id: int) -> None:
        """Report the next message of a queue to the listeners of `on_arrival`, once."""
        self.arrivals.watch(topic, queue_id)

    def set_retention(self, retention: RetentionConfig) -> None:
        """Change how long data stays."""
        self.cleaner.retention = retention

    @property
    def copyable(self) -> Watermark:
        """Everything below is in the log's files, for replicas. The messages of a committed batch are there before
        readers see them."""
        return self.marks.written if self.config.transient_pool else self.marks.appended

    def log_range(self, position: int, most: int) -> memoryview:
        """Return the log's bytes from a position on, in one segment; empty at its end. Raises OffsetNotFound."""
        end = self.copyable.value
        segment = self.log.files.find(position)
        if segment is None or not self.log.start <= position <= end:
            if position == end:
                return memoryview(b"")
            raise OffsetNotFound(f"the log has the positions {self.log.start} to {end}, and not {position}")
        at = position - segment.base
        return segment.buffer[at : min(at + most, segment.size, end - segment.base)]
