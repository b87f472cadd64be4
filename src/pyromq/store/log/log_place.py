"""A log that is not in the store directory: what keeps it from being lost sight of, or used twice.

A store notes where its log is (`logdirectory` in its root), so that tools find it, and so that a start that looks for
it elsewhere is refused instead of beginning a new log. A process that uses such a log also locks its directory.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pyromq.config.store import LOG_NAME, spelt_out
from pyromq.errors import StoreError, StoreLocked
from pyromq.files.disk import Disk, Locked, Usage
from pyromq.store.durability.checkpoint import RecoverPoint
from pyromq.store.log.segmented_file import run_names
from pyromq.store.paths import StorePaths


def remembered(disk: Disk, paths: StorePaths) -> Path | None:
    """Return the log's directory at the last start; None if it was the usual one, or there was no start."""
    text = disk.read_bytes(paths.log_pointer).removesuffix(b"\n") if disk.exists(paths.log_pointer) else b""
    return Path(os.fsdecode(text)) if text else None


def note(disk: Disk, paths: StorePaths) -> None:
    """Remember where the log is, durably. Raises OSError."""
    before = remembered(disk, paths)
    if paths.log_is_apart:
        place = spelt_out(paths.commit_log)
        if before != place:
            disk.replace_bytes(paths.log_pointer, os.fsencode(place) + b"\n")
    elif before is not None:
        disk.replace_bytes(paths.log_pointer, b"")  # at once, and a removal alone is not
        disk.remove(paths.log_pointer)


def refuse_another(disk: Disk, paths: StorePaths, point: RecoverPoint | None) -> None:
    """Raises StoreError when there is no log where a start would look for it, but there is, or was, one elsewhere."""
    here = spelt_out(paths.commit_log)
    if run_names(disk, here):
        return
    for other in (remembered(disk, paths), spelt_out(paths.root) / LOG_NAME):
        if other is not None and other != here and run_names(disk, other):
            raise StoreError(
                f"the log of {paths.root} is in {other}, and not in {here}, where this start looks for it: set "
                f"store.commit_log (storePathCommitLog) to {other}, or move the files to {here}"
            )
    if paths.log_is_apart and point is not None and point.synced > point.log_start:
        raise StoreError(
            f"the log of {paths.root} is not in {here}, although it was written up to {point.synced}: is its file "
            "system mounted? If the log is lost for good, `pyromq store recover --truncate-at 0` begins a new one"
        )


def lock(disk: Disk, paths: StorePaths) -> contextlib.ExitStack:
    """Take the locks of a store; closing gives them back. Raises StoreLocked.

    Our own come first and the others are looked for then: of two that start at once, one sees the other.
    """
    with contextlib.ExitStack() as held:
        _take(held, disk, paths.lock, paths.root)
        if paths.log_is_apart or disk.exists(paths.log_lock):
            _take(held, disk, paths.log_lock, paths.commit_log)
        neighbour = paths.commit_log.parent
        if paths.log_is_apart and paths.commit_log.name == LOG_NAME and _is_file(disk, neighbour / paths.lock.name):
            _take(held, disk, neighbour / paths.lock.name, neighbour)
        return held.pop_all()


def _take(held: contextlib.ExitStack, disk: Disk, path: Path, directory: Path) -> None:
    try:
        held.callback(disk.lock(path).release)
    except Locked as locked:
        raise StoreLocked(directory, locked.pid) from None


def _is_file(disk: Disk, path: Path) -> bool:
    return disk.exists(path) and not disk.is_dir(path)


def usage(disk: Disk, paths: StorePaths) -> Usage:
    """Return the usage of the file system that holds the log."""
    return disk.usage(paths.commit_log if disk.exists(paths.commit_log) else paths.root)
