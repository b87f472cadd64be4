"""Java and Python clients side by side, against both referees: one group, one transaction, one request at a time."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator

import pytest

from interop.support.cluster import Cluster
from interop.support.java_client import JavaClient, bodies, eventually, everything, message, numbered
from interop.support.python_client import push, tell, until_owned
from interop.support.referees import REFEREES, refereed
from pyromq import ConsumeFrom, Decision, Message, Producer, PushConsumer, ReceivedMessage, TransactionProducer

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module", params=REFEREES)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with refereed(request.param, tmp_path_factory.mktemp(f"mixed-{request.param}") / "store") as running:
        yield running


@pytest.fixture(scope="module")
def java(cluster: Cluster) -> Iterator[JavaClient]:
    with JavaClient(cluster) as client:
        yield client


@pytest.fixture
def servers(cluster: Cluster) -> str:
    return cluster.namesrv_address


# --- one group -------------------------------------------------------------------------------------------------------


def test_a_java_and_a_python_consumer_split_the_queues_of_their_group(
    java: JavaClient, servers: str, topic: str, group: str
) -> None:
    java.create_topic(topic)

    async def story() -> None:
        ours, inbox = push(servers, group, topic)
        theirs = java.push(group, everything(topic))
        async with ours, Producer(servers, group="producers") as producer:
            await until_owned(ours, 2, topic)
            owned = await asyncio.to_thread(eventually, theirs.owned, lambda owned: len(owned) == 2)
            assert owned | {queue.queue_id for queue in ours.queues} == {0, 1, 2, 3}
            for number in range(100):
                await producer.send(topic, str(number))
            await inbox.received(50)
            got = await asyncio.to_thread(theirs.nothing_more, 50)
            assert sorted(map(int, inbox.bodies + bodies(got))) == list(range(100))
            await asyncio.to_thread(theirs.close)
            await until_owned(ours, 4, topic)

    tell(story)


@pytest.mark.parametrize("leaving", ["java", "python"])
def test_progress_of_one_is_where_the_other_goes_on(
    java: JavaClient, servers: str, topic: str, group: str, leaving: str
) -> None:
    java.create_topic(topic)

    async def by_python(count: int) -> list[str]:
        consumer, inbox = push(servers, group, topic)
        async with consumer:
            await inbox.nothing_more(count)
        return inbox.bodies

    def by_java(count: int) -> list[str]:
        with java.push(group, everything(topic)) as consumer:
            found = bodies(consumer.nothing_more(count))
            consumer.close()  # to its end: it must not take any of the next
            return found

    async def story() -> None:
        async with Producer(servers, group="producers") as producer:
            for number in range(20):
                await producer.send(topic, f"before {number}")
            first = await asyncio.to_thread(by_java, 20) if leaving == "java" else await by_python(20)
            for number in range(20):
                await producer.send(topic, f"after {number}")
            second = await by_python(20) if leaving == "java" else await asyncio.to_thread(by_java, 20)
        assert sorted(first) == sorted(f"before {number}" for number in range(20))
        assert sorted(second) == sorted(f"after {number}" for number in range(20))

    tell(story)


def test_ordered_consumers_of_both_kinds_hand_a_queue_over_without_a_step_back(
    java: JavaClient, servers: str, topic: str, group: str
) -> None:
    java.create_topic(topic, queues=2)

    async def story() -> None:
        handled = list[str]()
        ours = PushConsumer(servers, group=group, ordered=True, consume_from=ConsumeFrom.FIRST)

        @ours.on(topic)
        async def handle(one: ReceivedMessage) -> None:
            handled.append(one.text)

        async with Producer(servers, group="producers") as producer:
            theirs = java.push(group, everything(topic), orderly=True)
            await asyncio.to_thread(eventually, theirs.owned, lambda owned: len(owned) == 2)
            for number in range(10):
                await producer.send(Message(topic, f"{number:03}", sharding_key="one"))
            got = bodies(await asyncio.to_thread(theirs.received, 10))
            await asyncio.to_thread(theirs.close)
            async with ours:
                await until_owned(ours, 2, topic)
                for number in range(10, 20):
                    await producer.send(Message(topic, f"{number:03}", sharding_key="one"))
                async with asyncio.timeout(60):
                    while len(handled) < 10:  # noqa: ASYNC110  it may be the same queue's lock that is waited for
                        await asyncio.sleep(0.05)
        assert [*got, *handled] == [f"{number:03}" for number in range(20)]

    tell(story)


# --- what one sends, the other reads ---------------------------------------------------------------------------------


def test_every_field_of_a_java_message_and_of_a_python_message(
    java: JavaClient, servers: str, topic: str, group: str
) -> None:
    java.create_topic(topic)

    async def story() -> None:
        ours, inbox = push(servers, group, topic)
        async with ours, Producer(servers, group="producers") as producer:
            with java.producer() as theirs:
                [sent] = await asyncio.to_thread(
                    theirs.send, message(topic, "grüße", tags="T", keys="a b", flag=7, properties={"country": "IT"})
                )
            (got,) = await inbox.received(1)
            assert (got.text, got.tags, got.keys, got.user_flag) == ("grüße", "T", ("a", "b"), 7)
            assert (dict(got.properties), got.message_id) == ({"country": "IT"}, sent["msgId"])
            receipt = await producer.send(
                Message(topic, "grüße", tags="P", keys=["c", "d"], user_flag=8, properties={"country": "DE"})
            )
        with java.push(f"{group}-java", everything(topic)) as consumer:
            [line] = [one for one in await asyncio.to_thread(consumer.received, 2) if one["tags"] == "P"]
        assert (line["body"], line["keys"], line["msgId"]) == ("grüße", "c d", receipt.message_id)
        assert line["properties"]["country"] == "DE"

    tell(story)


@pytest.mark.parametrize("kind", ["ZLIB", "LZ4", "ZSTD"])
def test_compressed_bodies_both_ways(java: JavaClient, servers: str, topic: str, group: str, kind: str) -> None:
    java.create_topic(topic)
    long = "0123456789" * 1000

    async def story() -> None:
        ours, inbox = push(servers, group, topic)
        with java.producer(compressType=kind) as theirs, java.push(f"{group}-java", everything(topic)) as consumer:
            compression = kind.lower()
            async with ours, Producer(servers, group="producers", compression=compression) as producer:  # type: ignore[arg-type]
                await asyncio.to_thread(theirs.send, message(topic, "0123456789", repeat=1000))
                (got,) = await inbox.received(1)
                assert got.text == long
                assert got.size < 3000
                await producer.send(topic, long)
                lines = await asyncio.to_thread(consumer.received, 2)
        assert {line["body"] for line in lines} == {f"sha256:{hashlib.sha256(long.encode()).hexdigest()}"}

    tell(story)


def test_a_sharding_key_means_the_same_queue_to_both(java: JavaClient, servers: str, topic: str) -> None:
    java.create_topic(topic)

    async def story() -> None:
        async with Producer(servers, group="producers") as producer:
            for key in ("order-1", "order-2", "grüße", "polygenelubricants"):  # the last one's hash is the least
                receipt = await producer.send(Message(topic, b"p", sharding_key=key))
                with java.producer() as theirs:
                    [sent] = await asyncio.to_thread(theirs.send, message(topic, "j", keys=key), how="hashed")
                assert receipt.queue.queue_id == sent["queueId"]

    tell(story)


# --- transactions ----------------------------------------------------------------------------------------------------


def test_messages_of_a_java_transaction_reach_a_python_consumer(
    java: JavaClient, servers: str, topic: str, group: str
) -> None:
    java.create_topic(topic)

    async def story() -> None:
        ours, inbox = push(servers, group, topic)
        async with ours:
            with java.producer(group, transactional=True) as theirs:
                for body, local, check in (
                    ("yes", "commit", ""),
                    ("no", "rollback", ""),
                    ("asked", "unknown", "commit"),
                ):
                    await asyncio.to_thread(theirs.transact, topic, body, local, check or "unknown")
                await inbox.nothing_more(2, for_s=2)
        assert sorted(inbox.bodies) == ["asked", "yes"]

    tell(story)


def test_messages_of_a_python_transaction_reach_a_java_consumer(
    java: JavaClient, servers: str, topic: str, group: str
) -> None:
    java.create_topic(topic)

    async def story() -> None:
        with java.push(group, everything(topic)) as consumer:
            await asyncio.to_thread(eventually, consumer.owned, lambda owned: len(owned) == 4)
            async with TransactionProducer(servers, group=group, check=lambda _: Decision.COMMIT) as producer:
                for body, decision in (
                    ("yes", Decision.COMMIT),
                    ("no", Decision.ROLLBACK),
                    ("asked", Decision.UNKNOWN),
                ):
                    await producer.send_in_transaction(Message(topic, body), lambda _, decision=decision: decision)
                got = await asyncio.to_thread(consumer.nothing_more, 2, 2.0)
        assert sorted(bodies(got)) == ["asked", "yes"]

    tell(story)


def test_a_python_producer_is_asked_about_what_a_java_producer_of_its_group_left_open(
    java: JavaClient, servers: str, topic: str, group: str
) -> None:
    java.create_topic(topic)

    async def story() -> None:
        ours, inbox = push(servers, f"{group}-c", topic)
        asked = list[str]()

        def check(half: ReceivedMessage) -> Decision:
            asked.append(half.text)
            return Decision.COMMIT

        async with ours:
            with java.producer(group, transactional=True) as theirs:
                await asyncio.to_thread(theirs.transact, topic, "orphan", "unknown", "unknown")
                theirs.close()
            async with TransactionProducer(servers, group=group, check=check) as producer:
                await producer.send_in_transaction(Message(topic, b"own"), lambda _: Decision.COMMIT)
                await inbox.nothing_more(2)
        assert sorted(inbox.bodies) == ["orphan", "own"]
        assert asked == ["orphan"]

    tell(story)


# --- requests --------------------------------------------------------------------------------------------------------


def test_a_java_request_is_answered_by_python(java: JavaClient, servers: str, topic: str, group: str) -> None:
    java.create_topic(topic)

    async def story() -> None:
        ours = PushConsumer(servers, group=group, consume_from=ConsumeFrom.FIRST)
        async with Producer(servers, group="repliers") as replier:

            @ours.on(topic)
            async def handle(one: ReceivedMessage) -> None:
                await replier.reply(one, f"re: {one.text}")

            async with ours:
                with java.producer() as theirs:
                    reply = await asyncio.to_thread(theirs.request, message(topic, "hello"), 20_000)
        assert reply["body"] == "re: hello"

    tell(story)


def test_a_python_request_is_answered_by_java(java: JavaClient, servers: str, topic: str, group: str) -> None:
    java.create_topic(topic)

    async def story() -> None:
        with java.producer() as replier, java.push(group, everything(topic), replyWith=replier.name):
            async with Producer(servers, group="askers") as asker:
                reply = await asker.request(Message(topic, b"hello"), timeout_s=20)
        assert reply.text == "re: hello"

    tell(story)


# --- mqadmin sees Python clients -------------------------------------------------------------------------------------


def test_mqadmin_sees_a_python_consumer_and_moves_it_back(
    java: JavaClient, servers: str, topic: str, group: str
) -> None:
    java.create_topic(topic)
    with java.producer() as theirs:
        theirs.send(*numbered(topic, 10))

    async def story() -> None:
        ours, inbox = push(servers, group, topic)
        async with ours:
            await inbox.received(10)
            await ours.commit()
            said = await asyncio.to_thread(java.mqadmin, "consumerConnection", "-g", group, "-n", servers)
            assert ours.client_id in said
            assert "PYTHON" in said
            said = await asyncio.to_thread(
                java.mqadmin, "consumerStatus", "-g", group, "-i", ours.client_id, "-n", servers
            )
            assert topic in said
            await asyncio.to_thread(
                java.mqadmin, "resetOffsetByTime", "-n", servers, "-g", group, "-t", topic, "-s", "0"
            )
            await inbox.received(20)
        assert sorted(map(int, inbox.bodies)) == sorted([*range(10), *range(10)])

    tell(story)


def test_mqadmin_reads_the_trace_of_a_python_message(java: JavaClient, servers: str, topic: str, group: str) -> None:
    java.create_topic(topic)

    async def story() -> None:
        ours, inbox = push(servers, group, topic)
        async with ours, Producer(servers, group="traced", trace=True) as producer:
            receipt = await producer.send(Message(topic, b"traced", keys="k"))
            await inbox.received(1)

        def said() -> str:
            return java.mqadmin("queryMsgTraceById", "-n", servers, "-i", receipt.message_id)

        found = await asyncio.to_thread(eventually, said, lambda text: "traced" in text)
        assert "success" in found.lower()

    tell(story)
