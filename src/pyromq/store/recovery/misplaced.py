"""Directories in the place of queue or index files, and files in the place of their directories: moved away at a start.

Queues and index are derived from the log, so a start ignores unreadable files, and derives them again. A file
that is damaged is removed; a directory may hold anything, so it is kept:

    quarantine/1/consumequeue/orders/0/00000000000000000000
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyromq.files.disk import Disk
from pyromq.store.log.segmented_file import is_position
from pyromq.store.paths import StorePaths

log = logging.getLogger("pyromq.store")


def quarantine_misplaced(disk: Disk, paths: StorePaths, *, files: bool = True) -> int:
    """Move away everything below the queues and the index that is of the wrong kind, and return the number of moves.

    Without `files` only directories are looked at: the usual start need not look at every file. Raises OSError.
    """
    moved = list(_misplaced(disk, paths, files=files))
    for path in moved:
        target = _free_place(disk, paths.quarantine) / path.relative_to(paths.root)
        disk.move_tree(path, target)
        log.warning("%s is of the wrong kind: moved to %s, and derived from the log again", path, target)
    return len(moved)


def _misplaced(disk: Disk, paths: StorePaths, *, files: bool) -> Iterator[Path]:
    for directory in (paths.queues, paths.index):
        if disk.exists(directory) and not disk.is_dir(directory):
            yield directory
    for topic in disk.names(paths.queues):
        if not disk.is_dir(paths.queues / topic):
            yield paths.queues / topic
            continue
        for number in disk.names(paths.queues / topic):
            queue = paths.queues / topic / number
            if not number.isdigit():
                continue
            if not disk.is_dir(queue):
                yield queue
            elif files:
                yield from (
                    queue / name for name in disk.names(queue) if is_position(name) and disk.is_dir(queue / name)
                )
    if files:
        yield from _directories(disk, paths.index, filter(str.isdigit, disk.names(paths.index)))


def _directories(disk: Disk, place: Path, names: Iterable[str]) -> Iterator[Path]:
    return (place / name for name in names if disk.is_dir(place / name))


def _free_place(disk: Disk, directory: Path) -> Path:
    number = 1
    while disk.exists(directory / str(number)):
        number += 1
    return directory / str(number)
