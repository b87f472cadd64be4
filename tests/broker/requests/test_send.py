"""Sending: storing, answers, and refusals before anything is stored."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest

from broker.support.fakes import PEER_HOST, STORE_HOST, FakePeer, Parts
from pyromq.broker.delivery import properties
from pyromq.broker.delivery.delays import Delays
from pyromq.broker.requests.send import MAX_IDS_BYTES, Sending, SendProcessor, unique_key_of
from pyromq.config import FlushConfig, OverloadConfig
from pyromq.errors import (
    BadRequest,
    GroupNotFound,
    IllegalMessage,
    NoPermission,
    PyroMQError,
    SystemBusy,
    TopicNotFound,
)
from pyromq.model.group import GroupConfig
from pyromq.model.message import StoredMessage
from pyromq.model.names import SCHEDULE_TOPIC
from pyromq.model.topic import Permission, TopicConfig
from pyromq.records import layout
from pyromq.records.batch import encode_batch
from pyromq.records.message_id import encode_message_id
from pyromq.records.properties import encode_properties
from pyromq.wire.codes import RequestCode
from pyromq.wire.command import Command
from pyromq.wire.requests.client import SendMessage
from pyromq.wire.responses import Response, SendReceipt


def is_half(found: bytes) -> bool:
    return properties.is_true(found, properties.HALF)


RETRY, DEAD = "%RETRY%shop", "%DLQ%shop"
#: The broker's own fields of every message.
STAMP = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


class Scene:
    """The topic `orders` with four queues, and the group `shop`."""

    def __init__(self, **settings: Any) -> None:
        self.parts = parts = Parts(**settings)
        parts.topics.make(TopicConfig("orders", 4, 4))
        parts.groups.make(GroupConfig("shop", max_retries=3))
        delays = Delays(parts.store, parts.writer, parts.delay_offsets, parts.topics, parts.clock)
        self.detoured: list[Sending] = []
        self.in_order: set[str] = set()
        self.processor = SendProcessor(
            lambda: parts.config, parts.topics, parts.groups, parts.writer, parts.overload, STORE_HOST,
            parts.statistics,
            transactions=self._detour, delay=delays.divert, rng=random.Random(1), in_order=self.in_order.__contains__,
            numbered=parts.numbered,
        )  # fmt: skip

    def _detour(self, sending: Sending) -> Response | None:
        if not is_half(sending.draft.properties):
            return None
        self.detoured.append(sending)
        return Response(reason="half")

    def send(
        self, body: bytes = b"tea", *, topic: str = "orders", queue: int = 0, version: int = 500, **fields: Any
    ) -> SendReceipt:
        properties = fields.pop("properties", {})
        request = SendMessage(
            producer_group="makers",
            topic=topic,
            queue_id=queue,
            body=body,
            properties=encode_properties(properties).decode() if isinstance(properties, dict) else properties,
            command=Command(code=RequestCode.SEND_MESSAGE_V2, version=version),
            **fields,
        )
        return settled(self.processor.send(request, FakePeer()))

    def stored(self, topic: str = "orders", queue: int = 0) -> StoredMessage:
        (message,) = self.parts.messages(topic, queue)
        return message


def settled(answer: Awaitable[Response] | Response) -> SendReceipt:
    async def wait() -> Response:
        return answer if isinstance(answer, Response) else await answer

    found = asyncio.run(wait())
    assert isinstance(found, SendReceipt)
    return found


def shown(message: StoredMessage) -> dict[str, str]:
    return {name: value for name, value in message.properties.items() if not name.startswith("__CRC")}


# --- one message -----------------------------------------------------------------------------------------------------


def test_a_message_is_stored_as_it_came_and_the_answer_says_where() -> None:
    scene = Scene()
    answer = scene.send(
        queue=2, properties={"TAGS": "hot", "UNIQ_KEY": "U1"}, user_flag=7, born_timestamp_ms=99, storage_flags=1
    )
    message = scene.stored(queue=2)
    assert (message.body, message.user_flag, message.storage_flags, message.born_timestamp_ms) == (b"tea", 7, 1, 99)
    assert (message.born_host, message.store_host) == (PEER_HOST, STORE_HOST)
    assert shown(message) == {"TAGS": "hot", "UNIQ_KEY": "U1", **STAMP}
    assert answer.message_id == encode_message_id(STORE_HOST, message.position)
    assert (answer.queue_id, answer.queue_offset, answer.transaction_id) == (2, 0, "U1")
    assert answer.more == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


def test_the_cluster_of_a_message_is_the_one_that_stores_it() -> None:
    scene = Scene(cluster="here", region="north", trace_on=False)
    scene.send(properties={"CLUSTER": "elsewhere", "MYCLUSTER": "mine", "MSG_REGION": "south", "TRACE_ON": "true"})
    assert shown(scene.stored()) == {"MYCLUSTER": "mine", "CLUSTER": "here", "MSG_REGION": "north", "TRACE_ON": "false"}


def test_what_a_consumer_got_with_a_message_does_not_stay_on_it() -> None:
    scene = Scene()
    scene.send(properties={"POP_CK": "0 1 2", "KEYS": "k"})
    assert shown(scene.stored()) == {"KEYS": "k", **STAMP}


def test_without_a_queue_one_is_chosen_among_all() -> None:
    scene = Scene()
    assert {scene.send(queue=-1).queue_id for _ in range(60)} == {0, 1, 2, 3}


def test_under_sync_flush_the_answer_waits_for_the_disk() -> None:
    scene = Scene(store={"flush": FlushConfig(sync=True)})
    request = SendMessage(producer_group="makers", topic="orders", queue_id=0, body=b"tea")
    answer = scene.processor.send(request, FakePeer())
    assert not isinstance(answer, Response)
    assert scene.parts.store.marks.synced.value == 0
    settled(answer)
    assert scene.parts.store.marks.synced.value == scene.parts.store.log.end


def test_a_delayed_message_waits_and_the_answer_names_the_queue_that_it_is_for() -> None:
    scene = Scene()
    answer = scene.send(queue=3, properties={"DELAY": "2"})
    message = scene.stored(SCHEDULE_TOPIC, 1)
    assert (message.properties["REAL_TOPIC"], message.properties["REAL_QID"]) == ("orders", "3")
    assert answer.queue_id == 3
    assert scene.parts.messages("orders", 3) == []


def test_a_half_of_a_transaction_takes_its_own_way() -> None:
    scene = Scene()
    request = SendMessage(
        producer_group="makers", topic="orders", queue_id=0, body=b"tea", properties="TRAN_MSG\x01true\x02",
        storage_flags=layout.FLAG_PREPARED,
    )  # fmt: skip
    answer = scene.processor.send(request, FakePeer())
    assert isinstance(answer, Response)
    assert answer.reason == "half"
    (sending,) = scene.detoured
    assert sending.draft.storage_flags & layout.FLAG_TRANSACTION_MASK == 0
    assert scene.parts.messages("orders") == []


def test_a_retry_is_no_half_whatever_is_left_on_it() -> None:
    scene = Scene()
    scene.send(topic=RETRY, reconsume_times=1, properties={"TRAN_MSG": "true", "DELAY": "3"})
    assert scene.detoured == []
    assert scene.stored(SCHEDULE_TOPIC, 2).reconsume_times == 1


def test_what_counts_as_half_and_as_unique_key() -> None:
    assert is_half(b"TRAN_MSG\x01TRUE")
    assert not is_half(b"NOTRAN_MSG\x01true\x02TRAN_MSG\x01false\x02")
    assert unique_key_of(b"MYUNIQ_KEY\x01no\x02UNIQ_KEY\x01yes\x02") == "yes"
    assert unique_key_of(b"MYUNIQ_KEY\x01no\x02") is None


# --- topics ----------------------------------------------------------------------------------------------------------


def test_a_topic_is_made_only_where_that_is_allowed() -> None:
    with pytest.raises(TopicNotFound):
        Scene().send(topic="new")
    scene = Scene(auto_create_topics=True, default_topic_queues=8)
    scene.send(topic="new", default_topic_queues=3)
    topic = scene.parts.topics.require("new")
    assert (topic.read_queues, topic.write_queues, topic.permission) == (3, 3, Permission.READ_WRITE)


REFUSED: list[tuple[dict[str, Any], type[PyroMQError]]] = [
    ({"topic": "missing"}, TopicNotFound),
    ({"topic": "not a name"}, IllegalMessage),
    ({"topic": ""}, IllegalMessage),
    ({"topic": SCHEDULE_TOPIC}, NoPermission),
    ({"topic": "closed"}, NoPermission),
    ({"queue": 4}, BadRequest),
    ({"properties": "A\x01\ud800\x02"}, IllegalMessage),
    ({"properties": {"TIMER_DELAY_SEC": "5"}}, IllegalMessage),
    ({"properties": {"DELAY": "later"}}, IllegalMessage),
    ({"properties": "K\x01" + "v" * 40_000}, IllegalMessage),
    ({"body": bytes(5 << 20)}, IllegalMessage),
    ({"storage_flags": layout.FLAG_INNER_BATCH}, IllegalMessage),
    ({"batch": True, "body": b""}, IllegalMessage),
    ({"batch": True, "body": b"not a batch"}, IllegalMessage),
    ({"batch": True, "topic": RETRY}, IllegalMessage),
    ({"topic": "%RETRY%nobody"}, GroupNotFound),
]


@pytest.mark.parametrize(("wrong", "error"), REFUSED)
def test_what_is_refused_stores_and_makes_nothing(wrong: dict[str, Any], error: type[PyroMQError]) -> None:
    scene = Scene()
    scene.parts.topics.make(TopicConfig("closed", 1, 1, permission=int(Permission.READ)))
    known = {topic.name for topic in scene.parts.topics}
    with pytest.raises(error):
        scene.send(**wrong)
    assert scene.parts.store.log.end == 0
    assert {topic.name for topic in scene.parts.topics} == known


def test_a_broker_that_takes_nothing_or_falls_behind() -> None:
    scene = Scene()
    scene.parts.config = replace(scene.parts.config, permission=4)
    scene.send()  # producers go on until they see the new route
    scene.parts.topics.change("orders", order=True)
    with pytest.raises(NoPermission, match="takes no messages"):
        scene.send()
    scene = Scene(overload=OverloadConfig(unsynced_bytes=10))
    scene.send()
    with pytest.raises(SystemBusy):
        scene.send()


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELAY_SEC": "5", "DELAY": "1"},  # the level counts
        {"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "1"},  # it has waited already
        {"MY_TIMER_DELAY_SEC": "5"},
    ],
)
def test_what_only_looks_like_a_message_for_an_exact_time(properties: dict[str, str]) -> None:
    Scene().send(properties=properties)


# --- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_becomes_single_messages_with_consecutive_offsets() -> None:
    scene = Scene()
    scene.send(queue=1)
    body = encode_batch([(1, b"a", b"UNIQ_KEY\x01A"), (2, b"b", b"UNIQ_KEY\x01B\x02"), (3, b"c", b"")])
    answer = scene.send(body, queue=1, batch=True)
    messages = scene.parts.messages("orders", 1)[1:]
    assert [(message.body, message.user_flag) for message in messages] == [(b"a", 1), (b"b", 2), (b"c", 3)]
    assert [message.unique_key for message in messages] == ["A", "B", None]
    assert answer.message_id == ",".join(encode_message_id(STORE_HOST, message.position) for message in messages)
    assert (answer.queue_id, answer.queue_offset) == (1, 1)


# --- what consumers send back by themselves --------------------------------------------------------------------------


def test_a_retry_waits_like_any_delayed_message() -> None:
    scene = Scene()
    scene.send(topic=RETRY, reconsume_times=3, properties={"DELAY": "5", "RETRY_TOPIC": "orders"})
    message = scene.stored(SCHEDULE_TOPIC, 4)
    assert (message.properties["REAL_TOPIC"], message.reconsume_times) == (RETRY, 3)
    topic = scene.parts.topics.require(RETRY)
    assert (topic.read_queues, topic.write_queues) == (1, 1)


@pytest.mark.parametrize(
    ("times", "own_limit", "version", "is_dead"),
    [
        (3, None, 500, False),
        (4, None, 500, True),
        (4, 10, 500, False),
        (4, 10, 120, True),  # too old to mean it
        (1, 0, 500, True),
        (0, -1, 500, True),
    ],
)
def test_what_failed_too_often_goes_to_the_dead_letters(
    times: int, own_limit: int | None, version: int, is_dead: bool
) -> None:
    scene = Scene()
    answer = scene.send(
        topic=RETRY, reconsume_times=times, max_reconsume_times=own_limit, version=version, properties={"DELAY": "3"}
    )
    assert bool(scene.parts.messages(DEAD)) == is_dead
    assert bool(scene.parts.messages(SCHEDULE_TOPIC, 2)) != is_dead
    if is_dead:
        assert "DELAY" not in scene.stored(DEAD).properties
        assert answer.queue_id == 0


def test_what_a_group_that_consumes_in_order_gives_up_is_dead_at_once() -> None:
    scene = Scene()
    scene.in_order.add("shop")
    scene.send(topic=RETRY, reconsume_times=1, max_reconsume_times=10, properties={"DELAY": "3"})
    assert scene.parts.bodies(DEAD) == [b"tea"]


def test_a_batch_is_limited_in_size_and_number_and_the_largest_is_taken() -> None:
    scene = Scene(store={"segment_bytes": 4 << 20, "max_body_bytes": 1 << 20})
    tiny = encode_batch([(0, b"", b"")])
    largest = MAX_IDS_BYTES // 33
    with pytest.raises(IllegalMessage, match=f"more than {largest} messages.*in parts"):
        scene.send(tiny * (largest + 1), batch=True)
    with pytest.raises(IllegalMessage, match="the limit is 1048576: send it in parts"):
        scene.send(encode_batch([(0, bytes(1000), b"")] * 1100), batch=True)
    assert scene.parts.store.log.end == 0
    answer = scene.send(tiny * largest, batch=True)
    assert answer.message_id is not None
    scene.parts.store.dispatch()
    assert len(answer.message_id.split(",")) == largest == scene.parts.store.max_offset("orders", 0)
