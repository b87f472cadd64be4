"""Pull consumers against a real broker: polling, acknowledging, places."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

import pyromq.testing
from client.support.consumer_scene import bodies, eventually, new_group, new_topic, send
from pyromq.client.group.starting_point import ConsumeFrom
from pyromq.client.pull_consumer import PullConsumer
from pyromq.errors import ClientClosed, ConfigError, TopicNotFound
from pyromq.model.queue import MessageQueue
from pyromq.testing import EmbeddedBroker


@pytest.fixture(scope="module")
def mq() -> Iterator[EmbeddedBroker]:
    with pyromq.testing.broker() as mq:
        yield mq


def consumer_of(mq: EmbeddedBroker, group: str | None = None, **settings: object) -> PullConsumer:
    settings.setdefault("consume_from", ConsumeFrom.FIRST)
    return PullConsumer(mq.name_servers, group=group or new_group(), **settings)  # type: ignore[arg-type]


async def polled(consumer: PullConsumer, count: int) -> list[str]:
    """Poll this many messages, in as many polls as it takes."""
    texts: list[str] = []
    async with asyncio.timeout(20):
        while len(texts) < count:
            texts += [message.text for message in await consumer.poll(count - len(texts))]
    return texts


def test_polling_gives_every_message_once_and_asking_for_more_acknowledges(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, group = new_topic(mq), new_group()
        await send(mq, topic, bodies(25))
        async with consumer_of(mq, group) as consumer:
            await consumer.subscribe(topic)
            assert sorted(await polled(consumer, 25), key=int) == bodies(25)
            assert await consumer.poll(timeout_s=0.05) == []
            assert len(consumer.assigned) == 4
        async with consumer_of(mq, group) as successor:
            await successor.subscribe(topic)
            assert await successor.poll(timeout_s=0.3) == []

    asyncio.run(story())


def test_what_was_given_before_an_error_comes_again(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, group = new_topic(mq, queues=1), new_group()
        await send(mq, topic, bodies(10))

        async def fails() -> None:
            async with consumer_of(mq, group) as consumer:
                await consumer.subscribe(topic)
                assert await polled(consumer, 4) == bodies(4)
                await consumer.poll(3)
                raise ValueError("cannot go on")

        with pytest.raises(ValueError, match="cannot go on"):
            await fails()
        async with consumer_of(mq, group) as successor:
            await successor.subscribe(topic)
            assert await polled(successor, 6) == bodies(6, first=4)

    asyncio.run(story())


def test_one_message_after_the_other_with_async_for(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, group = new_topic(mq, queues=1), new_group()
        await send(mq, topic, bodies(5))
        texts = []
        async with consumer_of(mq, group) as consumer:
            await consumer.subscribe(topic)
            async for message in consumer:
                texts.append(message.text)
                if message.text == "2":
                    break
        assert texts == bodies(3)
        async with consumer_of(mq, group) as successor:
            await successor.subscribe(topic)
            assert await polled(successor, 2) == ["3", "4"]

    asyncio.run(story())


def test_without_auto_commit_only_commit_counts(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, group = new_topic(mq, queues=1), new_group()
        queue = MessageQueue(topic, "broker-a", 0)
        await send(mq, topic, bodies(6))
        async with consumer_of(mq, group, auto_commit=False) as consumer:
            await consumer.subscribe(topic)
            await polled(consumer, 2)
            await consumer.commit()
            assert await consumer.committed(queue) == 2
            await polled(consumer, 2)
            assert (consumer.position(queue), await consumer.committed(queue)) == (4, 2)
        async with consumer_of(mq, group) as successor:
            await successor.subscribe(topic)
            assert await polled(successor, 4) == bodies(4, first=2)

    asyncio.run(story())


def test_assigned_queues_and_places_in_them(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic = new_topic(mq, queues=2)
        await send(mq, topic, bodies(10), sharding_key="same")
        await asyncio.sleep(0.02)
        later = time.time()
        await asyncio.sleep(0.02)
        await send(mq, topic, ["later"], sharding_key="same")
        async with consumer_of(mq) as consumer:
            queues = await consumer.queues(topic)
            ends = {queue: await consumer.end_offset(queue) for queue in queues}
            queue = max(queues, key=ends.__getitem__)
            assert ends[queue] == 11
            await consumer.assign([queue])
            assert consumer.assigned == {queue}
            assert consumer.position(queue) == 0
            assert await polled(consumer, 11) == [*bodies(10), "later"]
            await consumer.seek(queue, 8)
            assert consumer.position(queue) == 8
            assert await polled(consumer, 3) == ["8", "9", "later"]
            await consumer.seek_to_time(queue, later)
            assert await consumer.offset_for_time(queue, later) == 10
            assert await polled(consumer, 1) == ["later"]
            await consumer.seek_to_begin(queue)
            assert await polled(consumer, 2) == ["0", "1"]
            await consumer.seek_to_end(queue)
            assert await consumer.poll(timeout_s=0.1) == []
            assert await consumer.begin_offset(queue) == 0
            with pytest.raises(ConfigError, match="cannot share topics"):
                await consumer.subscribe(topic)

    asyncio.run(story())


def test_pause_gives_what_was_fetched_and_fetches_no_more(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic = new_topic(mq, queues=1)
        async with consumer_of(mq) as consumer:
            await consumer.subscribe(topic)
            await send(mq, topic, ["before"])
            assert await polled(consumer, 1) == ["before"]
            consumer.pause(consumer.assigned)
            await send(mq, topic, ["after"])
            assert await consumer.poll(timeout_s=0.2) == []
            assert [queue.is_paused for queue in consumer.statistics().queues] == [True]
            consumer.resume()
            assert await polled(consumer, 1) == ["after"]

    asyncio.run(story())


def test_two_share_a_topic(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, group = new_topic(mq), new_group()
        async with consumer_of(mq, group) as one, consumer_of(mq, group) as other:
            await one.subscribe(topic)
            await other.subscribe(topic)
            await eventually(lambda: len(one.assigned) == len(other.assigned) == 2)
            await send(mq, topic, bodies(20))
            texts = [*await polled(one, 10), *await polled(other, 10)]
        assert sorted(texts, key=int) == bodies(20)

    asyncio.run(story())


def test_a_topic_that_is_not_there_yet_is_waited_for(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic = f"late-{new_group()}"
        async with consumer_of(mq, consume_from=ConsumeFrom.LAST) as consumer:
            await consumer.subscribe(topic)
            await send(mq, topic, ["first of all"])
            assert await polled(consumer, 1) == ["first of all"]
            consumer.unsubscribe(topic)
            assert consumer.assigned == frozenset()

    asyncio.run(story())


def test_what_cannot_work_is_refused(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        consumer = consumer_of(mq)
        with pytest.raises(ClientClosed, match="is not running"):
            await consumer.poll()
        async with consumer:
            with pytest.raises(TopicNotFound):
                await consumer.queues("nobody-made-this")
            with pytest.raises(ConfigError, match="by tags or by sql"):
                await consumer.subscribe("orders", tags="a", sql="b > 5")
            with pytest.raises(ConfigError, match="is not this consumer's"):
                consumer.position(MessageQueue("orders", "broker-a", 0))

    asyncio.run(story())
