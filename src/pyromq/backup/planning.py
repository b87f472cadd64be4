"""Plan the next copy of a backup, its continuation, and a restore. Only decides: no file is touched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyromq.backup.manifest import Chunk, Manifest
from pyromq.store.offline.readable_log import ReadableLog


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of one segment that becomes one chunk. May be sent to another process."""

    path: Path
    #: Position and length of the whole segment.
    base: int
    size: int
    start: int
    end: int

    @property
    def ends_segment(self) -> bool:
        return self.end == self.base + self.size


def stretches(log: ReadableLog, begin: int) -> list[Stretch]:
    """The log from a position on, in parts that can be copied apart from each other."""
    found: list[Stretch] = []
    for segment in log.segments:
        start, end = max(segment.base, begin), min(segment.end, log.end)
        if start < end:
            found.append(Stretch(segment.path, segment.base, segment.size, start, end))
    return found


def why_not_going_on(last: Manifest, log: ReadableLog, *, same_tail: bool | None) -> str | None:
    """Why the log as it is now does not go on from a backup; None: it does.

    `same_tail`: the log has what the backup ends with, at that place; None: those files are gone from the log.
    """
    if last.chunks and last.segment_bytes != log.segment_bytes:
        return f"its files have {log.segment_bytes} bytes, and those in the backup had {last.segment_bytes}"
    if log.end < last.end:
        return f"the log ends at {log.end}, and the backup has it up to {last.end}: it was cut, or it is another store"
    if log.start > last.end:
        return f"the log begins at {log.start}, and the backup ends at {last.end}: what is between was removed too soon"
    if same_tail is False:
        return f"the bytes before position {last.end} are not those in the backup: it was cut, or it is another store"
    return None


# --- restore -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Until:
    """The end of a restored log. Nothing given: the end of the backup."""

    #: The last record that is kept was stored at this time, or before.
    time_ms: int | None = None
    #: The last record that is kept ends at this position, or before.
    position: int | None = None

    def covers(self, chunk: Chunk) -> bool:
        """Return True if all of a chunk is kept."""
        in_time = self.time_ms is None or chunk.last_ms <= self.time_ms
        return in_time and (self.position is None or chunk.end <= self.position)

    def leaves_out(self, chunk: Chunk) -> bool:
        """Return True if nothing of a chunk is kept."""
        too_late = self.time_ms is not None and chunk.first_ms > self.time_ms
        return too_late or (self.position is not None and chunk.start >= self.position)


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """One segment that is put back, from the chunks that hold parts of it. May be sent to another process."""

    base: int
    size: int
    chunks: tuple[Chunk, ...]
    #: For the last segment only: it is cut there.
    until: Until | None = None

    @property
    def bytes(self) -> int:
        return sum(chunk.bytes for chunk in self.chunks)


def kept_chunks(manifest: Manifest, until: Until) -> tuple[Chunk, ...]:
    """Those of which something is kept: up to the first that is cut."""
    kept: list[Chunk] = []
    for chunk in manifest.chunks:
        if until.leaves_out(chunk):
            break
        kept.append(chunk)
        if not until.covers(chunk):
            break
    return tuple(kept)


def segment_plans(manifest: Manifest, until: Until) -> list[SegmentPlan]:
    """Segment by segment, oldest first."""
    size = manifest.segment_bytes
    by_base: dict[int, list[Chunk]] = {}
    for chunk in kept_chunks(manifest, until):
        by_base.setdefault(chunk.start - chunk.start % size, []).append(chunk)
    plans = [SegmentPlan(base, size, tuple(chunks)) for base, chunks in by_base.items()]
    if plans and not all(map(until.covers, plans[-1].chunks)):
        last = plans.pop()
        plans.append(SegmentPlan(last.base, last.size, last.chunks, until))
    return plans


# --- pruning -------------------------------------------------------------------------------------------------------


def chunks_since(manifest: Manifest, before_ms: int) -> tuple[Chunk, ...]:
    """Without the oldest segments whose every record was stored before a time. The last segment always stays.

    A segment goes as a whole: a restored log begins with the beginning of one.
    """
    size = manifest.segment_bytes
    keep_from = manifest.start
    for chunk in manifest.chunks:
        if chunk.last_ms >= before_ms or chunk.end == manifest.end:
            keep_from = chunk.start - chunk.start % size
            break
    return tuple(chunk for chunk in manifest.chunks if chunk.start >= keep_from)
