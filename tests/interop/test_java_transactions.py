"""The official Java client, unmodified: transactions that are committed, rolled back, or asked back about."""

from __future__ import annotations

import pytest

from interop.support.apache import ApacheFailed
from interop.support.java_client import JavaClient, PushConsumer, bodies, eventually, everything

pytestmark = pytest.mark.interop


def ready(consumer: PushConsumer) -> PushConsumer:
    eventually(consumer.owned, lambda owned: len(owned) == 4)
    return consumer


def test_a_committed_message_is_delivered_and_a_rolled_back_one_is_not(
    java: JavaClient, topic: str, group: str
) -> None:
    java.create_topic(topic)
    with java.push(group, everything(topic)) as consumer, java.producer(group, transactional=True) as producer:
        ready(consumer)
        no = producer.transact(topic, "no", "rollback", tags="T")
        yes = producer.transact(topic, "yes", "commit", tags="T", keys="K")
        assert [line["status"] for line in (no, yes)] == ["SEND_OK", "SEND_OK"]
        assert [line["local"] for line in (no, yes)] == ["ROLLBACK_MESSAGE", "COMMIT_MESSAGE"]
        [arrived] = consumer.nothing_more(1, for_s=3)
        assert producer.checks() == []
    assert (arrived["body"], arrived["topic"], arrived["tags"], arrived["keys"]) == ("yes", topic, "T", "K")
    assert arrived["msgId"] == yes["msgId"] == yes["transactionId"]
    assert arrived["properties"]["TRAN_MSG"] == "true"


def test_a_half_message_is_not_seen_before_the_producer_decides(java: JavaClient, topic: str, group: str) -> None:
    java.create_topic(topic)
    with java.push(group, everything(topic)) as consumer, java.producer(group, transactional=True) as producer:
        ready(consumer)
        producer.transact(topic, "undecided", "unknown", check="unknown,commit")
        [arrived] = consumer.nothing_more(1)
        checks = producer.checks()
    assert len(checks) == 2
    assert arrived["arrived"] >= checks[1]["arrived"]


@pytest.mark.parametrize(("decision", "delivered"), [("commit", ["asked"]), ("rollback", [])])
def test_the_broker_asks_back_about_an_undecided_message(
    java: JavaClient, topic: str, group: str, decision: str, delivered: list[str]
) -> None:
    java.create_topic(topic)
    with java.push(group, everything(topic)) as consumer, java.producer(group, transactional=True) as producer:
        ready(consumer)
        sent = producer.transact(topic, "asked", "unknown", check=decision, keys="K")
        [check] = eventually(producer.checks, lambda checks: len(checks) == 1)
        assert check["arrived"] - check["bornTimestamp"] >= 1000  # transactionTimeOut
        assert (check["body"], check["keys"], check["topic"]) == ("asked", "K", topic)
        assert check["transactionId"] == sent["transactionId"] == sent["msgId"]
        assert bodies(consumer.nothing_more(len(delivered), for_s=3)) == delivered
        assert len(producer.checks()) == 1


def test_another_producer_of_the_group_is_asked_when_the_first_has_gone(
    java: JavaClient, topic: str, group: str
) -> None:
    java.create_topic(topic)
    with java.push(group, everything(topic)) as consumer:
        ready(consumer)
        with java.producer(group, transactional=True) as first:
            first.transact(topic, "orphan", "unknown", check="commit")
            first.close()
        with java.producer(group, transactional=True, heartbeatBrokerInterval=500) as second:
            # A producer is known to the broker with its first heartbeat after it knows the broker.
            second.transact(topic, "its own", "commit")
            assert sorted(bodies(consumer.nothing_more(2))) == ["its own", "orphan"]
            assert bodies(second.checks()) == ["orphan"]


def given_up(java: JavaClient) -> int:
    try:
        return java.stored("TRANS_CHECK_MAX_TIME_TOPIC")
    except ApacheFailed:  # made when it is needed
        return 0


def test_the_broker_gives_up_after_its_limit(java: JavaClient, topic: str, group: str) -> None:
    """transactionCheckMax is 3: after that the message goes to a topic of its own and is never delivered."""
    java.create_topic(topic)
    with java.push(group, everything(topic)) as consumer, java.producer(group, transactional=True) as producer:
        ready(consumer)
        before = given_up(java)
        producer.transact(topic, "forever undecided", "unknown", check="unknown")
        eventually(lambda: len(producer.checks()), lambda count: count >= 3)

        eventually(lambda: given_up(java), lambda count: count == before + 1)
        assert consumer.received(1, within_s=1) == []
        assert len(producer.checks()) <= 4
