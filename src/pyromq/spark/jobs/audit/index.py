"""Audit, the key index: each file is written once more, in memory, and compared as a whole, each by a task.

That is quick, and an intact index needs no more. Where bytes differ, or something about the files is unusual, one task
checks the whole index entry by entry, as `pyromq store verify` does, and names the faults.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

from pyromq.config import StoreConfig
from pyromq.files.disk import OsDisk
from pyromq.records import layout, record
from pyromq.records.java_hash import key_hash
from pyromq.store import key_index
from pyromq.store.key_index import IndexCursor, index_keys, keys_of
from pyromq.store.log.segmented_file import Segment
from pyromq.store.offline.inspect import index_file_bytes
from pyromq.store.offline.verify import in_slices
from pyromq.store.offline.verify_index import IndexCheck, IndexFileView, KeptIndex
from pyromq.store.offline.verify_log import Log
from pyromq.store.offline.verify_report import VerifyReport
from pyromq.store.paths import StorePaths

#: Bytes of an index file that are compared at once.
BLOCK = 8 << 20


#: Path and base of a segment, and its stretches of good records.
Stretches = tuple[Path, int, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class IndexTask:
    """The key index against the whole log, in its order: one task."""

    config: StoreConfig
    kept: KeptIndex
    segments: tuple[Stretches, ...]
    bad: tuple[tuple[int, int], ...]
    end: int
    live: bool
    max_findings: int


@dataclass(frozen=True, slots=True)
class IndexFileTask:
    """One file of an index."""

    config: StoreConfig
    path: Path
    #: The segments with this file's records, and those after them up to `until`.
    segments: tuple[Stretches, ...]
    #: The position of the record that its first key is of; and up to where there must be no key behind its last one.
    first: int
    until: int


def file_tasks(task: IndexTask, files: list[IndexFileView]) -> list[IndexFileTask] | None:
    """A task for each file; None: the index, or the log, is not as usual."""
    firsts = [file.entry(1)[1] if file.count > 1 else -1 for file in files]
    if task.bad or any(first < 0 for first in firsts) or firsts != sorted(set(firsts)):
        return None
    size = task.config.segment_bytes
    return [
        IndexFileTask(
            task.config,
            file.path,
            tuple(
                each for each in task.segments if each[1] + size > first and each[1] < max(until, file.end_position + 1)
            ),
            first,
            until,
        )
        for file, first, until in zip(files, firsts, [*firsts[1:], task.kept.complete_to], strict=True)
    ]


def is_as_written(task: IndexFileTask) -> bool:
    """Return whether a file equals the one derived from the log; False if a quick check cannot tell. Raises OSError."""
    disk = OsDisk(StorePaths.of(task.config).staging)
    mapped = disk.open_mapped(task.path, writable=False)
    file = IndexFileView(task.path, mapped, task.config.index_slots, task.config.index_entries)
    segments = _opened(disk, task.config, task.segments)
    again = _WrittenAgain(task.config, _stretches(segments, task.segments), task.first)
    is_same = again.is_file(file) and again.has_no_keys_up_to(task.until)
    for segment in segments:
        segment.close()
    mapped.close()
    return is_same


def index_check(task: IndexTask, report: VerifyReport, segments: list[Segment]) -> IndexCheck:
    log = Log(segments, task.config.segment_bytes)
    log.end = task.end
    for start, end in task.bad:
        log.add_bad(start, end)
    paths = StorePaths.of(task.config)
    return IndexCheck(OsDisk(paths.staging), paths, task.config, report, log, task.kept)


def new_report(task: IndexTask) -> VerifyReport:
    paths = StorePaths.of(task.config)
    return VerifyReport(paths.root, paths.commit_log, live=task.live, max_findings=task.max_findings)


def audit_index(task: IndexTask) -> VerifyReport:
    """Entry by entry. Raises OSError."""
    report = new_report(task)
    segments = _opened(OsDisk(StorePaths.of(task.config).staging), task.config, task.segments)
    index = index_check(task, report, segments)
    for segment, start, end in _stretches(segments, task.segments):
        for low, high in in_slices(segment.buffer, [(start, end)]):
            index.take(segment.buffer, low, high)
    index.finish()
    for segment in segments:
        segment.close()
    return report


def _opened(disk: OsDisk, config: StoreConfig, segments: tuple[Stretches, ...]) -> list[Segment]:
    return [Segment(disk, path, base, config.segment_bytes, writable=False) for path, base, _ in segments]


def _stretches(segments: list[Segment], told: tuple[Stretches, ...]) -> list[tuple[Segment, int, int]]:
    return [(segment, start, end) for segment, (_, _, good) in zip(segments, told, strict=True) for start, end in good]


class _WrittenAgain:
    """A file of an index, written once more from the log."""

    def __init__(self, config: StoreConfig, stretches: list[tuple[Segment, int, int]], position: int) -> None:
        self._config = config
        self._stretches = stretches
        #: The position in the log from which the next key is searched.
        self._position = position

    def is_file(self, file: IndexFileView) -> bool:
        room = memoryview(mmap.mmap(-1, index_file_bytes(self._config)))
        cursor = IndexCursor(room, self._config.index_slots, self._config.index_entries)
        cursor.limit = file.count
        return self._fill(cursor, file.count) and self._has_header(cursor, file) and self._has_bytes(room, file)

    def _fill(self, cursor: IndexCursor, count: int) -> bool:
        """The keys from here on, until there are as many; False: they do not come to that number."""
        for segment, start, end in self._stretches:
            at = max(start, self._position - segment.base)
            while at < end and cursor.count < count:
                reached = index_keys(segment.buffer, at, end, cursor)
                if reached < end and cursor.count < count:
                    reached = self._put_one(segment, reached, end, cursor)
                if reached == at:
                    return False  # more keys than there are entries left
                at = reached
                self._position = segment.base + at
        return cursor.count == count

    @staticmethod
    def _put_one(segment: Segment, at: int, end: int, cursor: IndexCursor) -> int:
        """Any record, as `KeyIndex.index_one` has it; where it stopped."""
        spans = record.spans_of(segment.buffer, at, end)
        assert not isinstance(spans, str), spans
        if spans.storage_flags & layout.FLAG_TRANSACTION_MASK == layout.FLAG_ROLLED_BACK:
            return at + spans.total_size
        topic = bytes(segment.buffer[spans.topic : spans.topic_end])
        keys = list(keys_of(bytes(segment.buffer[spans.properties : spans.properties_end])))
        if cursor.count + len(keys) > cursor.limit:
            return at
        (stored_ms,) = layout.STORED_AT.unpack_from(segment.buffer, spans.store_timestamp_at)
        for key in keys:
            cursor.put(key_hash(topic, key), segment.base + at, stored_ms)
        return at + spans.total_size

    def _has_header(self, cursor: IndexCursor, file: IndexFileView) -> bool:
        ours = (cursor.begin_ms, cursor.end_ms, cursor.begin_position, cursor.end_position)
        return ours == (file.begin_ms, file.end_ms, file.begin_position, file.end_position) and (
            (cursor.used_slots, cursor.count) == (file.used_slots, file.header_count)
        )

    @staticmethod
    def _has_bytes(view: memoryview, file: IndexFileView) -> bool:
        start, end = key_index.HEADER.size, file.at(file.count)
        places = range(start, end, BLOCK)
        return all(
            bytes(view[at : min(at + BLOCK, end)]) == bytes(file.buffer[at : min(at + BLOCK, end)]) for at in places
        )

    def has_no_keys_up_to(self, position: int) -> bool:
        """Behind the file's last record there is none with a key before a position."""
        scratch = memoryview(bytearray(key_index.HEADER.size + 4 + 3 * key_index.ENTRY.size))
        for segment, start, end in self._stretches:
            at, limit = max(start, self._position - segment.base), min(end, position - segment.base)
            if at < limit:
                cursor = IndexCursor(scratch, 1, 2)
                if index_keys(segment.buffer, at, limit, cursor) < limit or cursor.count > 1:
                    return False
        return True
