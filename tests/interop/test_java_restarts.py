"""The official Java client, unmodified, while its broker is stopped or killed and restarted."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from interop.support.cluster import Cluster, new_cluster
from interop.support.java_client import ALERT, CONF, JavaClient, bodies, eventually, everything, message, numbered

pytestmark = pytest.mark.interop

ENDS = [signal.SIGTERM, signal.SIGKILL]
#: A client that looks for its broker again soon, and does not wait for an answer that will not come.
STUBBORN = {**ALERT, "sendMsgTimeout": 2000, "retryTimesWhenSendFailed": 5}
HUNGRY = {"pullTimeDelayMillsWhenException": 200}


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # While no producer is connected the broker continues counting.
    conf = {**CONF, "transactionCheckMax": "60"}
    with new_cluster(tmp_path_factory.mktemp("mortal") / "store", conf) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def witness(mortal: Cluster) -> Iterator[JavaClient]:
    with JavaClient(mortal) as client:
        yield client


def restart(mortal: Cluster, witness: JavaClient, how: signal.Signals) -> None:
    mortal.end_broker(how)
    mortal.start_broker()
    witness.await_broker()


@pytest.mark.parametrize("how", ENDS)
def test_every_acknowledged_message_is_consumed(
    mortal: Cluster, witness: JavaClient, topic: str, group: str, how: signal.Signals
) -> None:
    witness.create_topic(topic)
    with (
        witness.push(group, everything(topic), set=HUNGRY) as consumer,
        witness.producer(**STUBBORN) as producer,
    ):
        producer.start_flood(topic, pause_ms=2)
        consumer.received(100)
        restart(mortal, witness, how)
        before = len(consumer.received(0))
        consumer.received(before + 100, within_s=60)
        flooded = producer.end_flood()
        acknowledged = set(flooded["acknowledged"])
        assert len(acknowledged) > 200, flooded["lastRefusal"]
        eventually(lambda: acknowledged - set(bodies(consumer.received(0))), lambda missing: not missing)


@pytest.mark.parametrize("how", ENDS)
def test_delayed_messages_retries_and_half_messages_survive(
    mortal: Cluster, witness: JavaClient, topic: str, group: str, how: signal.Signals
) -> None:
    witness.create_topic(topic)
    witness.create_topic(f"%RETRY%{group}", queues=1)
    with (
        witness.push(group, everything(topic), failures=1, delayLevel=2, set=HUNGRY) as consumer,
        witness.producer(group, transactional=True, **STUBBORN) as producer,
    ):
        eventually(consumer.owned, lambda owned: len(owned) == 4)
        producer.send(message(topic, "fails once"))
        consumer.received(1)
        producer.send(message(topic, "delayed", delayLevel=2))
        producer.transact(topic, "half", "unknown", check="commit")
        restart(mortal, witness, how)
        # This listener fails each of the three once, and each is redelivered once.
        arrived = consumer.received(6, within_s=60)
        assert sorted(bodies(arrived)) == ["delayed", "delayed", "fails once", "fails once", "half", "half"]
        first = next(line for line in arrived if line["body"] == "delayed")
        assert first["arrived"] - first["bornTimestamp"] >= 5_000
        assert {line["reconsumeTimes"] for line in arrived} == {0, 1}


@pytest.mark.parametrize("how", ENDS)
def test_topics_groups_and_progress_survive(
    mortal: Cluster, witness: JavaClient, topic: str, group: str, how: signal.Signals
) -> None:
    witness.create_topic(topic, queues=3)
    witness.create_group(group, retryMaxTimes=7)
    with witness.producer(**STUBBORN) as producer:
        producer.send(*numbered(topic, 30))
        with witness.push(group, everything(topic)) as consumer:
            consumer.received(30)
            consumer.close()
        progress = witness.ask("admin.progress", group=group, topic=topic)
        assert sum(line["consumer offset"] for line in progress) == 30
        if how is signal.SIGKILL:
            # Progress is written every 5 s; younger progress may be lost with the process.
            eventually(lambda: group in written_progress(mortal), bool)
        restart(mortal, witness, how)
        eventually(lambda: witness.offsets(topic), lambda offsets: len(offsets) == 3)
        assert witness.stored(topic) == 30
        assert "retryMaxTimes                           =  7" in witness.mqadmin("getConsumerConfig", "-g", group)
        producer.send(message(topic, "late"))
        with witness.push(group, everything(topic)) as consumer:
            assert bodies(consumer.nothing_more(1)) == ["late"]


def written_progress(mortal: Cluster) -> str:
    file = mortal.store_root / "config" / "consumerOffset.json"
    return file.read_text("utf-8") if file.exists() else ""
