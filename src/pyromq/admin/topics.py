"""Topics: listed, made, changed, described, removed; on every broker of a cluster at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pyromq.admin.directory import BrokerAddress, Directory, of_each, of_reachable
from pyromq.admin.reading import by_queue, form_of, real, several, whole
from pyromq.errors import BadRequest, ServiceError, TopicExists, TopicNotFound
from pyromq.model import names
from pyromq.model.queue import MessageQueue
from pyromq.model.topic import Permission, TopicConfig
from pyromq.wire.bodies.routes import TopicConfigs, TopicList, TopicRoute
from pyromq.wire.requests.admin import (
    DeleteTopic,
    GetAllTopics,
    GetBrokerSystemTopics,
    GetTopicStats,
    QueryGroupsOfTopic,
    UpdateTopic,
)
from pyromq.wire.requests.nameserver import DeleteKv, DeleteTopicFromNameServer, PutKv

Kind = Literal["normal", "retry", "dead-letter", "system"]

#: Name servers' namespace for the queues of ordered topics.
ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
#: A topic's attribute for what its messages are.
MESSAGE_TYPE = "message.type"
#: Time to wait until a broker has registered a new topic.
KNOWN_WITHIN_S, LOOK_AGAIN_S = 5.0, 0.05


@dataclass(frozen=True, slots=True)
class TopicOnBroker:
    broker: str
    cluster: str
    read_queues: int
    write_queues: int
    permission: int
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    kind: Kind
    brokers: tuple[TopicOnBroker, ...]


@dataclass(frozen=True, slots=True)
class QueueState:
    """Offsets of a queue: from `min_offset` up to but excluding `max_offset`."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    #: Store time of the newest message; 0 without messages.
    last_ms: int

    @property
    def messages(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class TopicStats:
    queues: tuple[QueueState, ...]
    in_per_second: float

    @property
    def messages(self) -> int:
        return sum(one.messages for one in self.queues)

    @property
    def last_ms(self) -> int:
        return max((one.last_ms for one in self.queues), default=0)


@dataclass(frozen=True, slots=True)
class TopicDetails:
    topic: Topic
    stats: TopicStats
    #: Those that consume it, or did.
    groups: tuple[str, ...]


class Topics:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    # --- looking -----------------------------------------------------------------------------------------------------

    async def list(self) -> Sequence[Topic]:
        """Every topic of every broker, by name, with what kind it is."""
        brokers = await self._directory.readable()
        told = await of_reachable(brokers, self._topics_of)
        system = {name for _, (_, own) in told for name in own}
        system |= {one.name for one in brokers} | {one.cluster for one in brokers}
        found: dict[str, list[TopicOnBroker]] = {}
        for broker, (configs, _) in told:
            for config in configs:
                found.setdefault(config.name, []).append(_on(broker, config))
        return [Topic(name, kind_of(name, system), tuple(on)) for name, on in sorted(found.items())]

    async def _topics_of(self, broker: BrokerAddress) -> tuple[tuple[TopicConfig, ...], tuple[str, ...]]:
        """The topics of a broker, and the names of its own among them."""
        every = TopicConfigs.decode((await self._directory.ask(broker.address, GetAllTopics())).body)
        own = TopicList.decode((await self._directory.ask(broker.address, GetBrokerSystemTopics())).body)
        return every.topics, own.topics

    async def get(self, topic: str) -> Topic:
        """Raises TopicNotFound."""
        for one in await self.list():
            if one.name == topic:
                return one
        raise TopicNotFound(f"no broker has a topic {topic!r}: `pyromq topic list` shows those there are")

    async def describe(self, topic: str) -> TopicDetails:
        """Raises TopicNotFound."""
        found = await self.get(topic)
        return TopicDetails(found, await self.stats(found), await self.groups(found))

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic. Raises TopicNotFound."""
        return await self._directory.route(topic)

    async def stats(self, topic: Topic | str) -> TopicStats:
        """Return the offsets of each queue."""
        told = await of_reachable(await self._brokers_of(topic), lambda broker: self._stats_on(broker, _name(topic)))
        queues = sorted((queue for _, stats in told for queue in stats.queues), key=lambda one: one.queue)
        return TopicStats(tuple(queues), sum(stats.in_per_second for _, stats in told))

    async def _stats_on(self, broker: BrokerAddress, topic: str) -> TopicStats:
        form = form_of(await self._directory.ask(broker.address, GetTopicStats(topic=topic)))
        queues = tuple(
            QueueState(queue, whole(span, "minOffset"), whole(span, "maxOffset"), whole(span, "lastUpdateTimestamp"))
            for queue, span in by_queue(form, "offsetTable")
        )
        return TopicStats(queues, real(form, "topicPutTps"))

    async def groups(self, topic: Topic | str) -> tuple[str, ...]:
        """The groups that consume a topic, or did."""
        request = QueryGroupsOfTopic(topic=_name(topic))
        told = await of_reachable(
            await self._brokers_of(topic), lambda broker: self._directory.ask(broker.address, request)
        )
        return tuple(sorted({str(group) for _, answer in told for group in several(form_of(answer), "groupList")}))

    async def _brokers_of(self, topic: Topic | str) -> Sequence[BrokerAddress]:
        if isinstance(topic, str):
            return await self._directory.masters_of(topic)
        wanted = {one.broker for one in topic.brokers}
        return [one for one in await self._directory.readable() if one.name in wanted]

    # --- changing ----------------------------------------------------------------------------------------------------

    async def create(
        self,
        topic: str,
        *,
        queues: int = 8,
        permission: Permission = Permission.READ_WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Topic:
        """Make a topic on all masters, those of a cluster, or one. Raises TopicExists, IllegalName."""
        names.check_topic(topic)
        masters = await self._directory.masters(cluster, broker)
        for one in await self.list():
            there = {on.broker for on in one.brokers}
            if one.name == topic and there & {master.name for master in masters}:
                raise TopicExists(f"the topic {topic!r} is there already: `pyromq topic update` changes it")
        config = TopicConfig(topic, queues, queues, int(permission), order=order, attributes=attributes or {})
        await of_each(masters, lambda master: self._set(master, config, attributes or {}))
        if order:
            await self._set_order(topic, {master.name: queues for master in masters})
        await self._until_known(topic, {master.name for master in masters})
        return Topic(topic, kind_of(topic), tuple(_on(master, config) for master in masters))

    async def update(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: Permission | None = None,
        attributes: Mapping[str, str | None] | None = None,
        broker: str | None = None,
    ) -> Topic:
        """Change the given settings on every broker that has the topic. `None` removes an attribute.

        To shrink a topic, write to fewer queues first, and read fewer when the others are empty.
        """
        known = await self.get(topic)
        chosen = [on for on in known.brokers if broker in (None, on.broker)]
        if not chosen:
            raise TopicNotFound(f"the broker {broker!r} has no topic {topic!r}")
        addresses = await self._directory.masters_called([on.broker for on in chosen])
        wanted = [
            replace(
                on,
                read_queues=on.read_queues if read_queues is None else read_queues,
                write_queues=on.write_queues if write_queues is None else write_queues,
                permission=on.permission if permission is None else int(permission),
            )
            for on in chosen
        ]
        for on in wanted:
            config = TopicConfig(topic, on.read_queues, on.write_queues, on.permission, order=on.order)
            await self._set(addresses[on.broker], config, attributes or {})
        if any(on.order for on in known.brokers):
            queues = {on.broker: on.write_queues for on in known.brokers} | {
                on.broker: on.write_queues for on in wanted
            }
            await self._set_order(topic, queues)
        return await self.get(topic)

    async def _set(self, broker: BrokerAddress, config: TopicConfig, attributes: Mapping[str, str | None]) -> None:
        request = UpdateTopic(
            topic=config.name,
            default_topic=names.DEFAULT_TOPIC,
            read_queues=config.read_queues,
            write_queues=config.write_queues,
            permission=config.permission,
            order=config.order,
            attributes=attribute_changes(attributes),
        )
        await self._directory.ask(broker.address, request)

    async def _set_order(self, topic: str, queues: Mapping[str, int]) -> None:
        value = ";".join(f"{broker}:{count}" for broker, count in sorted(queues.items()))
        await self._directory.tell_names(PutKv(namespace=ORDER_NAMESPACE, key=topic, value=value))

    async def _until_known(self, topic: str, brokers: set[str]) -> None:
        """Until name servers tell clients of it, as far as that is soon."""
        for _ in range(round(KNOWN_WITHIN_S / LOOK_AGAIN_S)):
            if brokers <= await self._known_on(topic):
                return
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _known_on(self, topic: str) -> set[str]:
        try:
            return {queues.broker_name for queues in (await self._directory.route(topic)).queues}
        except TopicNotFound:
            return set()

    async def delete(self, topic: str, *, cluster: str | None = None) -> None:
        """Remove a topic and all its messages. Raises TopicNotFound; BadRequest for a topic that brokers need."""
        known = await self.get(topic)
        if known.kind == "system":
            raise BadRequest(f"the topic {topic!r} is the broker's own: it cannot be deleted")
        chosen = [on.broker for on in known.brokers if cluster in (None, on.cluster)]
        if not chosen:
            raise TopicNotFound(f"no broker of the cluster {cluster!r} has a topic {topic!r}")
        masters = list((await self._directory.masters_called(chosen)).values())
        await of_each(masters, lambda master: self._directory.ask(master.address, DeleteTopic(topic=topic)))
        for where in sorted({master.cluster for master in masters}):
            await self._directory.tell_names(DeleteTopicFromNameServer(topic=topic, cluster=where))
        if any(on.order for on in known.brokers) and len(masters) == len(known.brokers):
            with contextlib.suppress(ServiceError):  # it had none
                await self._directory.tell_names(DeleteKv(namespace=ORDER_NAMESPACE, key=topic))


def kind_of(name: str, system: set[str] | frozenset[str] = frozenset()) -> Kind:
    if name.startswith(names.RETRY_PREFIX):
        return "retry"
    if name.startswith(names.DEAD_LETTER_PREFIX):
        return "dead-letter"
    return "system" if name in system or names.is_system_topic(name) else "normal"


def attribute_changes(attributes: Mapping[str, str | None]) -> str:
    """RocketMQ's form: `+key=value` sets, `-key` removes."""
    for key, value in attributes.items():
        if not key or any(mark in key + (value or "") for mark in ",=") or key[0] in "+-":
            raise BadRequest(f"{key!r} = {value!r} cannot be an attribute")
    return ",".join(f"-{key}" if value is None else f"+{key}={value}" for key, value in attributes.items())


def _on(broker: BrokerAddress, config: TopicConfig) -> TopicOnBroker:
    return TopicOnBroker(
        broker.name, broker.cluster, config.read_queues, config.write_queues, config.permission, config.order,
        dict(config.attributes),
    )  # fmt: skip


def _name(topic: Topic | str) -> str:
    return topic if isinstance(topic, str) else topic.name
