"""Draws what a power cut leaves of the changes that were not synced.

Equal changes and equal random numbers give an equal choice, and each pick is a version that its change has, or none.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pyromq.testing.sim.file import SimFile


class CrashMode(enum.Enum):
    """Which of the unsynced writes a power cut leaves."""

    #: Each on its own, by a random mixture of lost, stale and kept for every crash.
    MIXED = "mixed"
    #: All up to some moment, none after it.
    PREFIX = "prefix"
    #: All after some moment, none before it: the last writes got there first.
    SUFFIX = "suffix"
    #: Whole files: the index got there, say, and the log did not.
    BY_FILE = "by-file"
    SINGLE_LOST = "single-lost"
    SINGLE_KEPT = "single-kept"
    ALL_LOST = "all-lost"
    ALL_KEPT = "all-kept"


#: The weight of each mode. The last two have one outcome each, so they need few tries.
_MODE_WEIGHTS = {
    CrashMode.MIXED: 8,
    CrashMode.PREFIX: 4,
    CrashMode.SUFFIX: 2,
    CrashMode.BY_FILE: 4,
    CrashMode.SINGLE_LOST: 3,
    CrashMode.SINGLE_KEPT: 2,
    CrashMode.ALL_LOST: 1,
    CrashMode.ALL_KEPT: 1,
}


@dataclass(frozen=True, slots=True)
class CrashChoice:
    """One possible power cut of one disk at one moment. `SimDisk.describe` tells it in words."""

    mode: CrashMode
    #: For each unsynced change, in the disk's order: 0 when it is lost, n when its nth version got there.
    picks: tuple[int, ...]


class Change(NamedTuple):
    """Something that a power cut may undo: a sector of a file, or (sector -1) a name."""

    owner: SimFile | Path
    sector: int
    #: Its versions since, oldest first, each with its moment: a sector's bytes, or the target of a name.
    versions: Sequence[tuple[int, object]]


def choose(changes: list[Change], rng: random.Random, mode: CrashMode | None = None) -> CrashChoice:
    """Decide which of the changes a power cut leaves; the mode too, unless it is given."""
    mode = mode or rng.choices(list(_MODE_WEIGHTS), list(_MODE_WEIGHTS.values()))[0]
    return CrashChoice(mode, tuple(_PICKERS[mode](changes, rng)) if changes else ())


def _pick_mixed(changes: list[Change], rng: random.Random) -> list[int]:
    # To the third power, so that a share is often next to nothing: crashes without stale sectors find other
    # things than crashes with many.
    shares = [rng.random() ** 3 for _ in ("lost", "kept", "stale")]
    total = sum(shares) or 1.0  # all zero: next to impossible
    lost, kept = shares[0] / total, (shares[0] + shares[1]) / total
    picks = []
    for change in changes:
        roll, newest = rng.random(), len(change.versions)
        picks.append(0 if roll < lost else newest if roll < kept else 1 + int(rng.random() * newest))
    return picks


def _pick_prefix(changes: list[Change], rng: random.Random) -> list[int]:
    writes = _writes_in_order(changes)
    return _newest(changes, writes[: rng.randint(0, len(writes))])


def _pick_suffix(changes: list[Change], rng: random.Random) -> list[int]:
    writes = _writes_in_order(changes)
    return _newest(changes, writes[rng.randint(0, len(writes)) :])


def _newest(changes: list[Change], writes: list[tuple[int, int, int]]) -> list[int]:
    picks = [0] * len(changes)
    for _, index, version in writes:
        picks[index] = version
    return picks


def _writes_in_order(changes: list[Change]) -> list[tuple[int, int, int]]:
    """(moment, change, version), by time; changes of one mark are ordered by their place in the file."""
    return sorted(
        (moment, index, version)
        for index, change in enumerate(changes)
        for version, (moment, _) in enumerate(change.versions, start=1)
    )


def _pick_by_file(changes: list[Change], rng: random.Random) -> list[int]:
    kept = {owner: rng.random() < 0.5 for owner in dict.fromkeys(change.owner for change in changes)}
    return [len(change.versions) if kept[change.owner] else 0 for change in changes]


def _pick_single_lost(changes: list[Change], rng: random.Random) -> list[int]:
    picks = _pick_all_kept(changes, rng)
    index = rng.randrange(len(changes))
    picks[index] = rng.randrange(picks[index])
    return picks


def _pick_single_kept(changes: list[Change], rng: random.Random) -> list[int]:
    picks = _pick_all_lost(changes, rng)
    index = rng.randrange(len(changes))
    picks[index] = rng.randint(1, len(changes[index].versions))
    return picks


def _pick_all_lost(changes: list[Change], rng: random.Random) -> list[int]:
    return [0] * len(changes)


def _pick_all_kept(changes: list[Change], rng: random.Random) -> list[int]:
    return [len(change.versions) for change in changes]


_PICKERS: dict[CrashMode, Callable[[list[Change], random.Random], list[int]]] = {
    CrashMode.MIXED: _pick_mixed,
    CrashMode.PREFIX: _pick_prefix,
    CrashMode.SUFFIX: _pick_suffix,
    CrashMode.BY_FILE: _pick_by_file,
    CrashMode.SINGLE_LOST: _pick_single_lost,
    CrashMode.SINGLE_KEPT: _pick_single_kept,
    CrashMode.ALL_LOST: _pick_all_lost,
    CrashMode.ALL_KEPT: _pick_all_kept,
}
