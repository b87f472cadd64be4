"""The followers of a log, how far each is, and what that allows the primary to acknowledge. No input or output.

A follower counts only if it has an identity: see `identity`. It counts up to the position that it reported, if that was
compared with our log or sent on the same connection: the stream has no signature, and a stranger that claims to have
everything must not acknowledge anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from pyromq.errors import BadFrame, ConfigError
from pyromq.replication.identity import Identity


class Follower(NamedTuple):
    """One replica, as the primary knows it. Each report makes a new one: a tuple is made in a third of the time."""

    name: str
    #: Everything below was sent to it, or was there when it came.
    sent: int
    #: Everything below is in its log, by its own word.
    reported: int
    #: Time of its last report.
    heard_ms: int
    #: The last time of which it is known that it had all that the primary had then.
    level_ms: int
    #: `None`: it is served, and counts for nothing.
    identity: Identity | None = None
    #: Since it came it has had, at some moment, all that the primary had.
    has_caught_up: bool = False
    #: A report up to here repeats what the follower said when it came, and nothing has proved it.
    unproved_to: int = -1

    @property
    def confirmed(self) -> int:
        """Everything below counts as copied."""
        return self.reported if self.reported > self.unproved_to else 0

    def lag(self, end: int) -> int:
        """Bytes that it does not have yet."""
        return max(end - self.reported, 0)


@dataclass(frozen=True, slots=True)
class AckRule:
    """The required number of copies of an acknowledged message, the primary's own included."""

    #: Copies to wait for.
    copies: int = 1
    #: Fewer in sync, and nothing is accepted.
    min_in_sync: int = 1
    #: All that are in sync are waited for, be they more than `copies`.
    all_in_sync: bool = False
    #: While fewer replicas are in sync, wait for those that are, down to `min_in_sync`.
    adapts: bool = False

    def __post_init__(self) -> None:
        if self.min_in_sync < 1 or self.copies < self.min_in_sync:
            raise ConfigError(
                f"{self.copies} copies with at least {self.min_in_sync} in sync cannot be: a message has as many "
                "copies as must be in sync, and the primary's own is one of them",
                "in_sync_replicas",
            )

    def needed(self, in_sync: int) -> int | None:
        """Return the copies to wait for with `in_sync` replicas, the primary included; None: too few to send."""
        if in_sync < self.min_in_sync:
            return None
        if self.all_in_sync:
            return max(in_sync, self.min_in_sync if self.adapts else self.copies)
        return min(self.copies, max(in_sync, self.min_in_sync)) if self.adapts else self.copies


@dataclass(frozen=True, slots=True)
class SyncRule:
    """The rule for in-sync replicas: one reports, is near enough, and lacks nothing older than the allowed lag.

    One that speaks and takes nothing (its disk hangs) is not; one that is always a little behind a log that grows is.
    """

    max_gap: int = 256 << 20
    max_silence_ms: int = 20_000

    def holds(self, follower: Follower, end: int, now_ms: int) -> bool:
        oldest_ms = now_ms - self.max_silence_ms
        lag = follower.lag(end)
        return follower.heard_ms >= oldest_ms and lag <= self.max_gap and (not lag or follower.level_ms >= oldest_ms)


class Followers:
    """A value: every event gives a new set."""

    __slots__ = ("_by_name",)

    def __init__(self, followers: Iterable[Follower] = ()) -> None:
        self._by_name = {one.name: one for one in followers}

    @property
    def by_name(self) -> Mapping[str, Follower]:
        return MappingProxyType(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Followers) and self._by_name == other._by_name

    __hash__ = None  # type: ignore[assignment]

    # --- events ------------------------------------------------------------------------------------------------------

    def joined(
        self,
        name: str,
        start: int,
        now_ms: int,
        *,
        reported: int | None = None,
        identity: Identity | None = None,
        proved: bool = False,
    ) -> Followers:
        """Add a follower that is sent the log from `start` on. It has all below `reported` (default: `start`).

        One without a log, or whose log ends before ours begins, has nothing below `start`. Unless its log
        was `proved` to be ours up to `reported`, nothing counts before it confirms bytes that it was sent. An older
        connection of the same member is left out: it may have reported more than the follower has by now.
        """
        reported = start if reported is None else reported
        return self._without_member(identity)._with(
            Follower(name, start, reported, now_ms, now_ms, identity, False, -1 if proved else max(start, reported))
        )

    def _without_member(self, identity: Identity | None) -> Followers:
        if identity is None:
            return self
        member = identity.member
        return Followers(one for one in self._by_name.values() if one.identity is None or one.identity.member != member)

    def left(self, name: str) -> Followers:
        return Followers(one for one in self._by_name.values() if one.name != name)

    def sent(self, name: str, to: int) -> Followers:
        follower = self._by_name[name]
        assert to >= follower.sent, f"{name} was sent {follower.sent} and now {to}"
        return self._with(
            Follower(
                name, to, follower.reported, follower.heard_ms, follower.level_ms, follower.identity,
                follower.has_caught_up, follower.unproved_to,
            )
        )  # fmt: skip

    def heard(self, name: str, position: int, now_ms: int, *, level_ms: int | None = None) -> Followers:
        """A report. `level_ms`: a time of which it shows that the replica has all that the log had then.

        Raises BadFrame for one that cannot be true.
        """
        follower = self._by_name[name]
        if position > follower.sent:
            raise BadFrame(
                f"the replica {name} reports {position}, but was sent no more than {follower.sent}: it is not "
                "believed, and its connection is closed"
            )
        if position < follower.reported:
            raise BadFrame(
                f"the replica {name} reports {position} after {follower.reported}: its log became shorter; it must "
                "connect again"
            )
        has_caught_up = follower.has_caught_up or level_ms is not None
        level_ms = follower.level_ms if level_ms is None else max(level_ms, follower.level_ms)
        return self._with(
            Follower(
                name, follower.sent, position, now_ms, level_ms, follower.identity, has_caught_up, follower.unproved_to
            )
        )

    def _with(self, follower: Follower) -> Followers:
        changed = Followers()
        changed._by_name = {**self._by_name, follower.name: follower}
        return changed

    # --- what follows from them --------------------------------------------------------------------------------------

    @property
    def copies(self) -> int:
        """Return the number of followers that count as copies."""
        return len(self._copies())

    def in_sync(self, rule: SyncRule, end: int, now_ms: int) -> frozenset[str]:
        return frozenset([one.name for one in self._copies() if rule.holds(one, end, now_ms)])

    def caught_up(self, among: frozenset[str]) -> int:
        """Return the number of these that have had the whole log at some moment since they connected."""
        return len([name for name in among if self._by_name[name].has_caught_up])

    def replicated(self, copies: int, end: int, among: frozenset[str] | None = None) -> int:
        """Return the end of the bytes in at least `copies` logs, the primary's included; 0 with too few replicas.

        With `among`, only these count: a replica that is out of sync may hold bytes that no other log has.
        """
        if copies <= 1:
            return end
        positions = [one.confirmed for one in self._copies() if among is None or one.name in among]
        if len(positions) < copies - 1:
            return 0
        positions.sort(reverse=True)
        return min(positions[copies - 2], end)

    def _copies(self) -> Collection[Follower]:
        """One for each identity, the best."""
        if len(self._by_name) == 1:
            return [one for one in self._by_name.values() if one.identity is not None]
        best: dict[str, Follower] = {}
        for one in self._by_name.values():
            if one.identity is None:
                continue
            member = one.identity.member
            if member not in best or one.confirmed > best[member].confirmed:
                best[member] = one
        return best.values()
