"""Clients over the network: who is connected, what they subscribe to, and questions that are handed on to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from pyromq.broker.state.clients import ConsumerGroup, Consumers, Member, Producers
from pyromq.broker.state.groups import Groups
from pyromq.broker.state.topics import Topics
from pyromq.config import BrokerConfig
from pyromq.errors import BadRequest, CallFailed, CallTimeout, ConsumerOffline, ServiceError
from pyromq.filters.subscription import Subscription
from pyromq.model.json_form import Json, JsonObject
from pyromq.net.peer import Peer
from pyromq.net.service import Handler
from pyromq.records.message_id import decode_message_id
from pyromq.store.message_store import MessageStore
from pyromq.wire.bodies.connections import (
    ClientConnection,
    ConsumerConnections,
    encode_all_producers,
    encode_producer_connections,
    encode_subscription,
    subscription_json,
)
from pyromq.wire.bodies.offsets import decode_client_status, encode_consumer_status
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests import admin as ask
from pyromq.wire.requests.client import Request
from pyromq.wire.responses import Response

log = logging.getLogger("pyromq.broker")

#: The timeout of a client for a forwarded request; consuming a message takes its time.
ANSWER_SECONDS = 10.0
STATUS_SECONDS = 5.0


class ClientAdmin:
    """Handles the requests of admin tools about producers and consumers."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        topics: Topics,
        groups: Groups,
        producers: Producers,
        consumers: Consumers,
        store: MessageStore,
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._producers = producers
        self._consumers = consumers
        self._store = store

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {
            ask.GetConsumerConnections: self.consumer_connections,
            ask.GetProducerConnections: self.producer_connections,
            ask.GetAllProducers: self.all_producers,
            ask.QuerySubscription: self.subscription,
            ask.GetRunningInfo: self.running_info,
            ask.ConsumeDirectly: self.consume_directly,
            ask.GetConsumerStatus: self.consumer_status,
        }

    # --- who is there ------------------------------------------------------------------------------------------------

    def consumer_connections(self, request: ask.GetConsumerConnections, peer: Peer) -> Response:
        group = self._consumers.get(request.group)
        if group is None:
            raise ConsumerOffline(f"the consumer group[{request.group}] not online: none of its members is connected")
        told = ConsumerConnections(
            connections=_connections(_clients(group)),
            subscriptions={topic: _form(subscription) for topic, subscription in group.subscriptions.items()},
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from=group.consume_from,
        )
        return Response(body=told.encode())

    def producer_connections(self, request: ask.GetProducerConnections, peer: Peer) -> Response:
        members = self._producers.members(request.group)
        if not members:
            raise ServiceError(f"the producer group[{request.group}] not exist: no producer of it is connected")
        return Response(body=encode_producer_connections(_connections(members)))

    def all_producers(self, request: ask.GetAllProducers, peer: Peer) -> Response:
        groups = {group: _connections(members.values()) for group, members in self._producers.groups().items()}
        return Response(body=encode_all_producers(groups))

    def subscription(self, request: ask.QuerySubscription, peer: Peer) -> Response:
        form = subscription_form(self._consumers, request.group, request.topic or "")
        return Response(body=encode_subscription(request.group, request.topic, form))

    # --- asked in turn -----------------------------------------------------------------------------------------------

    async def running_info(self, request: ask.GetRunningInfo, peer: Peer) -> Response:
        onward = ask.GetRunningInfo(group=request.group, client_id=request.client_id, with_stacks=request.with_stacks)
        return await self._hand_on(request.group, request.client_id, onward)

    async def consume_directly(self, request: ask.ConsumeDirectly, peer: Peer) -> Response:
        """Raises OffsetNotFound when the message is not here."""
        if not request.client_id or not request.message_id:
            raise BadRequest("to consume a message directly, name the client and the message's id")
        record = await self._store.message_soon(decode_message_id(request.message_id)[1])
        log.info("%s has %r consume %s", peer.address, request.client_id[:300], request.message_id)
        return await self._hand_on(request.group, request.client_id, self._with_message(request, bytes(record)))

    def _with_message(self, request: ask.ConsumeDirectly, record: bytes) -> ask.ConsumeDirectly:
        topic = self._topics.get(request.topic) if request.topic else None
        group = self._groups.get(request.group)
        return ask.ConsumeDirectly(
            group=request.group,
            client_id=request.client_id,
            message_id=request.message_id,
            broker_name=self._config().name,
            topic=request.topic,
            topic_flags=request.topic_flags if topic is None else topic.system_flag,
            group_flags=request.group_flags if group is None else group.system_flag,
            body=record,
        )

    async def _hand_on(self, group_name: str, client_id: str, request: Request) -> Response:
        """Ask a client, and answer what it answers."""
        group = self._consumers.get(group_name)
        member = None if group is None else group.find(client_id)
        if member is None:
            raise ServiceError(f"The Consumer <{group_name}> <{client_id}> not online")
        try:
            answer = await member.peer.call(request, ANSWER_SECONDS)
        except CallTimeout as problem:
            reason = f"consumer <{group_name}> <{client_id}> Timeout: {problem}"
            return Response(code=ResponseCode.CONSUME_MSG_TIMEOUT, reason=reason)
        except CallFailed as problem:
            raise ServiceError(f"the consumer <{group_name}> <{client_id}> could not be asked: {problem}") from None
        return Response(code=answer.code, reason=answer.reason, body=answer.body, more=answer.fields)

    async def consumer_status(self, request: ask.GetConsumerStatus, peer: Peer) -> Response:
        """Return the progress that the clients of a group report. One that does not answer is left out."""
        group = self._consumers.get(request.group)
        members = [
            member
            for member in (_clients(group) if group is not None else ())
            if not request.client_id or member.client_id == request.client_id
        ]
        if not members:
            raise ServiceError(f"No Any Consumer online in the consumer group: [{request.group}]")
        question = ask.AskConsumerStatus(topic=request.topic, group=request.group)
        told = await asyncio.gather(*(_status(member, question) for member in members))
        clients = {member.client_id: one for member, one in zip(members, told, strict=True) if one is not None}
        return Response(body=encode_consumer_status(clients))


async def _status(member: Member, question: ask.AskConsumerStatus) -> Json:
    try:
        answer = await member.peer.call(question, STATUS_SECONDS)
    except CallFailed as problem:
        log.warning("%s does not tell how far it is: %s", member.client_id, problem)
        return None
    return decode_client_status(answer.body) if answer.code == ResponseCode.SUCCESS else None


def subscription_form(consumers: Consumers, group: str, topic: str) -> JsonObject | None:
    """Return a group's subscription to a topic; None if the group is not connected, or has none."""
    known = consumers.get(group)
    subscription = None if known is None else known.subscriptions.get(topic)
    return None if subscription is None else _form(subscription)


def _form(subscription: Subscription) -> JsonObject:
    return subscription_json(
        subscription.topic,
        subscription.expression,
        subscription.kind,
        subscription.version,
        subscription.tags,
        subscription.filter.tag_codes or (),
    )


def _clients(group: ConsumerGroup) -> list[Member]:
    """Each client once, however many connections it has."""
    found = (group.find(client_id) for client_id in group.client_ids())
    return [member for member in found if member is not None]


def _connections(members: Iterable[Member]) -> list[ClientConnection]:
    return [
        ClientConnection(one.client_id, one.peer.address, one.language, one.version, one.last_seen_ms)
        for one in members
    ]
