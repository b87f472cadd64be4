"""The official Java consumers, unmodified: push, ordered, broadcasting, lite pull and pull."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import pytest

from interop.support.apache import ApacheFailed, Line
from interop.support.cluster import Cluster
from interop.support.java_client import (
    JavaClient,
    PushConsumer,
    bodies,
    eventually,
    everything,
    message,
    numbered,
    tagged,
    where,
)

pytestmark = pytest.mark.interop

ALL_FOUR = {0, 1, 2, 3}


def send(java: JavaClient, messages: Sequence[Line], **fields: object) -> list[Line]:
    with java.producer() as producer:
        return producer.send(*messages, **fields)  # type: ignore[arg-type]


def numbers(received: Sequence[Line]) -> list[int]:
    return sorted(map(int, bodies(received)))


# --- What a subscription lets through --------------------------------------------------------------


def test_a_push_consumer_gets_every_message_once(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic)
    send(java, numbered(topic, 50))
    with java.push(group, everything(topic)) as consumer:
        consumer.received(50)
        send(java, numbered(topic, 50), how="async")
        assert Counter(bodies(consumer.nothing_more(100))) == {str(number): 2 for number in range(50)}


def test_a_waiting_consumer_is_woken_by_a_message(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic, queues=1)
    with java.push(group, everything(topic)) as consumer, java.producer() as producer:
        producer.send(message(topic, "first"))
        consumer.received(1)
        time.sleep(1)  # now its pull is held by the broker
        producer.send(message(topic, "second"))
        [_, second] = consumer.received(2)
    assert second["arrived"] - second["storeTimestamp"] < 1000


def test_tags_choose_messages(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic)
    send(
        java, [message(topic, f"{tag}{n}", tags=tag) for n in range(5) for tag in ("A", "B", "C")] + numbered(topic, 3)
    )
    with java.push(group, tagged(topic, "A || B")) as consumer:
        arrived = consumer.nothing_more(10)
    assert sorted(bodies(arrived)) == sorted(f"{tag}{n}" for n in range(5) for tag in ("A", "B"))


def test_tags_with_the_same_hash_are_told_apart(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic)
    send(java, [message(topic, tag, tags=tag) for tag in ("Aa", "BB", "Aa", "BB")])
    with java.push(group, tagged(topic, "BB")) as consumer:
        assert bodies(consumer.nothing_more(2)) == ["BB", "BB"]


@pytest.mark.parametrize(
    ("sql", "passing"),
    [
        ("a > 5 AND b IS NOT NULL", {"8b"}),
        ("a BETWEEN 3 AND 8", {"3", "8", "8b"}),
        ("b IN ('x', 'y') OR a = 3", {"3", "8b"}),
        ("a IS NULL", {"plain"}),
        ("TAGS = 'T' AND NOT (a > 5)", {"3"}),
    ],
)
def test_sql_chooses_messages(java: JavaClient, topic: str, group: str, sql: str, passing: set[str]) -> None:
    java.create_topic(topic)
    send(
        java,
        [
            message(topic, "3", tags="T", properties={"a": "3"}),
            message(topic, "8", tags="T", properties={"a": "8"}),
            message(topic, "8b", tags="T", properties={"a": "8", "b": "x"}),
            message(topic, "plain"),
        ],
    )
    with java.push(group, where(topic, sql)) as consumer:
        assert set(bodies(consumer.nothing_more(len(passing)))) == passing


def test_illegal_sql_is_refused_when_the_consumer_starts(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic)
    with pytest.raises(ApacheFailed, match=r"CODE: 23"):
        java.push(group, where(topic, "a >"))


def test_two_topics_in_one_subscription(java: JavaClient, topic: str, group: str) -> None:
    one, two = f"{topic}-1", f"{topic}-2"
    for name in (one, two):
        java.create_topic(name)
    send(java, [*numbered(one, 5), *numbered(two, 5, tags="wanted"), *numbered(two, 5, tags="other")])
    with java.push(group, everything(one), tagged(two, "wanted")) as consumer:
        arrived = consumer.nothing_more(10)
    assert Counter(line["topic"] for line in arrived) == {one: 5, two: 5}


# --- Where a new group begins ----------------------------------------------------------------------


@pytest.mark.parametrize("begin", ["CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_TIMESTAMP"])
def test_a_new_group_of_a_young_topic_begins_at_its_first_message(
    java: JavaClient, topic: str, group: str, begin: str
) -> None:
    """Whatever it asked for: while the first message is still there the broker gives it the offset 0."""
    java.create_topic(topic)
    send(java, numbered(topic, 8))
    with java.push(group, everything(topic), set={"consumeFromWhere": begin}) as consumer:
        assert numbers(consumer.nothing_more(8)) == list(range(8))


def test_a_group_goes_on_where_it_stopped(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic)
    send(java, numbered(topic, 20))
    with java.push(group, everything(topic)) as first:
        first.received(20)
        first.close()
    send(java, [message(topic, "late")])
    with java.push(group, everything(topic), set={"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET"}) as second:
        assert bodies(second.nothing_more(1)) == ["late"]


# --- Several consumers of a group ------------------------------------------------------------------


def owners(consumers: Sequence[PushConsumer]) -> list[set[int]]:
    return [consumer.owned() for consumer in consumers]


def test_two_consumers_share_the_queues_and_one_inherits_them(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic, queues=8)
    all_queues = set(range(8))
    with java.push(group, everything(topic)) as one, java.push(group, everything(topic)) as two:
        shares = eventually(lambda: owners([one, two]), lambda shares: [len(share) for share in shares] == [4, 4])
        assert shares[0] | shares[1] == all_queues
        send(java, numbered(topic, 80))
        eventually(lambda: (len(one.received(0)), len(two.received(0))), lambda got: sum(got) == 80 and min(got) > 0)
        assert numbers(one.received(0) + two.received(0)) == list(range(80))

        two.close()
        # The broker notifies it at once: its own rebalance would come only after 20 s.
        eventually(one.owned, lambda owned: owned == all_queues, patience_s=10)
        before = len(one.received(0))
        send(java, numbered(topic, 16))
        assert numbers(one.nothing_more(before + 16)[before:]) == list(range(16))


def test_a_killed_consumer_loses_nothing(java: JavaClient, cluster: Cluster, topic: str, group: str) -> None:
    java.create_topic(topic)
    send(java, numbered(topic, 200), how="async")
    with JavaClient(cluster) as doomed:
        victim = doomed.push(group, everything(topic), pauseMs=20, set={"consumeThreadMin": 1, "consumeThreadMax": 1})
        eaten = victim.received(40)
        assert len(eaten) < 200
        doomed.sigkill()
    with java.push(group, everything(topic)) as heir:
        eventually(heir.owned, lambda owned: owned == ALL_FOUR)
        eventually(lambda: heir.received(0), lambda rest: {*bodies(eaten), *bodies(rest)} >= set(map(str, range(200))))


def test_broadcasting_gives_every_message_to_every_consumer(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic)
    # They find their own offsets in a file of this machine; without one they begin at the end.
    settings = {"messageModel": "BROADCASTING"}
    with (
        java.push(group, everything(topic), set=settings) as one,
        java.push(group, everything(topic), set=settings) as two,
    ):
        eventually(lambda: owners([one, two]), lambda shares: shares == [ALL_FOUR, ALL_FOUR])
        send(java, numbered(topic, 20))
        assert numbers(one.nothing_more(20)) == numbers(two.nothing_more(20)) == list(range(20))


def test_the_broker_shares_out_the_queues(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic)
    broker_decides = {"clientRebalance": False}
    with java.push(group, everything(topic), set=broker_decides) as one:
        eventually(one.owned, lambda owned: owned == ALL_FOUR)
        send(java, numbered(topic, 20))
        assert numbers(one.received(20)) == list(range(20))
        with java.push(group, everything(topic), set=broker_decides) as other:
            eventually(lambda: owners([one, other]), lambda owned: sorted(map(len, owned)) == [2, 2])
            assert one.owned() | other.owned() == ALL_FOUR
        eventually(one.owned, lambda owned: owned == ALL_FOUR)


# --- Ordered ---------------------------------------------------------------------------------------


def test_ordered_consumers_keep_the_order_of_every_queue(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic, queues=4)
    with (
        java.push(group, everything(topic), orderly=True) as one,
        java.push(group, everything(topic), orderly=True) as two,
    ):
        eventually(lambda: owners([one, two]), lambda shares: [len(share) for share in shares] == [2, 2])
        send(java, [message(topic, str(n), keys=f"order-{n % 10}") for n in range(100)], how="selected")
        eventually(lambda: len(one.received(0)) + len(two.received(0)), lambda count: count >= 100)
        received = [one.received(0), two.received(0)]
    assert numbers(received[0] + received[1]) == list(range(100))
    for share in received:
        for queue_id in {line["queueId"] for line in share}:
            offsets = [line["queueOffset"] for line in share if line["queueId"] == queue_id]
            assert offsets == list(range(len(offsets)))


def test_an_ordered_consumer_that_leaves_gives_its_locks_back(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic, queues=2)
    send(java, numbered(topic, 10))
    with java.push(group, everything(topic), orderly=True) as first:
        first.received(10)
        first.close()
    send(java, numbered(topic, 10))
    with java.push(group, everything(topic), orderly=True) as second:
        assert numbers(second.nothing_more(10)) == list(range(10))


# --- Lite pull -------------------------------------------------------------------------------------


def test_a_lite_pull_consumer_that_subscribes(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic)
    send(java, numbered(topic, 20))
    settings = {"autoCommit": False}
    with java.lite(group, topic=topic, tags="*", set=settings) as consumer:
        assert numbers(consumer.poll(20)) == list(range(20))
        consumer.ask("commit")
        committed = eventually(
            lambda: [consumer.offset("committed", topic, queue) for queue in range(4)], lambda got: sum(got) == 20
        )
        assert committed == [line["max"] for line in java.offsets(topic)]
        consumer.close()
    send(java, [message(topic, "late")])
    with java.lite(group, topic=topic, tags="*", set=settings) as consumer:
        assert bodies(consumer.poll(1)) == ["late"]


def test_a_lite_pull_consumer_with_tags_or_sql(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic)
    send(java, [message(topic, str(n), tags="AB"[n % 2], properties={"n": str(n)}) for n in range(10)])
    with java.lite(group, topic=topic, tags="A") as consumer:
        assert numbers(consumer.poll(5)) == [0, 2, 4, 6, 8]
    with java.lite(f"{group}-sql", topic=topic, sql="n >= 7") as consumer:
        assert numbers(consumer.poll(3)) == [7, 8, 9]


def test_a_lite_pull_consumer_that_is_assigned_its_queues_and_seeks(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic, queues=2)
    with java.producer() as producer:
        sent = producer.send_to_queue(1, *numbered(topic, 5))
        time.sleep(0.05)
        middle = int(time.time() * 1000)
        time.sleep(0.05)
        producer.send_to_queue(1, *[message(topic, str(number)) for number in range(5, 10)])
    assert sent[-1]["queueOffset"] == 4
    with java.lite(group, set={"autoCommit": False}) as consumer:
        consumer.assign(topic, [1])
        consumer.at("seekToBegin", topic, 1)
        assert numbers(consumer.poll(10)) == list(range(10))
        consumer.at("seek", topic, 1, offset=7)
        assert numbers(consumer.poll(3)) == [7, 8, 9]
        assert consumer.offset("time", topic, 1, ms=middle) == 5
        consumer.at("seekToEnd", topic, 1)
        assert consumer.poll(1, within_s=1) == []


# --- The older pull API ----------------------------------------------------------------------------


def test_the_older_pull_consumer(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic, queues=1)
    with java.producer() as producer, java.pull(group) as consumer:
        before = int(time.time() * 1000)
        producer.send(*[message(topic, str(n), tags="AB"[n % 2]) for n in range(10)])
        assert [line["queueId"] for line in consumer.ask("queues", topic=topic)] == [0]

        found = eventually(lambda: consumer.pull(topic, 0, 0), lambda found: len(found["messages"]) == 10)
        assert (found["status"], found["next"], found["min"], found["max"]) == ("FOUND", 10, 0, 10)
        some = consumer.pull(topic, 0, 2, most=3)
        assert (numbers(some["messages"]), some["next"]) == ([2, 3, 4], 5)
        tagged_only = consumer.pull(topic, 0, 0, tags="B")
        assert numbers(tagged_only["messages"]) == [1, 3, 5, 7, 9]
        nothing = consumer.pull(topic, 0, 0, tags="no such tag")
        assert (nothing["status"], nothing["next"]) == ("NO_MATCHED_MSG", 10)
        end = consumer.pull(topic, 0, 10)
        assert (end["status"], end["next"]) == ("NO_NEW_MSG", 10)
        beyond = consumer.pull(topic, 0, 1000)
        assert (beyond["status"], beyond["next"]) == ("OFFSET_ILLEGAL", 10)

        assert [consumer.offset(what, topic, 0) for what in ("min", "max")] == [0, 10]
        assert consumer.offset("earliest", topic, 0) >= before
        assert consumer.offset("time", topic, 0, ms=before) == 0
        consumer.at("commit", topic, 0, offset=6)
        assert eventually(lambda: consumer.offset("committed", topic, 0), lambda offset: offset == 6) == 6


def test_a_pull_is_held_until_a_message_arrives(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic, queues=1)
    delayed = message(topic, "one second later", delayLevel=1)
    with java.producer() as producer, java.pull(group) as consumer:
        producer.send(message(topic, "now"))
        producer.send(delayed)
        held = consumer.pull(topic, 0, 1, block=True)
    assert bodies(held["messages"]) == ["one second later"]
    assert 300 < held["tookMs"] < 8000


# --- Resetting a group's progress ------------------------------------------------------------------


def test_a_live_consumer_is_set_back_in_time(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic, queues=2)
    send(java, numbered(topic, 5))
    time.sleep(0.05)
    middle = int(time.time() * 1000)
    time.sleep(0.05)
    send(java, [message(topic, str(number)) for number in range(5, 10)])
    with java.push(group, everything(topic)) as consumer:
        consumer.received(10)
        said = java.mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", str(middle))
        assert "#offset" in said, said
        arrived = consumer.nothing_more(15, for_s=2)  # the client itself sleeps 10 s before it obeys
    assert numbers(arrived[10:]) == [5, 6, 7, 8, 9]


def test_a_sleeping_group_is_set_back_in_time(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic, queues=2)
    sent_at = time.strftime("%Y-%m-%d#%H:%M:%S:000")
    send(java, numbered(topic, 6))
    with java.push(group, everything(topic)) as consumer:
        consumer.received(6)
        consumer.close()
    said = java.mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", sent_at)
    assert "#offset" in said or "rollback" in said, said
    with java.push(group, everything(topic)) as consumer:
        assert numbers(consumer.nothing_more(6)) == list(range(6))
