"""Sending back: again after a growing delay, and among the dead letters when the group's limit is reached."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from broker.support.fakes import PEER_HOST, STORE_HOST, FakePeer, Parts, deliver_due
from pyromq.broker.delivery.delays import Delays
from pyromq.broker.requests.send_back import SendBackProcessor
from pyromq.clock import ManualClock
from pyromq.errors import GroupNotFound, NoPermission, PyroMQError, ServiceError
from pyromq.model.group import GroupConfig
from pyromq.model.message import AppendedAt, Draft, StoredMessage
from pyromq.model.names import HALF_TOPIC, SCHEDULE_TOPIC
from pyromq.model.topic import TopicConfig
from pyromq.records import layout
from pyromq.records.message_id import encode_message_id
from pyromq.records.properties import encode_properties
from pyromq.wire.codes import RequestCode, ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.client import SendBack
from pyromq.wire.responses import Response

GROUP = "shop"
RETRY, DEAD = "%RETRY%shop", "%DLQ%shop"


class Scene:
    """A topic with a message, and a group that cannot consume it."""

    def __init__(self, **settings: Any) -> None:
        self.parts = Parts(**settings)
        self.parts.topics.make(TopicConfig("orders", 4, 4))
        self.parts.groups.make(GroupConfig(GROUP, retry_queues=1, max_retries=3))
        parts = self.parts
        self.delays = Delays(parts.store, parts.writer, parts.delay_offsets, parts.topics, parts.clock)
        self.processor = SendBackProcessor(
            lambda: parts.config, parts.topics, parts.groups, parts.writer, parts.overload, parts.store, STORE_HOST,
            parts.statistics,
            delay=self.delays.divert, rng=random.Random(1),
        )  # fmt: skip

    def store(self, **changes: Any) -> AppendedAt:
        draft = Draft(
            b"orders", 2, b"tea", encode_properties({"TAGS": "hot", "KEYS": "k1", "UNIQ_KEY": "U", "WAIT": "true"}),
            user_flag=5, storage_flags=layout.FLAG_COMPRESSED, born_timestamp_ms=77, born_host=PEER_HOST,
            store_host=STORE_HOST,
        )  # fmt: skip
        (receipt,) = self.parts.store.append([replace(draft, **changes)])
        return receipt

    def send_back(self, position: int, delay_level: int = 0, *, version: int = 500, **fields: Any) -> Response:
        command = Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, version=version)
        request = SendBack(position=position, group=GROUP, delay_level=delay_level, command=command, **fields)
        return asyncio.run(self.processor.send_back(request, FakePeer()))

    def stored(self, topic: str, queue: int = 0) -> StoredMessage:
        return self.parts.messages(topic, queue)[-1]

    def waits_in_level(self) -> int:
        """The level that has messages."""
        (level,) = [level for level in range(1, 19) if self.parts.messages(SCHEDULE_TOPIC, level - 1)]
        return level

    def deliver(self, seconds: float) -> None:
        assert isinstance(self.parts.clock, ManualClock)
        self.parts.clock.advance(seconds)
        self.parts.store.dispatch()
        asyncio.run(deliver_due(self.delays))


def shown(message: StoredMessage) -> dict[str, str]:
    return {name: value for name, value in message.properties.items() if not name.startswith("__CRC")}


def test_a_message_comes_again_after_ten_seconds_as_it_was() -> None:
    scene = Scene()
    receipt = scene.store()
    assert scene.send_back(receipt.position).code == ResponseCode.SUCCESS
    scene.deliver(9.999)
    assert scene.parts.messages(RETRY) == []
    scene.deliver(0.001)
    message = scene.stored(RETRY)
    assert (message.body, message.user_flag, message.storage_flags) == (b"tea", 5, layout.FLAG_COMPRESSED)
    assert (message.born_timestamp_ms, message.born_host, message.reconsume_times) == (77, PEER_HOST, 1)
    assert shown(message) == {
        "TAGS": "hot", "KEYS": "k1", "UNIQ_KEY": "U", "WAIT": "false", "DELAY": "3",
        "RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": encode_message_id(STORE_HOST, receipt.position),
        "REAL_TOPIC": RETRY, "REAL_QID": "0",
    }  # fmt: skip


def test_each_attempt_waits_longer_until_the_limit_and_where_it_began_is_kept() -> None:
    scene = Scene()
    first = receipt = scene.store()
    for attempt in (1, 2, 3):
        scene.send_back(receipt.position)
        again = scene.parts.messages(SCHEDULE_TOPIC, 1 + attempt)[-1]
        assert again.properties["DELAY"] == str(2 + attempt)
        scene.deliver(120)
        message = scene.stored(RETRY)
        assert message.reconsume_times == attempt
        receipt = AppendedAt(message.position, message.size, message.queue_offset)
    scene.send_back(receipt.position)
    assert len(scene.parts.messages(RETRY)) == 3
    dead = scene.stored(DEAD)
    origin = encode_message_id(STORE_HOST, first.position)
    assert dead.reconsume_times == 4
    assert "DELAY" not in dead.properties
    assert dead.properties["RETRY_TOPIC"] == dead.properties["DLQ_ORIGIN_TOPIC"] == "orders"
    assert dead.properties["ORIGIN_MESSAGE_ID"] == dead.properties["DLQ_ORIGIN_MESSAGE_ID"] == origin


def test_the_consumer_may_name_the_delay() -> None:
    scene = Scene()
    scene.send_back(scene.store(reconsume_times=2).position, 7)
    assert scene.waits_in_level() == 7


def test_a_delay_above_the_last_level_is_the_last_level() -> None:
    scene = Scene()
    scene.send_back(scene.store(reconsume_times=30).position, max_reconsume_times=100)
    assert scene.waits_in_level() == 18


def test_a_delay_below_zero_gives_the_message_up_at_once() -> None:
    scene = Scene()
    scene.send_back(scene.store().position, -1)
    assert scene.parts.bodies(DEAD) == [b"tea"]
    topic = scene.parts.topics.require(DEAD)
    assert (topic.read_queues, topic.write_queues, topic.readable, topic.writable) == (1, 1, True, True)


@pytest.mark.parametrize(
    ("own_limit", "version", "is_dead"), [(1, 500, True), (1, 121, True), (1, 120, False), (9, 500, False)]
)
def test_the_consumers_own_limit_counts_unless_it_is_too_old_to_mean_it(
    own_limit: int, version: int, is_dead: bool
) -> None:
    scene = Scene()
    scene.send_back(scene.store(reconsume_times=1).position, max_reconsume_times=own_limit, version=version)
    assert bool(scene.parts.messages(DEAD)) == is_dead


def test_the_retry_topic_has_the_queues_that_the_group_wants() -> None:
    scene = Scene()
    scene.parts.groups.make(GroupConfig(GROUP, retry_queues=3))
    for _ in range(30):
        scene.send_back(scene.store().position)
    topic = scene.parts.topics.require(RETRY)
    assert (topic.read_queues, topic.write_queues) == (3, 3)
    scene.deliver(10)
    assert all(scene.parts.messages(RETRY, queue) for queue in range(3))


def test_a_group_without_retries_is_answered_and_nothing_is_stored() -> None:
    scene = Scene()
    scene.parts.groups.make(GroupConfig(GROUP, retry_queues=0))
    end = scene.parts.store.log.end
    assert scene.send_back(position=12345).code == ResponseCode.SUCCESS
    assert scene.parts.store.log.end == end
    assert scene.parts.topics.get(RETRY) is None


def test_a_message_that_is_not_there_is_a_system_error_and_the_client_sends_it_by_itself() -> None:
    scene = Scene()
    receipt = scene.store()
    for position in (receipt.position + 1, receipt.end, 1 << 40, -1):
        with pytest.raises(ServiceError, match="look message by offset failed") as refused:
            scene.send_back(position)
        assert refused.value.code == ResponseCode.SYSTEM_ERROR


def test_a_half_of_a_transaction_is_not_sent_back() -> None:
    scene = Scene()
    for changes in ({"storage_flags": layout.FLAG_PREPARED}, {"topic": HALF_TOPIC.encode(), "queue_id": 0}):
        receipt = scene.store(**changes)
        with pytest.raises(ServiceError, match="half"):
            scene.send_back(receipt.position)


def test_who_may_not() -> None:
    scene = Scene()
    receipt = scene.store()
    scene.parts.topics.make(TopicConfig(RETRY, 1, 1, permission=4))
    _refused(scene, receipt.position, NoPermission, "may not be written")
    scene.parts.config = replace(scene.parts.config, permission=4)
    _refused(scene, receipt.position, NoPermission, "takes no messages")
    scene.parts.groups.remove(GROUP)
    _refused(scene, receipt.position, GroupNotFound, "does not exist")


def _refused(scene: Scene, position: int, kind: type[PyroMQError], why: str) -> None:
    with pytest.raises(kind, match=why):
        scene.send_back(position)
