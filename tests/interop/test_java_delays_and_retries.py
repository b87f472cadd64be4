"""The official Java client, unmodified: delayed messages, redelivery of failed ones, and dead letters."""

from __future__ import annotations

from itertools import pairwise

import pytest

from interop.support.apache import Line
from interop.support.java_client import JavaClient, bodies, eventually, everything, message, numbered

pytestmark = pytest.mark.interop

LEVEL_MS = {1: 1_000, 2: 5_000}
#: The greatest delay of a delayed message on a busy machine.
LATE_MS = 3_000


def waited_ms(line: Line) -> int:
    waited: int = line["arrived"] - line["bornTimestamp"]
    return waited


# --- Delay levels ----------------------------------------------------------------------------------


@pytest.mark.parametrize("level", sorted(LEVEL_MS))
def test_a_delayed_message_is_never_early(java: JavaClient, topic: str, group: str, level: int) -> None:
    java.create_topic(topic)
    with java.push(group, everything(topic)) as consumer, java.producer() as producer:
        eventually(consumer.owned, lambda owned: len(owned) == 4)
        sent = producer.send(*numbered(topic, 5, delayLevel=level, tags="T", keys="K", properties={"mine": "kept"}))
        assert {line["status"] for line in sent} == {"SEND_OK"}
        arrived = consumer.nothing_more(5)
    assert sorted(bodies(arrived)) == ["0", "1", "2", "3", "4"]
    for line in arrived:
        assert LEVEL_MS[level] <= waited_ms(line) < LEVEL_MS[level] + LATE_MS
        assert (line["topic"], line["tags"], line["keys"], line["properties"]["mine"]) == (topic, "T", "K", "kept")
    assert {(line["queueId"]) for line in arrived} == {line["queueId"] for line in sent}


def test_a_level_beyond_the_last_one_is_the_last_one(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic)
    with java.push(group, everything(topic)) as consumer, java.producer() as producer:
        [sent] = producer.send(message(topic, "in two hours", delayLevel=99))
        assert sent["status"] == "SEND_OK"
        assert consumer.received(1, within_s=2) == []


def test_delays_do_not_hold_up_each_other(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic, queues=1)
    with java.push(group, everything(topic)) as consumer, java.producer() as producer:
        eventually(consumer.owned, lambda owned: owned == {0})
        producer.send(message(topic, "five seconds", delayLevel=2))
        producer.send(message(topic, "one second", delayLevel=1), message(topic, "now"))
        # Listeners of a Java consumer run side by side: only seconds apart is an order that they keep.
        received = bodies(consumer.received(3))
        assert sorted(received) == ["five seconds", "now", "one second"]
        assert received[-1] == "five seconds"


# --- Retry and dead letters ------------------------------------------------------------------------


def prepare(java: JavaClient, topic: str, group: str, queues: int = 4) -> None:
    """Makes the group's retry topic too: one made by its first heartbeat is seen by the client only after 20 s."""
    java.create_topic(topic, queues)
    java.create_topic(f"%RETRY%{group}", queues=1)


def dead_letters(java: JavaClient, group: str, count: int) -> list[Line]:
    """Return the messages of the group's dead-letter topic, pulled from its only queue."""
    dead = f"%DLQ%{group}"
    with java.pull(f"undertaker-{group}") as undertaker:
        eventually(lambda: dead in java.mqadmin("topicList"), bool)
        # It is made write-only, so that no consumer reads it by accident.
        java.create_topic(dead, queues=1)
        found = eventually(lambda: undertaker.pull(dead, 0, 0), lambda found: len(found["messages"]) >= count)
    letters: list[Line] = found["messages"]
    return letters


def test_a_failed_message_comes_back_until_it_is_taken(java: JavaClient, topic: str, group: str) -> None:
    prepare(java, topic, group)
    with java.push(group, everything(topic), failures=2, delayLevel=1) as consumer, java.producer() as producer:
        [sent] = producer.send(message(topic, "hard to swallow", tags="T", keys="K", properties={"mine": "kept"}))
        arrived = consumer.nothing_more(3)
    assert [line["reconsumeTimes"] for line in arrived] == [0, 1, 2]
    for line in arrived:
        # The client gives it its first topic back; where it was is in its properties.
        assert (line["topic"], line["body"], line["tags"], line["keys"]) == (topic, "hard to swallow", "T", "K")
        assert (line["msgId"], line["properties"]["mine"]) == (sent["msgId"], "kept")
    for line in arrived[1:]:
        assert line["properties"]["RETRY_TOPIC"] == topic
        assert line["properties"]["ORIGIN_MESSAGE_ID"] == sent["offsetMsgId"]
    for before, after in pairwise(arrived):
        assert after["arrived"] - before["arrived"] >= LEVEL_MS[1]


def test_a_message_that_always_fails_ends_among_the_dead_letters(java: JavaClient, topic: str, group: str) -> None:
    prepare(java, topic, group)
    settings = {"maxReconsumeTimes": 2}
    with (
        java.push(group, everything(topic), failures=99, delayLevel=1, set=settings) as consumer,
        java.producer() as producer,
    ):
        [sent] = producer.send(message(topic, "poison", keys="K"))
        assert [line["reconsumeTimes"] for line in consumer.nothing_more(3)] == [0, 1, 2]
        [letter] = dead_letters(java, group, 1)
    assert (letter["body"], letter["keys"], letter["msgId"]) == ("poison", "K", sent["msgId"])
    assert letter["reconsumeTimes"] == 3
    assert letter["properties"]["RETRY_TOPIC"] == topic
    assert letter["properties"]["ORIGIN_MESSAGE_ID"] == sent["offsetMsgId"]


def test_the_limit_of_the_group_on_the_broker_counts_too(java: JavaClient, topic: str, group: str) -> None:
    prepare(java, topic, group)
    java.create_group(group, retryMaxTimes=0)
    # A negative level means: no more tries, to the dead letters at once.
    with java.push(group, everything(topic), failures=99, delayLevel=-1) as consumer, java.producer() as producer:
        producer.send(message(topic, "poison"))
        consumer.nothing_more(1)
        assert bodies(dead_letters(java, group, 1)) == ["poison"]


def test_the_delay_grows_where_the_listener_leaves_it_to_the_broker(java: JavaClient, topic: str, group: str) -> None:
    prepare(java, topic, group)
    with java.push(group, everything(topic), failures=1, delayLevel=0) as consumer, java.producer() as producer:
        producer.send(message(topic, "later"))
        first, second = consumer.received(2)
    assert 10_000 <= second["arrived"] - first["arrived"] < 10_000 + LATE_MS  # level 3 for the first retry


def test_an_ordered_consumer_tries_in_place_and_then_gives_up(java: JavaClient, topic: str, group: str) -> None:
    prepare(java, topic, group, queues=1)
    with java.producer() as producer:
        producer.send(message(topic, "poison"), message(topic, "behind it"))
    settings = {"maxReconsumeTimes": 2}
    with java.push(group, everything(topic), orderly=True, failures=99, set=settings) as consumer:
        arrived = consumer.received(6)
        assert [(line["body"], line["reconsumeTimes"]) for line in arrived] == [
            ("poison", 0),
            ("poison", 1),
            ("poison", 2),
            ("behind it", 0),
            ("behind it", 1),
            ("behind it", 2),
        ]
        assert sorted(bodies(dead_letters(java, group, 2))) == ["behind it", "poison"]
