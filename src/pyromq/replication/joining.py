"""A replica comes back: from where the stream goes on, and what of its log it may keep. No input or output.

A log is described by where it begins and ends and by its epochs: who led writes an epoch's number and the position from
which it led. Two logs are the same up to the end of the last epoch they share, and may differ behind it.

Without epochs, as between RocketMQ's masters and slaves, two logs are taken to be one as far as both go; the replica's
check of what arrives is then the only guard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


class Epoch(NamedTuple):
    """Somebody led from this position on."""

    number: int
    start: int


@dataclass(frozen=True, slots=True)
class LogExtent:
    """A log: its first position, the one behind its last byte, and who led when."""

    start: int
    end: int
    epochs: tuple[Epoch, ...] = ()

    def __post_init__(self) -> None:
        assert self.start <= self.end
        for one, following in pairwise(self.epochs):
            assert one.number < following.number, f"epoch {following.number} follows {one.number}"
            assert one.start <= following.start, f"epoch {following.number} begins before {one.number}"

    @property
    def is_empty(self) -> bool:
        return self.start == self.end

    @property
    def standing(self) -> tuple[int, int]:
        """Of two logs the one with the larger standing has all that was promised: the last epoch that it has reached,
        and its end. An epoch that begins behind its end, lost in a crash, says nothing for it."""
        return max((epoch.number for epoch in self.epochs if epoch.start <= self.end), default=0), self.end

    def end_of(self, index: int) -> int:
        """Where an epoch's bytes end: where the next one begins."""
        return self.epochs[index + 1].start if index + 1 < len(self.epochs) else self.end


@dataclass(frozen=True, slots=True)
class GoOn:
    """Everything that the replica has is the primary's: the stream goes on behind it."""

    position: int


@dataclass(frozen=True, slots=True)
class CutBack:
    """Bytes from `position` to the replica's end are nobody else's: they are put aside, then the stream goes on."""

    position: int
    until: int


@dataclass(frozen=True, slots=True)
class StartOver:
    """Nothing that the replica has can be continued: it puts its log aside and begins at `position`."""

    position: int
    reason: str


Way = GoOn | CutBack | StartOver


def way_back(primary: LogExtent, replica: LogExtent) -> Way:
    """What a replica does with its log before the stream can go on."""
    if replica.is_empty:
        return GoOn(primary.start)
    common = common_end(primary, replica)
    if common < primary.start:
        return StartOver(
            primary.start,
            f"it ends at {common}, and the primary's log begins at {primary.start}: what is between is gone there",
        )
    if common <= replica.start:
        return StartOver(primary.start, f"no byte of it is the primary's as far as is known: they part at {common}")
    return GoOn(common) if common == replica.end else CutBack(common, replica.end)


def common_end(primary: LogExtent, replica: LogExtent) -> int:
    """Up to here two logs are the same; behind it only one goes on, or they differ."""
    if not primary.epochs or not replica.epochs:
        return min(primary.end, replica.end)
    shared = _last_shared(primary.epochs, replica.epochs)
    if shared is None:
        return 0
    ours, theirs = shared
    # A log that lost its end in a crash may end before the last epoch that it knows of.
    return min(primary.end_of(ours), replica.end_of(theirs), primary.end, replica.end)


def _last_shared(one: Sequence[Epoch], other: Sequence[Epoch]) -> tuple[int, int] | None:
    places = {epoch: index for index, epoch in enumerate(one)}
    for index in range(len(other) - 1, -1, -1):
        if other[index] in places:
            return places[other[index]], index
    return None


def first_position(reported: int, log_start: int, log_end: int, last_segment: int, *, whole_log: bool) -> int | None:
    """From where a primary sends to a replica that says where its log ends. None: it has more than we do.

    A replica without a log reports 0. RocketMQ's primaries begin with their last file then; `whole_log` gives all.
    One that ends before our first byte gets our first byte: it sees the gap by the position, and says so.
    """
    if reported > log_end:
        return None
    if reported == 0 and not whole_log:
        return last_segment
    return max(reported, log_start)


def begin_epoch(log: LogExtent, number: int) -> tuple[Epoch, ...]:
    """The epochs of one who begins to lead with this log. Those of which it has no byte are not of its log."""
    kept = tuple(epoch for epoch in log.epochs if epoch.start < log.end)
    assert all(epoch.number < number for epoch in log.epochs), f"epoch {number} has been"
    return (*kept, Epoch(number, log.end))
