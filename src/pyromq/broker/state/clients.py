"""The connected clients: producers and consumers by group, from their heartbeats. Pure: time is handed in.

A member is a connection. It stays until it says goodbye, its connection ends, or it was not heard for too long. A
client that connected again may have two for a while: it counts once. What changed for which group is returned, so that
the caller tells the members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pyromq.errors import BadRequest
from pyromq.filters.subscription import Subscription
from pyromq.net.peer import Peer

#: The subscriptions of a member: topic, kind and expression of each.
Wish = frozenset[tuple[str, str, str]]
Counted = TypeVar("Counted")

BROADCASTING = "BROADCASTING"
#: Limits of the groups and subscriptions of one connection, which take memory: far above any real use.
MAX_GROUPS = 1024
MAX_WANTED_CHARS = 1 << 20
#: The memory of a subscription besides its texts.
_AROUND_TEXTS = 128


@dataclass(slots=True)
class Member:
    """One client process in one group."""

    peer: Peer
    client_id: str
    language: str
    version: int
    last_seen_ms: int


def newest(members: Mapping[Peer, Member]) -> Member | None:
    """The member that was heard last; one whose connection is open comes before any that is not."""
    return max(members.values(), key=lambda one: (one.peer.is_open, one.last_seen_ms), default=None)


@dataclass(slots=True)
class ConsumerGroup:
    """The consumers of a group, and what they subscribe to."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from: str = "CONSUME_FROM_LAST_OFFSET"
    members: dict[Peer, Member] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    changed_ms: int = 0
    #: The version of these subscriptions at the client that sent them; 0 if it has none, None if no client sent any.
    fingerprint: int | None = None
    wishes: dict[Peer, Wish] = field(default_factory=dict)
    _wish_counts: Counter[Wish] = field(default_factory=Counter)
    #: Each client with the number of its connections.
    _clients: Counter[str] = field(default_factory=Counter)

    @property
    def is_broadcast(self) -> bool:
        return self.message_model == BROADCASTING

    @property
    def disagrees(self) -> bool:
        """Do members subscribe to different things? Then each of them gets messages that only another one wanted."""
        return len(self._wish_counts) > 1

    def client_ids(self) -> list[str]:
        """Each client once, however many connections it has."""
        return list(self._clients)

    def find(self, client_id: str) -> Member | None:
        return newest({peer: one for peer, one in self.members.items() if one.client_id == client_id})

    def put(self, member: Member) -> bool:
        """Note a member; True when the group has other clients than before."""
        known = self.members.get(member.peer)
        self.members[member.peer] = member
        if known is not None and known.client_id == member.client_id:
            return False
        lost = known is not None and _count_down(self._clients, known.client_id)
        self._clients[member.client_id] += 1
        return lost or self._clients[member.client_id] == 1

    def take(self, peer: Peer) -> bool:
        """Forget a member; True when that was the last connection of its client."""
        self.wish(peer, None)
        member = self.members.pop(peer, None)
        return member is not None and _count_down(self._clients, member.client_id)

    def wish(self, peer: Peer, wish: Wish | None) -> None:
        """Set a member's subscriptions; None removes them."""
        before = self.wishes.pop(peer, None)
        if before is not None:
            _count_down(self._wish_counts, before)
        if wish is not None:
            self.wishes[peer] = wish
            self._wish_counts[wish] += 1


def _count_down(counts: Counter[Counted], one: Counted) -> bool:
    """True when that was the last."""
    counts[one] -= 1
    if counts[one]:
        return False
    del counts[one]
    return True


@dataclass(frozen=True, slots=True)
class ConsumerSeen:
    """One consumer group of one heartbeat. No subscriptions: the known ones stay."""

    group: str
    consume_type: str
    message_model: str
    consume_from: str
    subscriptions: Mapping[str, Subscription] | None
    fingerprint: int = 0


@dataclass(slots=True)
class _Belonging:
    """The groups of a connection, each with the size of what it wants there."""

    sizes: dict[str, int] = field(default_factory=dict)
    total: int = 0


class _GroupsOfPeer:
    """In which groups a connection is: its end must not cost a look at every group."""

    def __init__(self) -> None:
        self._groups: dict[Peer, _Belonging] = {}

    def add(self, peer: Peer, group: str, size: int | None = None) -> None:
        """Raises BadRequest when it is in very many, or wants very much. No size: that stays what it was."""
        of_peer = self._groups.get(peer) or _Belonging()
        before = of_peer.sizes.get(group)
        if before is None and len(of_peer.sizes) >= MAX_GROUPS:
            raise BadRequest(f"{peer.address} is in {MAX_GROUPS} groups, and cannot be in {group[:80]!r} as well")
        more = 0 if size is None else size - (before or 0)
        if more > 0 and of_peer.total + more > MAX_WANTED_CHARS:
            raise BadRequest(f"{peer.address} subscribes to more than {MAX_WANTED_CHARS} characters in all")
        of_peer.sizes[group] = (before or 0) + more
        of_peer.total += more
        self._groups[peer] = of_peer

    def discard(self, peer: Peer, group: str) -> None:
        of_peer = self._groups.get(peer)
        if of_peer is not None:
            of_peer.total -= of_peer.sizes.pop(group, 0)
            if not of_peer.sizes:
                del self._groups[peer]

    def of(self, peer: Peer) -> list[str]:
        of_peer = self._groups.get(peer)
        return [] if of_peer is None else sorted(of_peer.sizes)


class Producers:
    """Producers by group. A transaction is checked back with any of them."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Peer, Member]] = {}
        self._of_peer = _GroupsOfPeer()
        self._clients: dict[str, dict[Peer, Member]] = {}

    def seen(self, group: str, member: Member) -> None:
        """A heartbeat. Raises BadRequest when the client is in too many groups."""
        self._of_peer.add(member.peer, group)
        known = self._groups.setdefault(group, {}).get(member.peer)
        if known is not None and known.client_id != member.client_id:
            self._forget_client(known)
        self._groups[group][member.peer] = member
        self._clients.setdefault(member.client_id, {})[member.peer] = member

    def members(self, group: str) -> list[Member]:
        return list(self._groups.get(group, {}).values())

    def groups(self) -> Mapping[str, Mapping[Peer, Member]]:
        return self._groups

    def find_client(self, client_id: str) -> Member | None:
        """The newest connection of a client, in whichever group."""
        return newest(self._clients.get(client_id, {}))

    def left(self, group: str, peer: Peer) -> None:
        members = self._groups.get(group, {})
        member = members.pop(peer, None)
        if member is None:
            return
        if not members:
            del self._groups[group]
        self._of_peer.discard(peer, group)
        if not self._of_peer.of(peer):
            self._forget_client(member)

    def disconnected(self, peer: Peer) -> None:
        for group in self._of_peer.of(peer):
            self.left(group, peer)

    def expire(self, before_ms: int) -> list[Member]:
        """Forget those not heard since then; who they were."""
        late = [
            (group, member)
            for group, members in self._groups.items()
            for member in members.values()
            if member.last_seen_ms < before_ms
        ]
        for group, member in late:
            self.left(group, member.peer)
        return [member for _, member in late]

    def _forget_client(self, member: Member) -> None:
        connections = self._clients.get(member.client_id, {})
        connections.pop(member.peer, None)
        if not connections:
            self._clients.pop(member.client_id, None)


class Consumers:
    """Consumers by group."""

    def __init__(self) -> None:
        self._groups: dict[str, ConsumerGroup] = {}
        self._of_peer = _GroupsOfPeer()
        #: Grows when subscriptions change: conclusions from the old ones no longer hold.
        self.changes = 0

    def __iter__(self) -> Iterator[ConsumerGroup]:
        return iter(list(self._groups.values()))

    def get(self, group: str) -> ConsumerGroup | None:
        return self._groups.get(group)

    def seen(self, what: ConsumerSeen, member: Member, now_ms: int) -> bool:
        """A heartbeat. True: members or subscriptions changed, and the group should know.

        Raises BadRequest when the client is in too many groups, or wants too much.
        """
        self._of_peer.add(member.peer, what.group, None if what.subscriptions is None else _size(what.subscriptions))
        group = self._groups.get(what.group)
        if group is None:
            group = self._groups[what.group] = ConsumerGroup(what.group)
        joined = group.put(member)
        before = group.message_model, dict(group.subscriptions)
        group.consume_type, group.message_model = what.consume_type, what.message_model
        group.consume_from = what.consume_from
        changed = False
        if what.subscriptions is not None:
            changed = _merge(group, what.subscriptions)
            group.fingerprint = what.fingerprint
            group.wish(member.peer, _wish(what.subscriptions))
        if joined or changed:
            group.changed_ms = now_ms
        if (group.message_model, group.subscriptions) != before:
            self.changes += 1
        return joined or changed

    def left(self, group_name: str, peer: Peer) -> bool:
        """True when the group lost a client by this, and others should know that it is gone."""
        group = self._groups.get(group_name)
        if group is None:
            return False
        is_gone = group.take(peer)
        self._of_peer.discard(peer, group_name)
        if not group.members:
            del self._groups[group_name]
            self.changes += 1
        return is_gone

    def disconnected(self, peer: Peer) -> list[str]:
        """The groups that lost a client."""
        return [group for group in self._of_peer.of(peer) if self.left(group, peer)]

    def expire(self, before_ms: int) -> list[tuple[str, Member]]:
        """Forget those not heard since then; who they were."""
        late = [
            (group.name, member)
            for group in self
            for member in group.members.values()
            if member.last_seen_ms < before_ms
        ]
        for name, member in late:
            self.left(name, member.peer)
        return late

    def groups_of_topic(self, topic: str) -> set[str]:
        return {group.name for group in self if topic in group.subscriptions}


def _size(subscriptions: Mapping[str, Subscription]) -> int:
    return sum(len(one.topic) + len(one.expression) + _AROUND_TEXTS for one in subscriptions.values())


def _wish(subscriptions: Mapping[str, Subscription]) -> Wish:
    return frozenset((one.topic, one.kind, one.expression) for one in subscriptions.values())


def _merge(group: ConsumerGroup, wanted: Mapping[str, Subscription]) -> bool:
    """Take over newer subscriptions, drop topics that are not named any more; True when the set of topics changed.

    The last one to speak is believed, as in RocketMQ: the members of a group are meant to want the same.
    """
    before = set(group.subscriptions)
    for topic, subscription in wanted.items():
        known = group.subscriptions.get(topic)
        if known is None or subscription.version > known.version:
            group.subscriptions[topic] = subscription
    for topic in before - wanted.keys():
        del group.subscriptions[topic]
    return set(group.subscriptions) != before
