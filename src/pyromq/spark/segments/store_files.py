"""Which stretches of which files of a commit log may be read: of a store, of a bare log, of single files, of a backup.

    pieces = find_pieces("/data/store")         or its commitlog directory, a segment of it, a backup, s3://bucket/store

- A store directory, ours or Apache RocketMQ's: as `store.offline.readable_log` allows, so at most the durable bytes of
a running broker, and of a store without a broker the bytes that its next start would keep.
- A directory of segments, or segments by themselves: all of it; the last file of each run up to the last whole record.
  If a store around them is in use, that store says how far.
- A backup: the chunks of its newest manifest.
- Places with a scheme (`s3://`, `hdfs://`) hold copies without a writer. The files are found by names alone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from pyromq.backup import history
from pyromq.backup.manifest import DIRECTORY as MANIFESTS
from pyromq.backup.target import LocalTarget, Target
from pyromq.errors import StoreError
from pyromq.files.disk import OsDisk
from pyromq.records import layout, record
from pyromq.spark.segments.store_places import RemotePlace, below, is_remote, last_name, local_path, shown_place
from pyromq.store.log.segmented_file import Segment, is_position
from pyromq.store.offline.inspect import find_run
from pyromq.store.offline.readable_log import ReadableLog, readable_log
from pyromq.store.offline.verify_log import EVERYWHERE, LogWalker, Walk
from pyromq.store.paths import StorePaths

log = logging.getLogger("pyromq.spark")

LOG_DIRECTORY = "commitlog"


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of the log from `start` to `end`, one behind the other in one file. May be sent to another process."""

    #: A path of this machine, or an address with a scheme.
    file: str
    #: The position of the file's first byte.
    base: int
    start: int
    end: int
    #: The end of the segment: a blank leads there.
    segment_end: int
    #: The records may end before `end`, with zeroes.
    open_end: bool = False
    #: The store time of its first record, if it is known.
    first_ms: int | None = None
    #: The store that it belongs to: its queues know where records begin.
    store: str | None = None

    @property
    def size(self) -> int:
        return self.end - self.start


def find_pieces(places: str | Sequence[str], *, must_be_whole: bool = True) -> list[Piece]:
    """Oldest first, a piece for each file. Raises StoreError, OSError.

    Unless it `must_be_whole`, gaps between files and damage in the last one are passed over, and logged.
    """
    wanted = [places] if isinstance(places, str) else places
    pieces = [piece for place in wanted for piece in _found_at(place, must_be_whole)]
    _refuse_twice(pieces)
    return pieces


def _found_at(place: str, must_be_whole: bool) -> Iterable[Piece]:
    if is_remote(place):
        return _remote(RemotePlace(place))
    path = local_path(place)
    if not path.exists():
        raise StoreError(f"there is no {path}: name a store directory, its commitlog directory, or files of one")
    if path.is_file():
        return _single_file(path, must_be_whole)
    if (path / MANIFESTS).is_dir():
        return _backup(LocalTarget(path), str(path))
    if not path.is_dir():
        raise StoreError(f"{path} is neither a file nor a directory")
    if is_store(path):
        return _of_store(readable_log(path))
    return _directory(path, must_be_whole)


def is_store(path: Path) -> bool:
    paths = StorePaths(path)
    marks = (paths.commit_log, paths.checkpoint, paths.recover_point, paths.log_pointer)
    return any(mark.exists() for mark in marks)


def _refuse_twice(pieces: Sequence[Piece]) -> None:
    seen: set[tuple[str, int]] = set()
    for piece in pieces:
        known = (piece.file if is_remote(piece.file) else os.path.realpath(piece.file), piece.start)
        if known in seen:
            raise StoreError(f"{shown_place(piece.file)} would be read twice: it is in two of the named places")
        seen.add(known)


# --- stores ----------------------------------------------------------------------------------------------------------


def _of_store(log: ReadableLog) -> Iterator[Piece]:
    disk = OsDisk(log.root)
    for file in log.segments:
        segment = Segment(disk, file.path, file.base, file.size, writable=False)
        yield _piece(segment, min(file.end, log.end), store=str(log.root))
        segment.close()


def _piece(segment: Segment, end: int, *, start: int | None = None, store: str | None = None) -> Piece:
    first = segment.base if start is None else start
    first_ms = record.stored_at_ms(segment.buffer, first - segment.base, segment.size)
    return Piece(str(segment.path), segment.base, first, end, segment.end, first_ms=first_ms, store=store)


def _refuse_use(log_directory: Path) -> None:
    """Raise StoreError if a log has a writer and its readable end is unknown."""
    if OsDisk(log_directory).lock_holder(StorePaths(log_directory.parent, log_directory).log_lock) is not None:
        raise StoreError(
            f"a broker writes to {log_directory}, and how far its records may be read stands in its store directory: "
            "name that one"
        )


# --- files without a store -------------------------------------------------------------------------------------------


def _directory(path: Path, must_be_whole: bool) -> Iterable[Piece]:
    names = [entry.name for entry in path.iterdir() if is_position(entry.name)]
    if not names:
        raise StoreError(f"{path} is neither a store nor a backup, and it has no segments of a log in it")
    for name in names:
        if not (path / name).is_file() or int(name) >= EVERYWHERE:
            raise StoreError(f"{path / name} has the name of a segment and can be none: move it elsewhere")
    paths = StorePaths(path.parent)
    if path.name == LOG_DIRECTORY and (paths.recover_point.exists() or paths.checkpoint.exists()):
        return _of_store(readable_log(path.parent, commit_log=path))
    _refuse_use(path)
    return _cold_run(path, must_be_whole)


def _cold_run(path: Path, must_be_whole: bool) -> Iterator[Piece]:
    disk = OsDisk(path)
    sizes = [disk.size(path / name) for name in disk.names(path) if is_position(name)]
    segments, problems = find_run(disk, path, max(*sizes, 1))
    for problem in problems:
        sentence = f"{problem.path}: {problem.what}"
        if must_be_whole:
            raise StoreError(
                f"{sentence}. Put back what is missing, name the files one by one, or set failOnDataLoss to false to "
                "read what is there"
            )
        log.warning("%s; what is there is read, as failOnDataLoss is false", sentence)
    for segment, behind in zip_longest(segments, segments[1:]):
        if behind is not None and behind.base == segment.end and any(behind.buffer[: layout.BLANK.size]):
            yield _piece(segment, segment.end)
        else:
            yield from _whole_records(segment, must_be_whole)
        segment.close()


def _single_file(path: Path, must_be_whole: bool) -> Iterator[Piece]:
    paths = StorePaths(path.parent.parent)
    if path.parent.name == LOG_DIRECTORY and OsDisk(path.parent).lock_holder(paths.lock) is not None:
        log = readable_log(paths.root, commit_log=path.parent)
        yield from (piece for piece in _of_store(log) if piece.file == str(path))
        return
    _refuse_use(path.parent)
    segment = Segment(OsDisk(path.parent), path, 0, path.stat().st_size, writable=False)
    if segment.size < layout.SMALLEST_RECORD:
        return
    segment.base = int(path.name) if is_position(path.name) else layout.position_of(segment.buffer)
    if not 0 <= segment.base < EVERYWHERE:
        raise StoreError(f"{path} is no segment of a log: it would begin at position {segment.base}")
    yield from _whole_records(segment, must_be_whole)
    segment.close()


def _whole_records(segment: Segment, must_be_whole: bool) -> Iterator[Piece]:
    """A file behind which nothing follows: it may end in the midst, with zeroes or with a record that is torn.

    Damage with good records behind it is no torn end: it is refused, or passed over.
    """
    found = LogWalker(EVERYWHERE).walk(Walk(segment))
    is_empty = not any(segment.buffer[: layout.BLANK.size])
    if not found.good and found.bad and not is_empty:
        raise StoreError(f"{segment.path} has no record of a log in it: {found.bad[0][2]}")
    if len(found.good) > 1:
        _pass_over(segment, *found.bad[0], may_be_lost=not must_be_whole)
    for start, end in found.good:
        # Up to the end of the file, where its records reach its blank.
        is_full = not found.bad or end > found.bad[-1][0]
        until = segment.end if is_full else segment.base + end
        yield _piece(segment, until, start=segment.base + start)


def _pass_over(segment: Segment, start: int, end: int, what: str, *, may_be_lost: bool) -> None:
    sentence = f"{segment.path}: damage at position {segment.base + start} ({what}), and records behind it"
    if not may_be_lost:
        raise StoreError(
            f"{sentence}. Put the file back from a backup or a replica, or set failOnDataLoss to false to go on at "
            f"position {segment.base + end}"
        )
    log.warning("%s: reading goes on at %d, as failOnDataLoss is false", sentence, segment.base + end)


# --- backups and places with a scheme --------------------------------------------------------------------------------


def _backup(target: Target, root: str) -> list[Piece]:
    manifest = history.wanted(target)
    segment = manifest.segment_bytes
    return [
        Piece(
            file=below(root, chunk.file),
            base=chunk.start,
            start=chunk.start,
            end=chunk.written_end,
            segment_end=chunk.start - chunk.start % segment + segment,
            first_ms=chunk.first_ms or None,
        )
        for chunk in manifest.chunks
    ]


def _remote(place: RemotePlace) -> list[Piece]:
    if place.is_file():
        return [_remote_piece(place, "", place.size(), open_end=True)]
    if place.names(MANIFESTS):
        return _backup(place, place.uri)
    inside = f"{LOG_DIRECTORY}/" if place.names(LOG_DIRECTORY) else ""
    names = [name for name in place.names(inside) if is_position(name)]
    if not names:
        raise StoreError(f"{place.shown()} has no store, no backup and no segments of a log in it")
    pieces = [_remote_piece(place, inside + name, place.size(inside + name), open_end=False) for name in names]
    return [*pieces[:-1], replace(pieces[-1], open_end=True)]


def _remote_piece(place: RemotePlace, name: str, size: int, *, open_end: bool) -> Piece:
    file = below(place.uri, name)
    last = last_name(file)
    if not is_position(last):
        raise StoreError(
            f"{shown_place(file)} is not named by its position in the log, with 20 digits, as segments are"
        )
    base = int(last)
    return Piece(file, base, base, base + size, base + size, open_end=open_end)
