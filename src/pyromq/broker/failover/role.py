"""This broker's role and its changes: the one place that reads and writes its leadership.

Every decision is on the disk before it is announced. A decision made by hand, or because another broker
leads, wins over the settings of the next start: `pyromq broker promote` is the way to change it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum, auto

from pyromq.broker.failover.leadership import BEGIN_MS, Fork, Leadership, LeadershipFile, Member, new_life, new_member
from pyromq.config import BrokerConfig
from pyromq.errors import NotNow
from pyromq.files.platform import what_to_do
from pyromq.replication.log_matching import Epoch, LogExtent, are_of_one_family, begin_epoch, chosen, has_our_tail
from pyromq.wire.bodies.epochs import BrokerEpochs, EpochEntry, KnownMember

log = logging.getLogger("pyromq.broker")

FIRST_NUMBER = 1
#: A number this much larger than the last one was not given by a promotion: it would leave none for the next.
MAX_JUMP = 1_000_000


#: The end of a master's log that no log reaches.
NO_FULL_COPY = 1 << 62


class Verdict(Enum):
    """The meaning of another broker's answer for a leader of the same name."""

    #: It leads with a later number, or has heard of one.
    STAND_DOWN = auto()
    #: It copied what our log has lost, or we have none at all: it is to lead.
    HAND_OVER = auto()
    #: It takes itself for the master, and it is undecidable which of the two is.
    TWIN = auto()
    #: It takes itself for the master, and was replaced by us.
    OUTRANKED = auto()
    NOTHING = auto()


def judge(number: int, ours: LogExtent, other: BrokerEpochs) -> Verdict:
    """Judge by epochs. A broker that shares no leader with us has another log, and our name by mistake.

    Of two who were promoted with one number the larger name leads: what matters is that both say the same.

    One that has nothing is no such stranger: it may be a machine whose disk was replaced. If another was promoted,
    it has to be a slave, whatever its settings say.
    """
    has_nothing = ours.is_empty and not ours.epochs
    is_related = are_of_one_family(ours.epochs, epochs_of(other))
    was_promoted = other.broker_id == 0 and other.newest > FIRST_NUMBER
    if other.newest > number and (is_related or (has_nothing and was_promoted)):
        return Verdict.STAND_DOWN
    if has_nothing and other.broker_id != 0 and other.end > other.start:
        return Verdict.HAND_OVER
    if other.newest > number:
        return Verdict.TWIN if other.broker_id == 0 else Verdict.NOTHING
    if other.broker_id == 0:
        return Verdict.OUTRANKED if other.newest < number else _of_one_number(number, ours.epochs, epochs_of(other))
    if other.newest == number and has_our_tail(ours, extent_of(other)):
        return Verdict.HAND_OVER
    return Verdict.NOTHING


def _of_one_number(number: int, ours: tuple[Epoch, ...], theirs: tuple[Epoch, ...]) -> Verdict:
    """Judge two masters: one that was not promoted leads by a mistake in its settings: an operator has to mend them."""
    our_choice, their_choice = chosen(ours), chosen(theirs)
    were_promoted = our_choice[0] == their_choice[0] == number > FIRST_NUMBER and our_choice[1] and their_choice[1]
    if not were_promoted or our_choice == their_choice or not are_of_one_family(ours, theirs):
        return Verdict.TWIN
    return Verdict.STAND_DOWN if their_choice > our_choice else Verdict.OUTRANKED


def forgotten_life(ours: LogExtent, leader: BrokerEpochs) -> Epoch | None:
    """Return the epoch of our log that `leader` led itself and does not know; None if there is none.

    The leader's store was restored from an older copy then: our bytes of that epoch may be acknowledged, and it has
    no record of them. A crash does not cause this: a leader writes down the name of a life before it leads.
    """
    if not leader.member or not leader.led_as:
        return None
    own = {*leader.led_as, *(one.by for one in leader.entries)}
    lives = (one for one in ours.epochs if one.member == leader.member and one.start < ours.end)
    return next((one for one in lives if one.by not in own), None)


def extent_of(told: BrokerEpochs) -> LogExtent:
    return LogExtent(told.start, max(told.end, told.start), epochs_of(told))


def epochs_of(told: BrokerEpochs) -> tuple[Epoch, ...]:
    return tuple(Epoch(one.number, one.start, one.by) for one in told.entries)


def free_id(taken: Iterable[int]) -> int:
    """Return the smallest slave id that is not taken."""
    used = set(taken)
    return next(number for number in range(1, len(used) + 2) if number not in used)


def why_it_is_held(fork: Fork) -> str:
    return (
        f"this broker neither leads nor follows: its log and that of {fork.address} are the same up to position "
        f"{fork.position}, and both were led from there on: this one has {fork.ours} bytes above it, that one had "
        f"{fork.theirs}. Nothing is accepted here and both logs are kept as they are. Decide which one to keep while "
        "both run: `pyromq broker promote --force ADDRESS` with the address of that broker; what the other one has "
        "above that position is moved to quarantine in its store"
    )


class Leading:
    """Made when the store is open: its lock is the file's too."""

    def __init__(self, file: LeadershipFile, given: BrokerConfig, new_life: Callable[[], str] = new_life) -> None:
        """Raises CorruptFile."""
        self._file = file
        self._new_life = new_life
        #: While it waits to lead: the address of a broker that leads its log with the same epoch; empty if none does.
        self.twin = ""
        #: The fork that it waits for, as it was seen last; None before that.
        self.fork_now: Fork | None = None
        #: Lives of other logs that the promotion gives up with which this broker is about to lead.
        self.gives_up: tuple[str, ...] = ()
        #: It leads, or follows a leader: other stores at known addresses are new members.
        self._is_settled = False
        self._given = given
        self.known: Leadership = file.load()
        self._say_what_wins()

    def _say_what_wins(self) -> None:
        kept, given = (self.known.role, self.known.broker_id), (self._given.role, self._given.broker_id)
        if self.known.role is not None and kept != given:
            log.warning(
                "this broker is %s with id %s, as was decided since its settings were written (they say %s with id "
                "%s): `pyromq broker promote` changes it", *kept, *given,
            )  # fmt: skip

    # --- what it is --------------------------------------------------------------------------------------------------

    @property
    def config(self) -> BrokerConfig:
        """The current role: the settings of the start, with later decisions. While it waits to lead it is a slave."""
        waits_as = self.known.waits_as
        return self.meant if waits_as is None else replace(self.meant, role="SLAVE", broker_id=waits_as)

    @property
    def waits(self) -> bool:
        """Is it to lead, and does not before others have answered?"""
        return self.known.waits_as is not None

    @property
    def why_it_waits(self) -> str:
        if self.known.fork is not None:
            return why_it_is_held(self.fork_now or self.known.fork)
        if self.twin:
            return (
                f"this broker does not lead: {self.twin} leads its log already, with the same epoch. One of the two "
                "stores is a copy of the other: stop that broker and this one leads, or go on without this one"
            )
        where = ", ".join(f"{one.address} (id {one.broker_id})" for one in self.known.slaves)
        return (
            "this broker does not lead yet: it was not stopped cleanly, and what it has acknowledged may be in the log "
            f"of a slave that does not answer, of {where}. Start that one; or, if it is gone for good, have this one "
            "lead without it (`pyromq broker promote`)"
        )

    @property
    def meant(self) -> BrokerConfig:
        """The intended role."""
        known = self.known
        if known.role is None or known.broker_id is None:
            return self._given
        return replace(self._given, role=known.role, broker_id=known.broker_id)

    @property
    def least_copies(self) -> int:
        """Copies of an acknowledged message in this group, the leader's own included, at the least."""
        return self._least_copies(
            self.meant.role if not self.meant.is_slave else self.known.master_role or "ASYNC_MASTER"
        )

    @property
    def copies_when_led(self) -> int:
        """Copies of a message that this broker acknowledged while it led, its own included, at the least."""
        return self._least_copies(self.role_if_promoted(None))

    def _least_copies(self, role: str) -> int:
        replication = self._given.replication
        copies = replication.copies_for(role)
        return min(copies, replication.min_in_sync) if replication.adapts else copies

    @property
    def was_decided(self) -> bool:
        """Is this broker something else than its settings say?"""
        return self.known.role is not None and (self.known.role == "SLAVE") != self._given.is_slave

    @property
    def number(self) -> int:
        return self.known.number

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        return self.known.epochs

    def extent(self, start: int, end: int) -> LogExtent:
        return LogExtent(start, end, self.known.epochs)

    def describe(self, start: int, end: int, address: str, ha_address: str) -> BrokerEpochs:
        """Return the answer to a question for epochs. An epoch that begins after the end of the log is empty."""
        config, log_now = self.config, self.extent(start, end)
        return BrokerEpochs(
            cluster=config.cluster, name=config.name, broker_id=config.broker_id, start=start, end=end,
            entries=tuple(
                EpochEntry(one.number, one.start, log_now.end_of(index), one.by)
                for index, one in enumerate(self.known.epochs)
            ),
            number=self.known.number, member=self.known.member, role=config.role, address=address,
            ha_address=ha_address, led_as=self.known.led_as, gave_up=self.known.gave_up,
            held_for="" if self.known.fork is None else self.known.fork.member,
            members=tuple(
                KnownMember(one.address, one.broker_id, one.ha_address, one.member) for one in self.known.members
            ),
        )  # fmt: skip

    @property
    def master(self) -> Member | None:
        """The last known addresses of the master; None if it is unknown."""
        return next((one for one in self.known.members if one.broker_id == 0), None)

    # --- how that changes --------------------------------------------------------------------------------------------

    def begin(self, start: int, end: int) -> None:
        """It leads from here on, in a life with a random name. Raises OSError.

        A counter would not do: a store that was restored from a disk snapshot would lead under the name of a life
        that led other bytes, and two different logs would count as one.
        """
        known = self.known
        number = max(known.number, FIRST_NUMBER)
        epochs = begin_epoch(self.extent(start, end), number, f"{known.member}.{self._new_life()}")
        self._become(known.begun(epochs, self.gives_up))
        self._is_settled = True

    def has_crashed(self, end: int) -> bool:
        """Return whether its last leading life ended without a clean stop, with the log ending at `end` now."""
        return self.known.crashed(end)

    def end_cleanly(self, end: int) -> None:
        """Record that the leading life was stopped, with everything below `end` synced. Raises OSError."""
        if not self.config.is_slave and self.known.life is not None:
            self._become(self.known.ended_cleanly(end))

    def adopt(self, primary: BrokerEpochs | None) -> None:
        """It copies this one's log from now on; None: one that knows nothing of epochs. Raises OSError."""
        known = self.known
        if primary is None:
            known = known.adopted((), 0, None)
        else:
            if primary.member and primary.member == known.member:
                known = known.renamed(new_member())
            role = primary.role or None
            known = known.adopted(epochs_of(primary), primary.newest, role, primary.end, primary.gave_up)
        self._become(known)
        self._is_settled = True

    def promote(self, number: int, role: str, *, now_ms: int = 0, clock_ms: int = 0) -> None:
        """It is to lead: with the next start, which has to come soon. Raises OSError."""
        self._become(self.known.promoted(number, role, now_ms=now_ms, clock_ms=clock_ms))

    def void_promotion(self, why: str) -> None:
        """It was promoted and does not lead: it is what it was before. Raises OSError."""
        log.error("this broker was to lead with epoch %d, and does not: %s", self.known.number, why)
        self._become(self.known.not_promoted())

    def void_late_promotion(self, *, now_ms: int, clock_ms: int, was_clean: bool) -> None:
        """Void a promotion that did not begin in time, or whose broker crashed before it began. Raises OSError.

        The others went on without this broker since: a log of then must not lead now.
        """
        pending = self.known.pending
        if pending is None:
            return
        if not was_clean:
            self.void_promotion("it crashed before it began; promote it again, or another broker")
        elif pending.is_void(now_ms, clock_ms):
            self.void_promotion(f"it did not begin within {BEGIN_MS / 1000:g} s; promote it again, or another broker")

    def stand_down(self, number: int, broker_id: int, master: Member | None) -> None:
        """Become a slave with the next start: another broker leads. Raises OSError."""
        known = self.known.stood_down(number, broker_id)
        self._become(known.heard_of([master]) if master is not None else known)

    def led_nothing_since(self, number: int, end: int) -> bool:
        """Return whether its last life began an epoch above `number` and left no byte in its log."""
        last = self.known.epochs[-1] if self.known.epochs else None
        is_own = last is not None and last.by == self.known.life
        return last is not None and is_own and last.number > number and last.start == end

    def note_epoch(self, number: int) -> None:
        """Follow no master of an earlier epoch from now on. Raises OSError."""
        self._become(replace(self.known, number=max(self.known.number, number)))

    def may_lack_reported(self) -> None:
        """A crash may have taken messages that this slave reported: it is no full copy until it has caught up again.

        Raises OSError.
        """
        self._become(replace(self.known, master_end=NO_FULL_COPY))

    def renumber(self, broker_id: int) -> None:
        """Make this slave one with another broker id, for good. Raises OSError."""
        log.warning(
            "the broker id %d is taken by another broker of this name: this slave has the id %d from now on",
            self.config.broker_id, broker_id,
        )  # fmt: skip
        self._become(self.known.stood_down(self.known.number, broker_id))

    def give_way(self, number: int, broker_id: int, leader: Member) -> None:
        """Its epochs above `number` have no byte: it follows the leader of that epoch. Raises OSError."""
        self._become(self.known.gave_way(number, broker_id).heard_of([leader]))

    def wait(self, broker_id: int) -> None:
        """It does not lead before others have answered: with the next start, too. Raises OSError."""
        self._become(self.known.waiting(broker_id))

    def hold(self, fork: Fork, broker_id: int) -> None:
        """It does not lead before an operator has decided about a fork: with the next start, too. Raises OSError."""
        self._become(self.known.waiting(broker_id, fork))

    def note_fork(self, fork: Fork) -> None:
        """Record that this broker does not follow the leader whose log is a fork of its own. Raises OSError."""
        if self.known.fork is None or fork.member != self.known.fork.member:
            self._become(replace(self.known, fork=fork))

    def wait_no_longer(self) -> None:
        """With the next start it leads. Raises OSError."""
        self._become(self.known.waiting(None))

    def take_back(self, before: Leadership) -> None:
        """Revert a decision that was not announced. Raises OSError."""
        self._become(before)

    def heard_of(self, members: Iterable[Member]) -> None:
        """Note the addresses of members. They are only a help: if the write fails, they are heard of again."""
        try:
            self._become(self.known.heard_of(members, replaces=self._is_settled))
        except OSError as error:
            log.warning("where the other brokers of this name are cannot be written down: %s", what_to_do(error))

    def learn_members(self, members: Iterable[Member]) -> None:
        """Take over the members that the leader knows, this broker left out. They are asked before it is promoted."""
        others = [one for one in members if one.member != self.known.member]
        try:
            self._become(replace(self.known, members=()).heard_of(others))
        except OSError as error:
            log.warning("the other brokers of this name cannot be written down: %s", what_to_do(error))

    def forget(self, member: Member) -> None:
        """It is gone for good. Raises OSError."""
        self._become(self.known.without(member))

    def write_follower(self, member: Member) -> None:
        """Write a follower down, before it counts for acknowledgements. Raises OSError, NotNow."""
        known = self.known
        if member in known.members:
            return
        if not known.has_room_for(member):
            raise NotNow(f"{len(known.members)} brokers of this name are known, and none is forgotten for another one")
        self._become(known.heard_of([member]))

    def follower_caught_up(self, broker_id: int, member: str) -> None:
        """Forget other stores with the broker id of a follower that has our whole log: it took their place."""
        try:
            self._become(self.known.succeeded_by(broker_id, member))
        except OSError as error:
            log.warning("that a slave took the place of another cannot be written down: %s", what_to_do(error))

    def _become(self, known: Leadership) -> None:
        if known != self.known:
            self._file.save(known)
            self.known = known

    def role_if_promoted(self, asked: str | None) -> str:
        """Return the role after a promotion: as asked, as in the settings, or that of the last master."""
        if asked:
            return asked
        return self._given.role if not self._given.is_slave else self.known.master_role or "ASYNC_MASTER"
