"""The common part of lakes with a log of their own (Delta, Iceberg): data is in `data/<run>/`, the log names it.

Readers find files through the log alone, so nothing is moved after a commit. Files of a dead run that the log does not
name are garbage.
"""

from __future__ import annotations

from collections.abc import Collection

from pyromq.errors import LakeConflict
from pyromq.spark.lake import runs
from pyromq.spark.lake.place import Place

DATA = "data"


def directory_of(run: str) -> str:
    return f"{DATA}/{run}"


def remove_orphans(place: Place, live: Collection[str], *, now_ms: int, safe_age_s: float, grace_s: float) -> int:
    """The files of abandoned runs that no commit has. Returns how many.

    A rewrite may have replaced one just now, so those that are younger than the grace time stay, and the run's mark.
    """
    removed = 0
    for run in runs.abandoned(place, now_ms=now_ms, safe_age_s=safe_age_s):
        unknown = [entry for entry in place.entries(directory_of(run), recursive=True) if entry.name not in live]
        old = [entry for entry in unknown if now_ms - entry.modified_ms >= grace_s * 1000]
        for entry in old:
            place.remove(entry.name)
        removed += len(old)
        if len(old) == len(unknown):
            runs.end(place, run)
    return removed


def end(place: Place, run: str, committed: Collection[str]) -> None:
    """A run is over: what attempts of its tasks wrote in vain goes with it."""
    for entry in place.entries(directory_of(run), recursive=True):
        if entry.name not in committed:
            place.remove(entry.name)
    runs.end(place, run)


def conflict(uri: str, version: int, why: object) -> LakeConflict:
    return LakeConflict(
        f"somebody else made commit {version} of {uri} first ({why}); nothing of this one is in the lake: let one job "
        "at a time archive into it, and run this one again"
    )
