"""The route table against a simple model, in any order of events: registered routes are found, nothing empty stays."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pyromq.model.data_version import DataVersion
from pyromq.model.topic import Permission, TopicConfig
from pyromq.nameserver.route_table import Registration, RouteTable
from pyromq.wire.bodies.routes import TopicConfigs

ADDRESSES = st.sampled_from(["h:1", "h:2", "h:3"])
NAMES = st.sampled_from(["broker-a", "broker-b"])
IDS = st.sampled_from([0, 1])
CLUSTERS = st.sampled_from(["east", "west"])
CONNECTIONS = st.sampled_from(["c1", "c2", "c3"])
TIMEOUTS = st.sampled_from([5, 50])
TOPICS = st.sets(st.sampled_from(["t1", "t2", "t3"]), min_size=2)


@dataclass
class Known:
    name: str
    id: int
    connection: str
    heard: int
    timeout: int


class RouteTableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable()
        self.model: dict[str, Known] = {}
        self.now = 0
        self.version = 0

    @rule(
        address=ADDRESSES, name=NAMES, id=IDS, cluster=CLUSTERS, connection=CONNECTIONS, timeout=TIMEOUTS,
        topics=TOPICS, acting=st.sampled_from([True, False, None]),
    )  # fmt: skip
    def register(
        self, address: str, name: str, id: int, cluster: str, connection: str, timeout: int, topics: set[str],
        acting: bool | None,
    ) -> None:  # fmt: skip
        self.version += 1
        configs = TopicConfigs(DataVersion(0, self.version), tuple(TopicConfig(one) for one in sorted(topics)))
        told = Registration(
            cluster=cluster, broker_name=name, broker_id=id, address=address, timeout_ms=timeout, acting_master=acting,
            configs=configs,
        )  # fmt: skip
        self.table.register(told, connection, self.now)
        for other in [one for one, known in self.model.items() if (known.name, known.id) == (name, id)]:
            del self.model[other]
        self.model[address] = Known(name, id, connection, self.now, timeout)
        if id == 0:
            for topic in topics:
                route = self.table.route(topic)
                assert route is not None
                assert {broker.name: broker for broker in route.brokers}[name].addresses[0] == address

    @rule(address=ADDRESSES)
    def hear(self, address: str) -> None:
        assert self.table.heard(address, self.now) is (address in self.model)
        if address in self.model:
            self.model[address].heard = self.now

    @rule(connection=CONNECTIONS)
    def disconnect(self, connection: str) -> None:
        gone = {one for one, known in self.model.items() if known.connection == connection}
        assert {member.address for member in self.table.disconnected(connection)} == gone
        for address in gone:
            del self.model[address]

    @rule(passed=st.integers(0, 60))
    def expire(self, passed: int) -> None:
        self.now += passed
        gone = {one for one, known in self.model.items() if self.now - known.heard > known.timeout}
        assert {member.address for member in self.table.expire(self.now)} == gone
        for address in gone:
            del self.model[address]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def unregister(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.model)))
        member = next(one for one in self.table.members() if one.address == address)
        assert self.table.unregister(member.cluster, member.broker_name, address)
        del self.model[address]

    @rule(topic=st.sampled_from(["t1", "t2", "t3"]), cluster=CLUSTERS | st.none())
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        self.table.delete_topic(topic, cluster)
        if cluster is None:
            assert self.table.route(topic) is None

    @rule(name=NAMES)
    def wipe(self, name: str) -> None:
        self.table.wipe_write_permission(name)

    @invariant()
    def members_are_the_model_s(self) -> None:
        members = {one.address: (one.broker_name, one.broker_id) for one in self.table.members()}
        assert members == {address: (known.name, known.id) for address, known in self.model.items()}

    @invariant()
    def every_name_has_its_members_and_no_other(self) -> None:
        brokers = self.table.cluster_info().brokers
        found = {address: (name, id) for name, broker in brokers.items() for id, address in broker.addresses.items()}
        assert found == {address: (known.name, known.id) for address, known in self.model.items()}
        assert all(broker.addresses for broker in brokers.values())

    @invariant()
    def clusters_are_the_brokers_clusters(self) -> None:
        info = self.table.cluster_info()
        assert sorted(name for names in info.clusters.values() for name in names) == sorted(info.brokers)
        assert all(info.brokers[name].cluster == cluster for cluster, names in info.clusters.items() for name in names)

    @invariant()
    def every_topic_is_on_a_broker_that_is_known(self) -> None:
        brokers = self.table.cluster_info().brokers
        routes = 0
        for topic in self.table.topics().topics:
            route = self.table.route(topic)
            assert route is not None
            names = [queues.broker_name for queues in route.queues]
            assert names
            assert set(names) <= brokers.keys()
            assert names == [broker.name for broker in route.brokers]
            routes += len(names)
        assert routes == self.table._routes

    @rule(name=NAMES)
    def add(self, name: str) -> None:
        self.table.add_write_permission(name)

    @invariant()
    def what_is_wiped_is_there_and_cannot_be_written(self) -> None:
        for broker in self.table._brokers.values():
            for topic in broker.wiped:
                assert not self.table._topics[topic][broker.name].permission & Permission.WRITE

    @invariant()
    def nothing_is_left_of_connections_without_brokers(self) -> None:
        assert set(self.table._by_connection) == {known.connection for known in self.model.values()}


TestRouteTableMachine = RouteTableMachine.TestCase
TestRouteTableMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
