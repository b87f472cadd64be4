"""The route table, as stories: brokers come, change and go, and what clients find follows."""

from __future__ import annotations

import logging
from collections.abc import Generator

import pytest

from pyromq.errors import BadRequest, NotNow, SystemBusy
from pyromq.model.data_version import DataVersion
from pyromq.model.topic import Permission, TopicConfig
from pyromq.nameserver import route_table
from pyromq.nameserver.route_table import MasterAt, Registration, RouteTable
from pyromq.wire.bodies.routes import QueueData, TopicConfigs, finished

#: A broker always has several topics of its own.
SYSTEM = TopicConfig("SELF_TEST_TOPIC", 1, 1)
ORDERS, PAYMENTS = TopicConfig("orders", 4, 4), TopicConfig("payments", 8, 8)
READ_ONLY = int(Permission.READ)


class Story:
    """A table with a clock, and one connection for each address unless another is named."""

    def __init__(self, **settings: bool) -> None:
        self.table = RouteTable(expiry_ms=120_000, **settings)
        self.now_ms = 0

    def register(
        self,
        *topics: TopicConfig,
        name: str = "broker-a",
        id: int = 0,
        at: str = "a:10911",
        version: int = 1,
        state: int = 0,
        connection: str | None = None,
        mappings: dict[str, dict[str, object]] | None = None,
        cluster: str = "DefaultCluster",
        timeout_ms: int | None = None,
        acting_master: bool | None = False,
    ) -> MasterAt:
        configs = TopicConfigs(DataVersion(0, version, state), (SYSTEM, *topics), mappings or {})
        told = Registration(
            cluster=cluster, broker_name=name, broker_id=id, address=at, ha_address=f"ha-{at}", timeout_ms=timeout_ms,
            acting_master=acting_master, configs=configs,
        )  # fmt: skip
        return self.table.register(told, connection or at, self.now_ms)

    def addresses(self, topic: str) -> dict[str, dict[int, str]]:
        route = self.table.route(topic)
        return {broker.name: dict(broker.addresses) for broker in route.brokers} if route is not None else {}

    def permission(self, topic: str) -> int:
        route = self.table.route(topic)
        assert route is not None
        return route.queues[0].permission

    @property
    def is_empty(self) -> bool:
        info = self.table.cluster_info()
        return not (info.brokers or info.clusters or self.table.topics().topics or self.table.members())


@pytest.fixture
def story() -> Story:
    return Story()


# --- coming ----------------------------------------------------------------------------------------------------------


def test_what_is_registered_is_found(story: Story) -> None:
    story.register(ORDERS)
    story.register(ORDERS, PAYMENTS, name="broker-b", at="b:10911")

    route = story.table.route("orders")
    assert route is not None
    assert route.queues == (QueueData("broker-a", 4, 4, 6), QueueData("broker-b", 4, 4, 6))
    assert story.addresses("orders") == {"broker-a": {0: "a:10911"}, "broker-b": {0: "b:10911"}}
    assert story.addresses("payments") == {"broker-b": {0: "b:10911"}}
    assert story.table.route("unheard-of") is None


def test_a_change_arrives_with_a_new_data_version_only(story: Story) -> None:
    story.register(TopicConfig("orders", 4, 4), version=1)
    story.register(TopicConfig("orders", 9, 9), version=1)
    assert story.table.route("orders").queues[0].read_queues == 4  # type: ignore[union-attr]
    story.register(TopicConfig("orders", 9, 9), version=2)
    assert story.table.route("orders").queues[0].read_queues == 9  # type: ignore[union-attr]


def test_a_topic_that_is_missing_is_added_whatever_the_version(story: Story) -> None:
    story.register(PAYMENTS, version=1)
    story.register(ORDERS, version=1)
    assert story.addresses("orders")


def test_topics_that_are_no_longer_named_stay_unless_told_otherwise() -> None:
    """RocketMQ's brokers send single changes as registrations: topics that are not named stay."""
    for forgets in (False, True):
        story = Story(delete_topics_with_registration=forgets)
        story.register(ORDERS, PAYMENTS, version=1)
        story.register(PAYMENTS, version=2)
        assert bool(story.addresses("orders")) is not forgets
        assert story.addresses("payments")


def test_one_topic_alone_cannot_introduce_a_broker(story: Story) -> None:
    with pytest.raises(NotNow, match="broker-a is not registered yet"):
        story.register()
    assert story.is_empty
    story.register(ORDERS)
    story.register(version=2)


def test_the_version_that_is_known_is_the_broker_s_last(story: Story) -> None:
    assert story.table.version_of("a:10911") is None
    story.register(ORDERS, version=7)
    assert story.table.version_of("a:10911") == DataVersion(0, 7)


# --- masters and slaves ----------------------------------------------------------------------------------------------


def test_a_slave_is_told_its_master_and_does_not_speak_for_the_topics(story: Story) -> None:
    assert story.register(ORDERS) == MasterAt()
    assert story.register(PAYMENTS, id=1, at="s:1") == MasterAt("a:10911", "ha-a:10911")
    assert story.addresses("orders") == {"broker-a": {0: "a:10911", 1: "s:1"}}
    assert story.addresses("payments") == {}


def test_without_a_master_the_first_slave_speaks_for_the_topics(story: Story) -> None:
    assert story.register(ORDERS, id=2, at="s:2") == MasterAt()
    assert story.addresses("orders") == {"broker-a": {2: "s:2"}}
    assert story.permission("orders") == 6


def test_a_slave_from_before_5_0_never_does(story: Story) -> None:
    story.register(ORDERS, id=1, at="s:1", acting_master=None)
    assert story.addresses("orders") == {}


def test_where_slaves_may_stand_in_nobody_writes_until_a_master_is_back(story: Story) -> None:
    story.register(ORDERS, acting_master=True)
    story.register(ORDERS, id=1, at="s:1", acting_master=True)
    story.table.disconnected("a:10911")
    assert story.permission("orders") == READ_ONLY
    assert story.addresses("orders") == {"broker-a": {1: "s:1"}}
    story.register(ORDERS, acting_master=True)
    assert story.permission("orders") == 6


def test_a_slave_that_became_master_is_not_its_own_slave(story: Story) -> None:
    story.register(ORDERS, id=1, at="s:1")
    story.register(ORDERS, id=0, at="s:1", version=2)
    assert story.addresses("orders") == {"broker-a": {0: "s:1"}}


# --- the same name twice ---------------------------------------------------------------------------------------------


def test_a_master_that_moved_is_found_at_its_new_address(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    story.register(ORDERS)
    with caplog.at_level(logging.WARNING):
        story.register(ORDERS, at="moved:1")
    assert story.addresses("orders") == {"broker-a": {0: "moved:1"}}
    assert "two brokers have the same name" in caplog.text
    assert [member.address for member in story.table.members()] == ["moved:1"]

    story.table.disconnected("a:10911")  # the old one's connection breaks at last
    assert story.addresses("orders") == {"broker-a": {0: "moved:1"}}


def test_a_master_that_was_replaced_is_not_listened_to(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    story.register(ORDERS, at="new:1", state=2)
    with caplog.at_level(logging.WARNING):
        assert story.register(PAYMENTS, at="old:1", state=1) == MasterAt()
    assert story.addresses("orders") == {"broker-a": {0: "new:1"}}
    assert story.addresses("payments") == {}
    assert "was made master later" in caplog.text


def test_an_address_whose_broker_was_renamed_has_only_the_new_name(story: Story) -> None:
    story.register(ORDERS, name="old")
    story.register(PAYMENTS, name="new")
    assert story.addresses("orders") == {}
    assert story.addresses("payments") == {"new": {0: "a:10911"}}
    assert list(story.table.cluster_info().brokers) == ["new"]


def test_a_broker_that_changed_its_cluster_is_in_the_new_one_only(story: Story) -> None:
    story.register(ORDERS, cluster="old")
    story.register(ORDERS, cluster="new")
    assert dict(story.table.cluster_info().clusters) == {"new": ("broker-a",)}


# --- going -----------------------------------------------------------------------------------------------------------


def test_a_silent_broker_is_forgotten_after_its_own_time(story: Story) -> None:
    story.register(ORDERS, name="patient", at="p:1")
    story.register(ORDERS, name="hasty", at="h:1", timeout_ms=10_000)
    assert story.table.expire(10_000) == []
    assert [member.broker_name for member in story.table.expire(10_001)] == ["hasty"]
    assert story.addresses("orders") == {"patient": {0: "p:1"}}
    assert story.table.heard("p:1", 100_000)
    assert not story.table.heard("h:1", 100_000)
    assert story.table.expire(220_000) == []
    assert len(story.table.expire(220_001)) == 1
    assert story.is_empty


def test_a_timeout_that_makes_no_sense_is_not_taken(story: Story) -> None:
    story.register(ORDERS, timeout_ms=-5)
    assert story.table.expire(1000) == []


def test_a_broken_connection_takes_its_broker_along(story: Story) -> None:
    story.register(ORDERS, connection="first")
    story.register(ORDERS, connection="second")
    assert story.table.disconnected("first") == []
    assert [member.address for member in story.table.disconnected("second")] == ["a:10911"]
    assert story.is_empty


def test_several_brokers_may_share_a_connection(story: Story) -> None:
    story.register(ORDERS, name="broker-a", at="a:1", connection="shared")
    story.register(ORDERS, name="broker-b", at="b:1", connection="shared")
    assert len(story.table.disconnected("shared")) == 2
    assert story.is_empty


def test_a_broker_says_goodbye(story: Story) -> None:
    story.register(ORDERS)
    assert not story.table.unregister("DefaultCluster", "another", "a:10911")
    assert not story.table.unregister("DefaultCluster", "broker-a", "another:1")
    assert story.table.unregister("DefaultCluster", "broker-a", "a:10911")
    assert story.is_empty


def test_the_topics_stay_with_the_last_broker_of_a_name(story: Story) -> None:
    story.register(ORDERS)
    story.register(ORDERS, id=1, at="s:1")
    story.table.unregister("DefaultCluster", "broker-a", "a:10911")
    assert story.addresses("orders") == {"broker-a": {1: "s:1"}}
    assert story.permission("orders") == 6
    story.table.unregister("DefaultCluster", "broker-a", "s:1")
    assert story.is_empty


# --- admin -----------------------------------------------------------------------------------------------------------


def test_writing_is_wiped_and_added_again(story: Story) -> None:
    story.register(ORDERS, PAYMENTS)
    story.register(ORDERS, name="broker-b", at="b:1")
    assert story.table.wipe_write_permission("broker-a") == 3
    assert story.table.wipe_write_permission("unheard-of") == 0
    assert story.permission("payments") == READ_ONLY
    story.register(ORDERS, PAYMENTS)  # the same version again: what an operator decided stays
    assert story.permission("payments") == READ_ONLY
    assert story.table.add_write_permission("broker-a") == 3
    assert story.permission("payments") == 6


def test_what_was_wiped_stays_wiped_when_the_broker_makes_other_topics(story: Story) -> None:
    story.register(ORDERS)
    story.table.wipe_write_permission("broker-a")
    story.register(ORDERS, PAYMENTS, version=2)
    assert story.permission("orders") == READ_ONLY, "the broker does not know of it, and names its own permission"
    assert story.permission("payments") == 6, "a topic that was not there has the permission that it was made with"
    story.table.add_write_permission("broker-a")
    story.register(ORDERS, PAYMENTS, version=3)
    assert story.permission("orders") == 6


def test_a_wipe_ends_with_the_topic_and_with_the_last_broker_of_the_name(story: Story) -> None:
    story.register(ORDERS, PAYMENTS)
    story.table.wipe_write_permission("broker-a")
    story.table.delete_topic("orders")
    story.register(ORDERS, PAYMENTS, version=2)
    assert (story.permission("orders"), story.permission("payments")) == (6, READ_ONLY)
    story.table.unregister("DefaultCluster", "broker-a", "a:10911")
    story.register(ORDERS, PAYMENTS, version=3)
    assert story.permission("payments") == 6


def test_a_broker_that_moves_stays_wiped(story: Story) -> None:
    story.register(ORDERS)
    story.table.wipe_write_permission("broker-a")
    story.register(ORDERS, at="elsewhere:1", version=2)
    assert story.permission("orders") == READ_ONLY


def test_a_topic_is_deleted_whole_or_in_one_cluster(story: Story) -> None:
    story.register(ORDERS, cluster="east", name="broker-e", at="e:1")
    story.register(ORDERS, cluster="west", name="broker-w", at="w:1")
    assert story.table.delete_topic("orders", "east") == 1
    assert story.table.delete_topic("orders", "south") == 0
    assert story.addresses("orders") == {"broker-w": {0: "w:1"}}
    assert story.table.delete_topic("orders") == 1
    assert story.table.delete_topic("orders") == 0
    assert story.table.route("orders") is None


def test_a_topic_is_put_on_brokers_that_are_known(story: Story) -> None:
    story.register(ORDERS)
    assert not story.table.register_topic("made", [QueueData("broker-a", 1, 1, 6), QueueData("unheard-of", 1, 1, 6)])
    assert not story.table.register_topic("made", [])
    assert story.table.route("made") is None
    assert story.table.register_topic("made", [QueueData("broker-a", 1, 1, 6)])
    assert story.addresses("made") == {"broker-a": {0: "a:10911"}}


def test_lists(story: Story) -> None:
    story.register(ORDERS, cluster="east", name="broker-e", at="e:1")
    story.register(PAYMENTS, cluster="west", name="broker-w", at="w:1")
    assert set(story.table.topics().topics) == {"SELF_TEST_TOPIC", "orders", "payments"}
    assert set(story.table.topics_of_cluster("west").topics) == {"SELF_TEST_TOPIC", "payments"}
    assert story.table.topics_of_cluster("south").topics == ()
    system = story.table.system_topics()
    assert set(system.topics) == {"east", "west", "broker-e", "broker-w"}
    assert system.broker_address == "e:1"
    assert dict(story.table.member_group("east", "broker-e").addresses) == {0: "e:1"}
    assert dict(story.table.member_group("east", "unheard-of").addresses) == {}


def test_lists_of_unit_topics(story: Story) -> None:
    flags = {"plain": 0, "unit": 1, "subscribed": 2, "both": 3}
    story.register(*(TopicConfig(name, system_flag=flag) for name, flag in flags.items()))
    assert story.table.topics_with_flags(having=1).topics == ("unit", "both")
    assert story.table.topics_with_flags(having=2).topics == ("subscribed", "both")
    assert story.table.topics_with_flags(having=2, lacking=1).topics == ("subscribed",)


def test_the_mapping_of_a_static_topic_comes_and_goes_with_the_topic(story: Story) -> None:
    story.register(ORDERS, mappings={"orders": {"topic": "orders", "totalQueues": 4}, "not-mine": {"topic": "x"}})
    route = story.table.route("orders")
    assert route is not None
    assert route.mappings == {"broker-a": {"topic": "orders", "totalQueues": 4}}
    story.table.delete_topic("orders")
    story.register(ORDERS, version=2)
    route = story.table.route("orders")
    assert route is not None
    assert route.mappings == {}


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "x" * 301, "line\nfeed", "zero\0"])
def test_names_that_nobody_has_are_refused(story: Story, name: str) -> None:
    for given in ({"name": name}, {"at": name, "connection": "c"}, {"cluster": name}):
        with pytest.raises(BadRequest):
            story.register(ORDERS, **given)  # type: ignore[arg-type]
    assert story.is_empty


def test_a_topic_s_name_is_bounded(story: Story) -> None:
    with pytest.raises(BadRequest):
        story.register(TopicConfig("t" * 513))
    with pytest.raises(BadRequest):
        story.table.register_topic("t" * 513, [QueueData("broker-a")])
    assert story.is_empty


def test_brokers_and_routes_are_bounded_and_what_is_known_goes_on(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_table, "MAX_BROKERS", 1)
    monkeypatch.setattr(route_table, "MAX_ROUTES", 2)
    story.register(ORDERS)
    with pytest.raises(SystemBusy, match="1 brokers"):
        story.register(ORDERS, name="broker-b", at="b:1")
    with pytest.raises(SystemBusy, match="2 routes"):
        story.register(ORDERS, PAYMENTS)
    with pytest.raises(SystemBusy):
        story.table.register_topic("made", [QueueData("broker-a")])
    story.register(ORDERS, version=2)
    assert set(story.table.topics().topics) == {"SELF_TEST_TOPIC", "orders"}


def test_mappings_are_bounded(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequest, match="bytes"):
        story.register(ORDERS, mappings={"orders": {"topic": "x" * (64 << 10)}})
    monkeypatch.setattr(route_table, "MAX_MAPPINGS", 0)
    with pytest.raises(SystemBusy):
        story.register(ORDERS, mappings={"orders": {"topic": "orders"}})
    assert story.is_empty


# --- registrations in steps ------------------------------------------------------------------------------------------


def _steps(story: Story, queues: int, version: int) -> Generator[None, None, MasterAt]:
    """A registration of many topics, stopped when half of them are in the table."""
    topics = tuple(TopicConfig(f"t{number}", queues, queues) for number in range(10))
    told = Registration(
        cluster="c", broker_name="broker-a", broker_id=0, address="a:10911", acting_master=False,
        configs=TopicConfigs(DataVersion(0, version, 0), topics),
    )  # fmt: skip
    steps = story.table.registering(told, "a:10911", story.now_ms)
    for _ in range(15):
        next(steps)
    return steps


def test_a_broker_that_is_forgotten_while_it_registers_leaves_nothing(story: Story) -> None:
    steps = _steps(story, 1, 1)
    story.table.forget("a:10911")
    assert finished(steps) == MasterAt()
    assert story.is_empty


def test_a_newer_registration_is_not_undone_by_the_rest_of_an_older_one(story: Story) -> None:
    older = _steps(story, 1, 1)
    finished(_steps(story, 2, 2))
    finished(older)
    routes = [story.table.route(f"t{number}") for number in range(10)]
    assert [route.queues[0].read_queues for route in routes if route is not None] == [2] * 10


def test_the_same_registration_twice_at_once_is_as_good_as_once(story: Story) -> None:
    story.register(*(TopicConfig(f"t{number}") for number in range(10)))
    first, second = _steps(story, 2, 2), _steps(story, 2, 2)
    finished(second)
    finished(first)
    routes = [story.table.route(f"t{number}") for number in range(10)]
    assert [route.queues[0].read_queues for route in routes if route is not None] == [2] * 10
