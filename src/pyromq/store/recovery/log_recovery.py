"""From files on disk to a log that ends where its last whole record does. Runs once, before the store serves.

A crash can leave any bytes after the synced mark of the recover point, so the log is cut at the first record there that
is not whole. Below the mark everything was on the disk: a bad record there is damage, never a torn tail, and the
store refuses to start and names the position, until an operator decides.

Recovering twice gives the same bytes: a cut leaves zeroes, and an intact store is not touched.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pyromq.errors import CorruptLog
from pyromq.files.disk import Disk
from pyromq.records import layout, record
from pyromq.records.scan import Scan, Stop, scan, why_bad
from pyromq.store.durability.checkpoint import Checkpoint, RecoverPoint
from pyromq.store.log.segmented_file import Segment, SegmentedFile
from pyromq.store.log.zeroes import last_nonzero, zero
from pyromq.store.queues.consume_queue import ConsumeQueue, QueueEntry

#: RocketMQ's margin: its checkpoint times may be this much ahead of the synced records.
CHECKPOINT_MARGIN_MS = 3000
#: Of a torn tail, keep at most this much for people to look at.
MAX_CUT_KEPT = 64 << 20


@dataclass(slots=True)
class RecoveryReport:
    """The findings and actions of a recovery, for the log line and for `pyromq store recover`."""

    clean: bool = False
    scanned_from: int = 0
    log_start: int = 0
    log_end: int = 0
    records_scanned: int = 0
    bytes_cut: int = 0
    cut_kept_in: Path | None = None
    index_from: int = 0
    seconds: float = 0.0


class LogEnd(NamedTuple):
    """The end of the log, and the reason for it."""

    end: int
    records: int
    last_timestamp_ms: int
    #: The fault of the bytes that follow; None if nothing follows.
    damage: str | None


def scan_start(files: SegmentedFile, point: RecoverPoint | None, checkpoint: Checkpoint, *, clean: bool) -> int:
    """Return the position at which the search for the log's end begins: always a record boundary."""
    if point is not None:
        if not files.segments and point.log_start >= point.synced:
            return point.synced  # a copy that was to begin there, and has no byte yet
        start = max(min(point.queues_to, point.synced), files.start)
        if start <= files.end and starts_at_record(files, start):
            return start
    if clean:
        return clean_scan_start(files.segments)
    return crash_scan_start(files.segments, checkpoint)


def clean_scan_start(segments: Sequence[Segment]) -> int:
    """A store that another program stopped cleanly: the last segment that has a record tells where the log ends."""
    for segment in reversed(segments):
        if _first_timestamp(segment) is not None:
            return segment.base
    return segments[0].base if segments else 0


def crash_scan_start(segments: Sequence[Segment], checkpoint: Checkpoint) -> int:
    """A store that another program left behind: the last segment that began before its checkpoint."""
    synced_ms = min(checkpoint.log_ms, checkpoint.queue_ms) - CHECKPOINT_MARGIN_MS
    for segment in reversed(segments):
        first_ms = _first_timestamp(segment)
        if first_ms is not None and first_ms <= synced_ms:
            return segment.base
    return segments[0].base if segments else 0


def _first_timestamp(segment: Segment) -> int | None:
    return record.stored_at_ms(segment.buffer, 0, segment.size)


def find_log_end(files: SegmentedFile, start: int, threads: int) -> LogEnd:
    """Scan from a record boundary on, a thread per segment, and follow the log as far as it is whole."""
    if files.find(start) is None:
        return LogEnd(max(start, files.start), 0, 0, None)
    wanted = [segment for segment in files.segments if segment.end > start]
    end, records, timestamp_ms = start, 0, 0
    with ThreadPoolExecutor(threads or min(os.cpu_count() or 1, 8), "pyromq-scan") as pool:
        for segment, found in zip(wanted, pool.map(lambda one: scan_segment(one, start), wanted), strict=True):
            end = segment.base + found.end
            records += found.records
            timestamp_ms = found.last_timestamp_ms or timestamp_ms
            if found.stop is Stop.BAD:
                what = why_bad(segment.buffer, found.end, segment.size, end)
                return LogEnd(end, records, timestamp_ms, what)
            if found.stop is Stop.EMPTY:
                return LogEnd(end, records, timestamp_ms, None)
            end = segment.end
    return LogEnd(end, records, timestamp_ms, None)


def scan_segment(segment: Segment, start: int) -> Scan:
    """One segment, with the blank at its end held to account."""
    at = max(start - segment.base, 0)
    found = scan(segment.buffer, at, segment.size, segment.base, True)
    if found.stop is Stop.BLANK:
        size, _ = layout.BLANK.unpack_from(segment.buffer, found.end)
        if found.end + size != segment.size:
            return found._replace(stop=Stop.BAD)
    return found


def starts_at_record(files: SegmentedFile, position: int) -> bool:
    """Is a position still a record boundary? Another program may have cut the log and written on."""
    segment = files.find(position)
    if segment is None or position == segment.base:
        return True
    found = scan(segment.buffer, position - segment.base, segment.size, segment.base, False)
    if found.stop is not Stop.BAD or found.records:
        return True
    across = scan(segment.buffer, 0, segment.size, segment.base, True)
    return segment.base + across.end <= position


def is_boundary(files: SegmentedFile, position: int) -> bool:
    """Does a record begin at a position? Its segment is scanned from its beginning, so bodies cannot deceive."""
    segment = files.find(position)
    if segment is None:
        return False
    found = scan(segment.buffer, 0, position - segment.base, segment.base, False)
    return found.stop is Stop.LIMIT and found.end == position - segment.base


def refuse_damage(files: SegmentedFile, found: LogEnd, synced: int) -> None:
    """Raise CorruptLog when the log ends below the position up to which it was synced."""
    if found.end >= synced:
        return
    segment = files.find(found.end)
    path = segment.path if segment is not None else files.path_of(found.end - found.end % files.file_bytes)
    raise CorruptLog(
        path,
        found.end,
        f"damage in synced data ({found.damage or 'zeroes where a record must be'})",
        f"everything below {synced} was on the disk, so this is no torn tail. Restore the file from a replica or "
        f"a backup, or give up what follows with `pyromq store recover --truncate-at {found.end}`",
    )


def cut_log(files: SegmentedFile, end: int, keep_in: Path, *, keep_all: bool = False) -> tuple[int, Path | None]:
    """Leave nothing but zeroes after the end: a stale record there could become valid after the next crash.

    Returns the number of bytes cut, and the file in `keep_in` that has them now (the first of several). Of a torn tail
    only a part is kept, for people; with `keep_all` nothing is lost.
    """
    cut = 0
    kept: Path | None = None
    for segment in reversed(files.segments):
        if segment.end <= end:
            break
        at = max(end - segment.base, 0)
        behind = last_nonzero(segment.buffer, at, segment.data_end(at))
        if behind > at:
            cut += behind - at
            kept = _keep(files.disk, keep_in, segment, at, behind if keep_all else min(behind, at + MAX_CUT_KEPT))
        if segment.base > end:
            # A crash may bring the file back: then it begins with nothing.
            zero(segment.buffer, 0, min(behind, layout.SMALLEST_RECORD))
            segment.file.sync()
            files.remove_from(segment.base)
        elif behind > at:
            zero(segment.buffer, at, behind)
            segment.file.sync()
    return cut, kept


def _keep(disk: Disk, directory: Path, segment: Segment, start: int, end: int) -> Path:
    """In files of bounded length. What an earlier cut at the same place left is not written over."""
    first: Path | None = None
    for at in range(start, end, MAX_CUT_KEPT):
        data = bytes(segment.buffer[at : min(end, at + MAX_CUT_KEPT)])
        path = _free_name(disk, directory, f"{segment.base + at:020d}", data)
        disk.replace_bytes(path, data)
        first = first or path
    assert first is not None
    return first


def _free_name(disk: Disk, directory: Path, name: str, data: bytes) -> Path:
    path, number = directory / f"{name}.bin", 1
    while disk.exists(path) and disk.read_bytes(path) != data:
        number += 1
        path = directory / f"{name}-{number}.bin"
    return path


def cut_queue(files: SegmentedFile, queue: ConsumeQueue, start: int, *, trust: bool) -> int | None:
    """Keep the entries of records below `start`; the dispatcher writes the others again.

    Without `trust` an entry counts only if the log agrees: a crash may leave any subset of the unsynced entries.
    Returns None if all is well. A number means that entries of records below `start`, which were synced, were cut: the
    queue is damaged, and offsets below the number belong to messages that are no longer in the log.
    """

    def is_good(offset: int, entry: QueueEntry) -> bool:
        if not (entry.size > 0 and 0 <= entry.position < start):
            return False
        return trust or entry.position < files.start or entry_matches(files, queue, offset, entry)

    end = queue.find_end(is_good)
    intact, ends_there = not queue.is_damaged, True
    for entry in queue.written_from(end):
        ends_there = False
        if trust or 0 <= entry.position < start:
            intact = False
            break
    given_out = None if intact else queue.end_of_gone(files.start)
    if ends_there:
        queue.resume_at(end)
    else:
        queue.cut(end)
    return given_out


def entry_matches(files: SegmentedFile, queue: ConsumeQueue, offset: int, entry: QueueEntry) -> bool:
    """Does the log have this queue's message of this offset at the place that the entry says?"""
    segment = files.find(entry.position)
    if segment is None:
        return False
    at = entry.position - segment.base
    spans = record.spans_of(segment.buffer, at, segment.size)
    if isinstance(spans, str) or spans.total_size != entry.size:
        return False
    head = layout.HEAD.unpack_from(segment.buffer, at)
    topic = bytes(segment.buffer[spans.topic : spans.topic_end])
    return (head[3], head[5], head[6], topic) == (queue.id.number, offset, entry.position, queue.topic)
