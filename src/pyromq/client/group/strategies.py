"""Strategies that share the queues of a topic among the members of a group. Pure.

Every member computes the result itself, from the same two sorted lists, so a strategy depends on nothing else:
members that see the same lists agree on the owner of every queue. `average`, `circle`, `machine_room`
and `consistent_hash` give exactly what RocketMQ's Java client gives, and Java and Python members may share a group.

    PushConsumer("localhost:9876", group="mailer", strategy=strategies.circle)
    PushConsumer("localhost:9876", group="mailer", strategy=strategies.nearby(zone_of_queue, zone_of_member))
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import blake2b, md5
from typing import TypeVar

from pyromq.errors import ConfigError
from pyromq.model.queue import MessageQueue

T = TypeVar("T")

#: Client id, all members of the group, all queues of the topic, both in `java_order`: the queues of this client.
Strategy = Callable[[str, Sequence[str], Sequence[MessageQueue]], list[MessageQueue]]

#: Places of each member on the ring of `consistent_hash`.
PLACES = 10


def java_order(texts: Iterable[str]) -> list[str]:
    """Sorted as Java sorts text: by UTF-16 units."""
    return sorted(texts, key=lambda text: text.encode("utf-16-be", "surrogatepass"))


def average(client_id: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Neighbouring queues in equal parts; the first members have one more when it does not come out even."""
    if client_id not in members:
        return []
    index = members.index(client_id)
    each, rest = divmod(len(queues), len(members))
    start = index * each + min(index, rest)
    return list(queues[start : start + each + (index < rest)])


def circle(client_id: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Dealt out like cards, one to each member in turn: the queues of one broker are spread over all members."""
    if client_id not in members:
        return []
    return list(queues[members.index(client_id) :: len(members)])


#: The same by the name that most people know it by.
round_robin = circle


def consistent_hash(client_id: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """By place on a ring: a member that comes or goes moves its own queues only. The parts are not equal."""
    if client_id not in members:
        return []
    ring: dict[int, str] = {}
    for member in members:
        for place in range(PLACES):
            ring[_ring_place(f"{member}-{place}")] = member
    places = sorted(ring)
    return [queue for queue in queues if ring[_next_place(places, _ring_place(_java_name(queue)))] == client_id]


def _ring_place(key: str) -> int:
    return int.from_bytes(md5(key.encode("utf-8", "replace"), usedforsecurity=False).digest()[:4], "big")


def _next_place(places: Sequence[int], place: int) -> int:
    at = bisect_left(places, place)
    return places[at] if at < len(places) else places[0]


def _java_name(queue: MessageQueue) -> str:
    """Return the Java client's text form of a queue; it hashes this text."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def sticky(client_id: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """In equal parts, and few queues change hands when a member comes or goes.

    Each queue has an order of preference of its own among the members, and the strongest wishes are granted first until
    a member has its part. Who comes takes the place that is left to it; the others mostly keep what they have. Java
    members of the group know nothing of it: all members must be Python.
    """
    if client_id not in members:
        return []
    each, rest = divmod(len(queues), len(members))
    counts = dict.fromkeys(members, 0)
    owners: dict[MessageQueue, str] = {}
    wishes = sorted((_wish(member, queue), at, member) for member in members for at, queue in enumerate(queues))
    for _, at, member in wishes:
        if queues[at] in owners or counts[member] >= each + (rest > 0):
            continue
        if counts[member] == each:
            rest -= 1
        owners[queues[at]] = member
        counts[member] += 1
    return [queue for queue in queues if owners[queue] == client_id]


def _wish(member: str, queue: MessageQueue) -> bytes:
    key = f"{member}\n{queue.topic}\n{queue.broker_name}\n{queue.queue_id}"
    return blake2b(key.encode("utf-8", "replace"), digest_size=8).digest()


def machine_room(rooms: Collection[str]) -> Strategy:
    """Only queues of brokers in these rooms, whose names are `room@broker`; this group does not read the others."""
    wanted = frozenset(rooms)

    def share(client_id: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        if client_id not in members:
            return []
        near = [queue for queue in queues if _room(queue.broker_name) in wanted]
        index = members.index(client_id)
        each, rest = divmod(len(near), len(members))
        # The remainder follows the equal parts, and goes to the first members one by one.
        more = [near[len(members) * each + index]] if index < rest else []
        return near[index * each : (index + 1) * each] + more

    return share


def _room(broker_name: str) -> str | None:
    room, at, rest = broker_name.partition("@")
    return room if at and rest and "@" not in rest else None


def nearby(
    zone_of_queue: Callable[[MessageQueue], str], zone_of_member: Callable[[str], str], within: Strategy = average
) -> Strategy:
    """Queues of a zone go to members in the same zone; those of a zone without members are shared by all.

    Both functions must name a zone, and say the same in every member; else ConfigError when queues are shared out.
    """

    def share(client_id: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        if client_id not in members:
            return []
        inhabited = _by_zone(members, zone_of_member)
        mine = _zone(client_id, zone_of_member)
        by_zone = _by_zone(queues, zone_of_queue)
        shares = within(client_id, inhabited[mine], by_zone.pop(mine, []))
        for zone in java_order(by_zone):
            if zone not in inhabited:
                shares += within(client_id, members, by_zone[zone])
        return shares

    return share


def _zone(one: T, zone_of: Callable[[T], str]) -> str:
    zone = zone_of(one)
    if not zone:
        raise ConfigError(f"no zone is known for {one}: the strategy cannot tell whose it is", "strategy")
    return zone


def _by_zone(all_of_them: Iterable[T], zone_of: Callable[[T], str]) -> dict[str, list[T]]:
    zones: dict[str, list[T]] = {}
    for one in all_of_them:
        zones.setdefault(_zone(one, zone_of), []).append(one)
    return zones
