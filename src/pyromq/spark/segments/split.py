"""Pieces of a log into partitions: as large as is wanted, and cut only where a record is known to begin.

A body may contain bytes that look like a record, so boundaries are not searched by magic number. The entries of
consume queues name record starts, and reading a few of them is cheap: a store is split by them. Without queues a file
is walked from its beginning, and only if smaller partitions were requested.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from pyromq.files.disk import OsDisk
from pyromq.records import layout
from pyromq.spark.decode.decoder import walk
from pyromq.spark.segments.store_files import Piece
from pyromq.spark.segments.store_places import is_remote
from pyromq.store.log.segmented_file import is_position
from pyromq.store.offline.inspect import queue_directories
from pyromq.store.paths import StorePaths
from pyromq.store.queues.queue_cursor import ENTRY

#: The default partition size if queues name the boundaries: Spark's own default for files.
SPLIT_BYTES = 128 << 20
#: Pieces that are smaller than this together are one partition.
TOGETHER_BYTES = 16 << 20
#: Search boundaries in at most this many queues: the longest, whose entries are densest.
QUEUES_ASKED = 8
#: The position of a queue entry without a record.
_NOWHERE = 1 << 62


class Boundaries(Protocol):
    """The record starts in the files of one log."""

    def between(self, piece: Piece, wanted: Sequence[int]) -> list[int]:
        """Positions inside of the piece where records begin, near those that are wanted, in order."""


def split(
    pieces: Sequence[Piece], split_bytes: int | None, min_partitions: int | None, boundaries: Boundaries | None = None
) -> list[tuple[Piece, ...]]:
    """Partitions, oldest first. Some may be larger than was wanted, where no boundary is known."""
    total = sum(piece.size for piece in pieces)
    is_asked = split_bytes is not None or min_partitions is not None
    most = split_bytes or SPLIT_BYTES
    if min_partitions:
        most = min(most, max(-(-total // min_partitions), 1))
    ask = boundaries or KnownBoundaries(walk_files=is_asked)
    parts = [part for piece in pieces for part in _parts(piece, most, ask)]
    return together(parts, min(most, TOGETHER_BYTES))


def _parts(piece: Piece, most: int, boundaries: Boundaries) -> Iterator[Piece]:
    count = -(-piece.size // most)
    wanted = [piece.start + piece.size * number // count for number in range(1, count)]
    at = piece.start
    for cut in boundaries.between(piece, wanted) if wanted else ():
        if at < cut < piece.end:
            yield replace(piece, start=at, end=cut, open_end=False)
            at = cut
    yield replace(piece, start=at)


def together(parts: Sequence[Piece], most: int) -> list[tuple[Piece, ...]]:
    """Neighbours that are small become one partition."""
    groups: list[list[Piece]] = []
    size = 0
    for part in parts:
        if groups and size + part.size <= most:
            groups[-1].append(part)
            size += part.size
        else:
            groups.append([part])
            size = part.size
    return [tuple(group) for group in groups]


class KnownBoundaries:
    """Asks the queues of the store; else walks through the file, if that is wanted."""

    def __init__(self, *, walk_files: bool) -> None:
        self._walk_files = walk_files
        self._queues: dict[str, list[QueueFiles]] = {}

    def between(self, piece: Piece, wanted: Sequence[int]) -> list[int]:
        found = self._from_queues(piece, wanted) if piece.store is not None else []
        if found or not self._walk_files or is_remote(piece.file):
            return found
        return _by_walking(piece, wanted)

    def _from_queues(self, piece: Piece, wanted: Sequence[int]) -> list[int]:
        assert piece.store is not None
        if piece.store not in self._queues:
            self._queues[piece.store] = longest_queues(Path(piece.store))
        queues = self._queues[piece.store]
        found = set()
        for position in wanted:
            near = sorted(queue.first_from(position) for queue in queues)
            cut = next((each for each in near if each < piece.end and _record_begins(piece, each)), None)
            if cut is not None:
                found.add(cut)
        return sorted(found)


def _record_begins(piece: Piece, position: int) -> bool:
    """Does the log agree with a queue's entry? It has a record there that says so itself."""
    with Path(piece.file).open("rb") as file:
        file.seek(position - piece.base)
        head = file.read(layout.HEAD.size)
    if len(head) < layout.HEAD.size:
        return False
    _, magic, _, _, _, _, said, _, _ = layout.HEAD.unpack(head)
    return magic in (layout.MAGIC_V1, layout.MAGIC_V2) and said == position


def _by_walking(piece: Piece, wanted: Sequence[int]) -> list[int]:
    with Path(piece.file).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        found = walk(mapped, piece.start - piece.base, piece.end - piece.base, base=piece.base)
    if not len(found.starts):
        return []
    at = np.searchsorted(found.starts, np.array(wanted) - piece.base)
    return sorted({int(found.starts[index]) + piece.base for index in at if index < len(found.starts)})


# --- consume queues --------------------------------------------------------------------------------------------------


def longest_queues(root: Path) -> list[QueueFiles]:
    """The queues with the most messages, as the names of their files tell."""
    disk = OsDisk(root)
    queues = [QueueFiles(directory) for _, _, directory in queue_directories(disk, StorePaths(root))]
    queues.sort(key=lambda queue: queue.last, reverse=True)
    return queues[:QUEUES_ASKED]


class QueueFiles:
    """The entries of one consume queue, which are in the order of their records' positions."""

    def __init__(self, directory: Path) -> None:
        self._files = sorted(path for path in directory.iterdir() if is_position(path.name))
        #: The start of its last file.
        self.last = int(self._files[-1].name) if self._files else -1

    def first_from(self, position: int) -> int:
        """The position of the queue's first record at this one or behind it; far away when there is none."""
        after = bisect_left(self._files, position, key=lambda path: _entry_position(path, 0))
        if after:
            path = self._files[after - 1]
            entries = range(path.stat().st_size // ENTRY.size)
            index = bisect_left(entries, position, key=lambda number: _entry_position(path, number))
            if index < len(entries):
                return _entry_position(path, index)
        return _entry_position(self._files[after], 0) if after < len(self._files) else _NOWHERE


def _entry_position(path: Path, number: int) -> int:
    with path.open("rb") as file:
        file.seek(number * ENTRY.size)
        data = file.read(ENTRY.size)
    position, size, _ = ENTRY.unpack(data) if len(data) == ENTRY.size else (0, 0, 0)
    return int(position) if size else _NOWHERE
