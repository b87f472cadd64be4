"""Match a replica's log with the primary's: the position to continue from, and the part to keep. No input or output.

A log is described by where it begins and ends and by its epochs: who led writes an epoch's number, the position from
which it led, and who it was. Two logs are the same up to the end of the last epoch they share, and may differ behind
it.

The number rises when another member becomes leader. `by` is new with every start of a primary: after a crash its log
may have become shorter, and a replica that has more than that has bytes which will be other ones.

Without epochs, as between RocketMQ's masters and slaves, two logs are taken to be one as far as both go; the replica's
check of what arrives is then the only guard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pyromq.errors import PyroMQError

#: Epochs of deleted bytes still show that two logs are related; this many are enough for that.
MAX_EPOCHS = 500


class Epoch(NamedTuple):
    """One leadership, from this position on. Two are the same only if all fields are."""

    number: int
    start: int
    #: A member, and which of its lives.
    by: str = ""

    @property
    def member(self) -> str:
        """The store that led, whichever of its lives; empty if it is unknown."""
        return self.by.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class LogExtent:
    """A log: its first position, the one behind its last byte, and who led when."""

    start: int
    end: int
    epochs: tuple[Epoch, ...] = ()

    def __post_init__(self) -> None:
        assert self.start <= self.end
        for one, following in pairwise(self.epochs):
            assert one.number <= following.number, f"epoch {following.number} follows {one.number}"
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
        """Return the end of an epoch's bytes: the start of the next epoch, or the log's end."""
        return self.epochs[index + 1].start if index + 1 < len(self.epochs) else self.end


@dataclass(frozen=True, slots=True)
class GoOn:
    """The replica's whole log is a prefix of the primary's: the stream continues at its end."""

    position: int


@dataclass(frozen=True, slots=True)
class CutBack:
    """No other log has the bytes from `position` to the replica's end: quarantine them, then continue the stream."""

    position: int
    until: int


@dataclass(frozen=True, slots=True)
class StartOver:
    """Nothing that the replica has can be continued: it puts its log aside and begins at `position`."""

    position: int
    reason: str


Way = GoOn | CutBack | StartOver


class Parted(PyroMQError):
    """The replica's log diverges from the primary's: it must be changed before the stream can continue."""


def way_back(primary: LogExtent, replica: LogExtent) -> Way:
    """Return the change to the replica's log that lets the stream continue."""
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
    """Return the end of the common prefix of two logs; after it only one continues, or they differ."""
    if not primary.epochs or not replica.epochs:
        return min(primary.end, replica.end)
    shared = _last_shared(primary.epochs, replica.epochs)
    if shared is None:
        return 0
    ours, theirs = shared
    # A log that lost its end in a crash may end before the last epoch that it knows of.
    return min(primary.end_of(ours), replica.end_of(theirs), primary.end, replica.end)


def are_related(one: LogExtent, other: LogExtent) -> bool:
    """Return True if both logs have an epoch in common."""
    return not set(one.epochs).isdisjoint(other.epochs)


def are_of_one_family(one: Sequence[Epoch], other: Sequence[Epoch]) -> bool:
    """Did one store lead both, in whichever of its lives? That says nothing of their bytes."""
    members = {epoch.member for epoch in one} & {epoch.member for epoch in other}
    return bool(members - {""}) or not set(one).isdisjoint(other)


def chosen(epochs: Sequence[Epoch]) -> tuple[int, str]:
    """The newest number, and who was the first to lead with it: that one was chosen then."""
    newest = max((epoch.number for epoch in epochs), default=0)
    return newest, next((epoch.member for epoch in epochs if epoch.number == newest), "")


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


def begin_epoch(log: LogExtent, number: int, by: str) -> tuple[Epoch, ...]:
    """The epochs of one who begins to lead with this log. Those of which it has no byte are not of its log.

    With an empty log, the first epoch is kept: it shows that two logs belong together.

    Above `MAX_EPOCHS` the oldest go, those that ended before the first byte: a log without a later one was left behind.
    """
    assert all(epoch.number <= number for epoch in log.epochs), f"epoch {number} has been"
    assert all(epoch.by != by for epoch in log.epochs), f"{by} has led before: each life has a name of its own"
    kept = [epoch for epoch in log.epochs if epoch.start < log.end]
    kept = kept or [epoch for epoch in log.epochs if epoch.start == log.end][:1]
    while len(kept) > MAX_EPOCHS and kept[1].start <= log.start:
        del kept[0]
    return (*kept, Epoch(number, log.end, by))


def has_our_tail(ours: LogExtent, other: LogExtent) -> bool:
    """Return True if we led, lost the end of our log, and the other copied it: it may have acknowledged messages of it.

    It must have followed us in our last life: what it has of an earlier one we have led over since.
    """
    if not ours.epochs or other.is_empty:
        return False
    return ours.epochs[-1] in other.epochs and common_end(ours, other) == ours.end < other.end
