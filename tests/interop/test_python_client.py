"""Our own client, the same stories against two referees: PyroMQ's broker and Apache RocketMQ's."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.support.cluster import Cluster
from interop.support.python_client import push, tell, until_owned
from interop.support.referees import REFEREES, refereed
from late import in_time
from pyromq import (
    Admin,
    ConsumeFrom,
    Decision,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
)
from pyromq.errors import IllegalMessage, NoReply, PyroMQError

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module", params=REFEREES)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Each referee, started once for all stories."""
    with refereed(request.param, tmp_path_factory.mktemp(request.param) / "store") as running:
        yield running


@pytest.fixture
def servers(cluster: Cluster) -> str:
    return cluster.namesrv_address


@pytest.fixture
def made(servers: str, topic: str) -> str:
    """A topic of four queues."""

    async def make() -> None:
        async with Admin(servers) as admin:
            await admin.topics.create(topic, queues=4)

    tell(make)
    return topic


def test_every_field_of_a_message_arrives(servers: str, made: str, group: str) -> None:
    async def story() -> None:
        consumer, inbox = push(servers, group, made)
        async with Producer(servers, group="producers") as producer, consumer:
            sent = Message(
                made, "grüße".encode(), tags="registered", keys=["u-17", "k"], properties={"country": "IT", "n": "5"},
                user_flag=9,
            )  # fmt: skip
            receipt = await producer.send(sent)
            (got,) = await inbox.received(1)
        assert (got.topic, got.body, got.tags, got.keys) == (made, sent.body, "registered", ("u-17", "k"))
        assert (dict(got.properties), got.user_flag) == ({"country": "IT", "n": "5"}, 9)
        assert (got.message_id, got.offset_message_id) == (receipt.message_id, receipt.offset_message_id)
        assert (got.queue, got.queue_offset) == (receipt.queue, receipt.queue_offset)
        assert got.delivery_attempt == 1

    tell(story)


def test_many_sends_at_once_arrive_once_each(servers: str, made: str, group: str) -> None:
    async def story() -> None:
        consumer, inbox = push(servers, group, made)
        async with Producer(servers, group="producers") as producer, consumer:
            await asyncio.gather(*(producer.send(made, str(number)) for number in range(500)))
            await producer.send_batch([Message(made, str(number)) for number in range(500, 700)])
            await asyncio.gather(*(producer.send_one_way(Message(made, str(number))) for number in range(700, 720)))
            await inbox.nothing_more(720)
        assert sorted(map(int, inbox.bodies)) == list(range(720))

    tell(story)


@pytest.mark.parametrize("compression", ["zlib", "lz4", "zstd"])
def test_a_compressed_body_arrives_as_it_was(servers: str, made: str, group: str, compression: str) -> None:
    async def story() -> None:
        consumer, inbox = push(servers, group, made)
        async with Producer(servers, group="producers", compression=compression) as producer, consumer:  # type: ignore[arg-type]
            await producer.send(made, b"0123456789" * 2000)
            (got,) = await inbox.received(1)
        assert got.body == b"0123456789" * 2000
        assert got.size < 5000

    tell(story)


def test_automatic_batches_behind_a_plain_send(servers: str, made: str, group: str) -> None:
    async def story() -> None:
        consumer, inbox = push(servers, group, made)
        async with Producer(servers, group="producers", auto_batch=True) as producer, consumer:
            receipts = await asyncio.gather(*(producer.send(made, str(number), keys="k") for number in range(1000)))
            await inbox.nothing_more(1000)
        assert len({(receipt.queue, receipt.queue_offset) for receipt in receipts}) == 1000
        by_id = {message.message_id: message for message in inbox.messages}
        for number, receipt in enumerate(receipts):
            message = by_id[receipt.message_id]
            assert (message.text, message.queue, message.queue_offset) == (
                str(number), receipt.queue, receipt.queue_offset,
            )  # fmt: skip

    tell(story)


# --- what a consumer wants -------------------------------------------------------------------------------------------


def test_tags_choose(servers: str, made: str, group: str) -> None:
    async def story() -> None:
        consumer, inbox = push(servers, group, made, tags="a || c")
        async with Producer(servers, group="producers") as producer, consumer:
            for tag in "abcabc":
                await producer.send(made, tag, tags=tag)
            await inbox.nothing_more(4)
        assert Counter(inbox.bodies) == {"a": 2, "c": 2}

    tell(story)


def test_sql_chooses(servers: str, made: str, group: str) -> None:
    async def story() -> None:
        consumer, inbox = push(servers, group, made, sql="price > 10 AND country IN ('IT', 'DE')")
        async with Producer(servers, group="producers") as producer, consumer:
            for price, country in ((5, "IT"), (15, "IT"), (20, "FR"), (11, "DE")):
                await producer.send(made, f"{price}{country}", properties={"price": str(price), "country": country})
            await inbox.nothing_more(2)
        assert sorted(inbox.bodies) == ["11DE", "15IT"]

    tell(story)


def test_two_consumers_of_a_group_share_the_queues(servers: str, made: str, group: str) -> None:
    async def story() -> None:
        (first, one), (second, two) = push(servers, group, made), push(servers, group, made)
        async with Producer(servers, group="producers") as producer, first:
            await until_owned(first, 4, made)
            async with second:
                await until_owned(second, 2, made)
                await until_owned(first, 2, made)
                for number in range(100):
                    await producer.send(made, str(number))
                await asyncio.gather(one.received(50), two.received(50))
                assert sorted(map(int, one.bodies + two.bodies)) == list(range(100))
            await until_owned(first, 4, made)  # a leaving consumer unregisters

    tell(story)


def test_each_member_of_a_broadcast_gets_everything_and_goes_on_where_it_was(
    servers: str, made: str, group: str, tmp_path: Path
) -> None:
    async def story() -> None:
        def member(name: str):  # type: ignore[no-untyped-def]
            return push(servers, group, made, broadcast=True, offsets_dir=tmp_path / name)

        (first, one), (second, two) = member("one"), member("two")
        async with Producer(servers, group="producers") as producer:
            async with first, second:
                await producer.send(made, "to both")
                await asyncio.gather(one.received(1), two.received(1))
            await producer.send(made, "while away")
            again, inbox = member("one")
            async with again:
                await inbox.nothing_more(1)
        assert inbox.bodies == ["while away"]

    tell(story)


# --- order -----------------------------------------------------------------------------------------------------------


def test_messages_of_one_key_are_handled_in_order_even_when_one_fails(servers: str, made: str, group: str) -> None:
    async def story() -> None:
        handled, failed = defaultdict[str, list[int]](list), set[str]()
        done = asyncio.Event()
        consumer = PushConsumer(servers, group=group, ordered=True, pause_s=0.1, consume_from=ConsumeFrom.FIRST)

        @consumer.on(made)
        async def handle(message: ReceivedMessage) -> None:
            key, number = message.text.split(":")
            if number == "7" and key not in failed:
                failed.add(key)
                raise ValueError("once")
            handled[key].append(int(number))
            if sum(map(len, handled.values())) == 80:
                done.set()

        async with Producer(servers, group="producers") as producer, consumer:
            for number in range(20):
                await asyncio.gather(
                    *(producer.send(made, f"{key}:{number}", sharding_key=key) for key in ("a", "b", "c", "d"))
                )
            async with asyncio.timeout(60):
                await done.wait()
        assert handled == {key: list(range(20)) for key in "abcd"}
        assert failed == set("abcd")

    tell(story)


# --- later -----------------------------------------------------------------------------------------------------------


def test_a_delayed_message_is_never_early(servers: str, made: str, group: str) -> None:
    async def story() -> None:
        consumer, inbox = push(servers, group, made)
        async with Producer(servers, group="producers") as producer, consumer:
            began = time.time()
            await producer.send(made, b"later", delay_level=2)  # 5 s
            await inbox.received(1)
            assert time.time() - began >= 5.0
            in_time(time.time() - began, 9.0)

    tell(story)


def test_a_message_whose_handler_raises_comes_again_and_ends_among_the_dead_letters(
    servers: str, made: str, group: str
) -> None:
    async def story() -> None:
        attempts = list[int]()
        consumer = PushConsumer(servers, group=group, max_attempts=2, retry_delay=1, consume_from=ConsumeFrom.FIRST)

        @consumer.on(made)
        async def handle(message: ReceivedMessage) -> None:
            attempts.append(message.delivery_attempt)
            assert message.topic == made
            raise ValueError("never")

        async with Producer(servers, group="producers") as producer, Admin(servers) as admin, consumer:
            receipt = await producer.send(Message(made, b"poison", keys="k-1", properties={"a": "b"}))
            async with asyncio.timeout(60):
                while not (found := await dead_letters(admin, group)):  # noqa: ASYNC110  only the broker knows
                    await asyncio.sleep(0.2)
        assert attempts == [1, 2]
        assert [(letter.body, letter.keys, letter.properties["a"]) for letter in found] == [(b"poison", ("k-1",), "b")]
        assert found[0].message_id == receipt.message_id

    tell(story)


async def dead_letters(admin: Admin, group: str) -> list[ReceivedMessage]:
    try:
        return list(await admin.dead_letters.peek(group))
    except PyroMQError:
        return []


# --- transactions and requests ---------------------------------------------------------------------------------------


def test_transactions_are_committed_rolled_back_and_asked_about(servers: str, made: str, group: str) -> None:
    async def story() -> None:
        asked = list[str]()

        async def check(message: ReceivedMessage) -> Decision:
            asked.append(message.text)
            return Decision.COMMIT

        async def local(message: Message) -> Decision:
            return {b"yes": Decision.COMMIT, b"no": Decision.ROLLBACK, b"later": Decision.UNKNOWN}[message.body]

        consumer, inbox = push(servers, group, made)
        async with TransactionProducer(servers, group=group, check=check) as producer, consumer:
            for body in (b"yes", b"no", b"later"):
                await producer.send_in_transaction(Message(made, body), local)
            await inbox.nothing_more(2, for_s=3)
        assert sorted(inbox.bodies) == ["later", "yes"]
        assert asked == ["later"]

    tell(story)


def test_a_request_gets_its_reply_and_one_that_nobody_answers_says_so(servers: str, made: str, group: str) -> None:
    async def story() -> None:
        async with Producer(servers, group="askers") as asker, Producer(servers, group="repliers") as replier:
            consumer = PushConsumer(servers, group=group, consume_from=ConsumeFrom.FIRST)

            @consumer.on(made)
            async def handle(message: ReceivedMessage) -> None:
                if message.text != "silence":
                    await replier.reply(message, f"re: {message.text}")

            async with consumer:
                reply = await asker.request(Message(made, b"how are you"), timeout_s=20)
                assert reply.text == "re: how are you"
                with pytest.raises(NoReply):
                    await asker.request(Message(made, b"silence"), timeout_s=0.5)

    tell(story)


# --- pulling ---------------------------------------------------------------------------------------------------------


def test_a_pull_consumer_goes_where_it_is_told_and_commits_what_it_has_read(
    servers: str, made: str, group: str
) -> None:
    async def story() -> None:
        async with Producer(servers, group="producers") as producer:
            queue = (await producer.queues(made))[0]
            for number in range(10):
                await producer.send(Message(made, str(number)), queue=queue)
        async with PullConsumer(servers, group=group, auto_commit=False) as consumer:
            await consumer.assign([queue])
            await consumer.seek_to_begin(queue)
            assert [one.text for one in await drained(consumer, 10)] == [str(number) for number in range(10)]
            await consumer.commit()
            await consumer.seek(queue, 7)
            assert [one.text for one in await drained(consumer, 3)] == ["7", "8", "9"]
            assert await consumer.committed(queue) == 10
            assert (await consumer.begin_offset(queue), await consumer.end_offset(queue)) == (0, 10)
        async with PullConsumer(servers, group=group) as again:
            await again.assign([queue])
            assert await again.poll(timeout_s=1) == []

    tell(story)


async def drained(consumer: PullConsumer, count: int) -> list[ReceivedMessage]:
    found = list[ReceivedMessage]()
    async with asyncio.timeout(30):
        while len(found) < count:
            found += await consumer.poll(timeout_s=1)
    return found


# --- errors ----------------------------------------------------------------------------------------------------------


def test_a_message_that_cannot_be_stored_is_refused_before_it_leaves(servers: str, made: str) -> None:
    async def story() -> None:
        async with Producer(servers, group="producers") as producer:
            with pytest.raises(IllegalMessage):
                await producer.send(Message(made, b"x" * (5 << 20)))
            with pytest.raises(IllegalMessage):
                await producer.send(Message("no/such%name?", b"x"))
            with pytest.raises(IllegalMessage):
                await producer.send(Message(made, b"x", properties={"TAGS": "mine"}))
            await producer.send(made, b"and it still works")

    tell(story)


def test_a_topic_comes_into_being_where_the_broker_allows_it(servers: str, topic: str, group: str) -> None:
    async def story() -> None:
        async with Producer(servers, group="producers") as producer:
            await producer.send(topic, b"first")
        consumer, inbox = push(servers, group, topic)
        async with consumer:
            await inbox.received(1)

    tell(story)


# --- a broker that goes away -----------------------------------------------------------------------------------------


def test_a_broker_that_is_restarted_is_found_again_and_nothing_is_lost(
    cluster: Cluster, servers: str, made: str, group: str
) -> None:
    async def story() -> None:
        acknowledged = list[str]()
        stop = asyncio.Event()
        consumer, inbox = push(servers, group, made)
        async with Producer(servers, group="producers", timeout_s=5) as producer, consumer:

            async def keep_sending() -> None:
                number = 0
                while not stop.is_set():
                    number += 1
                    try:
                        await producer.send(made, str(number))
                    except PyroMQError:
                        await asyncio.sleep(0.1)
                    else:
                        acknowledged.append(str(number))
                        await asyncio.sleep(0.002)

            sending = asyncio.ensure_future(keep_sending())
            await inbox.received(100)
            await asyncio.to_thread(cluster.end_broker, signal.SIGKILL)
            await asyncio.to_thread(cluster.start_broker)
            await inbox.received(len(inbox.messages) + 200)
            stop.set()
            await sending
            for count in range(len(inbox.messages), 1 << 30):
                if set(acknowledged) <= set(inbox.bodies):
                    break
                await inbox.received(count + 1)

    tell(story)
