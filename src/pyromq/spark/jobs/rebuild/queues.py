"""Rebuild, queues: what one task derives from a segment, and how one task writes the files of a queue.

Entries come out of segments as runs: a queue, the position of the first record, the first offset, and the entries one
behind the other. The runs of one queue, sorted by position, go to one task, which writes its files with the code of the
store. Where a run does not go on from the one before, the dispatcher's rule decides, as at a start.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from uuid import uuid4

from pyromq.config import StoreConfig, parse_delay_levels
from pyromq.errors import CorruptLog
from pyromq.files.disk import OsDisk
from pyromq.model.ids import QueueId
from pyromq.records.scan import Stop, scan
from pyromq.store.dispatcher import Fit, line_up
from pyromq.store.offline.derive_queues import DerivedQueue, QueueDeriver
from pyromq.store.offline.readable_log import LogFile
from pyromq.store.offline.verify import in_slices
from pyromq.store.queues.consume_queue import ConsumeQueue, QueueEntry
from pyromq.store.queues.queue_cursor import ENTRY, queue_key

#: Queue and position of the first record: runs are sorted by both.
RunKey = tuple[bytes, int]
#: The first offset, and the entries.
RunValue = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class LogPart:
    """The part of a segment that is of the log."""

    file: LogFile
    end: int


# --- out of a segment ----------------------------------------------------------------------------------------------


class _Queue(DerivedQueue):
    def __init__(self, topic: bytes, number: int, file_bytes: int) -> None:
        super().__init__(file_bytes)
        self.key = queue_key(topic, number)
        self.first_offset = -1
        self.entries: list[bytes] = []


class _Collector(QueueDeriver[_Queue]):
    """Keeps the entries, run by run."""

    def __init__(self, config: StoreConfig) -> None:
        super().__init__(parse_delay_levels(config.delay_levels))
        self._file_bytes = config.queue_file_entries * ENTRY.size
        self.runs: list[tuple[RunKey, RunValue]] = []

    def new_queue(self, topic: bytes, number: int) -> _Queue:
        return _Queue(topic, number, self._file_bytes)

    def complete(self, queue: _Queue) -> None:
        if not queue.entries:
            queue.first_offset = queue.cursor.first
        queue.entries.append(queue.gathered())

    def jump(self, queue: _Queue, offset: int, position: int) -> None:
        self.complete(queue)
        self._end_run(queue)
        queue.aim(offset)

    def _end_run(self, queue: _Queue) -> None:
        entries = b"".join(queue.entries)
        if entries:
            position: int = ENTRY.unpack_from(entries)[0]
            self.runs.append(((queue.key, position), (queue.first_offset, entries)))
        queue.entries = []

    def finish(self) -> list[tuple[RunKey, RunValue]]:
        for queue in self.queues.values():
            self.complete(queue)
            self._end_run(queue)
        return self.runs


def runs_of(config: StoreConfig, part: LogPart) -> list[tuple[RunKey, RunValue]]:
    """The entries that the records of one segment ask for. The records were verified before. Raises CorruptLog."""
    file = OsDisk(part.file.path.parent).open_mapped(part.file.path, writable=False)
    try:
        limit = part.end - part.file.base
        found = scan(file.buffer, 0, limit, part.file.base, False)
        if found.stop not in (Stop.LIMIT, Stop.BLANK):
            raise CorruptLog(part.file.path, part.file.base + found.end, "no record", "run the rebuild again")
        collector = _Collector(config)
        for start, stop in in_slices(file.buffer, [(0, found.end)] if found.end else []):
            collector.take(file.buffer, start, stop)
        return collector.finish()
    finally:
        file.close()


# --- into files ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueWriter:
    """Writes queues into a directory. May be sent to another process."""

    config: StoreConfig
    #: The parent of the `<topic>/<queue>` directories.
    directory: Path
    #: The directory of drafts, in the same file system.
    drafts: Path
    log_start: int
    #: By queue: offsets below this belong to messages that are no longer in the log, and are not given out again.
    given_out: Mapping[bytes, int]

    def write_all(self, rows: Iterable[tuple[RunKey, RunValue]]) -> Iterator[tuple[bytes, int]]:
        """Write the queues of sorted runs; key and next offset of each. Raises OSError."""
        for key, runs in groupby(rows, lambda row: row[0][0]):
            yield key, self.write(key, (value for _, value in runs))

    def write(self, key: bytes, runs: Iterable[RunValue]) -> int:
        """One queue, its runs in the log's order; its next offset. Raises OSError."""
        topic, number = key[:-4].decode("utf-8", "surrogateescape"), int.from_bytes(key[-4:], "big")
        # A name of its own until it is whole: a task may run twice.
        draft = self.drafts / uuid4().hex
        disk = OsDisk(draft / "files")
        queue = ConsumeQueue(disk, draft / str(number), QueueId(topic, number), self.config.queue_file_entries)
        for first, entries in runs:
            put_run(queue, first, entries)
        if key in self.given_out:
            queue.skip_to(self.given_out[key])
        queue.drop_before(self.log_start)
        for segment in queue.files.segments:
            segment.file.sync()
        end = queue.max_offset
        queue.close()
        self._name(disk, draft / str(number), self.directory / topic / str(number))
        shutil.rmtree(draft, ignore_errors=True)
        return end

    @staticmethod
    def _name(disk: OsDisk, made: Path, place: Path) -> None:
        if made.exists() and not place.exists():
            disk.move_tree(made, place)


def put_run(queue: ConsumeQueue, first: int, entries: bytes) -> None:
    """Entries of offsets one behind the other, as the dispatcher would put them. Raises OSError."""
    at = 0
    while at < len(entries):
        cursor, offset = queue.cursor, first + at // ENTRY.size
        if offset != cursor.next_dispatch:
            entry = QueueEntry(*ENTRY.unpack_from(entries, at))
            if line_up(queue, offset, entry) is Fit.NOWHERE:
                at += ENTRY.size
                continue
            cursor = queue.cursor
        if cursor.next_dispatch >= cursor.limit:
            queue.make_room()
        count = min((len(entries) - at) // ENTRY.size, cursor.limit - cursor.next_dispatch)
        place = (cursor.next_dispatch - cursor.first) * ENTRY.size
        cursor.buffer[place : place + count * ENTRY.size] = entries[at : at + count * ENTRY.size]
        cursor.next_dispatch += count
        at += count * ENTRY.size
