"""Checks everything in a store directory against everything else. Reads only: no lock is taken, no byte changes.

    the log      every record, and the blank that ends each segment; no file missing     `verify_log`
    the queues   every entry is the one that the log asks for, and none is without one    `verify_queues`
    the index    every entry belongs to a record and to its chain; every key is found    `verify_index`
    the rest     recover point, checkpoint and the tables under `config/` can be read    here

Damage is an error. A fault that the next start repairs is a note: a torn tail after the synced mark,
entries that were not written yet when a broker was killed, an index file that was never finished.

Segments are checked on threads, a few ahead; queues and index are compared with them here, in the log's order.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path

from pyromq.clock import Clock, SystemClock
from pyromq.config import StoreConfig
from pyromq.files import platform
from pyromq.files.disk import Disk, OsDisk
from pyromq.files.json_file import JsonFile
from pyromq.records import layout
from pyromq.records.scan import scan
from pyromq.store.durability.checkpoint import AbortMark, CheckpointFile, RecoverPoint, RecoverPointFile
from pyromq.store.log.segmented_file import Segment
from pyromq.store.log.zeroes import last_nonzero
from pyromq.store.offline.inspect import Problem, detect, find_run, why_refused, without_unused
from pyromq.store.offline.verify_index import IndexCheck, kept_index
from pyromq.store.offline.verify_log import EVERYWHERE, Log, LogWalker, Walk
from pyromq.store.offline.verify_queues import QueueCheck
from pyromq.store.offline.verify_report import MAX_FINDINGS, Finding, Severity, VerifyReport
from pyromq.store.paths import StorePaths
from pyromq.store.recovery import log_recovery

__all__ = ["Finding", "Severity", "Verification", "VerifyReport", "bytes_and_messages_from", "verify"]

#: Records are compared this many bytes at a time.
SLICE = 8 << 20

#: `(done, total)` in bytes, called on the thread that verifies.
Progress = Callable[[int, int], None]
#: Compares what follows from the good records in `[from, to)` of a buffer.
Take = Callable[[memoryview, int, int], None]


def verify(
    root: Path,
    *,
    disk: Disk | None = None,
    config: StoreConfig | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
    max_findings: int = MAX_FINDINGS,
) -> VerifyReport:
    """Check a store. Raises StoreError if it is no store, OSError when it cannot be read."""
    disk = disk or OsDisk(StorePaths(root).staging)
    clock = clock or SystemClock()
    config = config or detect(root, disk=disk)
    paths = StorePaths.of(config)
    platform.raise_open_file_limit()
    started = clock.monotonic()
    report = VerifyReport(paths.root, paths.commit_log, max_findings=max_findings)
    Verification(disk, paths, config, report, progress or (lambda done, total: None)).run()
    report.seconds = clock.monotonic() - started
    return report


def bytes_and_messages_from(config: StoreConfig, position: int, *, disk: Disk | None = None) -> tuple[int, int]:
    """Return the bytes and messages of a store from a position on: the loss if it is cut there."""
    paths = StorePaths.of(config)
    disk = disk or OsDisk(paths.staging)
    last = messages = 0
    segments, _ = find_run(disk, paths.commit_log, config.segment_bytes)
    for segment in segments:
        if segment.end > position:
            start = max(position - segment.base, 0)
            behind = last_nonzero(segment.buffer, start, segment.data_end(start))
            if behind > start:
                last = segment.base + behind
                messages += LogWalker(last).walk(Walk(segment, start)).records
            segment.close()
    return max(last - position, 0), messages


class Verification:
    """One check of a store, in steps: each segment in the log's order (`joined`), the one where it ends, `finish`.

    `run` does them all here. A caller that checks segments elsewhere calls the steps with the results.
    """

    def __init__(
        self, disk: Disk, paths: StorePaths, config: StoreConfig, report: VerifyReport, progress: Progress
    ) -> None:
        self._disk = disk
        self._paths = paths
        self._config = config
        self._report = report
        self._progress = progress
        self._compared = 0
        report.live = disk.lock_holder(paths.lock) is not None
        clean = not AbortMark(disk, paths.abort).is_set() and not report.live
        self._point_file = RecoverPointFile(disk, paths.recover_point)
        self._point = self._point_file.load()
        self.segments = self._find_segments(self._point)
        self.sure_to, self.queues_sure_to = self._sure(self.segments, self._point, clean)
        self.kept_index = kept_index(self._point, clean)
        self.log = Log(self.segments, config.segment_bytes)
        self.queues = QueueCheck(
            disk, paths, config, report, self.log, self.queues_sure_to, ours=self._point is not None
        )

    def run(self) -> None:
        index = IndexCheck(self._disk, self._paths, self._config, self._report, self.log, self.kept_index)
        self._walk(self.segments, (self.queues.take, index.take))
        self.finish(index.finish)

    def joined(self, walk: Walk) -> bool:
        """A segment was looked at; False: the log ends in it."""
        segment, report = walk.segment, self._report
        report.records += walk.records
        for start, end, what in walk.bad:
            report.error(segment.path, segment.base + start, what)
            self.log.add_bad(segment.base + start, segment.base + end)
        return walk.end is None

    def end_in(self, walk: Walk) -> None:
        """The log ends in this segment."""
        self._note_tail(walk)
        self.log.end = walk.segment.base + (walk.end or 0)

    def finish(self, finish_index: Callable[[], None]) -> None:
        report, point, log = self._report, self._point, self.log
        if point is not None and log.end < point.synced:
            self._report_short_log(self.segments, log.end, point.synced)
        report.log_start, report.log_end, report.segments = log.start, log.end, len(self.segments)
        self.queues.finish()
        finish_index()
        self._check_small_files(self._point_file, point)
        for segment in self.segments:
            segment.close()

    def _find_segments(self, point: RecoverPoint | None) -> list[Segment]:
        segments, problems = find_run(self._disk, self._paths.commit_log, self._config.segment_bytes)
        self._report.refusal = why_refused(self._disk, self._paths, point, segments, problems)
        for problem in problems:
            if self._disk.exists(problem.path) and not self._disk.size(problem.path):
                self._report.note(problem.path, problem.position, "an empty file, made when its writer was stopped")
            elif problem.kind is Problem.MISSING and self._report.refusal is None:
                self._report.note(problem.path, problem.position, f"{problem.what}; the next start goes on without")
            else:
                self._report.error(problem.path, problem.position, problem.what)
        while point is not None and segments and segments[0].end <= point.log_start:
            gone = segments.pop(0)
            self._report.note(gone.path, gone.base, "its time was over; the next start removes it")
        return segments

    def _sure(self, segments: list[Segment], point: RecoverPoint | None, clean: bool) -> tuple[int, int]:
        """Up to where the log must be whole, and up to where the queues must be complete."""
        if point is not None:
            return point.synced, EVERYWHERE if clean and point.is_shown_whole else point.queues_to
        segments = without_unused(segments)
        if clean:
            return log_recovery.clean_scan_start(segments), EVERYWHERE
        start = log_recovery.crash_scan_start(segments, CheckpointFile(self._disk, self._paths.checkpoint).load())
        return start, start

    def _walk(self, segments: list[Segment], takers: tuple[Take, ...]) -> None:
        """Scan on threads, a few segments ahead; compare here, in order."""
        walks = [Walk(segment) for segment in segments]
        threads = self._config.recovery_threads or min(os.cpu_count() or 1, 8)
        walker = LogWalker(self.sure_to)
        waiting: deque[Future[Walk]] = deque()
        with ThreadPoolExecutor(threads, "pyromq-verify") as pool:
            try:
                todo = iter(walks)
                for _ in walks:
                    while len(waiting) <= threads and (following := next(todo, None)) is not None:
                        waiting.append(pool.submit(walker.walk, following))
                    walk = self._wait(waiting.popleft(), walks)
                    goes_on = self.joined(walk)
                    self._take(walk, walks, takers)
                    if not goes_on:
                        self.end_in(walk)
                        break
            finally:
                for future in waiting:
                    future.cancel()
        total = 2 * sum(segment.size for segment in segments)
        self._progress(total, total)

    def _wait(self, future: Future[Walk], walks: list[Walk]) -> Walk:
        while not wait_for([future], 0.1).done:
            self._tell(walks, 0)
        return future.result()

    def _tell(self, walks: list[Walk], compared: int) -> None:
        self._compared += compared
        total = 2 * sum(walk.segment.size for walk in walks)
        self._progress(min(sum(walk.reached for walk in walks) + self._compared, total), total)

    def _take(self, walk: Walk, walks: list[Walk], takers: tuple[Take, ...]) -> None:
        buffer = walk.segment.buffer
        for start, stop in in_slices(buffer, walk.good):
            for take in takers:
                take(buffer, start, stop)
            self._tell(walks, stop - start)

    def _note_tail(self, walk: Walk) -> None:
        """The log ends in this segment. Is there anything behind?"""
        if self._report.live:
            return
        segment = walk.segment
        later = [each for each in self.segments if each.base > segment.base]
        stale = sum(last_nonzero(each.buffer, 0, each.data_end(0)) > 0 for each in later)
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


def in_slices(buffer: memoryview, good: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Stretches of good records in parts of some MiB, from one boundary to another."""
    for start, end in good:
        at = start
        while at < end:
            stop = _boundary_after(buffer, at, min(at + SLICE, end), end)
            yield at, stop
            at = stop


def _boundary_after(buffer: memoryview, start: int, wanted: int, end: int) -> int:
    """The first record boundary at or behind an offset, in a stretch of good records."""
    if wanted >= end:
        return end
    at = scan(buffer, start, wanted, layout.position_of(buffer, start) - start, False).end
    size: int = layout.total_size_of(buffer, at)
    return at if at == wanted else at + size
