"""Audit, the key index: one task goes along the whole log, as the index was written.

Each file is written once more, in memory, and compared as a whole: that is quick, and an intact index needs no more.
Where bytes differ, or something about the files is unusual, the index is checked entry by entry as `pyromq store
verify` does, which tells what is wrong.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

from pyromq.config import StoreConfig
from pyromq.records import layout, record
from pyromq.records.java_hash import key_hash
from pyromq.store import key_index
from pyromq.store.disk import OsDisk
from pyromq.store.inspect import index_file_bytes
from pyromq.store.key_index import IndexCursor, index_keys, keys_of
from pyromq.store.paths import StorePaths
from pyromq.store.segmented_file import Segment
from pyromq.store.verify import in_slices
from pyromq.store.verify_index import IndexCheck, IndexFileView, KeptIndex
from pyromq.store.verify_log import Log
from pyromq.store.verify_report import VerifyReport

#: Bytes of an index file that are compared at once.
BLOCK = 8 << 20


@dataclass(frozen=True, slots=True)
class IndexTask:
    """The key index against the whole log, in its order: one task."""

    config: StoreConfig
    kept: KeptIndex
    #: Path and base of each segment, and its stretches of good records.
    segments: tuple[tuple[Path, int, tuple[tuple[int, int], ...]], ...]
    bad: tuple[tuple[int, int], ...]
    end: int
    live: bool
    max_findings: int


def audit_index(task: IndexTask) -> VerifyReport:
    """Raises OSError."""
    config = task.config
    paths = StorePaths.of(config)
    disk = OsDisk(paths.staging)
    report = VerifyReport(paths.root, paths.commit_log, live=task.live, max_findings=task.max_findings)
    segments = [Segment(disk, path, base, config.segment_bytes, writable=False) for path, base, _ in task.segments]
    log = Log(segments, config.segment_bytes)
    log.end = task.end
    for start, end in task.bad:
        log.add_bad(start, end)
    index = IndexCheck(disk, paths, config, report, log, task.kept)
    stretches = [
        (segment, start, end)
        for segment, (_, _, good) in zip(segments, task.segments, strict=True)
        for start, end in good
    ]
    if not task.bad and _WrittenAgain(config, stretches).is_same(index.files, task.kept.complete_to):
        report.index_entries += sum(file.count - 1 for file in index.files)
    else:
        for segment, start, end in stretches:
            for low, high in in_slices(segment.buffer, [(start, end)]):
                index.take(segment.buffer, low, high)
        index.finish()
    for segment in segments:
        segment.close()
    return report


class _WrittenAgain:
    """The files of an index, written once more from the log."""

    def __init__(self, config: StoreConfig, stretches: list[tuple[Segment, int, int]]) -> None:
        self._config = config
        self._stretches = stretches
        #: Where in the log the next key is looked for.
        self._position = 0

    def is_same(self, files: list[IndexFileView], complete_to: int) -> bool:
        """Whether every file is what the log asks for; False also when that cannot be told so quickly."""
        for number, file in enumerate(files):
            first = file.entry(1)[1] if file.count > 1 else -1
            if first < 0 or (number and first < self._position) or not self._is_file(file, first, is_later=number > 0):
                return False
        return not files or self._position >= complete_to or self._keys_up_to(complete_to) == 0

    def _is_file(self, file: IndexFileView, first: int, *, is_later: bool) -> bool:
        if is_later and self._keys_up_to(first):
            return False  # keys between two files are in neither
        self._position = first
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

    def _keys_up_to(self, position: int) -> int:
        """How many keys there are from here to a position; 1 is as good as many."""
        scratch = memoryview(bytearray(key_index.HEADER.size + 4 + 3 * key_index.ENTRY.size))
        for segment, start, end in self._stretches:
            at, limit = max(start, self._position - segment.base), min(end, position - segment.base)
            if at < limit:
                cursor = IndexCursor(scratch, 1, 2)
                if index_keys(segment.buffer, at, limit, cursor) < limit or cursor.count > 1:
                    return 1
        return 0
