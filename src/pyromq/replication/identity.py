"""The identity of a follower: which broker a replication connection belongs to. No input or output.

Only a follower with an identity counts for acknowledgements. It has one if it proved the secret of its group, or if the
settings name it (`replication.members`). An identity is written to disk before the first report of its follower counts,
so that a primary that restarts after a crash knows every broker that may have what it lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyromq.errors import PyroMQError


class Refused(PyroMQError):
    """A follower is not served, and told why. `for_good`: connecting again does not help before people act."""

    def __init__(self, why: str, *, for_good: bool = False) -> None:
        super().__init__(why)
        self.for_good = for_good


class Identity(NamedTuple):
    """One broker."""

    #: The member id of its store; for a broker of Apache RocketMQ, which has none, `ID@HOST:PORT` from the settings.
    member: str
    broker_id: int
    #: The address of the broker itself, at which it is asked for the end of its log after a crash.
    address: str
    #: The address of its replication port if it led; empty if it is unknown.
    ha_address: str = ""
    #: New with every process: two processes with one member id are a store and its copy.
    process: str = ""
    #: It proved the secret of the group; else the settings vouch for its host alone.
    is_proved: bool = False

    def __str__(self) -> str:
        return f"{self.address} (id {self.broker_id}, member {self.member})"


class Connected(NamedTuple):
    """A follower that is served now."""

    name: str
    identity: Identity
    heard_ms: int


def displaced(new: Identity, connected: Iterable[Connected], heard_since_ms: int) -> list[str]:
    """Return the names of connections that `new` takes the place of.

    The same process that connects again takes the place of its older connection. Another broker with the same member
    id, broker id or address is refused while the older one is alive: both would count, and one would be forgotten.
    A broker that proved the secret is not kept out by an unproved connection in its place: any program on a host that
    the settings name can make one. Raises Refused.
    """
    gone = []
    for one in connected:
        old = one.identity
        if not (old.member == new.member or old.broker_id == new.broker_id or old.address == new.address):
            continue
        is_same_process = old.member == new.member and old.process == new.process
        if not is_same_process and not _outranks(new, old) and one.heard_ms >= heard_since_ms:
            raise Refused(_collision(new, old, one.name))
        gone.append(one.name)
    return gone


def _outranks(new: Identity, old: Identity) -> bool:
    """Return whether `old` took the place of `new` without a proof. The settings may have another name of its host."""
    is_its_place = new.broker_id == old.broker_id and new.address.rpartition(":")[2] == old.address.rpartition(":")[2]
    return new.is_proved and not old.is_proved and is_its_place


def _collision(new: Identity, old: Identity, name: str) -> str:
    if new.member == old.member:
        shared = f"the member id {new.member}"
        advice = "one store is a copy of the other; stop one, and remove config/leadership.json from the copy"
    elif new.broker_id == old.broker_id:
        shared, advice = f"the broker id {new.broker_id}", "give each slave an id of its own (brokerId)"
    else:
        shared, advice = f"the address {new.address}", "give each slave an address of its own (brokerIP1)"
    return f"the slave {new} has {shared}, and so has {old}, which is connected as {name}: {advice}"
