"""A log that cannot be continued is put aside: moved as it is, with a note of what it was, never thrown away.

A copy whose primary no longer has the next bytes starts over; its log may be the only one. The store must be closed.
Everything that belongs to the old log goes with it: its queues and index name positions that the new one gives others.

    aside/00000000000012345678-1/commitlog, consumequeue, index, checkpoint, recoverpoint, why.json

A crash in the middle leaves some of it moved; the next attempt moves the rest to a place of its own, and what a start
finds until then is a store whose log or queues are gone, which it says or builds again.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from pyromq.clock import Clock
from pyromq.errors import StoreError
from pyromq.files.disk import Disk
from pyromq.store.log import log_place
from pyromq.store.log.segmented_file import run_names
from pyromq.store.paths import StorePaths

log = logging.getLogger("pyromq.store")

NOTE = "why.json"


def put_log_aside(disk: Disk, paths: StorePaths, clock: Clock, *, end: int, why: str) -> Path | None:
    """Move the log away and return its new place; None when there was no log. Raises StoreLocked, StoreError, OSError.

    `end` is the end of the log: the name of the place, for people.
    """
    with log_place.lock(disk, paths):
        names = run_names(disk, paths.commit_log)
        if not names:
            return None
        if paths.log_is_apart:
            raise StoreError(
                f"the log in {paths.commit_log} is not in the store's own directory, so it cannot be put aside within "
                "it: move its files elsewhere, and start again"
            )
        place = _free_place(disk, paths.root / "aside", end)
        note = {"why": why, "first": int(names[0]), "end": end, "files": len(names), "at_ms": clock.now_ms()}
        text = json.dumps(note, indent=2).encode() + b"\n"
        try:
            disk.replace_bytes(place / NOTE, text)
            _move(disk, paths, place)
        except OSError:
            if set(disk.names(place)) <= {NOTE}:
                disk.remove_tree(place)  # nothing was moved: no attempt on a full disk leaves anything
            raise
        disk.sync_name(place / paths.commit_log.name / names[0])
        disk.replace_bytes(place / NOTE, text)  # this also makes the other names in the directory durable
    log.warning("the log up to %d was put aside, in %s: %s", end, place, why)
    return place


def _free_place(disk: Disk, directory: Path, end: int) -> Path:
    number = 1
    while disk.exists(directory / f"{end:020d}-{number}"):
        number += 1
    return directory / f"{end:020d}-{number}"


def _move(disk: Disk, paths: StorePaths, place: Path) -> None:
    """Move files derived from the log first: a start that finds a log without them builds them again."""
    for path in (paths.recover_point, paths.checkpoint):
        if disk.exists(path):
            disk.replace_bytes(place / path.name, disk.read_bytes(path))
            disk.remove(path)
    for directory in (paths.index, paths.queues, paths.commit_log):
        if disk.exists(directory):
            disk.move_tree(directory, place / directory.name)
            disk.sync_name(directory)
