"""Starting on a directory: the steps from files to a store that serves, in order.

1. find the files of the log, and the end of its last whole record (`log_recovery` decides how)
2. refuse to continue when that is below the synced mark; otherwise cut the rest
3. cut the queues back to the certain entries, and dispatch the rest again
   (with `hold_back`, the queues stay as they were until the broker says which messages are visible)
4. keep the index files that were synced whole; the rest is indexed later, while the store serves
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from pyromq.errors import CorruptLog
from pyromq.store.dispatcher import Dispatcher
from pyromq.store.durability.checkpoint import REPAIRING, UNKNOWN, CheckpointFile, RecoverPoint
from pyromq.store.key_index import KeyIndex
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.paths import StorePaths
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.queues.queue_repair import QueueRepair
from pyromq.store.queues.queue_table import QueueTable
from pyromq.store.recovery import log_recovery
from pyromq.store.recovery.log_recovery import LogEnd, RecoveryReport
from pyromq.store.recovery.misplaced import quarantine_misplaced
from pyromq.store.watermarks import Watermark, Watermarks

log = logging.getLogger("pyromq.store")

GIVEN_UP = "given up as asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The parts of a store that a start puts in order."""

    paths: StorePaths
    threads: int
    log: CommitLog
    queues: QueueTable
    index: KeyIndex | None
    dispatcher: Dispatcher
    marks: Watermarks
    checkpoint_file: CheckpointFile
    repair: QueueRepair

    def examine(
        self, point: RecoverPoint | None, *, clean: bool, truncate_at: int | None
    ) -> tuple[RecoverPoint | None, LogEnd, RecoveryReport]:
        """Steps 1 and 2 without changing anything that matters. Raises CorruptLog."""
        files = self.log.files
        files.load(point.log_start if point is not None else 0)
        if point is not None and files.start > point.log_start:
            log.error("the log begins at %d, but it began at %d: files are missing", files.start, point.log_start)
        start = log_recovery.scan_start(files, point, self.checkpoint_file.load(), clean=clean)
        found = log_recovery.find_log_end(files, start, self.threads)
        if truncate_at is not None:
            point, found = self._give_up_from(truncate_at, found, point)
        log_recovery.refuse_damage(files, found, self._synced_to(point, found, clean))
        report = RecoveryReport(
            clean=clean,
            scanned_from=min(start, found.end),
            log_start=files.start,
            log_end=found.end,
            records_scanned=found.records,
        )
        return point, found, report

    def put_in_order(
        self, point: RecoverPoint | None, found: LogEnd, report: RecoveryReport, *, rebuild: bool, hold_back: bool
    ) -> None:
        """Steps 2 to 4. Raises OSError."""
        self._cut_log(point, found, report)
        is_as_written = self._recover_queues(point, report, rebuild=rebuild)
        if hold_back and is_as_written:
            self._hold_back(report.scanned_from)
        self._suspect_queues(point)
        report.index_from = self._recover_index(point, found.end, clean=report.clean, rebuild=rebuild)

    # --- the log -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _synced_to(point: RecoverPoint | None, found: LogEnd, clean: bool) -> int:
        """Up to where the log was on the disk. Another program that stopped cleanly synced everything that it wrote."""
        if point is not None:
            return point.synced
        return found.end + 1 if clean and found.damage not in (None, GIVEN_UP) else 0

    def _give_up_from(
        self, position: int, found: LogEnd, point: RecoverPoint | None
    ) -> tuple[RecoverPoint | None, LogEnd]:
        """Give up everything from a position on, by an operator's decision: it must be a record boundary."""
        files = self.log.files
        is_inside = files.start <= position < found.end
        if position != found.end and not (is_inside and log_recovery.is_boundary(files, position)):
            raise CorruptLog(
                self.paths.commit_log,
                position,
                "no record begins there",
                f"give the position that the error named, or {found.end}, where the log ends now",
            )
        log.warning("giving up the log from position %d on, as asked", position)
        if point is not None:
            point = replace(
                point,
                synced=min(point.synced, position),
                queues_to=min(point.queues_to, position),
                index_to=0,
                index_file=0,
                queue_digest=-1,
            )
        return point, found._replace(end=position, damage=GIVEN_UP)

    def _cut_log(self, point: RecoverPoint | None, found: LogEnd, report: RecoveryReport) -> None:
        """Behind the end there must be nothing. A clean stop leaves nothing but a segment made ahead."""
        files = self.log.files
        if report.clean and found.damage is None:
            files.remove_from(max(found.end, files.start + 1))
        else:
            on_purpose = found.damage == GIVEN_UP
            report.bytes_cut, report.cut_kept_in = log_recovery.cut_log(
                files, found.end, self.paths.cut_off, keep_all=on_purpose
            )
        if report.bytes_cut:
            log.warning(
                "cut %d bytes from the end of the log at position %d (%s); they are kept in %s",
                report.bytes_cut, found.end, found.damage or "zeroes before them", report.cut_kept_in,
            )  # fmt: skip
        if not report.clean:
            # A killed process leaves bytes that only the page cache has: from here on they count as synced.
            for segment in files.segments:
                if segment.end > report.scanned_from:
                    segment.file.sync()
        last_timestamp_ms = found.last_timestamp_ms or (point.timestamp_ms if point else 0)
        self.log.start_writing_at(found.end, last_timestamp_ms)
        for mark in (self.marks.appended, self.marks.synced, self.marks.written):
            mark.reset(found.end)

    # --- queues and index --------------------------------------------------------------------------------------------

    def _hold_back(self, position: int) -> None:
        """Show readers only the entries that the queues had at the last recover point, and no later ones."""
        for queue in self.queues:
            queue.hide(position)
        self.marks.dispatched.reset(position)
        self.marks.limit_visible(Watermark("held back", position))

    def _recover_queues(self, point: RecoverPoint | None, report: RecoveryReport, *, rebuild: bool) -> bool:
        """False when queues had to be mended: they are not the log's records one by one, and stay as they are."""
        start = report.scanned_from
        self._load_queues()
        # Nothing was written since the recover point: what the queues have was synced with it.
        trust = report.clean and report.scanned_from == report.log_end
        intact = not rebuild
        given_out: dict[ConsumeQueue, int] = {}
        for queue in self.queues:
            if rebuild:
                given_out[queue] = queue.end_of_gone(self.log.start)
                self.queues.discard(queue)
            gone = log_recovery.cut_queue(self.log.files, queue, start, trust=trust)
            if gone is not None:
                log.warning("queue %s is not as it was synced: its entries are written again from the log", queue.id)
                given_out[queue] = max(gone, given_out.get(queue, 0))
                intact = False
        if intact and point is not None and start == point.queues_to:
            intact = point.queue_digest in (-1, self.queues.digest())
            if not intact:
                log.error("queues have lost entries since they were synced: all are written again from the log")
        if not intact or not self._dispatch_from(start):
            self._check_whole_log(report.log_end)
            self._dispatch_from(self.log.start)
        for queue, offset in given_out.items():
            queue.skip_to(offset)
        self.dispatcher.last_timestamp_ms = self.log.last_timestamp_ms
        for queue in self.queues:
            queue.cursor.next_append = queue.max_offset
            queue.drop_before(self.log.start)
        return not given_out and not self.dispatcher.gaps

    def _load_queues(self) -> None:
        """Find the queues; a directory in the place of a file is quarantined like a damaged one. Raises OSError."""
        disk = self.log.files.disk
        quarantine_misplaced(disk, self.paths, files=False)
        try:
            self.queues.load(self.log.start)
        except IsADirectoryError:
            if not quarantine_misplaced(disk, self.paths):
                raise
            self.queues.load(self.log.start)

    def _suspect_queues(self, point: RecoverPoint | None) -> None:
        """Find the queues whose first files are missing. Their messages are in the log, and so is everything that their
        last files say of new ones: they are derived again while the store serves."""
        start = self.log.start
        lost = [queue for queue in self.queues if queue.has_lost_front]
        digest = point.start_digest if point is not None else UNKNOWN
        if digest == REPAIRING:
            lost = [queue for queue in self.queues if queue.max_offset]
        elif digest == UNKNOWN or point is None or point.log_start != start:
            lost += [queue for queue in self.queues if not queue.has_front(start) and queue not in lost]
        elif digest != self.queues.start_digest():
            lost += [queue for queue in self.queues if not queue.has_front(start) and queue not in lost]
            lost = lost or [queue for queue in self.queues if queue.min_offset]
        if lost:
            self.repair.suspect(lost, "files are missing, or not what they were")

    def _dispatch_from(self, start: int) -> bool:
        """False when a queue lacks entries of records before `start`: they were lost after they had been synced."""
        self.marks.dispatched.reset(start)
        self.dispatcher.gaps = 0
        self.dispatcher.recovering = True
        self.dispatcher.dispatch()
        self.dispatcher.recovering = False
        return not self.dispatcher.gaps or start == self.log.start

    def _check_whole_log(self, end: int) -> None:
        """Check the parts of the log that no scan has read yet and that queues are built from. Raises CorruptLog."""
        found = log_recovery.find_log_end(self.log.files, self.log.start, self.threads)
        log_recovery.refuse_damage(self.log.files, found, end)

    def _load_index(self, index: KeyIndex) -> None:
        """Raises OSError."""
        try:
            index.load()
        except IsADirectoryError:
            if not quarantine_misplaced(self.log.files.disk, self.paths):
                raise
            index.load()

    def _recover_index(self, point: RecoverPoint | None, end: int, *, clean: bool, rebuild: bool) -> int:
        """Keep the synced index files; return the position from which the rest is indexed."""
        start: int = self.log.start
        if self.index is not None:
            self._load_index(self.index)
            if point is not None and not rebuild and self._keep_index(self.index, point):
                start = max(start, min(point.index_to, end))
            elif point is None and clean and not rebuild and self.index.files:
                start = end  # another program's index, complete when it stopped
            else:
                self.index.discard()
            self.index.drop_before(self.log.start)
        self.marks.indexed.reset(start)
        return start

    def _keep_index(self, index: KeyIndex, point: RecoverPoint) -> bool:
        """Keep the index files that were synced; False if one of them is missing or not what it was."""
        if not index.keep_synced(point.index_to, point.index_file):
            return False
        if point.index_digest in (UNKNOWN, index.digest(point.index_file, point.log_start)):
            return True
        log.error("index files are missing, or not what they were: keys are indexed again from the log")
        return False
