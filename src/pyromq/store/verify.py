"""Checks everything in a store directory against everything else. Reads only: no lock is taken, no byte changes.

    the log      every record: lengths, magic, position, CRC; the blank that ends each segment; no file missing
    the queues   every entry is the one that the log asks for at that offset (place, size, tag code or due time);
                 every record of a queue has its entry; there are none before, between or behind that are nobody's
    the index    every entry belongs to a record with a key of that hash and to its chain; every key is found
    the rest     recover point, checkpoint and the tables under `config/` can be read

What is damaged is an error. What the next start puts right by itself is a note: a torn tail behind the synced mark,
entries that were not written yet when a broker was killed, an index file that was never finished.

What the queues and the index must hold is derived from the log by the functions that write them, chunk by chunk, and
compared in bulk; only where bytes differ is each entry looked at. Segments are checked on threads, two or more ahead.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from itertools import count as count_from
from pathlib import Path
from typing import NamedTuple

from pyromq.clock import Clock, SystemClock
from pyromq.config import StoreConfig, parse_delay_levels
from pyromq.records import layout, record
from pyromq.records.java_hash import key_hash
from pyromq.records.scan import Scan, Stop, scan, why_bad
from pyromq.store import key_index, platform, recovery
from pyromq.store.checkpoint import AbortMark, CheckpointFile, RecoverPoint, RecoverPointFile
from pyromq.store.config_files import JsonFile
from pyromq.store.consume_queue import BLANK_SIZE
from pyromq.store.disk import Disk, OsDisk
from pyromq.store.dispatcher import queue_code
from pyromq.store.inspect import detect, find_run, index_file_bytes, queue_directories, stored_ms
from pyromq.store.key_index import IndexCursor, index_keys, keys_of
from pyromq.store.paths import StorePaths
from pyromq.store.queue_cursor import ENTRY, QueueCursor, dispatch, queue_key
from pyromq.store.queue_table import is_safe_topic
from pyromq.store.segmented_file import Segment
from pyromq.store.zeroes import last_nonzero

#: Findings that are kept; all are counted.
MAX_FINDINGS = 1000
#: A scan tells how far it is after this much. More than the largest record.
SCAN_SLICE = 96 << 20
#: Entries of one queue that are compared at once: a store may have thousands of queues.
QUEUE_CHUNK = 512
INDEX_CHUNK = 8192
#: Behind the last entry of an index file there must be zeroes; this much is looked at.
LOOK_BEHIND = 4 << 20
EVERYWHERE = 1 << 62

#: `(done, total)` in bytes, called on the thread that verifies.
Progress = Callable[[int, int], None]
#: Compares what follows from the good records in `[from, to)` of a buffer.
Take = Callable[[memoryview, int, int], None]


class Severity(Enum):
    #: The next start puts it right by itself.
    NOTE = "note"
    #: Bytes are not what was written.
    ERROR = "error"


class Finding(NamedTuple):
    #: Relative to the store's directory.
    file: Path
    #: Of the log and of a queue: the position in the whole run of files. Of any other file: the byte in it.
    position: int
    what: str
    severity: Severity


@dataclass(slots=True)
class VerifyReport:
    """What was looked at and what was found."""

    root: Path
    log_start: int = 0
    log_end: int = 0
    segments: int = 0
    records: int = 0
    queues: int = 0
    queue_entries: int = 0
    index_files: int = 0
    index_entries: int = 0
    #: A broker has the store open: what it writes meanwhile is not looked at.
    live: bool = False
    errors: int = 0
    notes: int = 0
    #: The first of them, errors and notes in the order they were met.
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    max_findings: int = MAX_FINDINGS

    @property
    def ok(self) -> bool:
        return not self.errors

    def error(self, file: Path, position: int, what: str) -> None:
        self.errors += 1
        self._keep(Finding(file.relative_to(self.root), position, what, Severity.ERROR))

    def note(self, file: Path, position: int, what: str) -> None:
        self.notes += 1
        self._keep(Finding(file.relative_to(self.root), position, what, Severity.NOTE))

    def _keep(self, finding: Finding) -> None:
        if len(self.findings) < self.max_findings:
            self.findings.append(finding)


def verify(
    root: Path,
    *,
    disk: Disk | None = None,
    config: StoreConfig | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
    max_findings: int = MAX_FINDINGS,
) -> VerifyReport:
    """Check a store. Raises StoreError for what is no store, OSError when it cannot be read."""
    paths = StorePaths(root)
    disk = disk or OsDisk(paths.staging)
    clock = clock or SystemClock()
    config = config or detect(root, disk=disk)
    platform.raise_open_file_limit()
    started = clock.monotonic()
    report = VerifyReport(root, max_findings=max_findings)
    _Verification(disk, paths, config, report, progress or (lambda done, total: None)).run()
    report.seconds = clock.monotonic() - started
    return report


def bytes_and_messages_from(config: StoreConfig, position: int, *, disk: Disk | None = None) -> tuple[int, int]:
    """What a store has from a position on: how much would be given up by cutting it there."""
    paths = StorePaths(config.root)
    disk = disk or OsDisk(paths.staging)
    last = messages = 0
    segments, _ = find_run(disk, paths.commit_log, config.segment_bytes)
    for segment in segments:
        if segment.end > position:
            start = max(position - segment.base, 0)
            behind = last_nonzero(segment.buffer, start, segment.size)
            if behind > start:
                last = segment.base + behind
                messages += _LogWalker(last).walk(_Walk(segment, start)).records
            segment.close()
    return max(last - position, 0), messages


# --- the log -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Walk:
    """One segment, checked. Offsets are in the segment."""

    segment: Segment
    start: int = 0
    #: Stretches of good records.
    good: list[tuple[int, int]] = field(default_factory=list)
    bad: list[tuple[int, int, str]] = field(default_factory=list)
    records: int = 0
    #: How far the scan is, for the progress.
    reached: int = 0
    #: The log ends in this segment, here …
    end: int | None = None
    #: … and this is wrong with what follows.
    torn: str | None = None


class _LogWalker:
    """Checks segments on threads. `sure_to`: below this everything must be good."""

    def __init__(self, sure_to: int) -> None:
        self._sure_to = sure_to

    def walk(self, walk: _Walk) -> _Walk:
        segment = walk.segment
        at = walk.start
        while at < segment.size and walk.end is None:
            found = self._scan(walk, at)
            if found.end > at:
                walk.good.append((at, found.end))
            at = found.end
            what = self._what_stopped(segment, found)
            if what is None:
                break
            if segment.base + at >= self._sure_to:
                self._finish(walk, at, found.stop, what)
            else:
                after = _next_record(segment, at)
                walk.bad.append((at, after, what))
                at = after
        walk.reached = segment.size
        return walk

    @staticmethod
    def _scan(walk: _Walk, start: int) -> Scan:
        """In slices, so that somebody can see how far it is."""
        segment, at, limit, timestamp_ms = walk.segment, start, 0, 0
        while True:
            limit = segment.size if limit > at else min(at + SCAN_SLICE, segment.size)
            found = scan(segment.buffer, at, limit, segment.base, True)
            walk.records += found.records
            walk.reached = found.end
            timestamp_ms = found.last_timestamp_ms or timestamp_ms
            if limit == segment.size:
                return Scan(found.end, walk.records, timestamp_ms, found.stop)
            if found.end > at:
                at, limit = found.end, 0

    @staticmethod
    def _what_stopped(segment: Segment, found: Scan) -> str | None:
        if found.stop is Stop.LIMIT:
            return None
        if found.stop is Stop.EMPTY:
            return "zeroes where a record must be"
        if found.stop is Stop.BAD:
            return why_bad(segment.buffer, found.end, segment.size, segment.base + found.end)
        size, _ = layout.BLANK.unpack_from(segment.buffer, found.end)
        left = segment.size - found.end
        return None if size == left else f"the blank that ends the segment has size {size} where {left} bytes are left"

    @staticmethod
    def _finish(walk: _Walk, at: int, stop: Stop, what: str) -> None:
        walk.end = at
        behind = last_nonzero(walk.segment.buffer, at, walk.segment.size)
        if behind > at:
            what = "zeroes, and something behind them" if stop is Stop.EMPTY else what
            walk.torn = f"{behind - at} bytes are no whole record ({what})"


def _next_record(segment: Segment, at: int) -> int:
    """Where the log goes on behind a damaged record; the segment's end when nothing more is found."""
    spans = record.spans_of(segment.buffer, at, segment.size)
    if not isinstance(spans, str) and _may_begin(segment, at + spans.total_size):
        return at + spans.total_size
    magics = [magic.to_bytes(4, "big") for magic in (layout.MAGIC_V1, layout.MAGIC_V2, layout.MAGIC_BLANK)]
    step, overlap = 1 << 20, layout.BLANK.size
    for block in range(at + 1, segment.size, step):
        data = bytes(segment.buffer[block : min(block + step + overlap, segment.size)])
        found = sorted(start for magic in magics for start in _occurrences(data, magic) if start >= 4)
        for start in found:
            if _may_begin(segment, block + start - 4):
                return block + start - 4
    return segment.size


def _occurrences(data: bytes, wanted: bytes) -> Iterator[int]:
    at = data.find(wanted)
    while at >= 0:
        yield at
        at = data.find(wanted, at + 1)


def _may_begin(segment: Segment, at: int) -> bool:
    """Does a record begin here, or the blank at the end?"""
    if at + layout.BLANK.size > segment.size:
        return at == segment.size
    size, magic = layout.BLANK.unpack_from(segment.buffer, at)
    if magic == layout.MAGIC_BLANK:
        return bool(at + size == segment.size)
    if isinstance(record.spans_of(segment.buffer, at, segment.size), str):
        return False
    return bool(layout.HEAD.unpack_from(segment.buffer, at)[6] == segment.base + at)


class _Log:
    """The segments by position, and what is known to be bad in them."""

    def __init__(self, segments: list[Segment], file_bytes: int) -> None:
        self._file_bytes = file_bytes
        self._by_base = {segment.base: segment for segment in segments}
        self._bad_starts: list[int] = []
        self._bad_ends: list[int] = []
        self.start = segments[0].base if segments else 0
        #: Until the end of the log is known: the end of its last file.
        self.end = segments[-1].end if segments else 0

    def find(self, position: int) -> Segment | None:
        return self._by_base.get(position - position % self._file_bytes)

    def add_bad(self, start: int, end: int) -> None:
        self._bad_starts.append(start)
        self._bad_ends.append(end)

    def is_lost(self, position: int) -> bool:
        """No longer there, or damaged: what points there cannot be checked."""
        if 0 <= position < self.start or (0 <= position < self.end and self.find(position) is None):
            return True
        at = bisect_right(self._bad_starts, position) - 1
        return at >= 0 and position < self._bad_ends[at]

    def stored_ms(self, position: int) -> int | None:
        segment = self.find(position)
        return stored_ms(segment, position) if segment is not None and self.start <= position < self.end else None

    def hashes_at(self, position: int) -> set[int]:
        """The hashes of all keys of the record at a position."""
        segment = self.find(position)
        if segment is None or not self.start <= position < self.end or self.is_lost(position):
            return set()
        at = position - segment.base
        spans = record.spans_of(segment.buffer, at, segment.size)
        if isinstance(spans, str) or layout.HEAD.unpack_from(segment.buffer, at)[6] != position:
            return set()
        topic = bytes(segment.buffer[spans.topic : spans.topic_end])
        properties = bytes(segment.buffer[spans.properties : spans.properties_end])
        return {key_hash(topic, key) for key in keys_of(properties)}


# --- all of it -------------------------------------------------------------------------------------------------------


class _Verification:
    def __init__(
        self, disk: Disk, paths: StorePaths, config: StoreConfig, report: VerifyReport, progress: Progress
    ) -> None:
        self._disk = disk
        self._paths = paths
        self._config = config
        self._report = report
        self._progress = progress
        self._compared = 0

    def run(self) -> None:
        disk, paths, report = self._disk, self._paths, self._report
        report.live = disk.lock_holder(paths.lock) is not None
        clean = not AbortMark(disk, paths.abort).is_set() and not report.live
        point_file = RecoverPointFile(disk, paths.recover_point)
        point = point_file.load()
        segments = self._find_segments(point)
        sure_to, queues_sure_to = self._sure(segments, point, clean)
        log = _Log(segments, self._config.segment_bytes)
        index = _IndexCheck(disk, paths, self._config, report, log, _kept_index(point, clean))
        queues = _QueueCheck(disk, paths, self._config, report, log, queues_sure_to, ours=point is not None)
        self._walk(segments, log, sure_to, (queues.take, index.take))
        if point is not None and log.end < point.synced:
            self._report_short_log(segments, log.end, point.synced)
        report.log_start, report.log_end, report.segments = log.start, log.end, len(segments)
        queues.finish()
        index.finish()
        self._check_small_files(point_file, point)
        for segment in segments:
            segment.close()

    def _find_segments(self, point: RecoverPoint | None) -> list[Segment]:
        segments, problems = find_run(self._disk, self._paths.commit_log, self._config.segment_bytes)
        for problem in problems:
            if self._disk.exists(problem.path) and not self._disk.size(problem.path):
                self._report.note(problem.path, problem.position, "an empty file, made when its writer was stopped")
            else:
                self._report.error(problem.path, problem.position, problem.what)
        while point is not None and segments and segments[0].end <= point.log_start:
            gone = segments.pop(0)
            self._report.note(gone.path, gone.base, "its time was over; the next start removes it")
        return segments

    def _sure(self, segments: list[Segment], point: RecoverPoint | None, clean: bool) -> tuple[int, int]:
        """Up to where the log must be whole, and up to where the queues must be complete."""
        if point is not None:
            return point.synced, EVERYWHERE if clean else point.queues_to
        if clean:
            return recovery.clean_scan_start(segments), EVERYWHERE
        start = recovery.crash_scan_start(segments, CheckpointFile(self._disk, self._paths.checkpoint).load())
        return start, start

    def _walk(self, segments: list[Segment], log: _Log, sure_to: int, takers: tuple[Take, ...]) -> None:
        """Scan on threads, a few segments ahead; compare here, in order."""
        walks = [_Walk(segment) for segment in segments]
        threads = self._config.recovery_threads or min(os.cpu_count() or 1, 8)
        walker = _LogWalker(sure_to)
        waiting: deque[Future[_Walk]] = deque()
        with ThreadPoolExecutor(threads, "pyromq-verify") as pool:
            try:
                todo = iter(walks)
                for _ in walks:
                    while len(waiting) <= threads and (following := next(todo, None)) is not None:
                        waiting.append(pool.submit(walker.walk, following))
                    walk = self._wait(waiting.popleft(), walks)
                    self._take(walk, walks, log, takers)
                    if walk.end is not None:
                        self._note_tail(walk, walks)
                        log.end = walk.segment.base + walk.end
                        break
            finally:
                for future in waiting:
                    future.cancel()
        total = 2 * sum(segment.size for segment in segments)
        self._progress(total, total)

    def _wait(self, future: Future[_Walk], walks: list[_Walk]) -> _Walk:
        while not wait_for([future], 0.1).done:
            self._tell(walks, 0)
        return future.result()

    def _tell(self, walks: list[_Walk], compared: int) -> None:
        self._compared += compared
        total = 2 * sum(walk.segment.size for walk in walks)
        self._progress(min(sum(walk.reached for walk in walks) + self._compared, total), total)

    def _take(self, walk: _Walk, walks: list[_Walk], log: _Log, takers: tuple[Take, ...]) -> None:
        segment, report = walk.segment, self._report
        report.records += walk.records
        for start, end, what in walk.bad:
            report.error(segment.path, segment.base + start, what)
            log.add_bad(segment.base + start, segment.base + end)
        step = 8 << 20
        for start, end in walk.good:
            at = start
            while at < end:
                stop = _boundary_after(segment.buffer, at, min(at + step, end), end)
                for take in takers:
                    take(segment.buffer, at, stop)
                self._tell(walks, stop - at)
                at = stop

    def _note_tail(self, walk: _Walk, walks: list[_Walk]) -> None:
        """The log ends in this segment. Is there anything behind?"""
        if self._report.live:
            return
        segment = walk.segment
        later = [each.segment for each in walks if each.segment.base > segment.base]
        stale = sum(last_nonzero(each.buffer, 0, each.size) > 0 for each in later)
        if walk.torn or stale:
            what = walk.torn or "the log ends"
            more = f", and {stale} more files have bytes" if stale else ""
            position = segment.base + (walk.end or 0)
            self._report.note(segment.path, position, f"torn tail: {what}{more}; the next start cuts it off")

    def _report_short_log(self, segments: list[Segment], end: int, synced: int) -> None:
        path = segments[-1].path if segments else self._paths.commit_log
        self._report.error(path, end, f"the log ends here, but everything below {synced} was on the disk")

    def _check_small_files(self, point_file: RecoverPointFile, point: RecoverPoint | None) -> None:
        paths, disk, report = self._paths, self._disk, self._report
        for at in point_file.damaged_slots():
            if point is None:
                report.error(paths.recover_point, at, "the recover point cannot be read, nor its other copy")
            else:
                report.note(paths.recover_point, at, "one of the two copies of the recover point cannot be read")
        checkpoint = CheckpointFile(disk, paths.checkpoint).load()
        if min(checkpoint.log_ms, checkpoint.queue_ms, checkpoint.index_ms) < 0:
            report.error(paths.checkpoint, 0, "a time before 1970")
        for name in disk.names(paths.config):
            if name.endswith((".json", ".json.bak")):
                problem = JsonFile(disk, paths.config / name).problem()
                if problem is not None:
                    report.error(paths.config / name, 0, problem)


def _boundary_after(buffer: memoryview, start: int, wanted: int, end: int) -> int:
    """The first record boundary at or behind an offset, in a stretch of good records."""
    if wanted >= end:
        return end
    at = scan(buffer, start, wanted, layout.HEAD.unpack_from(buffer, start)[6] - start, False).end
    size: int = layout.HEAD.unpack_from(buffer, at)[0]
    return at if at == wanted else at + size


# --- the queues ------------------------------------------------------------------------------------------------------


class _Queue:
    """One queue's files, and a chunk of the entries that the log asks for."""

    def __init__(self, disk: Disk, directory: Path, file_bytes: int, report: VerifyReport) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        segments, problems = find_run(disk, directory, file_bytes)
        for problem in problems:
            report.error(problem.path, problem.position, problem.what)
        self.segments = {segment.base: segment for segment in segments}
        self.expected = memoryview(bytearray(QUEUE_CHUNK * ENTRY.size))
        self.cursor = QueueCursor()
        #: The first offset that the log has a record for; -1: none.
        self.first = -1
        self.checked = 0
        #: Entries that a start writes again.
        self.late = 0
        self.late_from = 0

    @property
    def start(self) -> int:
        return min(self.segments, default=0) // ENTRY.size

    @property
    def end(self) -> int:
        return (max(self.segments, default=-self.file_bytes) + self.file_bytes) // ENTRY.size

    def aim(self, offset: int) -> None:
        """The next entries are from an offset on, and all in one file."""
        file_end = (offset * ENTRY.size // self.file_bytes + 1) * self.file_bytes // ENTRY.size
        limit = min(offset + QUEUE_CHUNK, file_end)
        self.cursor.point_at(self.expected, offset, limit)
        self.cursor.next_dispatch = offset

    def path_at(self, offset: int) -> Path:
        position = offset * ENTRY.size
        return self.directory / f"{position - position % self.file_bytes:020d}"

    def actual(self, offset: int, count: int) -> memoryview | None:
        """Entries that lie in one file; None when the file is not there."""
        position = offset * ENTRY.size
        segment = self.segments.get(position - position % self.file_bytes)
        if segment is None:
            return None
        at = position - segment.base
        return segment.buffer[at : at + count * ENTRY.size]

    def entries(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Offset, position, size and code of the entries there are."""
        for base, segment in sorted(self.segments.items()):
            first = max(start, base // ENTRY.size)
            last = min(end, segment.end // ENTRY.size)
            if first < last:
                part = segment.buffer[first * ENTRY.size - base : last * ENTRY.size - base]
                for number, (position, size, code) in enumerate(ENTRY.iter_unpack(part), first):
                    yield number, position, size, code

    def written_end(self) -> int:
        """Behind the last entry that is not zero."""
        for base, segment in sorted(self.segments.items(), reverse=True):
            used = last_nonzero(segment.buffer, 0, segment.size)
            if used:
                return base // ENTRY.size + -(-used // ENTRY.size)
        return self.start

    def close(self) -> None:
        for segment in self.segments.values():
            segment.close()


class _QueueCheck:
    """Derives every entry from the log and compares. `sure_to`: records below this must have their entry."""

    def __init__(
        self,
        disk: Disk,
        paths: StorePaths,
        config: StoreConfig,
        report: VerifyReport,
        log: _Log,
        sure_to: int,
        *,
        ours: bool,
    ) -> None:
        self._disk = disk
        self._paths = paths
        self._file_bytes = config.queue_file_entries * ENTRY.size
        self._delays_ms = parse_delay_levels(config.delay_levels)
        self._report = report
        self._log = log
        self._sure_to = sure_to
        self._ours = ours
        self._queues: dict[bytes, _Queue] = {}
        self._cursors: dict[bytes, QueueCursor] = {}

    def take(self, buffer: memoryview, start: int, end: int) -> None:
        """Good records, from one boundary to another."""
        at = start
        while at < end:
            at = dispatch(buffer, at, end, self._cursors).offset
            if at < end:
                spans = record.spans_of(buffer, at, end)
                assert not isinstance(spans, str), spans
                self._take_one(buffer, at, spans)
                at += spans.total_size

    def _take_one(self, buffer: memoryview, at: int, spans: record.Spans) -> None:
        _, _, _, queue_id, _, offset, position, flags, _ = layout.HEAD.unpack_from(buffer, at)
        if not layout.has_queue_offset(flags):
            return
        topic = bytes(buffer[spans.topic : spans.topic_end])
        if not is_safe_topic(topic) or queue_id < 0:
            self._log_note(position, f"{topic!r}/{queue_id} cannot be a queue: the message is in none")
            return
        queue = self._queue(topic, queue_id)
        cursor = queue.cursor
        if queue.first < 0:
            queue.first = offset
            queue.aim(offset)
        elif offset != cursor.next_dispatch:
            self._jump(queue, offset, position)
        elif offset >= cursor.limit:
            self._compare(queue)
            queue.aim(offset)
        (timestamp_ms,) = layout.STORED_AT.unpack_from(buffer, spans.store_timestamp_at)
        properties = bytes(buffer[spans.properties : spans.properties_end])
        cursor.put(position, spans.total_size, queue_code(topic, properties, timestamp_ms, self._delays_ms))

    def _queue(self, topic: bytes, number: int) -> _Queue:
        key = queue_key(topic, number)
        queue = self._queues.get(key)
        if queue is None:
            directory = self._paths.queues / topic.decode("utf-8", "surrogateescape") / str(number)
            queue = self._queues[key] = _Queue(self._disk, directory, self._file_bytes, self._report)
            self._cursors[key] = queue.cursor
        return queue

    def _jump(self, queue: _Queue, offset: int, position: int) -> None:
        """The log does not go on with the next offset of the queue."""
        expected = queue.cursor.next_dispatch
        self._compare(queue)
        if offset > expected:
            self._check_unclaimed(queue, expected, offset)
        else:
            segment = self._log.find(position)
            assert segment is not None
            what = f"the record has offset {offset} of queue {self._name(queue)}, which an earlier record has"
            self._report.error(segment.path, position, what)
            queue.first = min(queue.first, offset)
        queue.aim(offset)

    def _compare(self, queue: _Queue) -> None:
        first, count = queue.cursor.first, queue.cursor.next_dispatch - queue.cursor.first
        expected = bytes(queue.expected[: count * ENTRY.size])
        actual = queue.actual(first, count)
        self._report.queue_entries += count
        if actual is not None and bytes(actual) == expected:
            return
        found = ENTRY.iter_unpack(actual if actual is not None else bytes(len(expected)))
        for offset, wanted, entry in zip(count_from(first), ENTRY.iter_unpack(expected), found, strict=False):
            if wanted != entry:
                self._report_entry(queue, offset, wanted, entry)

    def _report_entry(
        self, queue: _Queue, offset: int, wanted: tuple[int, int, int], found: tuple[int, int, int]
    ) -> None:
        if wanted[0] >= self._sure_to:
            queue.late_from = queue.late_from if queue.late else offset
            queue.late += 1
            return
        if found == (0, 0, 0):
            what = f"no entry for offset {offset}, whose record is at {wanted[0]}"
        else:
            what = (
                f"the entry of offset {offset} says position {found[0]}, size {found[1]}, code {found[2]}; "
                f"its record says {wanted[0]}, {wanted[1]}, {wanted[2]}"
            )
        self._report.error(queue.path_at(offset), offset * ENTRY.size, what)

    def _check_unclaimed(self, queue: _Queue, start: int, end: int) -> None:
        """Entries of offsets that no record has: blanks, or of records that are gone."""
        for offset, position, size, _ in queue.entries(start, end):
            self._report.queue_entries += 1
            if size == BLANK_SIZE and position == 0:
                continue
            if size <= 0 or not self._log.is_lost(position):
                what = f"the entry of offset {offset} says position {position}, where no record of this queue is"
                self._report.error(queue.path_at(offset), offset * ENTRY.size, what)

    def finish(self) -> None:
        for topic, number, _ in queue_directories(self._disk, self._paths):
            self._queue(topic.encode("utf-8", "surrogateescape"), number)
        self._report.queues = len(self._queues)
        for queue in self._queues.values():
            self._finish(queue)
            queue.close()

    def _finish(self, queue: _Queue) -> None:
        written_end = queue.written_end()
        if queue.first >= 0:
            self._compare(queue)
            self._check_unclaimed(queue, queue.start, queue.first)
            self._check_behind(queue, queue.cursor.next_dispatch, written_end)
        else:
            # All its messages are gone; entries of a log's torn tail come last.
            end = next((offset for offset, position, size, _ in queue.entries(queue.start, written_end)
                        if position >= self._log.end and size != BLANK_SIZE), written_end)  # fmt: skip
            self._check_unclaimed(queue, queue.start, end)
            self._check_behind(queue, end, written_end)
        if queue.late and not self._report.live:
            what = f"{queue.late} entries from offset {queue.late_from} on are not complete; the next start writes them"
            self._report.note(queue.path_at(queue.late_from), queue.late_from * ENTRY.size, what)

    def _check_behind(self, queue: _Queue, start: int, end: int) -> None:
        """Entries behind the last that the log asks for."""
        for offset, position, size, code in queue.entries(start, end):
            if position == size == code == 0 or (position >= self._log.start and self._log.is_lost(position)):
                continue
            if self._report.live and position >= self._log.end:
                return
            what = f"{end - offset} entries from offset {offset} on are nobody's; the first says position {position}"
            if self._sure_to < EVERYWHERE or not self._ours:
                self._report.note(queue.path_at(offset), offset * ENTRY.size, f"{what}; the next start cuts them off")
            else:
                self._report.error(queue.path_at(offset), offset * ENTRY.size, what)
            return

    def _log_note(self, position: int, what: str) -> None:
        segment = self._log.find(position)
        assert segment is not None
        self._report.note(segment.path, position, what)

    def _name(self, queue: _Queue) -> str:
        return str(queue.directory.relative_to(self._paths.queues))


# --- the key index ---------------------------------------------------------------------------------------------------


class _KeptIndex(NamedTuple):
    """Which index files a start would keep, and up to where they must hold every key."""

    last_file: int
    complete_to: int
    #: After a crash the index may be ahead of the log: files that end at or behind this go, and then all do.
    ends_before: int


def _kept_index(point: RecoverPoint | None, clean: bool) -> _KeptIndex:
    if point is not None:
        return _KeptIndex(point.index_file, point.index_to, EVERYWHERE if clean else point.index_to)
    # Another program's: complete when it stopped in order, else built again.
    return _KeptIndex(EVERYWHERE, 0, EVERYWHERE) if clean else _KeptIndex(0, 0, 0)


#: Hash, position, seconds, the entry before it in its chain.
_Entry = tuple[int, int, int, int]


class _IndexFile:
    """One index file, read from its first entry to its last; chains are built again on the way."""

    def __init__(self, path: Path, buffer: memoryview, slots: int, entries: int) -> None:
        self.path = path
        self.buffer = buffer
        self.slots = slots
        self.entries_at = key_index.HEADER.size + 4 * slots
        (
            self.begin_ms,
            self.end_ms,
            self.begin_position,
            self.end_position,
            self.used_slots,
            self.header_count,
        ) = key_index.HEADER.unpack_from(buffer)
        #: Entries that are there; entry 0 is never used.
        self.count = self._count(entries)

    def _count(self, entries: int) -> int:
        """Look behind what the header says, but not through the whole of a file that is hardly used."""
        said = min(max(self.header_count, 1), entries)
        used = last_nonzero(self.buffer, self.entries_at, min(self.at(said) + LOOK_BEHIND, self.at(entries)))
        if used > self.at(said):
            used = last_nonzero(self.buffer, self.entries_at, self.at(entries))
        return max(-(-(used - self.entries_at) // key_index.ENTRY.size), 1)

    def at(self, number: int) -> int:
        return self.entries_at + number * key_index.ENTRY.size

    def entry(self, number: int) -> _Entry:
        found: _Entry = key_index.ENTRY.unpack_from(self.buffer, self.at(number))
        return found

    def find(self, wanted_hash: int, position: int) -> bool:
        """As a query does it: along the chain."""
        (number,) = struct.unpack_from(">i", self.buffer, key_index.HEADER.size + 4 * (wanted_hash % self.slots))
        while 0 < number < self.count:
            found_hash, found_position, _, previous = self.entry(number)
            if (found_hash, found_position) == (wanted_hash, position):
                return True
            if previous >= number:
                return False
            number = previous
        return False


class _IndexCheck:
    """Derives every index entry from the log and compares, in the order in which both were written."""

    def __init__(
        self, disk: Disk, paths: StorePaths, config: StoreConfig, report: VerifyReport, log: _Log, kept: _KeptIndex
    ) -> None:
        self._disk = disk
        self._paths = paths
        self._config = config
        self._report = report
        self._log = log
        self._complete_to = kept.complete_to
        self._files = self._find(kept)
        self._entries = self._read_all()
        #: The entry that was read last, when it is still to be looked at.
        self._put_back: list[_Entry] = []
        #: Where the entry that was read last is.
        self._file: _IndexFile | None = None
        self._number = 0
        self._begin_ms = 0
        scratch = bytearray(key_index.HEADER.size + 4 + key_index.ENTRY.size * (INDEX_CHUNK + 2))
        self._scratch = memoryview(scratch)
        self._cursor = IndexCursor(self._scratch, 1, INDEX_CHUNK + 2)
        first = self._files[0].entry(1)[1] if self._files and self._files[0].count > 1 else EVERYWHERE
        #: Records before the first entry are not covered by the index (any longer).
        self._covers_from = first if self._files else EVERYWHERE

    def _find(self, kept: _KeptIndex) -> list[_IndexFile]:
        files: list[_IndexFile] = []
        names = self._disk.names(self._paths.index)
        for name in names:
            path = self._paths.index / name
            if not name.isdigit() or self._disk.size(path) != index_file_bytes(self._config):
                self._report.note(path, 0, "this is no index file; the next start removes it")
                continue
            mapped = self._disk.open_mapped(path, writable=False)
            file = _IndexFile(path, mapped.buffer, self._config.index_slots, self._config.index_entries)
            mapped.close()
            files.append(file)
        self._report.index_files = len(names)
        if 0 < kept.last_file < EVERYWHERE and str(kept.last_file) not in names:
            path = self._paths.index / str(kept.last_file)
            self._report.error(path, 0, "the recover point names this index file and it is not there")
        return self._sure(files, kept)

    def _sure(self, files: list[_IndexFile], kept: _KeptIndex) -> list[_IndexFile]:
        """The files that the next start keeps."""
        sure = [file for file in files if int(file.path.name) <= kept.last_file]
        if any(file.end_position >= kept.ends_before for file in sure):
            sure = []
        for file in files[len(sure) :] if not self._report.live else []:
            self._report.note(file.path, 0, "this index file was never finished; the next start builds it again")
        return sure

    # --- what the files have -----------------------------------------------------------------------------------------

    def _read_all(self) -> Iterator[_Entry]:
        """Every entry of every file, in order; chains, slots and headers are checked on the way."""
        unpack = key_index.ENTRY.iter_unpack
        for file in self._files:
            self._file = file
            self._begin_ms = self._begin(file)
            slots, heads, used = file.slots, array("i", bytes(4 * file.slots)), 0
            for number, entry in enumerate(unpack(file.buffer[file.at(1) : file.at(file.count)]), 1):
                slot = entry[0] % slots
                before = heads[slot]
                used += before == 0
                if entry[3] != before:
                    what = f"entry {number} is chained to entry {entry[3]} where {before} is the one before it"
                    self._report.error(file.path, file.at(number), what)
                heads[slot] = self._number = number
                yield entry
            self._report.index_entries += file.count - 1
            self._check_slots(file, heads, used)
            self._check_header(file)

    def _begin(self, file: _IndexFile) -> int:
        """The time that the file's entries count from: its first record's."""
        first = file.entry(1)[1] if file.count > 1 else -1
        first_ms = None if self._log.is_lost(first) else self._log.stored_ms(first)
        return file.begin_ms if first_ms is None else first_ms

    def _check_header(self, file: _IndexFile) -> None:
        """Once the file is read: then the log is known as far as the file goes."""
        error, path = self._report.error, file.path
        if file.header_count != file.count and (file.header_count > 0 or file.count > 1):
            error(path, 36, f"the header counts {file.header_count - 1} entries, {file.count - 1} are there")
        if file.count <= 1:
            return
        first, last = file.entry(1)[1], file.entry(file.count - 1)[1]
        if file.begin_position != first:
            error(path, 16, f"the header begins at position {file.begin_position}, the first entry at {first}")
        if file.end_position != last:
            error(path, 24, f"the header ends at position {file.end_position}, the last entry at {last}")
        for at, said_ms, position in ((0, file.begin_ms, first), (8, file.end_ms, last)):
            true_ms = None if self._log.is_lost(position) else self._log.stored_ms(position)
            if true_ms is not None and true_ms != said_ms:
                error(path, at, f"the header says time {said_ms}, the record at {position} says {true_ms}")

    def _check_slots(self, file: _IndexFile, heads: array[int], used: int) -> None:
        # Older versions of RocketMQ counted every entry here.
        if file.used_slots not in (used, file.count - 1):
            self._report.error(file.path, 32, f"the header counts {file.used_slots} slots in use, {used} are")
        table = file.buffer[key_index.HEADER.size : file.entries_at]
        swapped = array("i", heads)
        if struct.pack("=i", 1) != struct.pack(">i", 1):
            swapped.byteswap()
        if swapped.tobytes() == bytes(table):
            return
        for slot, (said,) in enumerate(struct.iter_unpack(">i", table)):
            if said != heads[slot]:
                what = f"slot {slot} names entry {said} where {heads[slot]} is its newest"
                self._report.error(file.path, key_index.HEADER.size + 4 * slot, what)

    # --- what the log asks for ---------------------------------------------------------------------------------------

    def take(self, buffer: memoryview, start: int, end: int) -> None:
        """Good records, from one boundary to another."""
        if layout.HEAD.unpack_from(buffer, start)[6] + end - start <= self._covers_from:
            return
        cursor, at = self._cursor, start
        begin = key_index.HEADER.size + 4 + 2 * key_index.ENTRY.size
        while at < end:
            cursor.count = 2  # entry 1 would set the time to count from
            cursor.begin_ms = self._begin_ms
            reached = index_keys(buffer, at, end, cursor)
            chunk = self._scratch[begin : begin + (cursor.count - 2) * key_index.ENTRY.size]
            for found, position, seconds, _ in key_index.ENTRY.iter_unpack(chunk):
                if not self._put_back:
                    entry = next(self._entries, None)
                    if entry is not None:
                        if entry[1] == position and entry[0] == found and entry[2] == seconds:
                            continue
                        self._put_back.append(entry)
                self._expect(found, position, seconds)
            if reached == at:
                reached = self._take_one(buffer, at, end)
            at = reached

    def _take_one(self, buffer: memoryview, at: int, end: int) -> int:
        spans = record.spans_of(buffer, at, end)
        assert not isinstance(spans, str), spans
        if spans.storage_flags & layout.FLAG_TRANSACTION_MASK != layout.FLAG_ROLLED_BACK:
            position = layout.HEAD.unpack_from(buffer, at)[6]
            topic = bytes(buffer[spans.topic : spans.topic_end])
            for key in keys_of(bytes(buffer[spans.properties : spans.properties_end])):
                self._expect(key_hash(topic, key), position, self._seconds(position))
        return at + spans.total_size

    def _seconds(self, position: int) -> int:
        at_ms = self._log.stored_ms(position)
        seconds: int = (at_ms - self._begin_ms) // 1000 if at_ms is not None and self._begin_ms > 0 else 0
        return min(max(seconds, 0), 0x7FFFFFFF)

    def _expect(self, wanted: int, position: int, seconds: int) -> None:
        """The next entry must be this one."""
        if position < self._covers_from:
            return
        while True:
            entry = self._put_back.pop() if self._put_back else next(self._entries, None)
            if entry is None:
                self._missing(wanted, position)
                return
            found, found_position, found_seconds, _ = entry
            if found_position == position and found == wanted:
                if found_seconds not in (seconds, self._seconds(position)):
                    self._report_entry(f"says {found_seconds} s after the begin, its record {self._seconds(position)}")
                return
            if self._log.is_lost(found_position):
                continue
            if found in self._log.hashes_at(found_position):
                if found_position >= position:
                    self._put_back.append(entry)
                    self._missing(wanted, position)
                    return
                continue  # of an earlier record, once more: RocketMQ does that after a crash
            self._report_wrong(entry)
            if not self._is_found(wanted, position):
                return  # it stands where this one should

    def _report_wrong(self, entry: _Entry) -> None:
        self._report_entry(f"says position {entry[1]}, where no record has a key of hash {entry[0]}")

    def _report_entry(self, what: str) -> None:
        assert self._file is not None
        self._report.error(self._file.path, self._file.at(self._number), f"entry {self._number} {what}")

    def _missing(self, wanted: int, position: int) -> None:
        if position == self._covers_from or self._is_found(wanted, position):
            return
        last = self._files[-1]
        if position < self._complete_to or position < last.end_position:
            self._report.error(last.path, 0, f"a key of the record at {position} (hash {wanted}) is not in the index")

    def _is_found(self, wanted: int, position: int) -> bool:
        return any(file.find(wanted, position) for file in reversed(self._files))

    def finish(self) -> None:
        """What is left are entries for which there is no record."""
        for entry in chain(self._put_back, self._entries):
            if not self._log.is_lost(entry[1]) and entry[0] not in self._log.hashes_at(entry[1]):
                self._report_wrong(entry)
