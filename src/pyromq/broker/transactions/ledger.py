"""The open transactions, and the decisions about them. Pure: offsets and times in, decisions out.

The half queue is read in order; `half_next` is the first offset that was not read yet. A half below it that is not
among the open ones has ended, was copied to the end of the queue, or was given up. Beyond it everything is open except
the halves known to have ended. So memory is bounded by the open halves and those ended since the last reading, never by
the length of the queue.

A half that is asked for is copied to the end of the queue, with a higher count. All copies of one transaction share a
key (offset of the first, time of birth, group), which is in the record: an answer for an older copy ends the newest,
and of two copies that a crash left open the newer counts.

A restart continues from two positions that only grow: `half`, the first open half; `op`, the first record of an end
that may still tell of a half at or beyond it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

#: The maximum distance of the oldest open half. One that stays longer moves to the end of the queue: the part to be
#: read again after a restart, and kept in memory until then (some 35 MB), stays below twice this number.
SPAN = 100_000
#: Ends are counted in runs of this many: their exact number does not matter for where a restart begins.
OPS_IN_RUN = 256
#: A producer that answers too late, for a half that was given up, is still heard, for the last this many of them.
MAX_PUT_ASIDE = 10_000


class Key(NamedTuple):
    """The identity that all copies of one half message share."""

    origin: int
    born_ms: int
    group: str


@dataclass(frozen=True, slots=True)
class Half:
    """A half message, as far as decisions need it."""

    offset: int
    position: int
    key: Key
    stored_ms: int
    #: The number of questions sent to its producers.
    checks: int = 0
    #: The time that its sender wants to have before the first question.
    patience_ms: int | None = None

    @property
    def is_copy(self) -> bool:
        return self.checks > 0 or self.key.origin != self.offset

    def is_due(self, now_ms: int, timeout_ms: int) -> bool:
        """Has its producer had the time to end it? A birth after the storing is the error of another clock."""
        born_ms = min(self.key.born_ms, self.stored_ms)
        return now_ms - born_ms > (timeout_ms if self.patience_ms is None else self.patience_ms)

    def may_move(self, now_ms: int, timeout_ms: int) -> bool:
        """Has it been at its place for as long as it had been waiting before? So one that waits for days is written
        again a dozen times, not in every round, however many wait with it."""
        waited_ms = self.stored_ms - self.key.born_ms if self.is_copy else 0
        return now_ms - self.stored_ms >= max(timeout_ms, waited_ms)

    def is_too_old(self, now_ms: int, keep_ms: int) -> bool:
        """Its producer's clock decides only where ours no longer knows."""
        return now_ms - (self.key.born_ms if self.is_copy else self.stored_ms) > keep_ms


class Act(Enum):
    #: Ask a producer, and copy the half to the end of the queue with a higher count.
    CHECK = "check"
    #: Copy it as it is: it has to wait, and would hold up the others.
    RENEW = "renew"
    #: No more questions are sent.
    PUT_ASIDE = "put aside"


class Step(NamedTuple):
    act: Act
    half: Half


class Limits(NamedTuple):
    timeout_ms: int
    check_max: int
    #: Age above which the log does not hold messages.
    keep_ms: int


class Positions(NamedTuple):
    """The positions from which a restart continues."""

    half: int
    op: int


@dataclass(slots=True)
class _Run:
    first: int
    count: int
    newest_half: int


class Ledger:
    """The open transactions of a broker."""

    def __init__(self, half_from: int, op_from: int) -> None:
        self.half_next = half_from
        self._op_next = op_from
        self._open: dict[int, Half] = {}  # in the order of the queue
        self._ended_ahead: set[int] = set()
        self._newest: dict[Key, int] = {}
        #: A producer's decision is being carried out.
        self._ending: set[int] = set()
        self._put_aside: dict[Key, None] = {}
        self._runs: deque[_Run] = deque()

    # --- what the queues hold ----------------------------------------------------------------------------------------

    def op_seen(self, op_offset: int, ended: Iterable[int]) -> None:
        """A record of ends, found at the start; those are all seen before the first half is."""
        ended = list(ended)
        self._ended_ahead.update(offset for offset in ended if offset >= self.half_next)
        self.op_written(op_offset, ended)

    def op_written(self, op_offset: int, ended: Iterable[int]) -> None:
        newest_half = max(ended, default=-1)
        self._op_next = op_offset + 1
        if self._runs and self._runs[-1].count < OPS_IN_RUN:
            run = self._runs[-1]
            run.count += 1
            run.newest_half = max(run.newest_half, newest_half)
        else:
            self._runs.append(_Run(op_offset, 1, newest_half))

    def half_seen(self, half: Half) -> None:
        """The next half of the queue."""
        assert half.offset >= self.half_next, f"half {half.offset} was read before"
        self.half_next = half.offset + 1
        older = self._newest.pop(half.key, None)
        if older is not None and older not in self._ending:
            self._open.pop(older, None)  # a crash came before its end was recorded
        if half.offset in self._ended_ahead:
            self._ended_ahead.remove(half.offset)
        else:
            self._newest[half.key] = half.offset
            self._open[half.offset] = half

    def read_to(self, offset: int) -> None:
        """Whatever is below this offset and was not seen is not there, or cannot be read."""
        if offset > self.half_next:
            self._ended_ahead.difference_update(range(self.half_next, offset))
            self.half_next = offset

    def skip_ended(self, end: int) -> None:
        """Step over halves that are known to have ended, up to an offset: they need not be read."""
        while self.half_next < end and self.half_next in self._ended_ahead:
            self._ended_ahead.remove(self.half_next)
            self.half_next += 1

    @property
    def has_room(self) -> bool:
        """May more halves be read before something is done about the oldest?"""
        return self.half_next - self.positions().half < 2 * SPAN

    def positions(self) -> Positions:
        half = next(iter(self._open), self.half_next)
        while self._runs and self._runs[0].newest_half < half:
            self._runs.popleft()
        return Positions(half, self._runs[0].first if self._runs else self._op_next)

    # --- a producer decides ------------------------------------------------------------------------------------------

    def begin(self, offset: int, key: Key) -> int | None:
        """A producer ends the half at this offset: which offset ends with it; None when there is nothing to end.

        Until `ended` or `release` nothing else happens to it.
        """
        current = self._current(offset, key)
        if current is None or current in self._ending:
            return None
        self._ending.add(current)
        return current

    def _current(self, offset: int, key: Key) -> int | None:
        if self.is_open(offset):
            return offset
        newest = self._newest.get(key)
        if newest is not None and self.is_open(newest):
            return newest
        return offset if key in self._put_aside else None

    def is_open(self, offset: int) -> bool:
        return offset in self._open or (offset >= self.half_next and offset not in self._ended_ahead)

    def is_idle(self, offset: int) -> bool:
        """Is it open, and not being ended?"""
        return self.is_open(offset) and offset not in self._ending

    def newest_of(self, key: Key) -> int | None:
        """The open copy of a transaction."""
        newest = self._newest.get(key)
        return newest if newest is not None and self.is_open(newest) else None

    def release(self, offset: int) -> None:
        """It could not be ended: it is as open as before."""
        self._ending.discard(offset)

    def ended(self, offset: int, key: Key) -> None:
        self._ending.discard(offset)
        self._put_aside.pop(key, None)
        self._newest.pop(key, None)
        if self._open.pop(offset, None) is None and offset >= self.half_next:
            self._ended_ahead.add(offset)

    # --- the broker decides ------------------------------------------------------------------------------------------

    def plan(self, now_ms: int, limits: Limits, can_ask: Callable[[str], bool]) -> list[Step]:
        """Return the steps to take now, oldest first. `can_ask`: is a producer of that group there?"""
        steps: list[Step] = []
        for half in self._open.values():
            act = None if half.offset in self._ending else self._act(half, now_ms, limits, can_ask)
            if act is not None:
                steps.append(Step(act, half))
        return steps

    def _act(self, half: Half, now_ms: int, limits: Limits, can_ask: Callable[[str], bool]) -> Act | None:
        if half.checks >= limits.check_max or half.is_too_old(now_ms, limits.keep_ms):
            return Act.PUT_ASIDE
        is_due = half.is_due(now_ms, limits.timeout_ms)
        if is_due and can_ask(half.key.group):
            return Act.CHECK
        return Act.RENEW if self.is_crowded(half) and half.may_move(now_ms, limits.timeout_ms) else None

    def is_crowded(self, half: Half) -> bool:
        """Does it hold up those behind it?"""
        return half.offset < self.half_next - SPAN

    def moved(self, half: Half, to: int) -> None:
        """It was copied to the end of the queue."""
        self.ended(half.offset, half.key)
        self._newest[half.key] = to

    def put_aside(self, half: Half) -> None:
        self.gone(half)
        self._put_aside[half.key] = None
        if len(self._put_aside) > MAX_PUT_ASIDE:
            del self._put_aside[next(iter(self._put_aside))]

    def gone(self, half: Half) -> None:
        """Its record is no longer there, or of no use."""
        self._open.pop(half.offset, None)
        self._newest.pop(half.key, None)

    def resumed(self, key: Key, offset: int) -> None:
        """A half that was put aside is in the queue again."""
        self._put_aside.pop(key, None)
        self._newest[key] = offset
