"""The admin client against a real broker: topics, groups, offsets, messages, settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

import pyromq.testing
from admin.scene import commit, send, with_admin
from pyromq.admin.admin import Admin
from pyromq.client.message import Message
from pyromq.client.push_consumer import PushConsumer
from pyromq.errors import (
    BadRequest,
    ConfigError,
    ConsumerOffline,
    GroupNotFound,
    IllegalName,
    NotFound,
    OffsetNotFound,
    PyroMQError,
    TopicExists,
    TopicNotFound,
)
from pyromq.model.queue import MessageQueue
from pyromq.model.topic import Permission

NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def mq() -> Iterator[pyromq.testing.LocalBroker]:
    with pyromq.testing.broker() as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"topic-{next(NUMBERS)}"


@pytest.fixture
def group() -> str:
    return f"group-{next(NUMBERS)}"


# --- topics ----------------------------------------------------------------------------------------------------------


def test_the_life_of_a_topic(mq: pyromq.testing.LocalBroker, topic: str) -> None:
    async def story(admin: Admin) -> None:
        made = await admin.topics.create(topic, queues=3, attributes={"message.type": "FIFO"})
        assert [on.write_queues for on in made.brokers] == [3]
        assert (await admin.topics.get(topic)).brokers[0].attributes == {"message.type": "FIFO"}
        with pytest.raises(TopicExists, match="`pyromq topic update` changes it"):
            await admin.topics.create(topic)
        changed = await admin.topics.update(topic, write_queues=1, permission=Permission.READ)
        (on,) = changed.brokers
        assert (on.read_queues, on.write_queues, on.permission) == (3, 1, 4)
        assert on.attributes == {"message.type": "FIFO"}
        assert (await admin.topics.route(topic)).queues[0].read_queues == 3
        await admin.topics.delete(topic)
        with pytest.raises(TopicNotFound):
            await admin.topics.get(topic)
        with pytest.raises(TopicNotFound):
            await admin.topics.route(topic)

    with_admin(mq.name_servers, story)


def test_an_ordered_topic_leaves_nothing_at_the_name_server(mq: pyromq.testing.LocalBroker, topic: str) -> None:
    async def story(admin: Admin) -> None:
        await admin.topics.create(topic, queues=2, order=True)
        assert (await admin.topics.get(topic)).brokers[0].order
        await admin.topics.update(topic, read_queues=4, write_queues=4)
        assert (await admin.topics.get(topic)).brokers[0].order
        await admin.topics.delete(topic)

    with_admin(mq.name_servers, story)


def test_what_cannot_be_a_topic_is_refused_before_anybody_is_asked(mq: pyromq.testing.LocalBroker) -> None:
    with pytest.raises(IllegalName):
        with_admin(mq.name_servers, lambda admin: admin.topics.create("no topic!"))
    with pytest.raises(BadRequest, match="the broker's own"):
        with_admin(mq.name_servers, lambda admin: admin.topics.delete("TBW102"))
    with pytest.raises(NotFound, match="no broker is called 'nobody'"):
        with_admin(mq.name_servers, lambda admin: admin.topics.create("t", broker="nobody"))


def test_a_topic_is_described_with_its_messages_and_groups(
    mq: pyromq.testing.LocalBroker, topic: str, group: str
) -> None:
    async def story(admin: Admin) -> None:
        await admin.topics.create(topic, queues=2)
        await send(mq.name_servers, *(Message(topic, b"x") for _ in range(3)))
        await admin.groups.create(group)
        await commit(admin, group, topic, 0, 1)
        details = await admin.topics.describe(topic)
        assert [(one.queue.queue_id, one.messages) for one in details.stats.queues] == [(0, 2), (1, 1)]
        assert (details.stats.messages, details.groups) == (3, (group,))
        assert details.stats.last_ms > 0

    with_admin(mq.name_servers, story)


# --- groups ----------------------------------------------------------------------------------------------------------


def test_the_life_of_a_group(mq: pyromq.testing.LocalBroker, group: str) -> None:
    async def story(admin: Admin) -> None:
        await admin.groups.create(group, max_retries=3)
        with pytest.raises(ConfigError, match="`pyromq group update` changes it"):
            await admin.groups.create(group)
        changed = await admin.groups.update(group, consume_enabled=False)
        assert (changed.config.max_retries, changed.config.consume_enabled) == (3, False)
        with pytest.raises(ConfigError, match="a group has no setting 'colour'"):
            await admin.groups.update(group, colour="red")
        assert await admin.groups.delete(group) == [f"group {group}"]
        with pytest.raises(GroupNotFound):
            await admin.groups.get(group)
        with pytest.raises(BadRequest):
            await admin.groups.delete("TOOLS_CONSUMER")

    with_admin(mq.name_servers, story)


# --- offsets ---------------------------------------------------------------------------------------------------------


def test_a_group_is_set_back_and_forth(mq: pyromq.testing.LocalBroker, topic: str, group: str) -> None:
    async def story(admin: Admin) -> None:
        await admin.topics.create(topic, queues=2)
        await admin.groups.create(group)
        await send(mq.name_servers, *(Message(topic, b"x") for _ in range(6)))
        await commit(admin, group, topic, 0, 2)
        plan = await admin.consumers.plan_reset(group, topic, "latest")
        assert [(one.before, one.after, one.messages_again) for one in plan] == [(2, 3, -1), (None, 3, 0)]
        assert (await admin.consumers.lag(group)).queues[0].consumer_offset == 2, "a plan changes nothing"
        await admin.consumers.carry_out(group, plan)
        assert (await admin.consumers.lag(group)).lag == 0
        hour_ago = datetime.now().astimezone() - timedelta(hours=1)
        moves = await admin.consumers.reset(group, topic, hour_ago)
        assert [one.after for one in moves] == [0, 0]
        assert (await admin.consumers.lag(group, topic)).lag == 6
        (move,) = await admin.consumers.reset(group, topic, 2, queue_id=1)
        assert (move.before, move.after, move.queue.queue_id) == (0, 2, 1)
        (far,) = await admin.consumers.reset(group, topic, 99, queue_id=1)
        assert far.after == 3, "never beyond the end"
        with pytest.raises(BadRequest, match="has no such queue"):
            await admin.consumers.reset(group, topic, "latest", queue_id=7)

    with_admin(mq.name_servers, story)


def test_a_group_goes_on_where_another_one_is(mq: pyromq.testing.LocalBroker, topic: str, group: str) -> None:
    async def story(admin: Admin) -> None:
        await admin.topics.create(topic, queues=1)
        await admin.groups.create(group)
        await send(mq.name_servers, Message(topic, b"x"), Message(topic, b"y"))
        with pytest.raises(NotFound, match="there is nothing to clone"):
            await admin.consumers.clone(group, f"{group}-copy", topic)
        await commit(admin, group, topic, 0, 1)
        (move,) = await admin.consumers.clone(group, f"{group}-copy", topic)
        assert (move.before, move.after) == (None, 1)
        assert (await admin.consumers.lag(f"{group}-copy", topic)).lag == 1

    with_admin(mq.name_servers, story)


def test_who_is_in_a_group_and_has_which_queue(mq: pyromq.testing.LocalBroker, topic: str, group: str) -> None:
    async def story(admin: Admin) -> None:
        await admin.topics.create(topic, queues=2)
        with pytest.raises(ConsumerOffline):
            await admin.consumers.members(group)
        consumer = PushConsumer(mq.name_servers, group=group)
        consumer.subscribe(topic, lambda message: None, tags="A || B")
        async with consumer:
            members = await admin.consumers.members(group)
            assert [(one.client_id, one.language) for one in members.clients] == [(consumer.client_id, "PYTHON")]
            assert [one.expression for one in members.subscriptions if one.topic == topic] == ["A || B"]
            info = await admin.consumers.running_info(group, consumer.client_id)
            assert {one.queue.queue_id for one in info.queues if one.queue.topic == topic} == {0, 1}
            lag = await admin.consumers.lag(group, topic, with_clients=True)
            assert {one.client_id for one in lag.queues} <= {consumer.client_id}
        with pytest.raises(ConsumerOffline, match="does not answer"):
            await admin.consumers.running_info(group, consumer.client_id)

    with_admin(mq.name_servers, story)


# --- messages --------------------------------------------------------------------------------------------------------


def test_messages_are_found_in_every_way(mq: pyromq.testing.LocalBroker, topic: str) -> None:
    async def story(admin: Admin) -> None:
        await admin.topics.create(topic, queues=2)
        await send(mq.name_servers, *(Message(topic, f"body {n}", keys=[f"k{n}", "all"]) for n in range(4)))
        oldest = await admin.messages.peek(topic, count=2)
        assert [one.text for one in oldest] == ["body 0", "body 1"]
        newest = await admin.messages.peek(topic, count=2, newest=True)
        assert [one.text for one in newest] == ["body 2", "body 3"]
        assert [one.text for one in await admin.messages.peek(topic, queue_id=1, offset=1)] == ["body 3"]
        wanted = oldest[1]
        assert (await admin.messages.by_id(wanted.offset_message_id)).queue == MessageQueue(topic, "broker-a", 1)
        assert (await admin.messages.find(wanted.message_id, topic)).text == "body 1"
        assert (await admin.messages.at(wanted.queue, 1)).text == "body 3"
        assert [one.text for one in await admin.messages.by_key(topic, "k2")] == ["body 2"]
        assert len(await admin.messages.by_key(topic, "all", most=3)) == 3
        now = datetime.now().astimezone()
        assert len(await admin.messages.between(topic, now - timedelta(minutes=1), now)) == 4
        assert await admin.messages.between(topic, now - timedelta(hours=2), now - timedelta(hours=1)) == []

    with_admin(mq.name_servers, story)


@pytest.mark.parametrize(
    ("message_id", "sentence"),
    [
        ("nonsense", "is not a message id"),
        ("C0A8000100002A9F0000000000000000", "names a broker at 192.168.0.1:10911, which is not in this cluster"),
    ],
)
def test_an_id_that_leads_nowhere(mq: pyromq.testing.LocalBroker, message_id: str, sentence: str) -> None:
    """Only brokers of the cluster are asked: an id from anywhere must not make us connect anywhere."""
    with pytest.raises(OffsetNotFound, match=sentence):
        with_admin(mq.name_servers, lambda admin: admin.messages.find(message_id))


# --- brokers ---------------------------------------------------------------------------------------------------------


def test_brokers_tell_how_they_are(mq: pyromq.testing.LocalBroker) -> None:
    async def story(admin: Admin) -> None:
        (status,) = await admin.brokers.statuses()
        assert (status.address, status.pyromq_version, status.problem) == (mq.broker_address, pyromq.__version__, None)
        assert abs(status.clock_ms - admin.session.clock.now_ms()) < 5000
        assert (await admin.brokers.status(mq.broker_address)).name == status.name

    with_admin(mq.name_servers, story)


def test_settings_are_changed_while_it_runs_and_only_some(mq: pyromq.testing.LocalBroker) -> None:
    async def story(admin: Admin) -> None:
        await admin.brokers.change("broker-a", {"fileReservedTime": "71"})
        assert (await admin.brokers.config("broker-a"))["fileReservedTime"] == "71"
        with pytest.raises(PyroMQError, match="nothing was changed"):
            await admin.brokers.change("broker-a", {"storePathRootDir": "elsewhere"})
        with pytest.raises(ConfigError, match="one line of name=value"):
            await admin.brokers.change("broker-a", {"fileReservedTime": "1\nlistenPort=1"})

    with_admin(mq.name_servers, story)
