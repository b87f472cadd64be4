"""Rebuild, key index: which records go into which file, and how one task writes one file.

The chains of an index file depend on the order of its entries, so one task writes one file. Which records a file holds
follows from the number of keys of all records before. So every segment is surveyed first: marks tell how many keys
there are up to a position, and from them, and a short walk behind the last mark, follows where each file begins.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from pyromq.clock import SystemClock
from pyromq.config import StoreConfig
from pyromq.errors import CorruptLog
from pyromq.files.disk import OsDisk
from pyromq.records import layout, record
from pyromq.records.scan import Stop, scan, why_bad
from pyromq.spark.jobs.rebuild.queues import LogPart
from pyromq.store import key_index
from pyromq.store.key_index import IndexCursor, KeyIndex, index_keys, keys_of

#: Keys between two marks, about.
MARK_KEYS = 50_000


@dataclass(frozen=True, slots=True)
class Mark:
    """A record boundary, and how many keys the records of its segment have before it."""

    position: int
    keys: int


@dataclass(frozen=True, slots=True)
class Survey:
    """The verified records of a segment."""

    part: LogPart
    records: int
    last_ms: int
    #: Behind its last record.
    end: int
    keys: int
    marks: tuple[Mark, ...]
    #: A record has more keys than a whole file: the files are to be written one after the other.
    has_oversized: bool = False


def survey(config: StoreConfig, part: LogPart) -> Survey:
    """Verify one segment, and count its keys. Raises CorruptLog, OSError."""
    file = OsDisk(part.file.path.parent).open_mapped(part.file.path, writable=False)
    try:
        limit = part.end - part.file.base
        found = scan(file.buffer, 0, limit, part.file.base, True)
        is_blank = found.stop is Stop.BLANK and part.end == part.file.end
        if found.stop is not Stop.LIMIT and not is_blank:
            raise CorruptLog(
                part.file.path,
                part.file.base + found.end,
                why_bad(file.buffer, found.end, limit, part.file.base + found.end),
                "nothing was changed. Restore the file from a replica or a backup first",
            )
        marks, keys, oversized = _count_keys(config, file.buffer, found.end, part.file.base)
    finally:
        file.close()
    end = part.file.base + found.end
    return Survey(part, found.records, found.last_timestamp_ms, end, keys, tuple(marks), oversized)


def _count_keys(config: StoreConfig, buffer: memoryview, end: int, base: int) -> tuple[list[Mark], int, bool]:
    most = min(MARK_KEYS, config.index_entries - 1)  # a record with more than a file holds stops the count
    room = KeyRoom(most)
    marks, keys, at, oversized = [Mark(base, 0)], 0, 0, False
    while at < end:
        at, count = room.take(buffer, at, end)
        if count == 0 and at < end:
            at, count = _one(buffer, at, end)
            oversized |= count > config.index_entries - 1
        keys += count
        marks.append(Mark(base + at, keys))
    return marks, keys, oversized


def _one(buffer: memoryview, at: int, end: int) -> tuple[int, int]:
    """Behind any one record, and how many keys it has."""
    spans = record.spans_of(buffer, at, end)
    assert not isinstance(spans, str), spans
    if spans.storage_flags & layout.FLAG_TRANSACTION_MASK == layout.FLAG_ROLLED_BACK:
        return at + spans.total_size, 0
    keys = sum(1 for _ in keys_of(bytes(buffer[spans.properties : spans.properties_end])))
    return at + spans.total_size, keys


class KeyRoom:
    """Count keys by adding them to a scratch index: a record whose keys do not fit ends the count."""

    def __init__(self, keys: int) -> None:
        self._scratch = memoryview(bytearray(key_index.HEADER.size + 4 + key_index.ENTRY.size * (keys + 1)))
        self._keys = keys

    def take(self, buffer: memoryview, at: int, end: int) -> tuple[int, int]:
        """Records until one is not ordinary or has more keys than there is room for: where that is, and their keys."""
        cursor = IndexCursor(self._scratch, 1, self._keys + 1)
        reached = index_keys(buffer, at, end, cursor)
        return reached, cursor.count - 1


# --- planning ------------------------------------------------------------------------------------------------------


def plan_files(config: StoreConfig, surveys: Sequence[Survey]) -> list[int]:
    """Return the log position at which each index file begins, and the end. Reads short parts of segments."""
    starts = [surveys[0].part.file.base] if surveys else []
    if not any(each.has_oversized for each in surveys):
        room = config.index_entries - 1
        for each in surveys:
            room = _plan_segment(config, each, room, starts)
    return [*starts, surveys[-1].end] if surveys else []


def _plan_segment(config: StoreConfig, found: Survey, room: int, starts: list[int]) -> int:
    """Files that begin in one segment; how much room the last has left behind it."""
    counted = 0  # keys of the segment that are in files already
    while found.keys - counted > room:
        mark = max((each for each in found.marks if each.keys - counted <= room), key=lambda each: each.keys)
        position, keys = _fill(found.part, mark, room - (mark.keys - counted))
        starts.append(position)
        counted, room = keys, config.index_entries - 1
    return room - (found.keys - counted)


def _fill(part: LogPart, mark: Mark, room: int) -> tuple[int, int]:
    """Behind the records from a mark on whose keys fit; how many keys are before it in the segment."""
    file = OsDisk(part.file.path.parent).open_mapped(part.file.path, writable=False)
    try:
        at, keys = mark.position - part.file.base, mark.keys
        end, left = part.end - part.file.base, room
        while True:
            after, count = _one(file.buffer, at, end)
            if count > left:
                return part.file.base + at, keys
            at, keys, left = after, keys + count, left - count
    finally:
        file.close()


# --- writing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IndexTask:
    """One file of the index."""

    config: StoreConfig
    #: The files of the log that hold its records.
    parts: tuple[LogPart, ...]
    start: int
    end: int
    directory: Path
    drafts: Path
    #: A number, larger than those of the files before. A record with very many keys may make more files than one.
    name: int


def write_index(task: IndexTask) -> list[tuple[str, int]]:
    """Write the index of a stretch of the log; name and time of the last key of each file made. Raises OSError."""
    draft = task.drafts / uuid4().hex
    disk = OsDisk(draft / "staging")
    index = KeyIndex(replace(task.config, root=draft, commit_log=None), disk, SystemClock())
    for part in task.parts:
        file = OsDisk(part.file.path.parent).open_mapped(part.file.path, writable=False)
        start, end = max(task.start, part.file.base), min(task.end, part.end)
        if start < end:
            index.index_span(file.buffer, start - part.file.base, end - part.file.base)
        file.close()
    index.sync_all()
    made = [(made.name, made.cursor.end_ms) for made in index.files]
    index.close()
    named: list[tuple[str, int]] = []
    for number, (name, end_ms) in enumerate(made):
        place = task.directory / str(task.name + number)
        if not place.exists():  # a task may run twice
            disk.move_tree(draft / "index" / name, place)
        named.append((place.name, end_ms))
    shutil.rmtree(draft, ignore_errors=True)
    return named
