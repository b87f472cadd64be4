"""Checks the queues: every entry is the one that the log asks for at that offset (place, size, tag code or due time).

Every record of a queue has its entry, and every entry has its record. The expected entries are derived from the log
by the functions that write them, chunk by chunk, and compared in bulk; only where bytes differ is each entry compared.
Entries that the next start writes or cuts off are notes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count as count_from
from pathlib import Path
from typing import NamedTuple

from pyromq.config import StoreConfig, parse_delay_levels
from pyromq.files.disk import Disk
from pyromq.store.log.segmented_file import Segment
from pyromq.store.log.zeroes import last_nonzero
from pyromq.store.offline.derive_queues import DerivedQueue, QueueDeriver
from pyromq.store.offline.inspect import find_run, queue_directories
from pyromq.store.offline.verify_log import EVERYWHERE, Log
from pyromq.store.offline.verify_report import VerifyReport
from pyromq.store.paths import StorePaths
from pyromq.store.queues.consume_queue import BLANK_SIZE
from pyromq.store.queues.queue_cursor import ENTRY

#: Entries that are looked at one by one, at once.
LOOK_AT_ONCE = 65536


class Run(NamedTuple):
    """Entries of a queue without a gap, and the findings of their comparison."""

    first: int
    end: int
    #: The position of the first one's record.
    position: int
    #: Entries that a start writes again.
    late: int = 0
    late_from: int = 0


class CheckedQueue(DerivedQueue):
    """One queue's files, and a chunk of the entries that the log asks for."""

    def __init__(self, disk: Disk, directory: Path, file_bytes: int, report: VerifyReport) -> None:
        super().__init__(file_bytes)
        self.directory = directory
        segments, problems = find_run(disk, directory, file_bytes)
        for problem in problems:
            report.error(problem.path, problem.position, problem.what)
        self.segments = {segment.base: segment for segment in segments}
        #: The end of the data in each file, at the last look.
        self._data_ends: dict[int, int] = {}
        #: Entries that a start writes again.
        self.late = 0
        self.late_from = 0

    @property
    def start(self) -> int:
        return min(self.segments, default=0) // ENTRY.size

    @property
    def end(self) -> int:
        return (max(self.segments, default=-self.file_bytes) + self.file_bytes) // ENTRY.size

    def path_at(self, offset: int) -> Path:
        position = offset * ENTRY.size
        return self.directory / f"{position - position % self.file_bytes:020d}"

    def actual(self, offset: int, count: int) -> memoryview | None:
        """Entries that lie in one file; None when the file is not there."""
        position = offset * ENTRY.size
        segment = self.segments.get(position - position % self.file_bytes)
        if segment is None:
            return None
        return self._bytes(segment, position - segment.base, position - segment.base + count * ENTRY.size)

    def _bytes(self, segment: Segment, start: int, end: int) -> memoryview:
        """Without looking where nothing was ever written: on a tmpfs that would take room."""
        data_end = self._data_ends.get(segment.base, 0)
        if data_end < end:
            data_end = self._data_ends[segment.base] = segment.data_end(0)
        if data_end >= end:
            return segment.buffer[start:end]
        return memoryview(bytes(segment.buffer[start : max(data_end, start)]).ljust(end - start, b"\0"))

    def entries(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Offset, position, size and code of the entries there are."""
        for base, segment in sorted(self.segments.items()):
            first = max(start, base // ENTRY.size)
            last = min(end, segment.end // ENTRY.size)
            for chunk in range(first, last, LOOK_AT_ONCE):
                chunk_end = min(chunk + LOOK_AT_ONCE, last)
                part = self._bytes(segment, chunk * ENTRY.size - base, chunk_end * ENTRY.size - base)
                for number, (position, size, code) in enumerate(ENTRY.iter_unpack(part), chunk):
                    yield number, position, size, code

    def written_end(self) -> int:
        """Behind the last entry that is not zero."""
        for base, segment in sorted(self.segments.items(), reverse=True):
            used = last_nonzero(segment.buffer, 0, segment.data_end(0))
            if used:
                return base // ENTRY.size + -(-used // ENTRY.size)
        return self.start

    def close(self) -> None:
        for segment in self.segments.values():
            segment.close()


class QueueCheck(QueueDeriver[CheckedQueue]):
    """Derives every entry from the log and compares. `sure_to`: records below this must have their entry."""

    def __init__(
        self,
        disk: Disk,
        paths: StorePaths,
        config: StoreConfig,
        report: VerifyReport,
        log: Log,
        sure_to: int,
        *,
        ours: bool,
    ) -> None:
        super().__init__(parse_delay_levels(config.delay_levels))
        self._disk = disk
        self._paths = paths
        self._file_bytes = config.queue_file_entries * ENTRY.size
        self._report = report
        self._log = log
        self._sure_to = sure_to
        self._ours = ours

    def in_no_queue(self, topic: bytes, number: int, offset: int, position: int) -> None:
        segment = self._log.find(position)
        assert segment is not None
        self._report.note(segment.path, position, f"{topic!r}/{number} cannot be a queue: the message is in none")

    def new_queue(self, topic: bytes, number: int) -> CheckedQueue:
        directory = self._paths.queues / topic.decode("utf-8", "surrogateescape") / str(number)
        return CheckedQueue(self._disk, directory, self._file_bytes, self._report)

    def jump(self, queue: CheckedQueue, offset: int, position: int) -> None:
        """The log does not go on with the next offset of the queue."""
        expected = queue.cursor.next_dispatch
        self.complete(queue)
        if offset > expected:
            self._check_unclaimed(queue, expected, offset)
        else:
            segment = self._log.find(position)
            assert segment is not None
            what = f"the record has offset {offset} of queue {self._name(queue)}, which an earlier record has"
            self._report.error(segment.path, position, what)
            queue.first = min(queue.first, offset)
        queue.aim(offset)

    def complete(self, queue: CheckedQueue) -> None:
        first, count = queue.cursor.first, queue.cursor.next_dispatch - queue.cursor.first
        expected = queue.gathered()
        actual = queue.actual(first, count)
        self._report.queue_entries += count
        if actual is not None and bytes(actual) == expected:
            return
        found = ENTRY.iter_unpack(actual if actual is not None else bytes(len(expected)))
        for offset, wanted, entry in zip(count_from(first), ENTRY.iter_unpack(expected), found, strict=False):
            if wanted != entry:
                self._report_entry(queue, offset, wanted, entry)

    def _report_entry(
        self, queue: CheckedQueue, offset: int, wanted: tuple[int, int, int], found: tuple[int, int, int]
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

    def _check_unclaimed(self, queue: CheckedQueue, start: int, end: int) -> None:
        """Entries of offsets that no record has: blanks, or of records that are gone."""
        for offset, position, size, _ in queue.entries(start, end):
            self._report.queue_entries += 1
            if size == BLANK_SIZE and position == 0:
                continue
            if size <= 0 or not self._log.is_lost(position):
                what = f"the entry of offset {offset} says position {position}, where no record of this queue is"
                self._report.error(queue.path_at(offset), offset * ENTRY.size, what)

    def join(self, topic: bytes, number: int, runs: Sequence[Run]) -> None:
        """Entries that were compared with their records elsewhere, in the log's order: only the ends are looked at."""
        queue = self.queue(topic, number)
        for run in runs:
            if queue.first < 0:
                queue.first = run.first
            elif run.first != queue.cursor.next_dispatch:
                self.jump(queue, run.first, run.position)
            queue.aim(run.end)
            queue.late_from = queue.late_from if queue.late else run.late_from
            queue.late += run.late

    def finish(self) -> None:
        for topic, number, _ in queue_directories(self._disk, self._paths):
            self.queue(topic.encode("utf-8", "surrogateescape"), number)
        self._report.queues = len(self.queues)
        for queue in self.queues.values():
            self._finish(queue)
            queue.close()

    def _finish(self, queue: CheckedQueue) -> None:
        written_end = queue.written_end()
        if queue.first >= 0:
            self.complete(queue)
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

    def _check_behind(self, queue: CheckedQueue, start: int, end: int) -> None:
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

    def _name(self, queue: CheckedQueue) -> str:
        return str(queue.directory.relative_to(self._paths.queues))
