"""Topics, as admin tools make, change, list and remove them."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any

import orjson
import pytest

from broker.support.admin_parts import ADDRESS, AdminParts, pairs
from pyromq.errors import BadRequest, NotNow
from pyromq.model.topic import TopicConfig
from pyromq.store.tables.offset_files import ConsumerOffsets
from pyromq.wire.bodies.routes import TopicConfigs
from pyromq.wire.requests import admin as ask


def wanted(topic: str = "orders", **changes: Any) -> ask.UpdateTopic:
    fields: dict[str, Any] = {"read_queues": 4, "write_queues": 4, "permission": 6, **changes}
    return ask.UpdateTopic(topic=topic, **fields)


def test_a_topic_is_made_and_changed_and_asking_again_changes_nothing() -> None:
    parts = AdminParts()
    assert parts.ask(wanted(order=True)).code == 0
    assert parts.topics.require("orders") == TopicConfig("orders", 4, 4, 6, order=True)
    changes = parts.changes
    assert parts.ask(wanted(order=True)).code == 0
    assert parts.changes == changes
    parts.ask(wanted(read_queues=8, permission=4))
    assert parts.told(ask.GetTopic(topic="orders")) == {
        "topicName": "orders", "readQueueNums": 8, "writeQueueNums": 4, "perm": 4, "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0, "order": False, "attributes": {},
    }  # fmt: skip


def test_attributes_are_added_changed_and_removed() -> None:
    parts = AdminParts()
    parts.ask(wanted(attributes="+message.type=FIFO,+cleanup.policy=DELETE"))
    parts.ask(wanted(attributes="+message.type=DELAY,+reserve.time=3"))
    assert parts.topics.require("orders").attributes == {
        "message.type": "DELAY", "cleanup.policy": "DELETE", "reserve.time": "3",
    }  # fmt: skip
    parts.ask(wanted(attributes="-message.type"))
    assert "message.type" not in parts.topics.require("orders").attributes


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "system topic"),
        ({"topic": "DefaultCluster"}, "system topic"),
        ({"topic": "no spaces"}, "may have only letters"),
        ({"topic": "x" * 128}, "the limit is 127"),
        ({"read_queues": 5000}, "0 to 4096 queues"),
        ({"write_queues": -1}, "0 to 4096 queues"),
        ({"permission": 9}, "9 is no permission"),
        ({"filter_type": "NO_TAG"}, "no filter type"),
        ({"attributes": "+message.type=MIXED"}, "cannot be 'MIXED'"),
        ({"attributes": "+queue.type=BatchCQ"}, "cannot be 'BatchCQ'"),
        ({"attributes": "+shape=round"}, "unsupported key"),
        ({"attributes": "-message.type"}, "no attribute message.type"),
        ({"attributes": "message.type=FIFO"}, "each once"),
        ({"attributes": "+reserve.time=soon"}, "a number from -1 on"),
    ],
)
def test_a_topic_that_cannot_be_is_refused(changes: dict[str, Any], sentence: str) -> None:
    parts = AdminParts()
    before = len(parts.topic_table)
    answer = parts.ask(wanted(**changes))
    assert answer.code == BadRequest.code
    assert sentence in str(answer.reason)
    assert len(parts.topic_table) == before


def test_of_a_list_all_topics_are_made_or_none() -> None:
    parts = AdminParts()
    good = {"topicName": "a", "readQueueNums": 1, "writeQueueNums": 1, "attributes": {"+message.type": "FIFO"}}
    bad = {"topicName": "b", "readQueueNums": -3}
    body = orjson.dumps({"topicConfigList": [good, bad]})
    assert parts.ask(ask.UpdateTopicList(body=body)).code == BadRequest.code
    assert parts.topics.get("a") is None
    assert parts.ask(ask.UpdateTopicList(body=orjson.dumps({"topicConfigList": [good]}))).code == 0
    assert parts.topics.require("a") == TopicConfig("a", 1, 1, attributes={"message.type": "FIFO"})
    assert parts.ask(ask.UpdateTopicList(body=b"{")).code == BadRequest.code


def test_a_removed_topic_takes_its_queues_and_offsets_along(caplog: pytest.LogCaptureFixture) -> None:
    parts = AdminParts()
    for topic in ("orders", "%RETRY%shop+orders", "%RETRY%shop_orders", "%RETRY%shop"):
        parts.topic_table.put(TopicConfig(topic, 1, 1))
        parts.send(2, topic)
        parts.offsets.commit("shop", topic, 0, 1)
    with caplog.at_level(logging.WARNING):
        assert parts.ask(ask.DeleteTopic(topic="orders")).code == 0
    assert [topic.name for topic in parts.topics] == ["%RETRY%shop"]
    assert parts.store.queues.topics() == ["%RETRY%shop"]
    assert parts.offsets.topics_of("shop") == {"%RETRY%shop"}
    assert "10.9.8.7:5555 removed the topic orders" in caplog.text
    parts.send(1, "orders")  # a sender creates it again, and it starts at 0
    assert parts.store.max_offset("orders", 0) == 1


def test_progress_in_a_removed_topic_is_gone_for_good_when_the_answer_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = AdminParts()
    parts.make_topic()
    parts.send(2)
    parts.offsets.commit("shop", "orders", 0, 1)
    parts.save()
    assert parts.ask(ask.DeleteTopic(topic="orders")).code == 0
    after = ConsumerOffsets(parts.disk.kill(), parts.store.paths.config, parts.clock)
    after.load()
    assert after.topics_of("shop") == set()

    def refuse() -> bool:
        raise OSError(errno.ENOSPC, "no space left on device")

    parts.make_topic()
    monkeypatch.setattr(parts.offsets, "save", refuse)
    answer = parts.ask(ask.DeleteTopic(topic="orders"))
    assert answer.code == NotNow.code
    assert "progress cannot be written now" in str(answer.reason)


def test_a_topic_stays_whole_until_its_removal_has_its_turn() -> None:
    parts = AdminParts()
    parts.make_topic()
    parts.send(2)

    async def tell() -> None:
        async with parts.store.points.lock:  # a recover point is being written
            removal = asyncio.create_task(parts.answer(ask.DeleteTopic(topic="orders")))
            await asyncio.sleep(0)
            assert parts.topics.get("orders") is not None
            assert parts.send(1)[0].queue_offset == 2
        assert (await removal).code == 0
        assert parts.topics.get("orders") is None
        assert parts.send(1)[0].queue_offset == 0

    asyncio.run(tell())


def test_the_retry_topic_of_another_group_stays() -> None:
    parts = AdminParts()
    for topic in ("orders", "%RETRY%shop_orders"):
        parts.topic_table.put(TopicConfig(topic, 1, 1))
    parts.offsets.commit("shop", "orders", 0, 1)
    parts.offsets.commit("shop_orders", "%RETRY%shop_orders", 0, 1)
    parts.ask(ask.DeleteTopic(topic="orders"))
    assert [topic.name for topic in parts.topics] == ["%RETRY%shop_orders"]


@pytest.mark.parametrize("topic", ["", " ", "..", "../config", "TBW102", "rmq_sys_x", "broker-a", "a/b", "\ud800"])
def test_what_the_broker_needs_or_what_is_no_topic_is_not_removed(topic: str) -> None:
    parts = AdminParts()
    parts.save()
    parts.make_topic()
    parts.send(1)
    files = list(parts.disk.names(parts.store.paths.root))
    assert parts.ask(ask.DeleteTopic(topic=topic)).code == BadRequest.code
    assert list(parts.disk.names(parts.store.paths.root)) == files
    assert parts.store.queues.topics() == ["orders"]


def test_queues_without_a_topic_are_cleaned_up() -> None:
    parts = AdminParts()
    parts.make_topic()
    for topic in ("orders", "gone", "SCHEDULE_TOPIC_XXXX"):
        parts.send(1, topic)
    assert parts.ask(ask.CleanUnusedTopics()).code == 0
    assert parts.store.queues.topics() == ["SCHEDULE_TOPIC_XXXX", "orders"]


def test_queues_whose_topic_is_made_while_the_clean_up_waits_stay() -> None:
    parts = AdminParts()
    parts.send(2)

    async def tell() -> None:
        async with parts.store.points.lock:  # a recover point is being written
            cleaning = asyncio.create_task(parts.answer(ask.CleanUnusedTopics()))
            await asyncio.sleep(0)
            parts.make_topic()
        assert (await cleaning).code == 0

    asyncio.run(tell())
    assert parts.store.max_offset("orders", 0) == 2


def test_all_topics_at_once_and_in_pages() -> None:
    parts = AdminParts()
    for number in range(5):
        parts.make_topic(f"t{number}")
    everything = parts.ask(ask.GetAllTopics())
    assert isinstance(everything, ask.AllTopicsAnswer)
    assert isinstance(everything.body, bytes)
    decoded = TopicConfigs.decode(everything.body)
    assert everything.total == 5
    assert [topic.name for topic in decoded.topics] == [f"t{n}" for n in range(5)]

    version = orjson.dumps(orjson.loads(everything.body)["dataVersion"]).decode()
    page = parts.told(ask.GetAllTopics(first=2, most=2, version=version))
    assert list(page["topicConfigTable"]) == ["t2", "t3"]
    from_the_start = parts.told(ask.GetAllTopics(first=2, most=2, version=""))
    assert list(from_the_start["topicConfigTable"]) == ["t0", "t1"]
    parts.make_topic("t9")
    changed = parts.told(ask.GetAllTopics(first=4, most=2, version=version))
    assert list(changed["topicConfigTable"]) == ["t0", "t1"]
    assert parts.told(ask.GetAllTopics(first=99, most=-1, version="no json"))["topicConfigTable"]


def test_stats_of_a_topic_say_how_long_its_queues_are() -> None:
    parts = AdminParts()
    parts.make_topic(queues=2)
    start_ms = parts.time.now_ms()
    parts.send(3)
    parts.statistics.sent("orders", 30, 300)
    told = parts.told(ask.GetTopicStats(topic="orders"))
    assert told["topicPutTps"] == 3.0
    assert told["offsetTable"].pairs[0][0] == {"brokerName": "broker-a", "queueId": 0, "topic": "orders"}
    assert pairs(told["offsetTable"]) == {
        0: {"minOffset": 0, "maxOffset": 3, "lastUpdateTimestamp": start_ms + 2000},
        1: {"minOffset": 0, "maxOffset": 0, "lastUpdateTimestamp": 0},
    }
    assert parts.ask(ask.GetTopicStats(topic="none")).code == 17


def test_who_consumes_what() -> None:
    parts = AdminParts()
    parts.make_topic()
    parts.consumer(group="now")
    parts.offsets.commit("before", "orders", 0, 0)
    assert parts.told(ask.QueryGroupsOfTopic(topic="orders")) == {"groupList": ["before", "now"]}
    assert parts.told(ask.QueryTopicsOfGroup(group="before")) == {"topicList": ["orders"], "brokerAddr": ADDRESS}
    system = parts.told(ask.GetBrokerSystemTopics())["topicList"]
    assert {"SCHEDULE_TOPIC_XXXX", "TBW102", "DefaultCluster", "broker-a"} <= set(system)


def test_entries_of_a_queue_are_shown() -> None:
    parts = AdminParts()
    parts.make_topic()
    receipts = parts.send(5)
    told = parts.told(ask.QueryQueue(topic="orders", queue_id=0, first=1, count=2))
    assert (told["minQueueIndex"], told["maxQueueIndex"]) == (0, 5)
    assert [entry["physicOffset"] for entry in told["queueData"]] == [one.position for one in receipts[1:3]]
    assert {entry["tagsCode"] for entry in told["queueData"]} == {65}
    parts.consumer()
    assert parts.told(ask.QueryQueue(topic="orders", queue_id=0, group="shop"))["subscriptionData"]["subString"] == "*"
    assert "not online" in parts.told(ask.QueryQueue(topic="orders", queue_id=0, group="none"))["filterData"]
    assert parts.ask(ask.QueryQueue(topic="orders", queue_id=0, first=77)).code == 22
    assert parts.ask(ask.QueryQueue(topic="orders", queue_id=9)).code == 1
