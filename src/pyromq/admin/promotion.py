"""Choice of the slave to promote and the possible loss, from the states of the brokers of one name. Pure.

While the master lives it hands over, and nothing is missing. When it is gone, the slave with the best log is the one
to lead: the newest epoch, and in it the longest log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pyromq.admin.brokers import BrokerStatus
from pyromq.admin.copies import Copying
from pyromq.errors import NotFound, NotNow, NotSupported
from pyromq.wire.bodies.epochs import BrokerEpochs

MASTER = 0


@dataclass(frozen=True, slots=True)
class Member:
    """One broker of a name: how it is doing, and which epochs its log knows, if it tells."""

    status: BrokerStatus
    epochs: BrokerEpochs = field(default_factory=BrokerEpochs)

    @property
    def address(self) -> str:
        return self.status.address

    @property
    def is_alive(self) -> bool:
        return self.status.problem is None

    @property
    def is_master(self) -> bool:
        return self.status.broker_id == MASTER

    @property
    def copying(self) -> Copying:
        return self.status.copying or Copying("")

    @property
    def standing(self) -> tuple[int, int]:
        """An epoch that begins behind the end of the log, which a crash has shortened, says nothing for it."""
        reached = (one.number for one in self.epochs.entries if one.start <= self.copying.end)
        return max(reached, default=0), self.copying.end

    @property
    def newest(self) -> int:
        return max(self.epochs.newest, self.copying.epoch)

    def __str__(self) -> str:
        return f"{'the master' if self.is_master else f'slave {self.status.broker_id}'} at {self.address}"


@dataclass(frozen=True, slots=True)
class Promotion:
    """The broker to promote."""

    name: str
    slave: Member
    #: As a name server knows it, whether it answers or not.
    master: Member | None
    #: The other slaves.
    others: tuple[Member, ...]
    #: Two logs were led separately, and a broker waits for a decision: the log of `slave`, which may lead, is kept.
    is_fork: bool = False

    @property
    def is_hand_over(self) -> bool:
        """The master lives: it gives what it has and steps back."""
        return self.master is not None and self.master.is_alive and not self.is_fork

    @property
    def epoch(self) -> int:
        """Epoch of the new master: larger than all known epochs."""
        known = (self.slave, *self.others, *([] if self.master is None else [self.master]))
        return 1 + max(one.newest for one in known)

    @property
    def followers(self) -> int:
        """Number of brokers that will follow the new master."""
        return len(self.others) - len(self.silent) + self.is_hand_over

    @property
    def better(self) -> tuple[Member, ...]:
        """Brokers whose log has more acknowledged messages. Irrelevant while the master runs."""
        if self.is_hand_over or self.is_fork:
            return ()
        return tuple(one for one in self.others if one.is_alive and one.standing > self.slave.standing)

    @property
    def silent(self) -> tuple[Member, ...]:
        return tuple(one for one in self.others if not one.is_alive)


def choose(members: Sequence[Member], *, broker_id: int | None = None, address: str | None = None) -> Promotion:
    """The slave that is named by its id or address, else the best. Raises NotFound, NotNow, NotSupported."""
    name = members[0].status.name
    master = next((one for one in members if one.is_master), None)
    slaves = [one for one in members if not one.is_master]
    is_fork = any(one.epochs.held_for for one in members)
    if is_fork:
        return _keep(members, broker_id, address)
    if broker_id == MASTER or (master is not None and address == master.address):
        raise NotNow(f"{name!r}: {master or 'number 0'} is the master already: nothing was done")
    if not slaves:
        raise NotFound(
            f"{name!r} has no slave that a name server knows: there is nobody to promote; `pyromq broker --role slave` "
            f"starts one, `pyromq cluster` shows it when it is there"
        )
    chosen = _named(slaves, name, broker_id, address) if broker_id is not None or address else _best(slaves, name)
    promotion = Promotion(name, chosen, master, tuple(one for one in slaves if one is not chosen))
    _refuse_impossible(promotion)
    return promotion


def _keep(members: Sequence[Member], broker_id: int | None, address: str | None) -> Promotion:
    """Return the promotion of the broker whose log is kept; the logs of the others are forks of it."""
    name = members[0].status.name
    if broker_id is None and address is None:
        known = " or ".join(one.address for one in members)
        raise NotNow(
            f"the logs of {name!r} were led separately, and one is to be given up (`pyromq cluster` says which bytes): "
            f"name the broker whose log is kept by its address, {known}"
        )
    kept = _named(members, name, broker_id, address)
    if not kept.is_alive:
        raise NotNow(f"{kept} of {name!r} does not answer: {kept.status.problem}")
    others = tuple(one for one in members if one is not kept and not one.is_master)
    master = next((one for one in members if one.is_master and one is not kept), None)
    return Promotion(name, kept, master, others, is_fork=True)


def _named(slaves: Iterable[Member], name: str, broker_id: int | None, address: str | None) -> Member:
    for one in slaves:
        if broker_id in (None, one.status.broker_id) and address in (None, one.address):
            return one
    known = ", ".join(map(str, slaves))
    wanted = " ".join(["slave", *([] if broker_id is None else [str(broker_id)]), *([f"at {address}"] * bool(address))])
    raise NotFound(f"{name!r} has no {wanted}: there is {known}")


def _best(slaves: Sequence[Member], name: str) -> Member:
    alive = [one for one in slaves if one.is_alive]
    if not alive:
        raise NotNow(f"no slave of {name!r} answers: {slaves[0].status.problem}")
    return max(alive, key=lambda one: (one.standing, -one.status.broker_id))


def _refuse_impossible(promotion: Promotion) -> None:
    slave = promotion.slave
    if not slave.is_alive:
        raise NotNow(f"{slave} of {promotion.name!r} does not answer: {slave.status.problem}")
    if slave.status.copying is None:
        raise NotSupported(
            f"{slave} of {promotion.name!r} is no PyroMQ, or an old one, and cannot be told to lead: stop it, change "
            "its brokerRole and brokerId, and start it again"
        )
    if not slave.copying.is_slave:
        raise NotNow(f"{slave} of {promotion.name!r} leads already, and registers so in a moment: look again")
    if promotion.is_hand_over and not slave.copying.is_connected:
        why = f" ({slave.copying.problem})" if slave.copying.problem else ""
        raise NotNow(
            f"{slave} of {promotion.name!r} does not copy its master now{why}, and the master lives: bring the copy "
            "back first, or stop the master if you want to do without what the slave lacks"
        )


# --- for people ------------------------------------------------------------------------------------------------------


def what_may_be_missing(promotion: Promotion) -> list[str]:
    """Sentences, the most important first."""
    if promotion.is_hand_over:
        return [_handed_over(promotion)]
    if promotion.is_fork:
        return [_forked(promotion)]
    slave = promotion.slave
    told = [_gone(promotion), _has(slave)]
    if slave.copying.is_connected:
        told.insert(1, f"{_capital(slave)} is still connected with it: it lives, or has gone only just now.")
    told += [f"{one} has a better log ({_log(one)}): what it has more would be put aside." for one in promotion.better]
    told += [f"{one} does not answer, and may have more." for one in promotion.silent]
    return told


def _handed_over(promotion: Promotion) -> str:
    lag = promotion.slave.copying.lag_bytes
    behind = f"; the slave lacks {lag:,} bytes, and gets them first" if lag else ""
    return f"{_capital(promotion.master)} lives and hands over: nothing will be missing{behind}."


def _forked(promotion: Promotion) -> str:
    others = [one for one in (promotion.master, *promotion.others) if one is not None]
    given_up = " and ".join(f"{one} ({_log(one)})" for one in others)
    return (
        f"The log of {promotion.slave} ({_log(promotion.slave)}) is kept. What {given_up} has above the position where "
        "the logs part is moved to quarantine in its own store, acknowledged messages too."
    )


def _gone(promotion: Promotion) -> str:
    if promotion.master is None:
        return "No name server that answers knows a master: it is taken for gone."
    return (
        f"{_capital(promotion.master)} does not answer: if it lives all the same, what it takes from now on is put "
        "aside when it comes back."
    )


def _has(slave: Member) -> str:
    copying = slave.copying
    missing = copying.master_end - copying.end
    if not copying.master_end or copying.lag_ms == 0:
        known = "what its master had beyond that is not known here"
    elif missing > 0:
        known = f"its master had at least {missing:,} bytes more"
    else:
        known = "it had all that its master had sent"
    since = f" {_span(copying.lag_ms)} ago" if copying.lag_ms else ""
    return (
        f"{_capital(slave)} has {_log(slave)}; {known}{since}. What the master took after that is missing, unless it "
        "waited for this slave (sync master)."
    )


def _log(member: Member) -> str:
    epoch, end = member.standing
    return f"the log up to byte {end:,} in epoch {epoch}"


def _capital(member: Member | None) -> str:
    return str(member)[0].upper() + str(member)[1:]


def _span(ms: int) -> str:
    seconds = ms / 1000
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
