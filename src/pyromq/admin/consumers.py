"""Consumers: how far groups are, who is in them, and setting them back or forth.

A change of offsets is planned first (`plan_reset`), so that it can be shown, and then carried out as it was planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from pyromq.admin.directory import BrokerAddress, Directory, of_each, of_reachable
from pyromq.admin.reading import (
    by_queue,
    form_of,
    named,
    number_in,
    offset_or_none,
    real,
    several,
    version_name,
    whole,
    words,
)
from pyromq.errors import BadRequest, CallFailed, ConsumerOffline, NoPermission, NotFound, ServiceError
from pyromq.model.json_form import Json
from pyromq.model.queue import MessageQueue
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.admin import (
    CloneOffsets,
    GetAllProducers,
    GetConsumerConnections,
    GetConsumeStats,
    GetProducerConnections,
    GetRunningInfo,
    ResetOffset,
)
from pyromq.wire.requests.client import (
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    Request,
    SearchOffset,
    UpdateConsumerOffset,
)

#: Target of an offset reset: the oldest message, the end, a store time, or an offset.
Target = Literal["earliest", "latest"] | datetime | int


@dataclass(frozen=True, slots=True)
class QueueLag:
    """Offsets of a group in one queue."""

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    #: Messages that are not done, and those of them that a consumer has.
    lag: int
    in_flight: int
    #: Store time of the last consumed message; 0 if unknown.
    last_done_ms: int
    #: Client id of the queue's consumer, if it was asked for.
    client_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupLag:
    group: str
    queues: tuple[QueueLag, ...]
    out_per_second: float

    @property
    def lag(self) -> int:
        return sum(one.lag for one in self.queues)


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """A producer or a consumer, and the brokers that it is connected to."""

    client_id: str
    address: str
    language: str
    version: str
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Subscription:
    topic: str
    expression: str
    #: TAG or SQL92.
    kind: str


@dataclass(frozen=True, slots=True)
class Members:
    group: str
    clients: tuple[ConnectedClient, ...]
    subscriptions: tuple[Subscription, ...]
    consume_type: str
    message_model: str
    consume_from: str


@dataclass(frozen=True, slots=True)
class ClientQueue:
    """A queue in the hands of a client, by its own account."""

    queue: MessageQueue
    committed_offset: int
    cached_messages: int
    is_locked: bool
    is_paused: bool
    last_pull_ms: int
    last_consume_ms: int


@dataclass(frozen=True, slots=True)
class RunningInfo:
    """Settings and assigned queues that a consumer reports."""

    group: str
    client_id: str
    properties: Mapping[str, str]
    subscriptions: tuple[Subscription, ...]
    queues: tuple[ClientQueue, ...]
    stacks: str | None


@dataclass(frozen=True, slots=True)
class QueueMove:
    """A change of the offset in one queue. `before` is `None` if the group has no offset yet."""

    queue: MessageQueue
    before: int | None
    after: int

    @property
    def messages_again(self) -> int:
        """Number of messages that are delivered again; negative if messages are skipped."""
        return 0 if self.before is None else self.before - self.after


class Consumers:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    # --- how far -----------------------------------------------------------------------------------------------------

    async def lag(self, group: str, topic: str | None = None, *, with_clients: bool = False) -> GroupLag:
        """Return the offsets of a group in one topic, or in all topics that it consumes."""
        request = GetConsumeStats(group=group, topic=topic)
        told = await self._told(request)
        forms = [form_of(answer) for _, answer in told]
        queues = [_queue_lag(queue, one) for form in forms for queue, one in by_queue(form, "offsetTable")]
        rate = sum(real(form, "consumeTps") for form in forms)
        found = GroupLag(group, tuple(sorted(queues, key=lambda one: one.queue)), rate)
        return await self._with_clients(found) if with_clients else found

    async def _told(self, request: Request) -> list[tuple[BrokerAddress, Command]]:
        """Return the answers of masters, and of slaves of names without a master."""
        told = await of_reachable(await self._directory.readable(), lambda broker: self._or_none(broker, request))
        return [(broker, answer) for broker, answer in told if answer is not None]

    async def _or_none(self, broker: BrokerAddress, request: Request) -> Command | None:
        """An answer; None where the broker knows nothing of it."""
        try:
            return await self._directory.ask(broker.address, request)
        except NoPermission:
            raise
        except ServiceError:
            return None

    async def _with_clients(self, lag: GroupLag) -> GroupLag:
        """Ask the clients for their queues; skip those that do not answer."""
        try:
            members = await self.members(lag.group)
        except ConsumerOffline:
            return lag
        told = await of_each(members.clients, lambda one: self._running_or_none(lag.group, one.client_id))
        owners = {queue.queue: info.client_id for info in told if info is not None for queue in info.queues}
        return replace(lag, queues=tuple(replace(one, client_id=owners.get(one.queue)) for one in lag.queues))

    async def _running_or_none(self, group: str, client_id: str) -> RunningInfo | None:
        try:
            return await self.running_info(group, client_id)
        except (ServiceError, CallFailed):
            return None

    # --- who ---------------------------------------------------------------------------------------------------------

    async def members(self, group: str) -> Members:
        """Return the connected members. Raises ConsumerOffline if there are none."""
        told = await self._told(GetConsumerConnections(group=group))
        found = [(broker, form_of(answer)) for broker, answer in told]
        if not found:
            raise ConsumerOffline(f"no member of the group {group!r} is connected")
        clients = _clients([(broker.name, several(form, "connectionSet")) for broker, form in found])
        subscriptions = {
            words(one, "topic"): _subscription(one)
            for _, form in found
            for one in named(form, "subscriptionTable").values()
        }
        first = found[0][1]
        return Members(
            group,
            clients,
            tuple(subscriptions[topic] for topic in sorted(subscriptions)),
            words(first, "consumeType"),
            words(first, "messageModel"),
            words(first, "consumeFromWhere"),
        )

    async def running_info(self, group: str, client_id: str, *, with_stacks: bool = False) -> RunningInfo:
        """Settings and assigned queues that a consumer reports. Raises ConsumerOffline when no broker can ask it."""
        request = GetRunningInfo(group=group, client_id=client_id, with_stacks=with_stacks)
        for _, answer in await self._told(request):
            return _running_info(group, client_id, form_of(answer))
        raise ConsumerOffline(
            f"the client {client_id!r} of the group {group!r} does not answer: `pyromq consumer members {group}` shows "
            "who is connected"
        )

    async def producers(self, group: str | None = None) -> dict[str, tuple[ConnectedClient, ...]]:
        """Return the connected producers by group."""
        request: Request = GetAllProducers() if group is None else GetProducerConnections(group=group)
        found: dict[str, list[tuple[str, list[Json]]]] = {}
        for broker, answer in await self._told(request):
            form = form_of(answer)
            groups = {group: several(form, "connectionSet")} if group is not None else named(form, "data")
            for name, clients in groups.items():
                found.setdefault(name, []).append((broker.name, clients))
        listed = {name: _clients(on) for name, on in sorted(found.items())}
        return {name: clients for name, clients in listed.items() if clients}

    # --- moved -------------------------------------------------------------------------------------------------------

    async def plan_reset(
        self, group: str, topic: str, to: Target, *, broker: str | None = None, queue_id: int | None = None
    ) -> list[QueueMove]:
        """Return the present and the new offset of each queue. Raises TopicNotFound, BadRequest (unknown queue)."""
        route = await self._directory.route(topic)
        addresses = {one.name: one.address for one in await self._directory.masters_of(topic)}
        queues = [
            MessageQueue(topic, data.broker_name, number)
            for data in sorted(route.queues, key=lambda one: one.broker_name)
            if broker in (None, data.broker_name) and data.broker_name in addresses
            for number in range(data.read_queues)
            if queue_id in (None, number)
        ]
        if not queues:
            raise BadRequest(f"the topic {topic!r} has no such queue: `pyromq topic describe {topic}` shows them")
        return await of_each(queues, lambda queue: self._move(addresses[queue.broker_name], group, queue, to))

    async def _move(self, address: str, group: str, queue: MessageQueue, to: Target) -> QueueMove:
        smallest = await self._offset(address, GetMinOffset(topic=queue.topic, queue_id=queue.queue_id))
        largest = await self._offset(address, GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id))
        return QueueMove(
            queue,
            await self._done(address, group, queue),
            min(max(await self._wanted(address, queue, to, smallest, largest), smallest), largest),
        )

    async def _wanted(self, address: str, queue: MessageQueue, to: Target, smallest: int, largest: int) -> int:
        if to == "earliest":
            return smallest
        if to == "latest":
            return largest
        if isinstance(to, int):
            return to
        at_ms = int(to.timestamp() * 1000)
        request = SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=at_ms)
        return await self._offset(address, request)

    async def _offset(self, address: str, request: Request) -> int:
        return number_in(await self._directory.ask(address, request), "offset")

    async def _done(self, address: str, group: str, queue: MessageQueue) -> int | None:
        request = QueryConsumerOffset(group=group, topic=queue.topic, queue_id=queue.queue_id, zero_if_not_found=False)
        ok = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        return offset_or_none(await self._directory.ask(address, request, ok=ok))

    async def reset(
        self, group: str, topic: str, to: Target, *, broker: str | None = None, queue_id: int | None = None
    ) -> list[QueueMove]:
        """Set a group back or forth. Consumers at work go on from there with their next pull."""
        moves = await self.plan_reset(group, topic, to, broker=broker, queue_id=queue_id)
        await self.carry_out(group, moves)
        return moves

    async def carry_out(self, group: str, moves: Sequence[QueueMove]) -> None:
        """Apply a plan. Raises GroupNotFound."""
        masters = await self._directory.masters_called({move.queue.broker_name for move in moves})
        for move in moves:
            await self._set(masters[move.queue.broker_name].address, group, move)

    async def _set(self, address: str, group: str, move: QueueMove) -> None:
        queue = move.queue
        request = ResetOffset(
            group=group, topic=queue.topic, queue_id=queue.queue_id, offset=move.after, timestamp_ms=0, force=True
        )
        try:
            await self._directory.ask(address, request)
        except ConsumerOffline:  # the broker leaves the reset to the consumers, and none is connected
            commit = UpdateConsumerOffset(group=group, topic=queue.topic, queue_id=queue.queue_id, offset=move.after)
            await self._directory.ask(address, commit)

    async def clone(self, source: str, target: str, topic: str) -> list[QueueMove]:
        """Copy the offsets of `source` to `target`."""
        moves = await self.plan_clone(source, target, topic)
        request = CloneOffsets(source=source, target=target, topic=topic, offline=True)
        await of_each(
            await self._directory.masters_of(topic), lambda broker: self._directory.ask(broker.address, request)
        )
        return moves

    async def plan_clone(self, source: str, target: str, topic: str) -> list[QueueMove]:
        """Raises NotFound when the group it shall be cloned from has no offsets in the topic."""
        there = {one.queue: one for one in (await self.plan_reset(source, topic, "latest"))}
        here = {one.queue: one for one in (await self.plan_reset(target, topic, "latest"))}
        moves = [
            QueueMove(queue, here[queue].before, one.before) for queue, one in there.items() if one.before is not None
        ]
        if not moves:
            raise NotFound(f"the group {source!r} has no offsets in {topic!r}: there is nothing to clone")
        return moves


# --- answers ---------------------------------------------------------------------------------------------------------


def _queue_lag(queue: MessageQueue, form: Json) -> QueueLag:
    broker_offset, consumer_offset = whole(form, "brokerOffset"), whole(form, "consumerOffset")
    return QueueLag(
        queue,
        broker_offset,
        consumer_offset,
        max(broker_offset - max(consumer_offset, 0), 0),
        max(whole(form, "pullOffset") - consumer_offset, 0),
        whole(form, "lastTimestamp"),
    )


def _clients(on: Sequence[tuple[str, list[Json]]]) -> tuple[ConnectedClient, ...]:
    """Each client once, whichever brokers it is connected to."""
    found: dict[str, ConnectedClient] = {}
    for broker, connections in on:
        for one in connections:
            client_id = words(one, "clientId")
            known = found.get(client_id)
            found[client_id] = ConnectedClient(
                client_id,
                words(one, "clientAddr") or words(one, "remoteIP"),
                words(one, "language"),
                version_name(whole(one, "version")),
                (*(known.brokers if known else ()), broker),
            )
    return tuple(found[client_id] for client_id in sorted(found))


def _subscription(form: Json) -> Subscription:
    return Subscription(words(form, "topic"), words(form, "subString"), words(form, "expressionType") or "TAG")


def _running_info(group: str, client_id: str, form: Mapping[str, Json]) -> RunningInfo:
    whole_form = dict(form)
    queues = sorted(
        (_client_queue(queue, one) for queue, one in by_queue(whole_form, "mqTable")), key=lambda one: one.queue
    )
    return RunningInfo(
        group,
        client_id,
        {str(name): str(value) for name, value in sorted(named(whole_form, "properties").items())},
        tuple(_subscription(one) for one in several(whole_form, "subscriptionSet")),
        tuple(queues),
        words(whole_form, "jstack") or None,
    )


def _client_queue(queue: MessageQueue, form: Json) -> ClientQueue:
    return ClientQueue(
        queue,
        whole(form, "commitOffset"),
        whole(form, "cachedMsgCount"),
        bool(form.get("locked")),
        bool(form.get("paused") or form.get("droped")),
        whole(form, "lastPullTimestamp"),
        whole(form, "lastConsumeTimestamp"),
    )
