"""Several members of a group: they share the queues, hand them over, and keep the order where it matters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

import pyromq.testing
from client.support.consumer_scene import Heard, bodies, eventually, new_group, new_topic, send, send_in_order
from pyromq.client.group import strategies
from pyromq.client.group.starting_point import ConsumeFrom
from pyromq.client.message import Message
from pyromq.client.producer import Producer
from pyromq.client.push_consumer import PushConsumer
from pyromq.client.received import ReceivedMessage
from pyromq.errors import PyroMQError
from pyromq.testing import BrokerProcess, EmbeddedBroker, LocalBroker


@pytest.fixture(scope="module")
def mq() -> Iterator[EmbeddedBroker]:
    with pyromq.testing.broker(config={"store.delay_levels": "1s 1s 1s 1s"}) as mq:
        yield mq


def members(mq: EmbeddedBroker, topic: str, group: str, count: int, **settings: object) -> list[PushConsumer]:
    return [PushConsumer(mq.name_servers, group=group, **settings) for _ in range(count)]  # type: ignore[arg-type]


# --- sharing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [strategies.average, strategies.circle, strategies.sticky])
def test_members_share_the_queues_and_nobody_hears_twice(mq: EmbeddedBroker, strategy: strategies.Strategy) -> None:
    async def story() -> None:
        topic, group, ears = new_topic(mq, queues=8), new_group(), [Heard(), Heard()]
        one, other = members(mq, topic, group, 2, strategy=strategy)
        one.subscribe(topic, ears[0])
        other.subscribe(topic, ears[1])
        async with one:
            assert len(one.queues) == 8
            async with other:
                await eventually(lambda: len(one.queues) == len(other.queues) == 4)
                assert not one.queues & other.queues
                await send(mq, topic, bodies(64))
                await eventually(lambda: len(ears[0].texts) + len(ears[1].texts) >= 64)
                assert sorted(ears[0].texts + ears[1].texts, key=int) == bodies(64)
                assert all(len(heard.texts) == 32 for heard in ears)
            await eventually(lambda: len(one.queues) == 8)

    asyncio.run(story())


def test_members_come_and_go_under_load_and_every_message_is_handled(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, group, counted = new_topic(mq, queues=8), new_group(), Counter[str]()

        async def count(message: ReceivedMessage) -> None:
            await asyncio.sleep(0.001)
            counted[message.text] += 1

        sent = 0
        first, second, third = members(mq, topic, group, 3)
        for one in (first, second, third):
            one.subscribe(topic, count)
        async with first, Producer(mq.name_servers, group="scene") as producer:

            async def send_on() -> None:
                nonlocal sent
                while True:
                    await producer.send(Message(topic, str(sent)))
                    sent += 1
                    await asyncio.sleep(0.001)

            sending = asyncio.create_task(send_on())
            async with second:
                await eventually(lambda: len(second.queues) == 4)
                async with third:
                    await eventually(lambda: len(third.queues) >= 2)
                    await asyncio.sleep(0.5)
                await asyncio.sleep(0.5)
            await asyncio.sleep(0.5)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await eventually(lambda: len(counted) >= sent)
        assert set(bodies(sent)) <= set(counted)
        twice = sum(times - 1 for times in counted.values())
        assert twice <= sent // 20, f"{twice} of {sent} were handled more than once"

    asyncio.run(story())


def test_who_gives_a_queue_away_commits_first_and_the_next_owner_goes_on_there(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, group = new_topic(mq, queues=2), new_group()
        ears = [Heard(), Heard()]
        one, other = members(mq, topic, group, 2, commit_every_s=600.0)
        one.subscribe(topic, ears[0])
        other.subscribe(topic, ears[1])
        async with one:
            await send(mq, topic, bodies(100))
            await ears[0].until(100)
            async with other:
                await eventually(lambda: len(other.queues) == 1)
                await send(mq, topic, bodies(10, first=100))
                await eventually(lambda: len(ears[0].texts) + len(ears[1].texts) == 110)
        assert sorted(ears[0].texts + ears[1].texts, key=int) == bodies(110)

    asyncio.run(story())


# --- order -----------------------------------------------------------------------------------------------------------


def test_messages_of_a_queue_are_handled_one_at_a_time_in_their_order(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, at_work, texts = new_topic(mq), 0, []
        consumer = PushConsumer(mq.name_servers, group=new_group(), ordered=True)

        @consumer.on(topic)
        async def handle(message: ReceivedMessage) -> None:
            nonlocal at_work
            at_work += 1
            assert at_work == 1
            await asyncio.sleep(0.001)
            at_work -= 1
            texts.append(message.text)

        async with consumer:
            await send_in_order(mq, topic, bodies(50))
            await eventually(lambda: len(texts) == 50)
            assert all(queue.is_locked for queue in consumer.statistics().queues)
        assert texts == bodies(50)

    asyncio.run(story())


def test_one_that_fails_holds_back_those_behind_it_until_it_is_a_dead_letter(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, heard, group = new_topic(mq), Heard(), new_group()
        heard.failures = {"1": 2, "3": 99}
        consumer = PushConsumer(mq.name_servers, group=group, ordered=True, max_attempts=3, pause_s=0.02)
        consumer.subscribe(topic, heard)
        async with consumer:
            await send_in_order(mq, topic, bodies(5))
            await heard.until(9)
        assert heard.texts == ["0", "1", "1", "1", "2", "3", "3", "3", "4"]
        assert [message.delivery_attempt for message in heard.messages[1:4]] == [3, 3, 3]  # the same object, in place
        dead = Heard()
        graveyard = PushConsumer(mq.name_servers, group=new_group(), consume_from=ConsumeFrom.FIRST)
        graveyard.subscribe(f"%DLQ%{group}", dead)
        async with graveyard:
            await dead.until(1)
        assert dead.texts == ["3"]

    asyncio.run(story())


def test_order_is_kept_when_queues_change_hands(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, group = new_topic(mq, queues=4), new_group()
        handled: dict[str, list[int]] = {}
        at_work: set[str] = set()

        async def handle(message: ReceivedMessage) -> None:
            key, number = message.text.split()
            assert key not in at_work, "two members handle one queue at the same time"
            at_work.add(key)
            await asyncio.sleep(0.002)
            at_work.discard(key)
            handled.setdefault(key, []).append(int(number))

        first, second = members(mq, topic, group, 2, ordered=True)
        for one in (first, second):
            one.subscribe(topic, handle)
        async with first, Producer(mq.name_servers, group="scene") as producer:
            for number in range(60):
                for key in "abcd":
                    await producer.send(Message(topic, f"{key} {number}", sharding_key=key))
                if number == 20:
                    await second.start()
                if number == 40:
                    await eventually(lambda: bool(second.queues))
                    await second.close()
            await eventually(lambda: all(len(set(handled.get(key, ()))) == 60 for key in "abcd"))
        for numbers in handled.values():
            seen = list(dict.fromkeys(numbers))
            assert seen == list(range(60)), "first deliveries are in order"
            assert len(numbers) - len(seen) <= 1

    asyncio.run(story())


# --- a broker that restarts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
def test_consumers_find_their_way_back_to_a_broker_that_was_restarted(ordered: bool) -> None:
    async def story(mq: EmbeddedBroker) -> None:
        topic, heard = new_topic(mq), Heard()
        consumer = PushConsumer(mq.name_servers, group=new_group(), ordered=ordered)
        consumer.subscribe(topic, heard)
        async with consumer:
            await send(mq, topic, bodies(10))
            await heard.until(10)
            await asyncio.to_thread(mq.restart)
            await send_when_it_is_back(mq, topic, bodies(10, first=10))
            await eventually(lambda: len(set(heard.texts)) == 20)
        assert len(heard.texts) <= 22

    with pyromq.testing.broker() as mq:
        asyncio.run(story(mq))


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True])
def test_members_keep_their_queues_over_a_kill_of_the_broker(ordered: bool) -> None:
    """A restarted broker has no clients: the first member with a heartbeat must not take the queues of the others."""

    async def story(mq: BrokerProcess) -> None:
        group, handled = new_group(), Counter[str]()

        async def count(message: ReceivedMessage) -> None:
            handled[message.text] += 1

        first, second = (PushConsumer(mq.name_servers, group=group, ordered=ordered) for _ in range(2))
        for one in (first, second):
            one.subscribe("orders", count)
        async with first, second:
            await eventually(lambda: len(first.queues) == len(second.queues) == 2)
            await send(mq, "orders", bodies(100))
            await eventually(lambda: len(handled) == 100)
            await asyncio.to_thread(mq.kill)
            await asyncio.to_thread(mq.start)
            await send_when_it_is_back(mq, "orders", bodies(100, first=100))
            await eventually(lambda: len(handled) == 200)
            await eventually(lambda: len(first.queues) == len(second.queues) == 2)
        # A killed broker forgets the offsets of its last seconds: the next owner of a queue reads them again.
        assert max(handled.values()) <= 2

    with pyromq.testing.broker(topics={"orders": 4}, process=True) as mq:
        asyncio.run(story(mq))


async def send_when_it_is_back(mq: LocalBroker, topic: str, texts: list[str]) -> None:
    for _ in range(50):
        try:
            await send(mq, topic, texts[:1])
            break
        except PyroMQError:
            await asyncio.sleep(0.1)
    await send(mq, topic, texts[1:])
