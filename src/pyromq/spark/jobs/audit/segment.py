"""Audit, the part of one task: a segment of the log record by record, and the queue entries of its records.

The records are walked as `pyromq store verify` walks them, and their queue entries compared by the same code. Checks
that need neighbouring segments (a queue's next offset, entries without a record) run after all tasks: the result has
the consecutive offset runs of each queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyromq.config import StoreConfig
from pyromq.files.disk import Disk, OsDisk
from pyromq.store.log.segmented_file import Segment
from pyromq.store.offline.derive_queues import DerivedQueue
from pyromq.store.offline.verify import in_slices
from pyromq.store.offline.verify_log import Log, LogWalker, Walk
from pyromq.store.offline.verify_queues import CheckedQueue, QueueCheck, Run
from pyromq.store.offline.verify_report import VerifyReport
from pyromq.store.paths import StorePaths
from pyromq.store.queues.queue_cursor import ENTRY


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """One segment to look at."""

    config: StoreConfig
    path: Path
    base: int
    #: Below this every record must be good, and below the other every queue entry must be there.
    sure_to: int
    queues_sure_to: int
    live: bool
    max_findings: int


@dataclass(frozen=True, slots=True)
class QueueRuns:
    """A run of consecutive offsets of one queue in a stretch of the log."""

    topic: bytes
    number: int
    runs: tuple[Run, ...]


@dataclass(slots=True)
class SegmentResult:
    """The findings of one segment. Offsets are relative to the segment."""

    good: list[tuple[int, int]]
    bad: list[tuple[int, int, str]]
    records: int
    end: int | None
    torn: str | None
    queues: list[QueueRuns]
    report: VerifyReport

    def walk(self, segment: Segment) -> Walk:
        return Walk(
            segment,
            good=self.good,
            bad=self.bad,
            records=self.records,
            reached=segment.size,
            end=self.end,
            torn=self.torn,
        )


class RunNotes:
    """The runs of one queue, as they come."""

    def __init__(self) -> None:
        self.done: list[Run] = []
        self._first: int | None = None
        self._position = 0
        self._late = 0

    def add(self, queue: DerivedQueue) -> None:
        """Entries of a queue are complete."""
        if self._first is None and queue.cursor.next_dispatch > queue.cursor.first:
            self._first = queue.cursor.first
            self._position = ENTRY.unpack_from(queue.expected)[0]

    def end(self, queue: DerivedQueue, late: int = 0, late_from: int = 0) -> None:
        """End the run after the last added entry. `late` counts all runs of the queue so far."""
        if self._first is not None:
            self.done.append(Run(self._first, queue.cursor.next_dispatch, self._position, late - self._late, late_from))
        self._first, self._late = None, late


class _Queue(CheckedQueue):
    def __init__(self, topic: bytes, number: int, disk: Disk, directory: Path, file_bytes: int) -> None:
        # Impossible files are reported once, when the segments are merged.
        super().__init__(disk, directory, file_bytes, VerifyReport(directory, directory))
        self.topic = topic
        self.number = number
        self.notes = RunNotes()


class SegmentQueues(QueueCheck):
    """Compares the entries of one segment's records, and decides nothing that needs another segment."""

    def new_queue(self, topic: bytes, number: int) -> CheckedQueue:
        directory = self._paths.queues / topic.decode("utf-8", "surrogateescape") / str(number)
        return _Queue(topic, number, self._disk, directory, self._file_bytes)

    def complete(self, queue: CheckedQueue) -> None:
        assert isinstance(queue, _Queue)
        queue.notes.add(queue)
        super().complete(queue)

    def jump(self, queue: CheckedQueue, offset: int, position: int) -> None:
        assert isinstance(queue, _Queue)
        self.complete(queue)
        queue.notes.end(queue, queue.late, queue.late_from)
        queue.aim(offset)

    def all_runs(self) -> list[QueueRuns]:
        found: list[QueueRuns] = []
        for queue in self.queues.values():
            assert isinstance(queue, _Queue)
            self.complete(queue)
            queue.notes.end(queue, queue.late, queue.late_from)
            found.append(QueueRuns(queue.topic, queue.number, tuple(queue.notes.done)))
            queue.close()
        return found


def audit_segment(task: SegmentTask) -> SegmentResult:
    """Look at one segment. Raises OSError."""
    config = task.config
    paths = StorePaths.of(config)
    disk = OsDisk(paths.staging)
    segment = Segment(disk, task.path, task.base, config.segment_bytes, writable=False)
    report = VerifyReport(paths.root, paths.commit_log, live=task.live, max_findings=task.max_findings)
    try:
        walk = LogWalker(task.sure_to).walk(Walk(segment))
        log = Log([segment], config.segment_bytes)
        queues = SegmentQueues(disk, paths, config, report, log, task.queues_sure_to, ours=True)
        for start, stop in in_slices(segment.buffer, walk.good):
            queues.take(segment.buffer, start, stop)
        runs = queues.all_runs()
    finally:
        segment.close()
    return SegmentResult(walk.good, walk.bad, walk.records, walk.end, walk.torn, runs, report)
