"""Compare two logs that should be the same: a master and its replica, a store and its backup, two backups.

    report = compare(spark, ComparePlan(left="/data/master", right="/data/replica"))
    report.same, report.sentences(), report.table(spark)

Each segment that both have is compared by digest; if the digests differ, record by record. Bytes after the blank that
ends a segment are not compared. A replica that is behind is no difference.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from pyromq.backup.history import numbers, wanted
from pyromq.backup.manifest import Chunk, Manifest
from pyromq.backup.target import Target
from pyromq.errors import BackupError, ConfigError
from pyromq.records import layout
from pyromq.records.scan import Stop, scan
from pyromq.spark.jobs.backup.target import target_of
from pyromq.spark.jobs.progress import Progress, silent
from pyromq.spark.jobs.spread import spread
from pyromq.store.offline.readable_log import ReadableLog, readable_log

#: Bytes that are compared at once.
BLOCK = 8 << 20

TABLE = "start BIGINT, end BIGINT, left_sha256 STRING, right_sha256 STRING, differs_at BIGINT, what STRING"


class LogSource(Protocol):
    """A log that can be read at any place. May be sent to another process."""

    @property
    def segment_bytes(self) -> int: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    def read(self, start: int, end: int) -> bytes:
        """Bytes within one segment. Raises OSError."""


@dataclass(frozen=True, slots=True)
class StoreLog:
    """The log of a store, as far as it may be read."""

    log: ReadableLog

    @property
    def segment_bytes(self) -> int:
        return self.log.segment_bytes

    @property
    def start(self) -> int:
        return self.log.start

    @property
    def end(self) -> int:
        return self.log.end

    def read(self, start: int, end: int) -> bytes:
        file = self.log.find(start)
        assert file is not None, start
        with file.path.open("rb") as opened:
            opened.seek(start - file.base)
            return opened.read(end - start)


@dataclass(frozen=True, slots=True)
class BackupLog:
    """The log in a backup."""

    target: Target
    manifest: Manifest

    @property
    def segment_bytes(self) -> int:
        return self.manifest.segment_bytes

    @property
    def start(self) -> int:
        return self.manifest.start

    @property
    def end(self) -> int:
        return self.manifest.end

    def read(self, start: int, end: int) -> bytes:
        parts = [
            self._part(chunk, start, end) for chunk in self.manifest.chunks if chunk.start < end and chunk.end > start
        ]
        return b"".join(parts)

    def _part(self, chunk: Chunk, start: int, end: int) -> bytes:
        """Return a chunk's bytes of a stretch; zeroes for the bytes after its blank."""
        first, last = max(start, chunk.start), min(end, chunk.end)
        kept = max(min(last, chunk.written_end) - first, 0)
        data = b""
        if kept:
            with self.target.open(chunk.file) as file:
                file.seek(first - chunk.start)
                data = file.read(kept)
        return data.ljust(last - first, b"\0")


@dataclass(frozen=True, slots=True)
class ComparePlan:
    """The two logs to compare: each a store directory, or a backup."""

    left: str
    right: str

    def __post_init__(self) -> None:
        for side in ("left", "right"):
            if not getattr(self, side):
                raise ConfigError(f"a comparison needs two logs, and {side} is empty", side)


@dataclass(frozen=True, slots=True)
class StretchDigest:
    """A stretch that both have, and what became of it."""

    start: int
    end: int
    left_sha256: str
    right_sha256: str
    #: The first record that differs begins here; None: none does.
    differs_at: int | None = None
    what: str = ""


@dataclass(frozen=True, slots=True)
class CompareReport:
    """The common part of both logs, and their differences."""

    plan: ComparePlan
    start: int
    end: int
    left_end: int
    right_end: int
    stretches: tuple[StretchDigest, ...]

    @property
    def differences(self) -> list[StretchDigest]:
        return [each for each in self.stretches if each.differs_at is not None]

    @property
    def same(self) -> bool:
        return not self.differences

    def sentences(self) -> list[str]:
        where = f"from position {self.start} to {self.end}"
        verdict = (
            "are the same" if self.same else f"differ in {len(self.differences)} of {len(self.stretches)} segments"
        )
        lines = [f"{self.plan.left} and {self.plan.right} {verdict}, {where}."]
        if self.start == self.end:
            lines = [f"{self.plan.left} and {self.plan.right} have no part of a log in common: nothing was compared."]
        lines += [f"From position {each.differs_at} on: {each.what}." for each in self.differences]
        behind = self.left_end - self.right_end
        if behind:
            shorter, longer = (self.plan.right, self.plan.left) if behind > 0 else (self.plan.left, self.plan.right)
            lines.append(f"{shorter} is {abs(behind)} bytes behind {longer}.")
        return lines

    def table(self, spark: SparkSession) -> DataFrame:
        """Every stretch with both digests, to be stored or asked."""
        rows = [(each.start, each.end, each.left_sha256, each.right_sha256, each.differs_at, each.what)
                for each in self.stretches]  # fmt: skip
        return spark.createDataFrame(rows, TABLE)


def compare(spark: SparkSession, plan: ComparePlan, progress: Progress = silent) -> CompareReport:
    """Raises StoreError, BackupError, ConfigError, OSError."""
    left, right = source_of(plan.left), source_of(plan.right)
    start, end = max(left.start, right.start), min(left.end, right.end)
    if start < end and left.segment_bytes != right.segment_bytes:  # a store without a message has no segment yet
        raise BackupError(
            f"{plan.left} has segments of {left.segment_bytes} bytes and {plan.right} of {right.segment_bytes}: "
            "they are not the same log"
        )
    pieces = segment_ranges(start, end, left.segment_bytes)
    found = spread(spark, pieces, partial(compare_stretch, left, right), what="segments compared", progress=progress)
    return CompareReport(plan, start, max(start, end), left.end, right.end, tuple(found))


def source_of(path: str) -> LogSource:
    target = target_of(path)
    if numbers(target):
        return BackupLog(target, wanted(target))
    return StoreLog(readable_log(Path(target.shown())))


def segment_ranges(start: int, end: int, segment_bytes: int) -> list[tuple[int, int]]:
    """A stretch of a log, cut where segments begin."""
    edges = [start, *range(start - start % segment_bytes + segment_bytes, end, segment_bytes), end]
    return [(low, high) for low, high in pairwise(edges) if low < high]


def compare_stretch(left: LogSource, right: LogSource, piece: tuple[int, int]) -> StretchDigest:
    """One stretch within a segment. Raises OSError."""
    start, end = piece
    digests = hashlib.sha256(), hashlib.sha256()
    differs: int | None = None
    for at in range(start, end, BLOCK):
        ours, theirs = left.read(at, min(at + BLOCK, end)), right.read(at, min(at + BLOCK, end))
        digests[0].update(ours)
        digests[1].update(theirs)
        if differs is None and ours != theirs:
            differs = at + first_difference(ours, theirs)
    sums = digests[0].hexdigest(), digests[1].hexdigest()
    if differs is None:
        return StretchDigest(start, end, *sums)
    record_at = record_around(left.read(start, end), start, differs)
    if record_at is None:
        return StretchDigest(start, end, *sums)
    return StretchDigest(start, end, *sums, record_at, f"the first byte that differs is at {differs}")


def first_difference(left: bytes, right: bytes) -> int:
    """Return the first position at which two unequal byte strings differ."""
    low, high = 0, min(len(left), len(right))
    while low < high:  # the first parts that are equal get longer
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def record_around(data: bytes, base: int, position: int) -> int | None:
    """Return the start of the record that holds a position; None if the position is after a segment's blank."""
    buffer = memoryview(data)
    found = scan(buffer, 0, len(data), base, False)
    if found.stop is Stop.BLANK and position >= base + found.end + layout.BLANK.size:
        return None
    at = 0
    while at < found.end:
        size: int = layout.BLANK.unpack_from(buffer, at)[0]
        if base + at + size > position:
            break
        at += size
    return base + at
