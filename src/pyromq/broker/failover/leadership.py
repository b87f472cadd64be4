"""This broker's identity among those of its name: one file that survives crashes, and is never guessed.

    config/leadership.json

It has the store's own name (`member`, made once), how often it has begun to lead (`lives`) and the random names under
which it did (`ledAs`), the epochs of its log, the largest number of one that it knows, what it is if that was decided
otherwise than by its settings, and where the others of its name were last. A store that has no such file was never part
of this: its settings decide.

`fork` names a log of the family that was led separately from ours; `gaveUp` the lives that promotions gave up.

`life` names the last life that led, `cleanEnd` where its log ended when it was stopped cleanly. The record is void from
the moment the next life begins. The store's `abort` file alone does not show a crash: any tool that opens and closes
the store removes it.

A damaged file stops the start. Its previous copy may lack the last change, which may be that another broker leads: so
people have to look at it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from pyromq.config.broker import MASTER_ROLES
from pyromq.errors import CorruptFile
from pyromq.files.disk import Disk
from pyromq.files.json_file import JsonFile, Source
from pyromq.model.json_form import (
    OFFSET,
    Json,
    JsonObject,
    expect,
    from_json,
    in_json,
    some_objects,
    text,
    to_json,
)
from pyromq.replication.log_matching import Epoch

FILE = "leadership.json"
ROLES = (*MASTER_ROLES, "SLAVE")
#: More brokers of one name than anybody has; who was heard of last is kept.
MAX_MEMBERS = 16
#: A broker that was promoted begins to lead within this time, or not at all.
BEGIN_MS = 30_000
#: Names of own lives that are kept. A follower that has an epoch of an older one is refused, and nothing is cut.
MAX_LIVES = 200


@dataclass(frozen=True, slots=True)
class Member:
    """Another broker of the same name, as it was last."""

    address: str = field(metadata=in_json("address", text))
    broker_id: int = field(metadata=in_json("brokerId", OFFSET))
    ha_address: str = field(default="", metadata=in_json("haAddress", text))
    #: The member id of its store; empty if it is unknown.
    member: str = field(default="", metadata=in_json("member", text))
    unknown: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fork:
    """The log of another broker, which parts from ours at `position`: an operator decides which of the two is kept."""

    address: str = field(metadata=in_json("address", text))
    #: The member id of the other store.
    member: str = field(metadata=in_json("member", text))
    position: int = field(metadata=in_json("position", OFFSET))
    #: Bytes above `position` in either log, when they were compared.
    ours: int = field(metadata=in_json("ours", OFFSET))
    theirs: int = field(metadata=in_json("theirs", OFFSET))
    unknown: Mapping[str, Json] = field(default_factory=dict)


def _fork(value: Json) -> Fork:
    return from_json(Fork, value)


@dataclass(frozen=True, slots=True)
class Pending:
    """A promotion that was accepted and has not begun: the state to return to, and when it was accepted.

    Both clocks are kept: the wall clock may be set, and the monotonic one starts again with the machine.
    """

    number: int = field(metadata=in_json("number", OFFSET))
    at_ms: int = field(metadata=in_json("atMillis", OFFSET))
    clock_ms: int = field(metadata=in_json("clockMillis", OFFSET))
    role: str | None = field(default=None, metadata=in_json("role", text))
    broker_id: int | None = field(default=None, metadata=in_json("brokerId", OFFSET))
    waits_as: int | None = field(default=None, metadata=in_json("waitsAs", OFFSET))
    unknown: Mapping[str, Json] = field(default_factory=dict)

    def is_void(self, now_ms: int, clock_ms: int) -> bool:
        """Return whether the promotion did not begin in time, or the clocks cannot tell."""
        return not (0 <= now_ms - self.at_ms <= BEGIN_MS and 0 <= clock_ms - self.clock_ms <= BEGIN_MS)


def _pending(value: Json) -> Pending:
    return from_json(Pending, value)


@dataclass(frozen=True, slots=True)
class _Entry:
    number: int = field(metadata=in_json("epoch", OFFSET))
    start: int = field(metadata=in_json("startOffset", OFFSET))
    by: str = field(default="", metadata=in_json("by", text))
    unknown: Mapping[str, Json] = field(default_factory=dict)


def _epochs(value: Json) -> tuple[Epoch, ...]:
    entries = (from_json(_Entry, one) for one in some_objects(value))
    epochs = tuple(Epoch(one.number, one.start, one.by) for one in entries)
    for one, following in pairwise(epochs):
        expect(one.number <= following.number and one.start <= following.start, "epochs in their order", value)
    return epochs


def _members(value: Json) -> tuple[Member, ...]:
    return tuple(from_json(Member, one) for one in some_objects(value))


def _names(value: Json) -> tuple[str, ...]:
    expect(isinstance(value, list), "a list", value)
    return tuple(text(one) for one in value)


def _role(value: Json) -> str:
    expect(value in ROLES, "a role", value)
    return text(value)


@dataclass(frozen=True, slots=True)
class Leadership:
    """The content of the file. A value: every change gives a new one."""

    member: str = field(metadata=in_json("member", text))
    #: The number of times it has begun to lead: each time under a random name.
    lives: int = field(default=0, metadata=in_json("lives", OFFSET))
    #: The largest number of an epoch that is known here, and perhaps nowhere in the log yet. 0: none.
    number: int = field(default=0, metadata=in_json("number", OFFSET))
    epochs: tuple[Epoch, ...] = field(default=(), metadata=in_json("epochs", _epochs))
    #: The role decided otherwise than by the settings; None if they decide.
    role: str | None = field(default=None, metadata=in_json("role", _role))
    broker_id: int | None = field(default=None, metadata=in_json("brokerId", OFFSET))
    #: The role of the master when it was last followed.
    master_role: str | None = field(default=None, metadata=in_json("masterRole", _role))
    #: The end of the master's log when ours was compared with it last: below it we may lack acknowledged messages. Out
    #: of reach after a crash that may have taken reported messages, until the next comparison.
    master_end: int = field(default=0, metadata=in_json("masterEnd", OFFSET))
    #: The known members; the most recently heard is the last.
    members: tuple[Member, ...] = field(default=(), metadata=in_json("members", _members))
    #: It is to lead, and waits for those who may have more of its log: as a slave with this id. None: it does not.
    waits_as: int | None = field(default=None, metadata=in_json("waitsAs", OFFSET))
    #: The names of its last lives, `Epoch.by` of each, the newest last.
    led_as: tuple[str, ...] = field(default=(), metadata=in_json("ledAs", _names))
    #: The life that led last with this log; None for a follower, and in files of older versions.
    life: str | None = field(default=None, metadata=in_json("life", text))
    #: The end of the log when that life was stopped cleanly; None while it leads, and after a crash.
    clean_end: int | None = field(default=None, metadata=in_json("cleanEnd", OFFSET))
    #: It was promoted, and has not begun to lead; None if it has, or was not.
    pending: Pending | None = field(default=None, metadata=in_json("promotion", _pending))
    #: The fork because of which this broker neither leads nor follows; None if there is none.
    fork: Fork | None = field(default=None, metadata=in_json("fork", _fork))
    #: Leading lives (`Epoch.by`) of other logs that a promotion gave up: their followers may be cut.
    gave_up: tuple[str, ...] = field(default=(), metadata=in_json("gaveUp", _names))
    unknown: Mapping[str, Json] = field(default_factory=dict)

    def crashed(self, end: int) -> bool:
        """Return whether the last leading life did not end cleanly, with its log ending at `end`.

        False for a store that did not lead last, and for one that an older version wrote: the store itself knows then.
        """
        if self.life is None:
            return False
        return self.clean_end != end or not self.epochs or self.epochs[-1].by != self.life

    @property
    def slaves(self) -> tuple[Member, ...]:
        """The members that may have copied the log of this leader."""
        return tuple(one for one in self.members if one.broker_id != 0)

    def begun(self, epochs: tuple[Epoch, ...], gives_up: tuple[str, ...] = ()) -> Leadership:
        """It leads: once more, with these epochs. The record of the last clean end is void."""
        life = epochs[-1].by
        assert life not in self.led_as
        # A file of an older version does not list its lives.
        before = self.led_as or tuple(one.by for one in self.epochs if one.member == self.member)
        number = max(self.number, epochs[-1].number)
        # It was promoted instead of waiting for them: they are not waited for after the next crash either.
        members = self.members if self.pending is None or self.pending.waits_as is None else ()
        return replace(
            self, lives=self.lives + 1, led_as=(*before, life)[-MAX_LIVES:], epochs=epochs, number=number,
            waits_as=None, life=life, clean_end=None, pending=None, members=members, master_end=0, fork=None,
            gave_up=tuple(dict.fromkeys((*self.gave_up, *gives_up)))[-MAX_LIVES:],
        )  # fmt: skip

    def ended_cleanly(self, end: int) -> Leadership:
        """The leading life was stopped, and everything below `end`, the end of its log, is synced."""
        assert self.life is not None
        return replace(self, clean_end=end)

    def adopted(
        self,
        epochs: tuple[Epoch, ...],
        number: int,
        master_role: str | None,
        master_end: int = 0,
        gave_up: tuple[str, ...] = (),
    ) -> Leadership:
        """It copies a log of these epochs and with this end."""
        return replace(
            self, epochs=epochs, number=max(self.number, number), master_role=master_role or self.master_role,
            master_end=master_end, life=None, clean_end=None, pending=None, fork=None, gave_up=gave_up,
        )  # fmt: skip

    def renamed(self, member: str) -> Leadership:
        """It is a copy of another store's directory, and not that store."""
        return replace(self, member=member, lives=0, led_as=(), life=None, clean_end=None)

    def promoted(self, number: int, role: str, *, now_ms: int, clock_ms: int) -> Leadership:
        """It is to lead under this number, and begins to within `BEGIN_MS`, or not at all."""
        assert number > self.number, f"epoch {number} has been"
        before = Pending(self.number, now_ms, clock_ms, self.role, self.broker_id, self.waits_as)
        return replace(self, number=number, role=role, broker_id=0, waits_as=None, pending=before)

    def not_promoted(self) -> Leadership:
        """The promotion is void: it is what it was before."""
        before = self.pending
        if before is None:
            return self
        return replace(
            self, number=before.number, role=before.role, broker_id=before.broker_id, waits_as=before.waits_as,
            pending=None,
        )  # fmt: skip

    def stood_down(self, number: int, broker_id: int) -> Leadership:
        """Return the state after another broker leads, with this epoch."""
        return replace(
            self, number=max(self.number, number), role="SLAVE", broker_id=broker_id, waits_as=None, life=None,
            clean_end=None, pending=None, fork=None,
        )  # fmt: skip

    def gave_way(self, number: int, broker_id: int) -> Leadership:
        """Another broker leads with this smaller number, and has more: epochs above it, without a byte, are dropped."""
        epochs = tuple(one for one in self.epochs if one.number <= number)
        down = self.stood_down(number, broker_id)
        return replace(down, number=number, epochs=epochs)

    def waiting(self, broker_id: int | None, fork: Fork | None = None) -> Leadership:
        """It does not lead before others have answered, or an operator has decided about `fork`.

        None: it need not wait any more.
        """
        return replace(self, waits_as=broker_id, fork=fork)

    def heard_of(self, members: Iterable[Member], *, replaces: bool = True) -> Leadership:
        """Add these members, or update their entries. An address has one member, and there is one master.

        Two stores with one broker id are both kept: each may have a copy of acknowledged messages. For the same reason
        a broker that does not lead yet keeps the entry of a store whose address another store has now, unless
        `replaces`.
        """
        known = list(self.members)
        for one in members:
            there = next((old for old in known if old.address == one.address), None)
            if there is not None and not one.member:  # the answer of an older broker: the id that was known stays
                one = replace(one, member=there.member)
            if one in known or (not replaces and there is not None and there.member not in ("", one.member)):
                continue
            known = [old for old in known if not _is_replaced(old, one)]
            known.append(one)
        return replace(self, members=tuple(known[-MAX_MEMBERS:]))

    def without(self, member: Member) -> Leadership:
        """That member is gone for good: it is neither asked nor waited for, and its log is no fork of ours."""
        is_forked = self.fork is not None and (
            self.fork.member == member.member if member.member else self.fork.address == member.address
        )
        members = tuple(one for one in self.members if one != member)
        return replace(self, members=members, fork=None if is_forked else self.fork)

    def succeeded_by(self, broker_id: int, member: str) -> Leadership:
        """This member has everything that was acknowledged: other stores with its broker id need not be waited for."""
        kept = tuple(one for one in self.members if one.broker_id != broker_id or one.member == member)
        return replace(self, members=kept)

    def has_room_for(self, member: Member) -> bool:
        """Return whether a member can be added without forgetting another one."""
        return len([old for old in self.members if not _is_replaced(old, member)]) < MAX_MEMBERS

    def to_json(self) -> JsonObject:
        told: JsonObject = {
            **self.unknown,
            "member": self.member,
            "lives": self.lives,
            "number": self.number,
            "epochs": [{"epoch": one.number, "startOffset": one.start, "by": one.by} for one in self.epochs],
            "role": self.role,
            "brokerId": self.broker_id,
            "masterRole": self.master_role,
            "masterEnd": self.master_end or None,
            "members": [to_json(one) for one in self.members],
            "waitsAs": self.waits_as,
            "ledAs": list(self.led_as),
            "life": self.life,
            "cleanEnd": self.clean_end,
            "promotion": None if self.pending is None else to_json(self.pending),
            "fork": None if self.fork is None else to_json(self.fork),
            "gaveUp": list(self.gave_up) or None,
        }
        return {key: value for key, value in told.items() if value is not None}


def _is_replaced(old: Member, new: Member) -> bool:
    """Return whether `old` is an earlier entry of the same broker."""
    if old.address == new.address or (old.member and old.member == new.member):
        return True
    are_two_stores = bool(old.member and new.member)
    return old.broker_id == new.broker_id and (new.broker_id == 0 or not are_two_stores)


def new_member() -> str:
    """A name that no other store has."""
    return secrets.token_hex(8)


def new_life() -> str:
    """A name that no other life of a store has, a copy of the store included."""
    return secrets.token_hex(8)


def _check(document: JsonObject) -> None:
    from_json(Leadership, document)


class LeadershipFile:
    """Read once at the start, when the store is locked; written before what it says is acted on."""

    def __init__(self, disk: Disk, directory: Path, new_member: Callable[[], str] = new_member) -> None:
        self._file = JsonFile(disk, directory / FILE, _check)
        self._new_member = new_member

    def load(self) -> Leadership:
        """A new one where there is none. Raises CorruptFile."""
        loaded = self._file.load()
        if loaded is None:
            return Leadership(self._new_member())
        if loaded.source is Source.PREVIOUS and self._file.problem() is not None:
            raise CorruptFile(
                f"{self._file.path} cannot be used: {self._file.problem()}. It says who leads; its previous copy "
                f"{self._file.previous.name} is good and may lack the last change. Compare it with the other brokers "
                "of this name (`pyromq broker status`): if they agree with it, copy it over the file, and start again"
            )
        return from_json(Leadership, loaded.value)

    def save(self, leadership: Leadership) -> None:
        """Returns when it is durable. Raises OSError."""
        self._file.save(leadership.to_json())
