"""The request handlers of a name server, and the table of them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import TypeVar, cast

from pyromq.clock import Clock
from pyromq.config import NameServerConfig
from pyromq.config.fields import value_at
from pyromq.config.properties import parse_properties
from pyromq.config.rocketmq_keys import NAME_SERVER_KEYS
from pyromq.errors import (
    BadRequest,
    ConfigError,
    NoPermission,
    NotFound,
    NotJson,
    NotNow,
    TopicNotFound,
    WrongShape,
)
from pyromq.nameserver.bounds import shown
from pyromq.nameserver.kv_config import ORDER_TOPICS, KvConfig
from pyromq.nameserver.route_table import UNIT, UNIT_SUBSCRIBED, Registration, RouteTable, same_version
from pyromq.net.peer import Peer
from pyromq.net.service import Handler
from pyromq.net.slices import job
from pyromq.records.checksum import positive_crc32
from pyromq.wire.bodies.routes import (
    TopicList,
    TopicRoute,
    decode_data_version,
    encode_data_version,
    encode_kv_table,
    finished,
    reading_registration,
)
from pyromq.wire.command import PROTOCOL_VERSION
from pyromq.wire.fastjson import standard_for
from pyromq.wire.requests import nameserver as ask
from pyromq.wire.requests.client import Request
from pyromq.wire.responses import Response

log = logging.getLogger("pyromq.nameserver")

Content = TypeVar("Content")
#: An answer names at most this many refused settings.
MAX_NAMED = 10
#: A registration of at most this many bytes, some 100 topics, is taken at once; a larger one in slices.
SMALL_REGISTRATION = 16 << 10


class Processors:
    """The route table and the settings, asked over the network."""

    def __init__(self, config: NameServerConfig, table: RouteTable, kv: KvConfig, clock: Clock) -> None:
        self._config = config
        self._table = table
        self._kv = kv
        self._clock = clock

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {
            ask.RegisterBroker: self.register_broker,
            ask.UnregisterBroker: self.unregister_broker,
            ask.QueryDataVersion: self.query_data_version,
            ask.BrokerHeartbeat: self.broker_heartbeat,
            ask.GetMemberGroup: self.get_member_group,
            ask.RegisterTopic: self.register_topic,
            ask.GetRoute: self.get_route,
            ask.GetClusterInfo: self.get_cluster_info,
            ask.GetTopicList: self.get_topic_list,
            ask.GetTopicsOfCluster: self.get_topics_of_cluster,
            ask.GetSystemTopics: self.get_system_topics,
            ask.GetUnitTopics: self.get_unit_topics,
            ask.GetUnitSubscribedTopics: self.get_unit_subscribed_topics,
            ask.GetUnitSubscribedCommonTopics: self.get_unit_subscribed_common_topics,
            ask.DeleteTopicFromNameServer: self.delete_topic,
            ask.WipeWritePermission: self.wipe_write_permission,
            ask.AddWritePermission: self.add_write_permission,
            ask.PutKv: self.put_kv,
            ask.GetKv: self.get_kv,
            ask.DeleteKv: self.delete_kv,
            ask.GetKvList: self.get_kv_list,
            ask.UpdateNameServerConfig: self.update_config,
            ask.GetNameServerConfig: self.get_config,
        }

    # --- brokers -----------------------------------------------------------------------------------------------------

    def register_broker(self, request: ask.RegisterBroker, peer: Peer) -> Awaitable[Response] | Response:
        if request.body_crc and request.body_crc != positive_crc32(request.body):
            raise BadRequest("the registration does not match its checksum (bodyCrc32): it was damaged on the way")
        steps = self._registering(request, peer)
        return finished(steps) if len(request.body) <= SMALL_REGISTRATION else _in_slices(steps)

    def _registering(self, request: ask.RegisterBroker, peer: Peer) -> Generator[None, None, Response]:
        reading = reading_registration(request.body, compressed=request.compressed, version=_version(request))
        try:
            configs = yield from reading
        except (NotJson, WrongShape) as problem:
            raise BadRequest(f"the body of {request.CODE.name} cannot be read: {problem}") from None
        told = Registration(
            cluster=request.cluster, broker_name=request.broker_name, broker_id=request.broker_id,
            address=request.address, ha_address=request.ha_address, zone=request.zone, timeout_ms=request.timeout_ms,
            acting_master=request.acting_master, configs=configs,
        )  # fmt: skip
        master = yield from self._table.registering(told, peer, self._now_ms())
        answer = ask.RegisterAnswer(ha_address=master.ha_address, master_address=master.address)
        orders = self._kv.namespace(ORDER_TOPICS) if self._config.return_order_topics else None
        if orders is not None:
            answer.body = encode_kv_table(orders)
        return answer

    def unregister_broker(self, request: ask.UnregisterBroker, peer: Peer) -> Response:
        if self._table.unregister(request.cluster, request.broker_name, request.address):
            log.info("%s (id %d) at %s has left", request.broker_name, request.broker_id, request.address)
        return Response()

    def query_data_version(self, request: ask.QueryDataVersion, peer: Peer) -> Response:
        asked = _read(decode_data_version, request)
        self._table.heard(request.address, self._now_ms())
        known = self._table.version_of(request.address)
        return ask.DataVersionAnswer(
            changed=known is None or not same_version(known, asked),
            body=encode_data_version(known) if known is not None else b"",
        )

    def broker_heartbeat(self, request: ask.BrokerHeartbeat, peer: Peer) -> Response:
        self._table.heard(request.address, self._now_ms())
        return Response()

    def get_member_group(self, request: ask.GetMemberGroup, peer: Peer) -> Response:
        group = self._table.member_group(request.cluster, request.broker_name)
        return Response(body=group.encode(standard=_standard(request)))

    def register_topic(self, request: ask.RegisterTopic, peer: Peer) -> Response:
        route = _read(TopicRoute.decode, request)
        if not self._table.register_topic(request.topic, route.queues):
            log.warning("%s registers %s on brokers that are not known: ignored", peer.address, request.topic)
        return Response()

    def disconnected(self, peer: Peer) -> None:
        for member in self._table.disconnected(peer):
            log.warning(
                "%s (id %d) at %s is forgotten: its connection broke",
                member.broker_name, member.broker_id, member.address,
            )  # fmt: skip

    def expire(self) -> None:
        """Forget who was silent for too long, and close what they registered on, as RocketMQ does."""
        for member in self._table.expire(self._now_ms()):
            log.warning(
                "%s (id %d) at %s is forgotten: nothing was heard of it for more than %g s",
                member.broker_name, member.broker_id, member.address, member.timeout_ms / 1000,
            )  # fmt: skip
            cast(Peer, member.connection).close("the broker that registered on it was silent for too long")

    # --- routes and lists --------------------------------------------------------------------------------------------

    def get_route(self, request: ask.GetRoute, peer: Peer) -> Response:
        route = self._table.route(request.topic)
        if route is None:
            raise TopicNotFound(
                f"no broker has registered the topic {shown(request.topic)}: create it, or let brokers create topics "
                "(autoCreateTopicEnable)"
            )
        order = self._kv.get(ORDER_TOPICS, request.topic) if self._config.order_messages_enabled else None
        if order is not None:
            route = TopicRoute(route.queues, route.brokers, order, route.mappings)
        return Response(body=route.encode(standard=_standard(request, request.standard_json_only)))

    def get_cluster_info(self, request: ask.GetClusterInfo, peer: Peer) -> Response:
        return Response(body=self._table.cluster_info().encode(standard=_standard(request)))

    def get_topic_list(self, request: ask.GetTopicList, peer: Peer) -> Response:
        return self._list(self._table.topics)

    def get_topics_of_cluster(self, request: ask.GetTopicsOfCluster, peer: Peer) -> Response:
        return self._list(lambda: self._table.topics_of_cluster(request.cluster))

    def get_system_topics(self, request: ask.GetSystemTopics, peer: Peer) -> Response:
        return Response(body=self._table.system_topics().encode())

    def get_unit_topics(self, request: ask.GetUnitTopics, peer: Peer) -> Response:
        return self._list(lambda: self._table.topics_with_flags(having=UNIT))

    def get_unit_subscribed_topics(self, request: ask.GetUnitSubscribedTopics, peer: Peer) -> Response:
        return self._list(lambda: self._table.topics_with_flags(having=UNIT_SUBSCRIBED))

    def get_unit_subscribed_common_topics(self, request: ask.GetUnitSubscribedCommonTopics, peer: Peer) -> Response:
        return self._list(lambda: self._table.topics_with_flags(having=UNIT_SUBSCRIBED, lacking=UNIT))

    def _list(self, find: Callable[[], TopicList]) -> Response:
        if not self._config.topic_lists_enabled:
            raise NotNow("lists of topics are switched off on this name server (topic_lists_enabled)")
        return Response(body=find().encode())

    # --- admin -------------------------------------------------------------------------------------------------------

    def delete_topic(self, request: ask.DeleteTopicFromNameServer, peer: Peer) -> Response:
        count = self._table.delete_topic(request.topic, request.cluster)
        log.info("%s removed the topic %s from %d brokers' routes", peer.address, shown(request.topic), count)
        return Response()

    def wipe_write_permission(self, request: ask.WipeWritePermission, peer: Peer) -> Response:
        count = self._table.wipe_write_permission(request.broker_name)
        log.info("%s made %d topics of %s read-only", peer.address, count, shown(request.broker_name))
        return ask.WipeAnswer(topics=count)

    def add_write_permission(self, request: ask.AddWritePermission, peer: Peer) -> Response:
        count = self._table.add_write_permission(request.broker_name)
        log.info("%s made %d topics of %s writable", peer.address, count, shown(request.broker_name))
        return ask.AddAnswer(topics=count)

    async def put_kv(self, request: ask.PutKv, peer: Peer) -> Response:
        self._kv.put(request.namespace, request.key, request.value)
        log.info("%s set %s in %s", peer.address, request.key, request.namespace)
        await self._kv.save()
        return Response()

    async def delete_kv(self, request: ask.DeleteKv, peer: Peer) -> Response:
        self._kv.delete(request.namespace, request.key)
        log.info("%s removed %s from %s", peer.address, shown(request.key), shown(request.namespace))
        await self._kv.save()
        return Response()

    def get_kv(self, request: ask.GetKv, peer: Peer) -> Response:
        value = self._kv.get(request.namespace, request.key)
        if value is None:
            raise NotFound(f"there is no {shown(request.key)} in the namespace {shown(request.namespace)}")
        return ask.KvAnswer(value=value)

    def get_kv_list(self, request: ask.GetKvList, peer: Peer) -> Response:
        table = self._kv.namespace(request.namespace)
        if table is None:
            raise NotFound(f"there is no namespace {shown(request.namespace)}")
        return Response(body=encode_kv_table(table))

    def get_config(self, request: ask.GetNameServerConfig, peer: Peer) -> Response:
        lines = (f"{key.name}={key.form.give(value_at(self._config, key.path))}\n" for key in NAME_SERVER_KEYS)
        return Response(body="".join(lines).encode())

    def update_config(self, request: ask.UpdateNameServerConfig, peer: Peer) -> Response:
        """Refuse every change: clients must not decide where a name server listens or writes."""
        try:
            names = [entry.key for entry in parse_properties(request.body.decode())]
        except (UnicodeDecodeError, ConfigError):
            raise BadRequest("settings are lines of key=value") from None
        named = ", ".join(map(shown, names[:MAX_NAMED])) or "nothing"
        log.warning("%s wanted to change %s: refused", peer.address, named)
        raise NoPermission(
            f"a name server's settings ({named}) are not changed over the network: change its file and restart it; "
            "nothing is lost, as brokers register again"
        )

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


async def _in_slices(steps: Generator[None, None, Response]) -> Response:
    async with job() as work:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                response: Response = end.value
                return response
            await work.pause()


def _version(request: Request) -> int:
    return request.command.version if request.command is not None else PROTOCOL_VERSION


def _standard(request: Request, accepts_standard_only: bool = False) -> bool:
    return standard_for(_version(request), accepts_standard_only)


def _read(decode: Callable[[bytes], Content], request: Request) -> Content:
    try:
        return decode(request.body)
    except (NotJson, WrongShape) as problem:
        raise BadRequest(f"the body of {request.CODE.name} cannot be read: {problem}") from None
