"""A slave has the topics, groups, progress, delays and request modes of its master, and loses none of them to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from broker.support.fakes import store_config
from net.fakes import until
from pyromq.broker.failover.metadata_sync import MetadataCopy, TakenProgress, forget_own_progress
from pyromq.broker.state.tables import Tables
from pyromq.clock import ManualClock
from pyromq.config import BrokerConfig, ReplicationConfig
from pyromq.errors import Unreachable
from pyromq.model.data_version import DataVersion
from pyromq.model.group import GroupConfig
from pyromq.model.json_form import to_json
from pyromq.model.names import HALF_DONE_TOPIC, HALF_TOPIC, TRANSACTION_GROUP
from pyromq.model.topic import TopicConfig
from pyromq.net.client import Client
from pyromq.store.message_store import InlineRunner, MessageStore
from pyromq.store.tables import log_history
from pyromq.store.tables.change_log import ChangeLog
from pyromq.store.tables.log_history import Entry, LogHistory
from pyromq.testing import SimDisk
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests import admin as ask
from pyromq.wire.requests.client import QueryConsumerOffset, Request, UpdateConsumerOffset

MASTER = "10.0.0.1:10911"
VIP = "10.0.0.1:10909"


class Master:
    """As much of a master as a slave asks; also the client that reaches it."""

    def __init__(self) -> None:
        self.is_there = True
        #: Does it listen two ports below as well?
        self.has_vip = True
        self.version = 1
        self.topics = {"orders": TopicConfig("orders", 4, 4)}
        self.groups = {"shop": GroupConfig("shop")}
        self.offsets: dict[str, dict[int, int]] = {"orders@shop": {0: 10}}
        self.delays: dict[str, int] = {"3": 5}
        self.log_end = 0
        #: Of ours: positions of transactions and of delays, with the log ends that they depend on.
        self.transactions: list[Entry] = []
        self.delivered: list[Entry] = []
        self.asked: list[tuple[str, type[Request]]] = []
        self.refuses_progress = False
        #: Of ours: it tells what changed. Its changes, and the number of offset tables told as a whole.
        self.changes: ChangeLog[str] | None = None
        self.delay_changes = 0
        self.whole_tables = 0
        #: Called when progress was given out.
        self.then: Callable[[], None] = lambda: None

    async def call(self, address: str, request: Request, timeout_s: float) -> Command:
        self.asked.append((address, type(request)))
        if not self.is_there or (address == VIP and not self.has_vip):
            raise Unreachable(f"{address} is not there")
        assert address in (MASTER, VIP)
        return self.answers[type(request)](request)

    @property
    def answers(self) -> dict[type[Request], Callable[[Any], Command]]:
        return {
            ask.GetAllTopics: lambda _: self._told(
                topicConfigTable={name: to_json(one) for name, one in self.topics.items()}
            ),
            ask.GetAllGroups: lambda _: self._told(
                subscriptionGroupTable={name: to_json(one) for name, one in self.groups.items()}
            ),
            ask.GetAllOffsets: self._all_offsets,
            ask.GetAllDelayOffsets: lambda _: self._told(offsetTable=self.delays, **_tied(self.delivered)),
            ask.GetRuntimeInfo: lambda _: _answer({"table": {"commitLogMaxOffset": str(self.log_end)}}),
            ask.GetRequestModes: lambda _: _answer({"messageRequestModeMap": {}}),
            QueryConsumerOffset: self._offset,
            UpdateConsumerOffset: self._update,
        }

    def _told(self, **table: object) -> Command:
        return _answer({**table, "dataVersion": to_json(DataVersion(self.version, self.version))})

    def _all_offsets(self, request: ask.GetAllOffsets) -> Command:
        changed = None if self.changes is None else self.changes.since(request.changed_since)
        self.whole_tables += changed is None
        told = self.offsets if changed is None else {pair: self.offsets.get(pair, {}) for pair in changed}
        written = {pair: {str(queue): at for queue, at in queues.items()} for pair, queues in told.items()}
        self.then()
        answer = self._told(offsetTable=written, **_tied(self.transactions))
        if self.changes is not None:
            answer.fields = {
                "changes": self.changes.token,
                "isDelta": str(changed is not None).lower(),
                "delayChanges": str(self.delay_changes),
            }
        return answer

    def commit(self, pair: str, offset: int) -> None:
        self.offsets[pair] = {0: offset}
        if self.changes is not None:
            self.changes.note(pair)

    def _offset(self, request: QueryConsumerOffset) -> Command:
        offset = self.offsets.get(f"{request.topic}@{request.group}", {}).get(request.queue_id)
        if offset is None:
            return Command(code=ResponseCode.QUERY_NOT_FOUND)
        return Command(code=0, fields={"offset": str(offset)})

    def _update(self, request: UpdateConsumerOffset) -> Command:
        if self.refuses_progress:
            return Command(code=1, reason="not now")
        assert request.only_forward, "a consumer may have told more since it was asked"
        self.offsets.setdefault(f"{request.topic}@{request.group}", {})[request.queue_id] = request.offset
        return Command(code=0)


def _tied(entries: list[Entry]) -> dict[str, object]:
    return {log_history.FIELD: log_history.to_json(LogHistory(entries))} if entries else {}


def _answer(document: object) -> Command:
    return Command(code=0, body=orjson.dumps(document))


class Slave:
    def __init__(self, master: Master, disk: SimDisk | None = None, log_end: int = 0) -> None:
        clock = ManualClock()
        self.disk = disk or SimDisk(clock)
        self._master = master
        self.config = BrokerConfig(
            store=store_config(root=Path("/slave")), role="SLAVE", broker_id=1, replication=ReplicationConfig()
        )
        self.store = MessageStore(self.config.store, disk=self.disk, clock=clock, runner=InlineRunner())
        self.store.open()
        self.tables = Tables(self.config, self.store, clock)
        self.log_end = log_end
        self.queue_ends: dict[tuple[str, int], int] = {}
        self.changes: list[str] = []
        self.copy = MetadataCopy(
            lambda: self.config,
            self.tables,
            cast(Client, master),
            topics_changed=lambda: self.changes.append("topics"),
            groups_changed=lambda: self.changes.append("groups"),
            log_end=lambda: self.log_end,
            queue_end=lambda topic, queue: self.queue_ends.get((topic, queue), 1000),
            taken=TakenProgress(self.store.disk, self.store.paths.config),
        )

    async def round(self) -> None:
        await self.copy._copy_from(MASTER)
        await self.copy.settled()

    def killed(self, log_end: int = 0) -> Slave:
        """Its next life, with the files on the disk."""
        return Slave(self._master, self.disk.kill(), log_end)

    def made(self, **begun: int) -> set[str]:
        """It is to lead: which of the topics that begin at these positions it makes."""
        before = {topic.name for topic in self.tables.topics}
        self.copy.name_new_topics(lambda since: {name: 3 for name, at in begun.items() if at >= since})
        return {topic.name for topic in self.tables.topics} - before

    def progress(self, queue: int = 0) -> int | None:
        return self.tables.offsets.offset_of("shop", "orders", queue)


@pytest.fixture
def master() -> Master:
    return Master()


@pytest.fixture
def slave(master: Master) -> Slave:
    return Slave(master)


def test_everything_is_taken_over_and_noticed_once(master: Master, slave: Slave) -> None:
    asyncio.run(slave.round())
    assert [topic.name for topic in slave.tables.topics] == ["orders"]
    assert [group.name for group in slave.tables.groups] == ["shop"]
    assert (slave.progress(), slave.tables.delays.offset_of(3)) == (10, 5)
    assert slave.tables.topics.version.counter == 1
    asyncio.run(slave.round())
    assert slave.changes == ["topics", "groups"]


def test_a_topic_that_the_master_removed_goes(master: Master, slave: Slave) -> None:
    master.topics["old"] = TopicConfig("old", 1, 1)
    asyncio.run(slave.round())
    del master.topics["old"]
    master.version += 1
    asyncio.run(slave.round())
    assert [topic.name for topic in slave.tables.topics] == ["orders"]


def test_nothing_is_never_taken_for_something(master: Master, slave: Slave) -> None:
    asyncio.run(slave.round())
    master.topics, master.groups, master.offsets, master.delays = {}, {}, {}, {}
    master.version += 1
    asyncio.run(slave.round())
    assert "orders" in slave.tables.topics
    assert "shop" in slave.tables.groups
    assert (slave.progress(), slave.tables.delays.offset_of(3)) == (10, 5)
    assert master.offsets == {}


def test_a_master_that_is_gone_or_speaks_nonsense_changes_nothing(
    master: Master, slave: Slave, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(slave.round())
    master.is_there = False
    asyncio.run(slave.round())
    asyncio.run(slave.round())
    assert slave.progress() == 10
    assert len(caplog.messages) == 1
    master.is_there = True
    master.offsets = {"orders@shop": {0: -4}}
    asyncio.run(slave.round())
    assert slave.progress() == 10


def test_it_is_asked_on_the_port_that_is_free_of_pulls_if_there_is_one(master: Master, slave: Slave) -> None:
    asyncio.run(slave.round())
    assert {address for address, _ in master.asked} == {VIP}
    master.has_vip = False
    asyncio.run(slave.round())
    assert (MASTER, ask.GetAllTopics) in master.asked


# --- progress ---------------------------------------------------------------------------------------------------------


def test_progress_that_was_told_here_flows_back(master: Master, slave: Slave) -> None:
    asyncio.run(slave.round())
    slave.tables.offsets.commit("shop", "orders", 0, 15)
    slave.tables.offsets.commit("shop", "orders", 1, 3)
    asyncio.run(slave.round())
    assert master.offsets == {"orders@shop": {0: 15, 1: 3}}
    assert (slave.progress(0), slave.progress(1)) == (15, 3)


def test_the_master_is_never_taken_back(master: Master, slave: Slave) -> None:
    asyncio.run(slave.round())
    slave.tables.offsets.commit("shop", "orders", 0, 15)
    master.offsets["orders@shop"][0] = 20
    asyncio.run(slave.round())
    assert (master.offsets["orders@shop"][0], slave.progress()) == (20, 20)


def test_what_consumers_tell_the_master_meanwhile_counts(master: Master, slave: Slave) -> None:
    asyncio.run(slave.round())
    slave.tables.offsets.commit("shop", "orders", 0, 15)
    master.then = lambda: master.offsets["orders@shop"].update({0: 30})
    asyncio.run(slave.round())
    assert master.offsets["orders@shop"][0] == 30


def test_a_reset_on_the_master_is_followed(master: Master, slave: Slave) -> None:
    asyncio.run(slave.round())
    master.offsets["orders@shop"][0] = 2
    asyncio.run(slave.round())
    assert (slave.progress(), master.offsets["orders@shop"][0]) == (2, 2)


def test_a_group_that_the_master_forgot_does_not_come_back(master: Master, slave: Slave) -> None:
    master.offsets["orders@other"] = {0: 1}
    asyncio.run(slave.round())
    del master.offsets["orders@shop"]
    asyncio.run(slave.round())
    asyncio.run(slave.round())
    assert slave.progress() is None
    assert "orders@shop" not in master.offsets


def test_what_the_master_did_not_take_is_told_again(master: Master, slave: Slave) -> None:
    asyncio.run(slave.round())
    slave.tables.offsets.commit("shop", "orders", 0, 15)
    master.refuses_progress = True
    asyncio.run(slave.round())
    assert slave.progress() == 15
    master.refuses_progress = False
    asyncio.run(slave.round())
    assert master.offsets["orders@shop"][0] == 15


# --- delays -----------------------------------------------------------------------------------------------------------


def test_delays_count_as_delivered_when_the_copy_has_what_was_delivered(master: Master, slave: Slave) -> None:
    master.log_end = 1000
    asyncio.run(slave.round())
    assert slave.tables.delays.offset_of(3) is None
    slave.log_end, master.log_end, master.delays, master.version = 1000, 2000, {"3": 9}, 2
    asyncio.run(slave.round())
    assert slave.tables.delays.offset_of(3) == 5


def test_delays_are_taken_over_between_two_saves_of_the_master_too(master: Master, slave: Slave) -> None:
    asyncio.run(slave.round())
    master.delays = {"3": 9}  # its version counts what it saved
    asyncio.run(slave.round())
    assert slave.tables.delays.offset_of(3) == 9


# --- its life ---------------------------------------------------------------------------------------------------------


def transactions_of(slave: Slave) -> tuple[int | None, int | None]:
    offset_of = slave.tables.offsets.offset_of
    return offset_of(TRANSACTION_GROUP, HALF_TOPIC, 0), offset_of(TRANSACTION_GROUP, HALF_DONE_TOPIC, 0)


def test_transactions_count_as_ended_when_the_copy_has_their_ends(master: Master, slave: Slave) -> None:
    master.offsets |= {f"{HALF_TOPIC}@{TRANSACTION_GROUP}": {0: 9}, f"{HALF_DONE_TOPIC}@{TRANSACTION_GROUP}": {0: 7}}
    master.transactions = [
        Entry(100, {HALF_TOPIC: 4, HALF_DONE_TOPIC: 3}),
        Entry(200, {HALF_TOPIC: 9, HALF_DONE_TOPIC: 7}),
    ]
    for log_end, taken in ((99, (None, None)), (199, (4, 3)), (200, (9, 7))):
        slave.log_end = log_end
        asyncio.run(slave.round())
        assert transactions_of(slave) == taken


def test_transactions_of_rocketmqs_master_wait_for_the_end_of_its_log(master: Master, slave: Slave) -> None:
    master.offsets |= {f"{HALF_TOPIC}@{TRANSACTION_GROUP}": {0: 4}, f"{HALF_DONE_TOPIC}@{TRANSACTION_GROUP}": {0: 3}}
    master.log_end, slave.log_end = 100, 50
    asyncio.run(slave.round())
    assert transactions_of(slave) == (None, None)
    # The master continues, and the slave lags: the first answer is taken first, not never.
    master.offsets[f"{HALF_TOPIC}@{TRANSACTION_GROUP}"] = {0: 9}
    master.log_end, slave.log_end = 200, 100
    asyncio.run(slave.round())
    assert transactions_of(slave) == (4, 3)
    slave.log_end = 200
    asyncio.run(slave.round())
    assert transactions_of(slave) == (9, 3)


def test_of_delays_the_newest_that_the_log_has_are_taken(master: Master, slave: Slave) -> None:
    master.delays = {"3": 5}
    master.delivered = [Entry(100, {"3": 2}), Entry(200, {"3": 5})]
    for log_end, taken in ((99, None), (199, 2), (200, 5)):
        slave.log_end = log_end
        asyncio.run(slave.round())
        assert slave.tables.delays.offset_of(3) == taken


def test_no_group_is_further_than_the_queues_here(master: Master, slave: Slave) -> None:
    """Until they have grown; and held-back offsets are not taken for news."""
    slave.queue_ends = {("orders", 0): 7}
    asyncio.run(slave.round())
    assert slave.progress() == 7
    slave.queue_ends = {("orders", 0): 12}
    asyncio.run(slave.round())
    assert slave.progress() == 10
    assert UpdateConsumerOffset not in {kind for _, kind in master.asked}


# --- what changed -----------------------------------------------------------------------------------------------------


def begun(master: Master, slave: Slave) -> None:
    """The slave has copied everything once, from a master that tells what changed."""
    master.changes = ChangeLog()
    slave.copy.master_is_at(MASTER)
    asyncio.run(slave.round())
    master.asked.clear()


def test_progress_that_changed_is_copied_without_the_rest(master: Master, slave: Slave) -> None:
    master.offsets["orders@lab"] = {0: 3}
    begun(master, slave)
    master.commit("orders@shop", 12)
    asyncio.run(slave.copy.copy_changes())
    assert (slave.progress(), slave.tables.offsets.offset_of("lab", "orders", 0)) == (12, 3)
    assert master.whole_tables == 1
    assert [kind for _, kind in master.asked] == [ask.GetAllOffsets]


def test_a_group_that_is_gone_is_gone_and_a_reset_is_followed(master: Master, slave: Slave) -> None:
    master.offsets["orders@lab"] = {0: 3}
    begun(master, slave)
    master.commit("orders@shop", 2)
    del master.offsets["orders@lab"]
    assert master.changes is not None
    master.changes.note("orders@lab")
    asyncio.run(slave.copy.copy_changes())
    assert (slave.progress(), slave.tables.offsets.offset_of("lab", "orders", 0)) == (2, None)


def test_what_was_clamped_follows_the_queue(master: Master, slave: Slave) -> None:
    slave.queue_ends = {("orders", 0): 7}
    begun(master, slave)
    assert slave.progress() == 7
    slave.queue_ends = {("orders", 0): 9}
    asyncio.run(slave.copy.copy_changes())
    assert slave.progress() == 9


def test_what_consumers_told_here_flows_back_with_the_changes(master: Master, slave: Slave) -> None:
    begun(master, slave)
    slave.tables.offsets.commit("shop", "orders", 0, 15)
    asyncio.run(slave.copy.copy_changes())
    assert master.offsets["orders@shop"] == {0: 15}


def test_a_master_that_started_again_tells_everything(master: Master, slave: Slave) -> None:
    begun(master, slave)
    master.changes, master.offsets = ChangeLog(), {"orders@shop": {0: 30}}
    asyncio.run(slave.copy.copy_changes())
    assert (slave.progress(), master.whole_tables) == (30, 2)


def test_delays_are_asked_for_when_they_changed_and_wait_for_the_log(master: Master, slave: Slave) -> None:
    master.delivered = [Entry(100, {"3": 2})]
    begun(master, slave)
    master.delivered, master.delay_changes = [Entry(100, {"3": 2}), Entry(200, {"3": 5})], 1
    slave.log_end = 150
    asyncio.run(slave.copy.copy_changes())
    assert slave.tables.delays.offset_of(3) == 2
    slave.log_end = 200
    asyncio.run(slave.copy.copy_changes())
    assert slave.tables.delays.offset_of(3) == 5
    assert [kind for _, kind in master.asked].count(ask.GetAllDelayOffsets) == 1


def test_rocketmqs_master_and_one_that_fails_are_asked_for_everything(master: Master, slave: Slave) -> None:
    slave.copy.master_is_at(MASTER)
    asyncio.run(slave.round())
    master.asked.clear()
    asyncio.run(slave.copy.copy_changes())
    assert not master.asked
    begun(master, slave)
    master.is_there = False
    asyncio.run(slave.copy.copy_changes())
    master.is_there = True
    asyncio.run(slave.round())
    assert master.whole_tables == 3


def test_it_begins_as_soon_as_a_master_is_known(master: Master, slave: Slave) -> None:
    async def story() -> None:
        running = asyncio.ensure_future(slave.copy.run())
        await asyncio.sleep(0)
        assert not master.asked
        slave.copy.master_is_at(MASTER)
        async with asyncio.timeout(10):
            await until(lambda: "groups" in slave.changes)
        running.cancel()

    asyncio.run(story())


def test_a_slave_that_was_restarted_does_not_take_what_it_copied_for_news(master: Master, slave: Slave) -> None:
    asyncio.run(slave.round())
    again = slave.killed()
    assert again.progress() == 10
    master.offsets["orders@shop"][0] = 3  # an operator set the group back while the slave was away
    asyncio.run(again.round())
    assert (again.progress(), master.offsets["orders@shop"][0]) == (3, 3)


def test_what_it_was_told_itself_is_news_after_a_restart_too(master: Master, slave: Slave) -> None:
    asyncio.run(slave.round())
    slave.tables.offsets.commit("shop", "orders", 0, 14)
    slave.tables.offsets.save()
    again = slave.killed()
    asyncio.run(again.round())
    assert (again.progress(), master.offsets["orders@shop"][0]) == (14, 14)


def test_one_that_led_has_no_news_for_the_master_that_came_after_it(master: Master, slave: Slave) -> None:
    slave.tables.offsets.commit("shop", "orders", 0, 99)
    forget_own_progress(slave.tables.offsets, TakenProgress(slave.disk, slave.store.paths.config))
    slave.tables.offsets.save()
    again = slave.killed()
    asyncio.run(again.round())
    assert (again.progress(), master.offsets["orders@shop"][0]) == (10, 10)


def test_a_topic_that_came_with_the_last_messages_is_made_and_one_that_was_removed_is_not(
    master: Master, slave: Slave
) -> None:
    slave.log_end = 500
    asyncio.run(slave.round())
    begun = {"old": 100, "new": 700}
    slave.copy.name_new_topics(lambda since: {name: 3 for name, at in begun.items() if at >= since})
    topic = slave.tables.topics.get("new")
    assert topic is not None
    assert (topic.read_queues, topic.write_queues, "old" in slave.tables.topics) == (3, 3, False)


def test_how_far_topics_are_known_survives_a_restart(master: Master, slave: Slave) -> None:
    slave.log_end = 500
    asyncio.run(slave.round())
    again = slave.killed(log_end=900)
    assert "orders" in again.tables.topics
    assert again.made(old=100, new=700) == {"new"}


def test_a_log_that_was_cut_back_is_known_to_its_end(master: Master, slave: Slave) -> None:
    slave.log_end = 500
    asyncio.run(slave.round())
    again = slave.killed(log_end=300)
    assert again.made(old=100, new=400) == {"new"}


def test_one_that_never_asked_makes_all_topics_that_have_messages(slave: Slave) -> None:
    assert slave.killed(log_end=900).made(first=0, second=700) == {"first", "second"}


def test_one_that_led_knew_the_topics_of_its_whole_log(slave: Slave) -> None:
    forget_own_progress(slave.tables.offsets, TakenProgress(slave.disk, slave.store.paths.config))
    assert slave.killed(log_end=900).made(removed=700, copied=900) == {"copied"}


def test_nothing_is_taken_from_a_master_that_was_replaced(master: Master, slave: Slave) -> None:
    slave.copy._trusts = lambda address: address != MASTER
    slave.copy.master_is_at(MASTER)
    asyncio.run(slave.copy.copy_now())
    assert not master.asked
