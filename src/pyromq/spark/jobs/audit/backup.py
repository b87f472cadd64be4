"""Audit of a backup: every chunk against its manifest, and the offsets of every queue without a gap or a double."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyromq.backup.checking import BackupFinding
from pyromq.backup.manifest import Chunk
from pyromq.backup.pieces import check_chunk
from pyromq.backup.target import Target
from pyromq.config import StoreConfig, parse_delay_levels
from pyromq.errors import CorruptBackup
from pyromq.spark.jobs.audit.segment import QueueRuns, RunNotes
from pyromq.store.offline.derive_queues import DerivedQueue, QueueDeriver
from pyromq.store.offline.verify_report import Finding, Severity
from pyromq.store.queues.queue_cursor import ENTRY

#: Of the queue files that are not there: any length will do.
_FILE_BYTES = 300_000 * ENTRY.size


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """The findings of one chunk."""

    chunk: Chunk
    queues: tuple[QueueRuns, ...]
    finding: BackupFinding | None


class _Queue(DerivedQueue):
    def __init__(self, topic: bytes, number: int) -> None:
        super().__init__(_FILE_BYTES)
        self.topic = topic
        self.number = number
        self.notes = RunNotes()


class OffsetRuns(QueueDeriver[_Queue]):
    """Check that the offsets of each queue are consecutive, without any queue to compare with."""

    def __init__(self) -> None:
        super().__init__(parse_delay_levels(StoreConfig(root=Path()).delay_levels))

    def new_queue(self, topic: bytes, number: int) -> _Queue:
        return _Queue(topic, number)

    def complete(self, queue: _Queue) -> None:
        queue.notes.add(queue)

    def jump(self, queue: _Queue, offset: int, position: int) -> None:
        queue.notes.add(queue)
        queue.notes.end(queue)
        queue.aim(offset)

    def all_runs(self) -> tuple[QueueRuns, ...]:
        found: list[QueueRuns] = []
        for queue in self.queues.values():
            queue.notes.add(queue)
            queue.notes.end(queue)
            found.append(QueueRuns(queue.topic, queue.number, tuple(queue.notes.done)))
        return tuple(found)


def audit_chunk(target: Target, segment_bytes: int, chunk: Chunk) -> ChunkResult:
    """Look at one chunk. Raises OSError."""
    offsets = OffsetRuns()
    finding = None
    try:
        check_chunk(target, segment_bytes, chunk, offsets.take)
    except CorruptBackup as damage:
        finding = BackupFinding(damage.file, damage.position, damage.what)
    return ChunkResult(chunk, offsets.all_runs(), finding)


class OffsetJoin:
    """Puts the runs of all chunks together, in the log's order."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.entries = 0
        self._next: dict[tuple[bytes, int], int] = {}

    @property
    def queues(self) -> int:
        return len(self._next)

    def add(self, file: str, queues: tuple[QueueRuns, ...], *, after_damage: bool) -> None:
        """`after_damage`: a chunk before this one could not be read to its end, so that offsets are missing."""
        for queue in queues:
            key = (queue.topic, queue.number)
            for run in queue.runs:
                expected = self._next.get(key)
                if expected is not None and run.first != expected and not (after_damage and run.first > expected):
                    self._differs(file, queue, expected, run.first, run.position)
                self._next[key] = run.end
                self.entries += run.end - run.first

    def _differs(self, file: str, queue: QueueRuns, expected: int, found: int, position: int) -> None:
        name = f"{queue.topic.decode('utf-8', 'replace')}/{queue.number}"
        severity = Severity.ERROR
        if found > expected:
            what = f"queue {name} has no messages of the offsets {expected} to {found - 1}"
        elif found == 0:
            what = f"queue {name} begins anew at offset 0: its topic was removed and made again"
            severity = Severity.NOTE
        else:
            what = f"the record has offset {found} of queue {name}, which an earlier record has"
        self.findings.append(Finding(Path(file), position, what, severity))
