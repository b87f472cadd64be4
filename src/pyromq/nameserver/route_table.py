"""Routes, from topics to brokers: the name server's whole knowledge, without a socket or a clock.

Brokers say it themselves, each for its own address, and say it again and again; one that is silent for too long or
whose connection breaks is forgotten. Everything else here is a view of that.

    an address has one member, a member one name and id, and a name and id one address
    no broker name without a member, no cluster without a broker name, no topic without a broker name

`now_ms` may be any clock that only grows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace

from pyromq.errors import BadRequest, NotNow
from pyromq.model.data_version import DataVersion
from pyromq.model.json_form import JsonObject
from pyromq.model.topic import Permission, TopicConfig
from pyromq.nameserver.bounds import (
    MAX_BROKERS,
    MAX_MAPPING_BYTES,
    MAX_MAPPINGS,
    MAX_ROUTES,
    MAX_TOPIC_CHARS,
    require_name,
    require_room,
    shown,
)
from pyromq.wire import fastjson
from pyromq.wire.bodies.routes import (
    BrokerData,
    ClusterInfo,
    MemberGroup,
    QueueData,
    TopicConfigs,
    TopicList,
    TopicRoute,
    finished,
)

log = logging.getLogger("pyromq.nameserver")

MASTER = 0
#: Bits of a topic's system flag.
UNIT, UNIT_SUBSCRIBED = 1, 2

_Change = Callable[[int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A broker's registration."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    zone: str | None = None
    #: The broker expires after this silence; None: after the table's own time.
    timeout_ms: int | None = None
    #: None: a broker from before slaves could stand in for a master.
    acting_master: bool | None = None
    configs: TopicConfigs


@dataclass(slots=True, kw_only=True)
class Member:
    """A broker that is alive, as far as is known."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    timeout_ms: int
    heard_ms: int
    version: DataVersion
    #: The connection that it registered on.
    connection: object


@dataclass(slots=True)
class _Broker:
    """The members of one name."""

    cluster: str
    name: str
    zone: str | None = None
    acting_master: bool = False
    addresses: dict[int, str] = field(default_factory=dict)
    #: Topics whose write permission was wiped. The brokers do not know, and go on registering their own permission.
    wiped: set[str] = field(default_factory=set)

    def as_data(self) -> BrokerData:
        return BrokerData(self.cluster, self.name, dict(self.addresses), self.zone, self.acting_master)


@dataclass(frozen=True, slots=True)
class MasterAt:
    """The master in the answer to a slave's registration."""

    address: str | None = None
    ha_address: str | None = None


class RouteTable:
    """Members, broker names and topics."""

    def __init__(self, *, expiry_ms: int = 120_000, delete_topics_with_registration: bool = False) -> None:
        self._expiry_ms = expiry_ms
        self._delete_unnamed_topics = delete_topics_with_registration
        self._members: dict[str, Member] = {}
        self._by_connection: dict[object, set[str]] = {}
        self._brokers: dict[str, _Broker] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._mappings: dict[str, dict[str, JsonObject]] = {}
        self._routes = 0

    # --- brokers come ------------------------------------------------------------------------------------------------

    def register(self, told: Registration, connection: object, now_ms: int) -> MasterAt:
        """Take note of a broker. Raises NotNow for an update of one topic by a broker that is not known yet."""
        return finished(self.registering(told, connection, now_ms))

    def registering(self, told: Registration, connection: object, now_ms: int) -> Generator[None, None, MasterAt]:
        """The same in steps. A broker that is forgotten, or registers something newer between two, ends them."""
        yield from self._check(told)
        if self._is_outdated(told):
            return MasterAt()
        is_first = self._address_of(told.broker_name, told.broker_id) is None
        if is_first and len(told.configs.topics) == 1:
            # RocketMQ's brokers send a change as a registration with that topic alone. Taken for all there is, it would
            # hide the other topics: the broker would be told that nothing is missing.
            raise NotNow(f"{told.broker_name} is not registered yet: one topic alone cannot be added to it")
        before = self._members.get(told.address)
        is_news = is_first or before is None or not same_version(before.version, told.configs.version)
        self._make_way(told)
        broker = self._take_in(told, connection, now_ms)
        if self._speaks_for_topics(broker, told):
            yield from self._take_topics(broker, told, is_news)
        return self._master_of(broker, told)

    def _check(self, told: Registration) -> Iterator[None]:
        require_name("the cluster name", told.cluster)
        require_name("the broker name", told.broker_name)
        require_name("the address", told.address)
        if told.ha_address:
            require_name("the replication address", told.ha_address)
        if told.zone is not None:
            require_name("the zone", told.zone)
        new_routes = 0
        for topic in told.configs.topics:
            require_name("the topic", topic.name, MAX_TOPIC_CHARS)
            new_routes += told.broker_name not in self._topics.get(topic.name, ())
            yield
        known = told.address in self._members
        require_room(known or len(self._members) < MAX_BROKERS, "brokers", MAX_BROKERS)
        require_room(self._routes + new_routes <= MAX_ROUTES, "routes of topics", MAX_ROUTES)
        self._check_mappings(told)

    def _check_mappings(self, told: Registration) -> None:
        mappings = told.configs.mappings
        new = sum(told.broker_name not in self._mappings.get(topic, ()) for topic in mappings)
        known = sum(map(len, self._mappings.values()))
        require_room(known + new <= MAX_MAPPINGS, "mappings of static topics", MAX_MAPPINGS)
        for topic, mapping in mappings.items():
            size = len(fastjson.dumps_standard(mapping))
            if size > MAX_MAPPING_BYTES:
                raise BadRequest(
                    f"the mapping of the static topic {shown(topic)} has {size} bytes; "
                    f"{MAX_MAPPING_BYTES} are the limit"
                )

    def _is_outdated(self, told: Registration) -> bool:
        """Return True if a later master of the same name and id is known: it has replaced the registering broker."""
        holder = self._members.get(self._address_of(told.broker_name, told.broker_id) or "")
        if holder is None or holder.address == told.address:
            return False
        if holder.version.state_version <= told.configs.version.state_version:
            return False
        log.warning(
            "the registration of %s (id %d) at %s is ignored: the one at %s was made master later",
            told.broker_name, told.broker_id, told.address, holder.address,
        )  # fmt: skip
        self.forget(told.address)
        return True

    def _make_way(self, told: Registration) -> None:
        """Forget a broker at this address with another name or id, or with this name and id at another address."""
        same_address = self._members.get(told.address)
        if same_address is not None and _identity(same_address) != _identity(told):
            log.info(
                "%s was %s (id %d) and is %s (id %d) now",
                told.address, same_address.broker_name, same_address.broker_id, told.broker_name, told.broker_id,
            )  # fmt: skip
            self.forget(told.address, keep_topics_of=told.broker_name)
        held_at = self._address_of(told.broker_name, told.broker_id)
        if held_at is not None and held_at != told.address:
            log.warning(
                "%s (id %d) was at %s and has registered at %s: if both run, two brokers have the same name and "
                "clients find now one, now the other; give each a name of its own",
                told.broker_name, told.broker_id, held_at, told.address,
            )  # fmt: skip
            self.forget(held_at, keep_topics_of=told.broker_name)

    def _take_in(self, told: Registration, connection: object, now_ms: int) -> _Broker:
        broker = self._brokers.setdefault(told.broker_name, _Broker(told.cluster, told.broker_name))
        broker.cluster = told.cluster
        broker.zone = told.zone
        broker.acting_master = bool(told.acting_master)
        broker.addresses[told.broker_id] = told.address
        before = self._members.get(told.address)
        if before is None:
            log.info("%s (id %d) has registered at %s", told.broker_name, told.broker_id, told.address)
        else:
            self._untie(before)
        self._members[told.address] = Member(
            cluster=told.cluster, broker_name=told.broker_name, broker_id=told.broker_id, address=told.address,
            ha_address=told.ha_address, timeout_ms=self._timeout(told.timeout_ms), heard_ms=now_ms,
            version=replace(told.configs.version, unknown={}), connection=connection,
        )  # fmt: skip
        self._by_connection.setdefault(connection, set()).add(told.address)
        return broker

    def _timeout(self, asked_ms: int | None) -> int:
        return asked_ms if asked_ms is not None and asked_ms > 0 else self._expiry_ms

    def _speaks_for_topics(self, broker: _Broker, told: Registration) -> bool:
        """The master does, and while there is none, the slave with the smallest id (not one from before 5.0)."""
        if told.broker_id == MASTER:
            return True
        return told.acting_master is not None and told.broker_id == min(broker.addresses)

    def _master_of(self, broker: _Broker, told: Registration) -> MasterAt:
        master = self._members.get(broker.addresses.get(MASTER, ""))
        if told.broker_id == MASTER or master is None:
            return MasterAt()
        return MasterAt(master.address, master.ha_address)

    # --- topics ------------------------------------------------------------------------------------------------------

    def _take_topics(self, broker: _Broker, told: Registration, is_news: bool) -> Iterator[None]:
        if self._delete_unnamed_topics and not told.configs.mappings:
            named = {topic.name for topic in told.configs.topics}
            for name in [one for one, queues in self._topics.items() if broker.name in queues and one not in named]:
                self._remove_route(name, broker.name)
        only_reads = told.broker_id != MASTER and broker.acting_master
        for topic in told.configs.topics:
            yield
            if not self._is_newest(broker, told):
                return
            if is_news or broker.name not in self._topics.get(topic.name, ()):
                self._put_route(topic.name, _queues_of(broker.name, topic, only_reads))
        if is_news:
            for name, mapping in told.configs.mappings.items():
                self._put_mapping(name, broker.name, mapping)

    def _is_newest(self, broker: _Broker, told: Registration) -> bool:
        """Return True if the broker is still known, and has registered nothing else since."""
        member = self._members.get(told.address)
        return (
            member is not None
            and self._brokers.get(broker.name) is broker
            and same_version(member.version, told.configs.version)
        )

    def _put_route(self, topic: str, queues: QueueData) -> None:
        if topic in self._brokers[queues.broker_name].wiped:
            queues = replace(queues, permission=_without_write(queues.permission))
        brokers = self._topics.setdefault(topic, {})
        self._routes += queues.broker_name not in brokers
        brokers[queues.broker_name] = queues

    def _remove_route(self, topic: str, broker_name: str) -> bool:
        brokers = self._topics.get(topic, {})
        if brokers.pop(broker_name, None) is None:
            return False
        self._routes -= 1
        if broker_name in self._brokers:
            self._brokers[broker_name].wiped.discard(topic)
        if not brokers:
            del self._topics[topic]
        mappings = self._mappings.get(topic, {})
        if mappings.pop(broker_name, None) is not None and not mappings:
            del self._mappings[topic]
        return True

    def _put_mapping(self, topic: str, broker_name: str, mapping: JsonObject) -> None:
        """Only for a topic of this broker: so that it goes when the topic goes."""
        if broker_name not in self._topics.get(topic, ()):
            return
        self._mappings.setdefault(topic, {})[broker_name] = mapping

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> bool:
        """Put a topic's queues into the table; False, and nothing is changed, when one is of an unknown broker."""
        require_name("the topic", topic, MAX_TOPIC_CHARS)
        given = {one.broker_name: replace(one, unknown={}) for one in queues}
        if not given or not given.keys() <= self._brokers.keys():
            return False
        require_room(self._routes + len(given) <= MAX_ROUTES, "routes of topics", MAX_ROUTES)
        for one in given.values():
            self._put_route(topic, one)
        return True

    def delete_topic(self, topic: str, cluster: str | None = None) -> int:
        """Forget a topic, whole or on the brokers of one cluster; from how many broker names it was removed."""
        names = [name for name in self._topics.get(topic, {}) if not cluster or self._brokers[name].cluster == cluster]
        return sum(self._remove_route(topic, name) for name in names)

    def wipe_write_permission(self, broker_name: str) -> int:
        """Forbid writes to the present topics of a broker name; return their number.

        Valid until writing is added again or the name is forgotten, whatever its brokers register until then. A topic
        that they make later is no part of it.
        """
        broker = self._brokers.get(broker_name)
        if broker is not None:
            broker.wiped.update(topic for topic, brokers in self._topics.items() if broker_name in brokers)
        return self._change_permissions(broker_name, _without_write)

    def add_write_permission(self, broker_name: str) -> int:
        broker = self._brokers.get(broker_name)
        if broker is not None:
            broker.wiped.clear()
        return self._change_permissions(broker_name, lambda _: int(Permission.READ_WRITE))

    def _change_permissions(self, broker_name: str, change: _Change) -> int:
        changed = 0
        for brokers in self._topics.values():
            queues = brokers.get(broker_name)
            if queues is not None:
                brokers[broker_name] = replace(queues, permission=change(queues.permission))
                changed += 1
        return changed

    # --- brokers go --------------------------------------------------------------------------------------------------

    def heard(self, address: str, now_ms: int) -> bool:
        """A sign of life; False from a broker that is not known."""
        member = self._members.get(address)
        if member is not None:
            member.heard_ms = max(member.heard_ms, now_ms)
        return member is not None

    def version_of(self, address: str) -> DataVersion | None:
        """Return the version of a broker's topics in the table."""
        member = self._members.get(address)
        return member.version if member is not None else None

    def unregister(self, cluster: str, broker_name: str, address: str) -> bool:
        """A broker says that it goes."""
        member = self._members.get(address)
        if member is None or (member.cluster, member.broker_name) != (cluster, broker_name):
            return False
        self.forget(address)
        return True

    def disconnected(self, connection: object) -> list[Member]:
        """Forget the brokers registered on a broken connection, except those that reregistered on another one."""
        return self._forget_all(tuple(self._by_connection.get(connection, ())))

    def expire(self, now_ms: int) -> list[Member]:
        """Forget who was silent for longer than it asked for."""
        silent = [one.address for one in self._members.values() if now_ms - one.heard_ms > one.timeout_ms]
        return self._forget_all(silent)

    def _forget_all(self, addresses: Iterable[str]) -> list[Member]:
        gone = [self._members[address] for address in addresses]
        for member in gone:
            self.forget(member.address)
        return gone

    def forget(self, address: str, *, keep_topics_of: str | None = None) -> None:
        """Remove a member. Its name goes with its last member, and the topics of the name with that."""
        member = self._members.pop(address, None)
        if member is None:
            return
        self._untie(member)
        broker = self._brokers[member.broker_name]
        del broker.addresses[member.broker_id]
        if not broker.addresses and broker.name != keep_topics_of:
            del self._brokers[broker.name]
            for topic in [one for one, queues in self._topics.items() if broker.name in queues]:
                self._remove_route(topic, broker.name)
        elif broker.acting_master and broker.addresses and MASTER not in broker.addresses:
            self._change_permissions(broker.name, _without_write)  # until there is a master again

    def _untie(self, member: Member) -> None:
        addresses = self._by_connection[member.connection]
        addresses.discard(member.address)
        if not addresses:
            del self._by_connection[member.connection]

    # --- views -------------------------------------------------------------------------------------------------------

    def _address_of(self, broker_name: str, broker_id: int) -> str | None:
        broker = self._brokers.get(broker_name)
        return broker.addresses.get(broker_id) if broker is not None else None

    def members(self) -> tuple[Member, ...]:
        return tuple(self._members.values())

    def route(self, topic: str) -> TopicRoute | None:
        queues = self._topics.get(topic)
        if queues is None:
            return None
        brokers = tuple(self._brokers[name].as_data() for name in queues)
        return TopicRoute(tuple(queues.values()), brokers, mappings=dict(self._mappings.get(topic, {})))

    def cluster_info(self) -> ClusterInfo:
        clusters: dict[str, list[str]] = {}
        for broker in self._brokers.values():
            clusters.setdefault(broker.cluster, []).append(broker.name)
        return ClusterInfo(
            {name: broker.as_data() for name, broker in self._brokers.items()},
            {cluster: tuple(names) for cluster, names in clusters.items()},
        )

    def member_group(self, cluster: str, broker_name: str) -> MemberGroup:
        broker = self._brokers.get(broker_name)
        return MemberGroup(cluster, broker_name, dict(broker.addresses) if broker is not None else {})

    def topics(self) -> TopicList:
        return TopicList(tuple(self._topics))

    def topics_of_cluster(self, cluster: str) -> TopicList:
        names = {broker.name for broker in self._brokers.values() if broker.cluster == cluster}
        return TopicList(tuple(topic for topic, queues in self._topics.items() if not names.isdisjoint(queues)))

    def system_topics(self) -> TopicList:
        """Clusters and broker names, which are topics too, and a broker that knows more."""
        names = dict.fromkeys(name for broker in self._brokers.values() for name in (broker.cluster, broker.name))
        address = next((member.address for member in self._members.values()), None)
        return TopicList(tuple(names), address)

    def topics_with_flags(self, *, having: int, lacking: int = 0) -> TopicList:
        """Topics by the bits of their system flag; the first broker's counts, as all should have the same."""
        flags = {topic: next(iter(queues.values())).system_flag for topic, queues in self._topics.items()}
        return TopicList(tuple(topic for topic, flag in flags.items() if flag & having and not flag & lacking))


def same_version(one: DataVersion, other: DataVersion) -> bool:
    """Equal in what RocketMQ compares; a newer one's other fields do not count."""
    return replace(one, unknown={}) == replace(other, unknown={})


def _without_write(permission: int) -> int:
    return permission & ~Permission.WRITE


def _identity(of: Registration | Member) -> tuple[str, int]:
    return of.broker_name, of.broker_id


def _queues_of(broker_name: str, topic: TopicConfig, only_reads: bool) -> QueueData:
    permission = _without_write(topic.permission) if only_reads else topic.permission
    return QueueData(broker_name, topic.read_queues, topic.write_queues, permission, topic.system_flag)
