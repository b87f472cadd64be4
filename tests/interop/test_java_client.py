"""The official Java producer, unmodified: every way to send, refused messages, and queries of messages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.support.apache import ApacheFailed, Line
from interop.support.cluster import AGAINST, PyromqUp, new_cluster
from interop.support.java_client import CONF, JavaClient, bodies, eventually, everything, message, numbered, where

pytestmark = pytest.mark.interop

#: The broker's largest body, and the client's too.
LIMIT = 4 << 20
#: The compression bits of a message's sysFlag.
ALGORITHMS = {"LZ4": 1 << 8, "ZSTD": 2 << 8, "ZLIB": 3 << 8}


def digest(body: str) -> str:
    return "sha256:" + hashlib.sha256(body.encode()).hexdigest()


def consumed(java: JavaClient, topic: str, count: int) -> list[Line]:
    with java.push(f"reader-of-{topic}", everything(topic)) as consumer:
        return consumer.received(count)


# --- Ways to send ----------------------------------------------------------------------------------


def test_sync_sends_are_spread_over_the_queues_and_answered_with_their_place(java: JavaClient, topic: str) -> None:
    java.create_topic(topic, queues=4)
    with java.producer() as producer:
        sent = producer.send(*numbered(topic, 16))
    assert {line["status"] for line in sent} == {"SEND_OK"}
    assert {line["queueId"] for line in sent} == {0, 1, 2, 3}
    assert len({line["msgId"] for line in sent}) == len({line["offsetMsgId"] for line in sent}) == 16
    for queue_id in range(4):
        assert [line["queueOffset"] for line in sent if line["queueId"] == queue_id] == [0, 1, 2, 3]
    assert {line["broker"] for line in sent} == {"interop"}
    assert sorted(bodies(consumed(java, topic, 16)), key=int) == [str(number) for number in range(16)]


def test_async_sends_call_back_each_with_its_own_place(java: JavaClient, topic: str) -> None:
    java.create_topic(topic, queues=2)
    with java.producer() as producer:
        sent = producer.send(*numbered(topic, 100), how="async")
    assert {line.get("status") for line in sent} == {"SEND_OK"}
    for queue_id in range(2):
        places = sorted(line["queueOffset"] for line in sent if line["queueId"] == queue_id)
        assert places == list(range(len(places)))
    assert java.stored(topic) == 100


def test_one_way_sends_are_stored_though_nobody_answers(java: JavaClient, topic: str) -> None:
    java.create_topic(topic)
    with java.producer() as producer:
        assert producer.send(*numbered(topic, 20), how="oneway") == []
        eventually(lambda: java.stored(topic), lambda stored: stored == 20)


def test_a_batch_lands_in_one_queue_in_its_order(java: JavaClient, topic: str) -> None:
    java.create_topic(topic)
    wanted = [message(topic, f"part {number}", tags=f"t{number}", keys=f"k{number}") for number in range(5)]
    with java.producer() as producer:
        [sent] = producer.send(*wanted, how="batch")
    assert sent["status"] == "SEND_OK"
    assert len(sent["offsetMsgId"].split(",")) == len(sent["msgId"].split(",")) == 5
    stored = sorted(consumed(java, topic, 5), key=lambda line: line["queueOffset"])
    assert bodies(stored) == [f"part {number}" for number in range(5)]
    assert [line["tags"] for line in stored] == [f"t{number}" for number in range(5)]
    assert [line["msgId"] for line in stored] == sent["msgId"].split(",")
    assert {line["queueId"] for line in stored} == {sent["queueId"]}


def test_a_producer_that_batches_by_itself(java: JavaClient, topic: str) -> None:
    java.create_topic(topic, queues=1)
    with java.producer(autoBatch=True) as producer:
        sent = producer.send(*numbered(topic, 50), how="async")
    assert {line.get("status") for line in sent} == {"SEND_OK"}
    assert sorted(map(int, bodies(consumed(java, topic, 50)))) == list(range(50))


def test_a_producer_sends_on_the_vip_channel(java: JavaClient, topic: str) -> None:
    java.create_topic(topic)
    with java.producer(vipChannelEnabled=True) as producer:
        [sent] = producer.send(message(topic, "important"))
    assert sent["status"] == "SEND_OK"


def test_a_message_goes_to_the_queue_that_was_chosen(java: JavaClient, topic: str) -> None:
    java.create_topic(topic, queues=4)
    with java.producer() as producer:
        sent = producer.send_to_queue(2, *numbered(topic, 3))
        assert [(line["queueId"], line["queueOffset"]) for line in sent] == [(2, 0), (2, 1), (2, 2)]
        chosen = producer.send(*numbered(topic, 4, keys="same"), how="selected")
        assert len({line["queueId"] for line in chosen}) == 1


def test_tags_keys_properties_and_flag_arrive_as_they_were_sent(java: JavaClient, topic: str) -> None:
    java.create_topic(topic)
    properties = {"colour": "grün", "empty space": "a b", "emoji": "🚀"}
    wanted = message(topic, "größe ☕", tags="tag", keys="one two", flag=12345, properties=properties)
    with java.producer() as producer:
        [sent] = producer.send(wanted)
    [stored] = consumed(java, topic, 1)
    assert {name: stored[name] for name in ("topic", "body", "tags", "keys", "flag")} == {
        "topic": topic,
        "body": "größe ☕",
        "tags": "tag",
        "keys": "one two",
        "flag": 12345,
    }
    assert properties.items() <= stored["properties"].items()
    assert (stored["msgId"], stored["offsetMsgId"]) == (sent["msgId"], sent["offsetMsgId"])
    assert (stored["queueId"], stored["queueOffset"]) == (sent["queueId"], sent["queueOffset"])
    assert stored["bornTimestamp"] <= stored["storeTimestamp"] <= stored["arrived"]
    assert stored["reconsumeTimes"] == 0


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_big_body_travels_compressed(java: JavaClient, topic: str, algorithm: str) -> None:
    java.create_topic(topic)
    with java.producer(compressType=algorithm) as producer:
        producer.send(message(topic, "0123456789abcdef", repeat=10_000))
    [stored] = consumed(java, topic, 1)
    assert stored["bodyLength"] == 160_000
    assert stored["body"] == digest("0123456789abcdef" * 10_000)
    assert stored["sysFlag"] == ALGORITHMS[algorithm]  # the client takes the bit "compressed" away with the compression


# --- Refused messages ------------------------------------------------------------------------------


def test_the_largest_body_is_accepted_and_one_byte_more_refused(java: JavaClient, topic: str) -> None:
    java.create_topic(topic, queues=1)
    # A client that neither compresses nor looks at the size itself, so that the broker has to.
    settings = {"compressMsgBodyOverHowmuch": 1 << 30, "maxMessageSize": 1 << 30, "sendMsgTimeout": 10_000}
    with java.producer(**settings) as producer:
        [sent] = producer.send(message(topic, "x", repeat=LIMIT))
        assert sent["status"] == "SEND_OK"
        with pytest.raises(ApacheFailed, match="CODE: 13"):
            producer.send(message(topic, "x", repeat=LIMIT + 1))
    [stored] = consumed(java, topic, 1)
    assert stored["body"] == digest("x" * LIMIT)


def test_sending_to_an_unknown_topic_makes_it(java: JavaClient, topic: str) -> None:
    with java.producer() as producer:
        sent = producer.send(*numbered(topic, 8))
    assert {line["queueId"] for line in sent} == {0, 1, 2, 3}
    assert sorted(map(int, bodies(consumed(java, topic, 8)))) == list(range(8))
    assert topic in java.mqadmin("topicList")


def test_a_topic_name_with_forbidden_signs_is_refused(java: JavaClient) -> None:
    with pytest.raises(ApacheFailed, match="CODE: 29"):
        java.create_topic("no/such*topic")


def test_a_producer_finds_no_queue_of_a_topic_without_write_permission(java: JavaClient, topic: str) -> None:
    # The route says so and the client obeys; a producer that knows an older route is still served.
    java.create_topic(topic, queues=1, permission=4)
    with java.producer() as producer, pytest.raises(ApacheFailed, match="No route info of this topic"):
        producer.send(message(topic, "x"))


def test_a_topic_without_read_permission_gives_no_message(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic, queues=1)
    with java.producer() as producer, java.pull(group) as consumer:
        producer.send(message(topic, "hidden"))
        assert consumer.pull(topic, 0, 0)["status"] == "FOUND"
        java.create_topic(topic, queues=1, permission=2)
        with pytest.raises(ApacheFailed, match="CODE: 16"):
            consumer.pull(topic, 0, 0)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """A broker that creates neither topics nor groups automatically, and filters by tags only."""
    conf = {
        **CONF,
        "autoCreateTopicEnable": "false",
        "autoCreateSubscriptionGroup": "false",
        "enablePropertyFilter": "false",
    }
    with new_cluster(tmp_path_factory.mktemp("strict") / "store", conf) as cluster, JavaClient(cluster) as client:
        yield client


def test_without_auto_creation_an_unknown_topic_is_an_error(strict: JavaClient, topic: str) -> None:
    with strict.producer() as producer:
        with pytest.raises(ApacheFailed, match="No route info of this topic"):
            producer.send(message(topic, "x"))
        # Now the client knows the broker, and the broker itself has to say it.
        strict.create_topic("known")
        producer.send(message("known", "x"))
        with pytest.raises(ApacheFailed, match=rf"CODE: 17 .*{topic}.* not exist"):
            producer.send_to_queue(0, message(topic, "x"))
    assert topic not in strict.mqadmin("topicList")


def test_without_auto_creation_an_unknown_group_is_an_error(strict: JavaClient, topic: str, group: str) -> None:
    strict.create_topic(topic)
    with strict.pull(group) as consumer:
        with pytest.raises(ApacheFailed, match="CODE: 26"):
            consumer.pull(topic, 0, 0)
        strict.create_group(group)
        assert consumer.pull(topic, 0, 0)["status"] in ("NO_NEW_MSG", "OFFSET_ILLEGAL")


def test_a_broker_without_property_filters_refuses_sql(strict: JavaClient, topic: str, group: str) -> None:
    strict.create_topic(topic)
    strict.create_group(group)
    with pytest.raises(ApacheFailed, match="SQL92"):
        strict.push(group, where(topic, "a > 5"))


# --- Finding messages again ------------------------------------------------------------------------


def test_a_message_is_found_by_its_key_its_unique_key_and_its_place(java: JavaClient, topic: str) -> None:
    java.create_topic(topic)
    with java.producer() as producer:
        sent = producer.send(*(message(topic, f"order {n}", keys=f"order-{n} all") for n in range(10)))

    def by_key(key: str) -> list[Line]:
        return java.ask("admin.key", topic=topic, key=key)

    [found] = eventually(lambda: by_key("order-7"), lambda found: len(found) == 1)
    assert (found["body"], found["queueOffset"]) == ("order 7", sent[7]["queueOffset"])
    assert sorted(bodies(by_key("all"))) == [f"order {n}" for n in range(10)]
    for by in ("msgId", "offsetMsgId"):
        [seen] = java.ask("admin.view", topic=topic, id=sent[3][by])
        assert (seen["body"], seen["msgId"]) == ("order 3", sent[3]["msgId"])
    with pytest.raises(ApacheFailed, match=r"CODE: 208|no message"):
        by_key("no such key")


# --- Request and reply -----------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_request_gets_its_reply(java: JavaClient, topic: str, group: str, asynchronous: bool) -> None:
    java.create_topic(topic)
    with (
        java.producer("repliers") as replier,
        java.push(group, everything(topic), replyWith=replier.name) as consumer,
        java.producer("requesters") as requester,
    ):
        eventually(consumer.owned, lambda owned: owned == {0, 1, 2, 3})
        for number in range(3):
            question = message(topic, f"question {number}")
            assert requester.request(question, 10_000, asynchronous=asynchronous)["body"] == f"re: question {number}"


def test_a_request_that_nobody_answers_times_out(java: JavaClient, topic: str) -> None:
    java.create_topic(topic)
    with java.producer("requesters") as requester:
        with pytest.raises(ApacheFailed, match="RequestTimeoutException"):
            requester.request(message(topic, "anybody?"), 1_000)
        refused = requester.request(message(topic, "anybody?"), 1_000, asynchronous=True)
        assert "RequestTimeoutException" in refused["refused"]


# --- Everything in one process ----------------------------------------------------------------------


@pytest.mark.skipif(AGAINST != "pyromq", reason="only PyroMQ has this command")
def test_pyromq_up_serves_a_producer_and_a_consumer(tmp_path: Path, topic: str, group: str) -> None:
    with (
        PyromqUp(tmp_path / "data") as up,
        JavaClient(up) as java,
        java.producer() as producer,
        java.push(group, everything(topic)) as consumer,
    ):
        producer.send(*numbered(topic, 10))
        assert sorted(map(int, bodies(consumer.nothing_more(10)))) == list(range(10))


# --- Trace and namespaces --------------------------------------------------------------------------


def test_a_traced_producer_leaves_a_trace(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic)
    with java.push(group, everything("RMQ_SYS_TRACE_TOPIC")) as traces, java.producer(enableTrace=True) as producer:
        [sent] = producer.send(message(topic, "followed", keys="my-key"))
        found = eventually(
            lambda: [line for line in traces.received(1, within_s=0.2) if sent["msgId"] in (line["keys"] or "")],
            lambda found: len(found) == 1,
        )
    [trace] = found
    assert trace["body"].startswith("Pub\x01")
    assert {sent["msgId"], sent["offsetMsgId"], topic, "my-key"} <= set(trace["body"].split("\x01"))


@pytest.mark.parametrize("setting", ["namespace", "namespaceV2"])
def test_namespaces_keep_topics_of_one_name_apart(java: JavaClient, topic: str, group: str, setting: str) -> None:
    # The first version is a prefix that the client adds; the second only tells the broker.
    java.create_topic(topic if setting == "namespaceV2" else f"TENANT%{topic}")
    space = {setting: "TENANT"}
    with java.producer(**space) as producer, java.push(group, everything(topic), set=space) as consumer:
        sent = producer.send(*numbered(topic, 4))
        assert {line["status"] for line in sent} == {"SEND_OK"}
        arrived = consumer.received(4)
        assert sorted(bodies(arrived)) == ["0", "1", "2", "3"]
        assert {line["topic"] for line in arrived} == {topic}
