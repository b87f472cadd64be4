"""The part of a store that processes other than its broker may read: a backup, an archive, a check.

    log = readable_log(Path("/data/store"))
    log.start, log.end          every record between them is whole and stays
    log.segments                the files that hold them, oldest first

Reads only, takes no lock, and works on a store that a broker is using. There the end is the synced position that the
broker has noted: a crash may still take back a later record. A store that is not in use is read to the end that its
next start finds. A log that a start would refuse is refused here too, with the same words.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyromq.config import StoreConfig
from pyromq.errors import CorruptLog, StoreError
from pyromq.files.disk import Disk, OsDisk
from pyromq.records import layout, record
from pyromq.records.scan import scan
from pyromq.store.durability.checkpoint import AbortMark, Checkpoint, CheckpointFile, RecoverPoint, RecoverPointFile
from pyromq.store.log.segmented_file import Segment, SegmentedFile
from pyromq.store.offline.inspect import detect, find_run, why_refused, without_unused
from pyromq.store.paths import StorePaths
from pyromq.store.recovery import log_recovery

#: A broker that runs may remove old files while we look: then we look again, so often.
LOOKS = 3
#: A search for a time skips this many bytes at once, if the last record in them is old enough.
LOOK_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class LogFile:
    """One segment of the log. May be sent to another process."""

    path: Path
    #: The position of its first byte.
    base: int
    size: int

    @property
    def end(self) -> int:
        return self.base + self.size


@dataclass(frozen=True, slots=True)
class ReadableLog:
    """The part of a log that may be read: `[start, end)`, both at record boundaries."""

    root: Path
    segment_bytes: int
    #: Those that hold something of `[start, end)`, oldest first, without gaps.
    segments: tuple[LogFile, ...]
    start: int
    end: int
    #: A broker has the store open: the end will move.
    live: bool

    def find(self, position: int) -> LogFile | None:
        """The file that holds a position."""
        if not self.segments or not self.segments[0].base <= position < self.segments[-1].end:
            return None
        return self.segments[(position - self.segments[0].base) // self.segment_bytes]


def readable_log(
    root: Path, *, commit_log: Path | None = None, disk: Disk | None = None, is_mine: bool = False
) -> ReadableLog:
    """Return the readable part of a store's log. `is_mine`: the caller holds its lock, and no process writes.

    Raises StoreError, CorruptLog, OSError.
    """
    disk = disk or OsDisk(StorePaths(root).staging)
    for _ in range(LOOKS - 1):
        try:
            return _Look(disk, detect(root, commit_log=commit_log, disk=disk)).readable(is_mine=is_mine)
        except FileNotFoundError:
            continue  # removed by retention since it was listed
    return _Look(disk, detect(root, commit_log=commit_log, disk=disk)).readable(is_mine=is_mine)


class _Look:
    """One look at a directory."""

    def __init__(self, disk: Disk, config: StoreConfig) -> None:
        self._disk = disk
        self._config = config
        self._paths = StorePaths.of(config)

    def readable(self, *, is_mine: bool) -> ReadableLog:
        disk, paths = self._disk, self._paths
        live = not is_mine and disk.lock_holder(paths.lock) is not None
        # Before the files are looked at: what it promises is there by then.
        point = RecoverPointFile(disk, paths.recover_point).load()
        checkpoint = CheckpointFile(disk, paths.checkpoint).load()
        files = SegmentedFile(disk, paths.commit_log, self._config.segment_bytes, writable=False)
        files.segments = self._segments(point)
        files.buffers = [None] * len(files.segments)
        try:
            end = self._live_end(files, point, checkpoint) if live else self._cold_end(files, point, checkpoint)
            return self._log(files.segments, end, live=live)
        finally:
            files.close()

    def _segments(self, point: RecoverPoint | None) -> list[Segment]:
        segments, problems = find_run(self._disk, self._paths.commit_log, self._config.segment_bytes)
        refusal = why_refused(self._disk, self._paths, point, segments, problems)
        if refusal is not None:
            raise StoreError(f"{refusal.what}. {refusal.way_out}")
        if point is not None:
            segments = [segment for segment in segments if segment.end > point.log_start]
        return without_unused(_first_stretch(segments))

    def _log(self, segments: list[Segment], end: int, *, live: bool) -> ReadableLog:
        start = segments[0].base if segments else end
        used = tuple(LogFile(each.path, each.base, each.size) for each in segments if each.base < end)
        return ReadableLog(self._paths.root, self._config.segment_bytes, used, start, max(end, start), live)

    def _cold_end(self, files: SegmentedFile, point: RecoverPoint | None, checkpoint: Checkpoint) -> int:
        """Return the end that the next start finds. Raises CorruptLog if it is below the synced mark."""
        clean = not AbortMark(self._disk, self._paths.abort).is_set()
        start = log_recovery.scan_start(files, point, checkpoint, clean=clean)
        found = log_recovery.find_log_end(files, start, self._config.recovery_threads)
        synced = point.synced if point is not None else found.end + (1 if clean and found.damage else 0)
        log_recovery.refuse_damage(files, found, synced)
        return found.end

    def _live_end(self, files: SegmentedFile, point: RecoverPoint | None, checkpoint: Checkpoint) -> int:
        """Return the end that the broker noted as synced: we note positions, RocketMQ the time of the last record."""
        if point is None:
            return end_by_time(files, checkpoint.log_ms)
        if files.segments and point.synced > files.end:
            path = files.path_of(files.end)
            ways_out = "stop the broker and look at the store with `pyromq store verify`"
            raise CorruptLog(path, files.end, f"no file holds what was durable below {point.synced}", ways_out)
        if checkpoint.log_ms > point.timestamp_ms:  # RocketMQ has the store now, and does not know our point
            return max(point.synced, end_by_time(files, checkpoint.log_ms))
        return point.synced


def _first_stretch(segments: list[Segment]) -> list[Segment]:
    """Return the oldest files without a gap between them: a start finds nothing after a gap."""
    end = next((n for n in range(1, len(segments)) if segments[n - 1].end != segments[n].base), len(segments))
    return segments[:end]


def end_by_time(files: SegmentedFile, durable_ms: int) -> int:
    """Behind the last record that is older than a time that RocketMQ noted, less the margin that its times need."""
    before_ms = durable_ms - log_recovery.CHECKPOINT_MARGIN_MS
    begun = [segment for segment in files.segments if _size_if_older(segment, 0, before_ms)]
    if not begun:
        return files.start
    segment, at = begun[-1], 0
    while size := _older_bytes(segment, at, before_ms):
        at += size
    is_blank = at + layout.BLANK.size <= segment.size and _magic(segment, at) == layout.MAGIC_BLANK
    return segment.end if is_blank else segment.base + at


def _older_bytes(segment: Segment, at: int, before_ms: int) -> int:
    """The size of some records there that end with one older than a time; 0: there is none, or it is younger."""
    found = scan(segment.buffer, at, min(at + LOOK_BYTES, segment.size), segment.base, False)
    if found.records and found.last_timestamp_ms < before_ms:
        return found.end - at
    return _size_if_older(segment, at, before_ms)


def _size_if_older(segment: Segment, at: int, before_ms: int) -> int:
    """The size of the record there, if it was stored before a time; 0: there is none, or it is younger."""
    spans = record.spans_of(segment.buffer, at, segment.size)
    if isinstance(spans, str):
        return 0
    stored_ms: int = layout.STORED_AT.unpack_from(segment.buffer, spans.store_timestamp_at)[0]
    return spans.total_size if stored_ms < before_ms else 0


def _magic(segment: Segment, at: int) -> int:
    magic: int = layout.BLANK.unpack_from(segment.buffer, at)[1]
    return magic
