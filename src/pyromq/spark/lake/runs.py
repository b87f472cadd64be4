"""The writers of a lake: each run has an id and a marker file, so that a later run recognises a dead run's files.

A run is dead when its process is gone from this very system (same boot, same process namespace, and the number not
taken by a younger process). Of a run elsewhere nothing is known: its files are left alone until they are old.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from pyromq.spark.lake.place import Entry, Place

STAGING = "_pyromq/staging"
_MARK = "run.json"


@dataclass(frozen=True, slots=True)
class Process:
    """The identity of a process, unique over reuse of process ids. `system` is empty if it is unknown."""

    system: str
    pid: int
    started: str


def new_run(now_ms: int, token: str) -> str:
    """Return a unique id that sorts by time."""
    return f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%S}-{token}"


def directory_of(run: str) -> str:
    return f"{STAGING}/{run}"


def begin(place: Place, run: str) -> None:
    place.create(f"{directory_of(run)}/{_MARK}", json.dumps(asdict(this_process())).encode())


def end(place: Place, run: str) -> None:
    place.remove_tree(directory_of(run))


def abandoned(place: Place, *, now_ms: int, safe_age_s: float) -> list[str]:
    """The runs that will never commit: their process is gone, or nothing of them is younger than the safe age."""
    gone = []
    for run in place.directories(STAGING):
        entries = place.entries(directory_of(run), recursive=True)
        if is_dead(_process_of(place, run)) or _is_old(entries, now_ms, safe_age_s):
            gone.append(run)
    return gone


def _is_old(entries: list[Entry], now_ms: int, safe_age_s: float) -> bool:
    return all(now_ms - entry.modified_ms > safe_age_s * 1000 for entry in entries)


def _process_of(place: Place, run: str) -> Process | None:
    data = place.read(f"{directory_of(run)}/{_MARK}")
    try:
        return Process(**json.loads(data)) if data else None
    except (ValueError, TypeError):
        return None


def is_dead(process: Process | None) -> bool:
    """Return True if the process has certainly ended; False if unknown."""
    here = this_process().system
    if process is None or not here or process.system != here:
        return False
    return _start_of(process.pid) != process.started


def this_process() -> Process:
    return Process(_system(), os.getpid(), _start_of(os.getpid()))


def _system() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _start_of(pid: int) -> str:
    """Return a process's start time in ticks; empty if there is none, or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]
