"""Push consumers against a real broker: handling, redelivery, dead letters, places, and what they do at the end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

import pyromq.testing
from client.support.consumer_scene import Heard, bodies, eventually, new_group, new_topic, send
from pyromq.client.consuming.verdicts import DeadLetter, RetryLater
from pyromq.client.group.starting_point import ConsumeFrom
from pyromq.client.hooks import Handling, Hook
from pyromq.client.pull_consumer import PullConsumer
from pyromq.client.push_consumer import PushConsumer
from pyromq.client.received import ReceivedMessage
from pyromq.errors import ClientClosed, ClientError, ConfigError, FilterSyntaxError, Unreachable
from pyromq.model.queue import MessageQueue
from pyromq.testing import EmbeddedBroker


@pytest.fixture(scope="module")
def mq() -> Iterator[EmbeddedBroker]:
    with pyromq.testing.broker(config={"store.delay_levels": "1s 1s 1s 1s 1s 1s"}) as mq:
        yield mq


async def committed(mq: EmbeddedBroker, group: str, topic: str) -> int:
    """The progress of a group over all queues of a topic, as the broker has it."""
    async with PullConsumer(mq.name_servers, group="looker-on") as looker_on:
        member = looker_on._running()
        queues = await looker_on.queues(topic)
        return sum([await member.places.committed(queue, group) or 0 for queue in queues])


# --- handling --------------------------------------------------------------------------------------------------------


def test_every_message_is_handled_once_and_the_progress_is_told(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, group, heard = new_topic(mq), new_group(), Heard()
        consumer = PushConsumer(mq.name_servers, group=group)
        consumer.subscribe(topic, heard)
        async with consumer:
            await send(mq, topic, bodies(50), tags="paid", keys="k-1", properties={"country": "IT"})
            await heard.until(50)
        assert sorted(heard.texts, key=int) == bodies(50)
        one = heard.messages[0]
        assert (one.topic, one.tags, one.keys, one.properties) == (topic, "paid", ("k-1",), {"country": "IT"})
        assert one.delivery_attempt == 1
        assert await committed(mq, group, topic) == 50

    asyncio.run(story())


def test_a_consumer_that_comes_back_goes_on_where_it_was(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, group = new_topic(mq), new_group()
        for first in (0, 10):
            heard = Heard()
            consumer = PushConsumer(mq.name_servers, group=group)
            consumer.subscribe(topic, heard)
            async with consumer:
                await send(mq, topic, bodies(10, first))
                await heard.until(10)
            assert sorted(heard.texts, key=int) == bodies(10, first)

    asyncio.run(story())


def test_the_same_consumer_can_be_started_again(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, heard = new_topic(mq), Heard()
        consumer = PushConsumer(mq.name_servers, group=new_group())
        consumer.subscribe(topic, heard)
        for count in (1, 2):
            async with consumer:
                await send(mq, topic, bodies(1))
                await heard.until(count)
            await consumer.close()
        assert len(heard.texts) == 2

    asyncio.run(story())


def test_plain_functions_run_on_threads_and_batches_come_as_lists(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, other = new_topic(mq), new_topic(mq)
        threads: set[str] = set()
        batches: list[list[str]] = []
        consumer = PushConsumer(mq.name_servers, group=new_group(), concurrency=2)

        @consumer.on(topic)
        def on_a_thread(message: ReceivedMessage) -> None:
            threads.add(threading.current_thread().name)

        @consumer.on(other, batch=8)
        async def in_batches(messages: list[ReceivedMessage]) -> None:
            batches.append([message.text for message in messages])

        await send(mq, other, bodies(40))
        async with consumer:
            await send(mq, topic, bodies(4))
            await eventually(lambda: consumer.statistics().fetched == 44 and consumer.statistics().lag == 0)
        assert all(name.startswith("pyromq-group") for name in threads)
        assert threads
        assert sorted((text for batch in batches for text in batch), key=int) == bodies(40)
        assert 1 < max(map(len, batches)) <= 8

    asyncio.run(story())


def test_handlers_run_at_the_same_time_but_not_more_than_allowed(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, at_work, most = new_topic(mq), 0, 0
        done = 0
        consumer = PushConsumer(mq.name_servers, group=new_group(), concurrency=5, consume_from=ConsumeFrom.FIRST)

        @consumer.on(topic)
        async def slow(message: ReceivedMessage) -> None:
            nonlocal at_work, most, done
            at_work += 1
            most = max(most, at_work)
            await asyncio.sleep(0.02)
            at_work -= 1
            done += 1

        await send(mq, topic, bodies(40))
        async with consumer:
            await eventually(lambda: done == 40)
        assert most == 5

    asyncio.run(story())


def test_tags_and_sql_choose(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, by_tag, by_sql = new_topic(mq), Heard(), Heard()
        one, other = (PushConsumer(mq.name_servers, group=new_group()) for _ in range(2))
        one.subscribe(topic, by_tag, tags="paid || sent")
        other.subscribe(topic, by_sql, sql="amount > 5")
        async with one, other:
            for tag, amount in (("paid", "1"), ("lost", "9"), ("sent", "7")):
                await send(mq, topic, [f"{tag} {amount}"], tags=tag, properties={"amount": amount})
            await by_tag.until(2)
            await by_sql.until(2)
        assert sorted(by_tag.texts) == ["paid 1", "sent 7"]
        assert sorted(by_sql.texts) == ["lost 9", "sent 7"]

    asyncio.run(story())


def test_a_tag_with_the_same_hash_as_a_wanted_one_is_left_out(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, heard = new_topic(mq), Heard()
        consumer = PushConsumer(mq.name_servers, group=new_group())
        consumer.subscribe(topic, heard, tags="Aa")
        async with consumer:
            await send(mq, topic, ["wrong"], tags="BB")  # Java's hash of both is 2112
            await send(mq, topic, ["right"], tags="Aa")
            await heard.until(1)
            await eventually(lambda: consumer.statistics().lag == 0)
        assert heard.texts == ["right"]

    asyncio.run(story())


def test_hooks_see_what_is_handled(mq: EmbeddedBroker) -> None:
    class Noting(Hook):
        def __init__(self) -> None:
            self.seen: list[tuple[str, str, bool]] = []

        def after_handle(self, handling: Handling) -> None:
            self.seen.append((handling.group, handling.messages[0].text, handling.error is not None))

    async def story() -> None:
        topic, heard, hook, group = new_topic(mq), Heard(), Noting(), new_group()
        heard.failures = {"bad": 1}
        consumer = PushConsumer(mq.name_servers, group=group, hooks=[hook])
        consumer.subscribe(topic, heard)
        async with consumer:
            await send(mq, topic, ["good", "bad"])
            await eventually(lambda: len(hook.seen) >= 2)
        assert {(group, "good", False), (group, "bad", True)} <= set(hook.seen)

    asyncio.run(story())


# --- what failed -----------------------------------------------------------------------------------------------------


def test_a_message_that_failed_comes_again_as_the_same_message(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, heard, group = new_topic(mq), Heard(), new_group()
        heard.failures = {"1": 1}
        consumer = PushConsumer(mq.name_servers, group=group)
        consumer.subscribe(topic, heard, tags="paid")
        async with consumer:
            await send(mq, topic, bodies(3), tags="paid", properties={"country": "IT"})
            await heard.until(4)
        first, again = (message for message in heard.messages if message.text == "1")
        assert (first.delivery_attempt, again.delivery_attempt) == (1, 2)
        assert again.topic == topic
        assert again.message_id == first.message_id
        assert (again.tags, again.properties) == ("paid", {"country": "IT"})
        assert again.queue.topic == f"%RETRY%{group}"
        assert await committed(mq, group, topic) == 3

    asyncio.run(story())


def test_after_the_last_attempt_it_is_a_dead_letter(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, heard, group = new_topic(mq), Heard(), new_group()
        heard.failures = {"poison": 99}
        consumer = PushConsumer(mq.name_servers, group=group, max_attempts=2)
        consumer.subscribe(topic, heard)
        async with consumer:
            await send(mq, topic, ["poison"])
            await heard.until(2)
            dead = await dead_letter(mq, group)
        assert (dead.text, dead.all_properties["DLQ_ORIGIN_TOPIC"]) == ("poison", topic)
        assert heard.texts == ["poison"] * 2

    asyncio.run(story())


async def dead_letter(mq: EmbeddedBroker, group: str) -> ReceivedMessage:
    async with PullConsumer(mq.name_servers, group=new_group(), consume_from=ConsumeFrom.FIRST) as graveyard:
        while True:
            try:
                await graveyard.assign(await graveyard.queues(f"%DLQ%{group}"))
                break
            except pyromq.errors.TopicNotFound:
                await asyncio.sleep(0.05)
        (dead,) = await graveyard.poll(timeout_s=10)
        return dead


def test_a_handler_may_say_never_or_when(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, heard, group = new_topic(mq), Heard(), new_group()
        heard.failures = {"never": 1, "later": 1}
        verdicts = {"never": DeadLetter("no such customer"), "later": RetryLater(delay_level=1)}
        heard.error = lambda: verdicts[heard.texts[-1]]
        consumer = PushConsumer(mq.name_servers, group=group, concurrency=1)
        consumer.subscribe(topic, heard)
        async with consumer:
            await send(mq, topic, ["never"])
            assert (await dead_letter(mq, group)).text == "never"
            await send(mq, topic, ["later"])
            await heard.until(3)
        assert heard.texts == ["never", "later", "later"]

    asyncio.run(story())


# --- where it begins -------------------------------------------------------------------------------------------------


def test_a_new_group_begins_at_the_first_the_last_or_a_time(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic = new_topic(mq, queues=1)
        await send(mq, topic, ["old"])
        await asyncio.sleep(0.05)
        middle = time.time()
        await asyncio.sleep(0.05)
        await send(mq, topic, ["recent"])
        for consume_from, expected in ((ConsumeFrom.FIRST, ["old", "recent"]), (middle, ["recent"])):
            heard = Heard()
            consumer = PushConsumer(mq.name_servers, group=new_group(), consume_from=consume_from)
            consumer.subscribe(topic, heard)
            async with consumer:
                await heard.until(len(expected))
                assert heard.texts == expected

    asyncio.run(story())


def test_pause_resume_and_seek(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, heard = new_topic(mq, queues=1), Heard()
        queue = MessageQueue(topic, "broker-a", 0)
        consumer = PushConsumer(mq.name_servers, group=new_group())
        consumer.subscribe(topic, heard)
        async with consumer:
            await send(mq, topic, bodies(3))
            await heard.until(3)
            consumer.pause(topic)
            await send(mq, topic, ["3"])
            await asyncio.sleep(0.2)
            assert heard.texts == bodies(3)
            consumer.resume()
            await heard.until(4)
            await consumer.seek(queue, 2)
            await heard.until(6)
            await consumer.seek_to_time(queue, 0)
            await heard.until(10)
            with pytest.raises(ConfigError, match="is not this consumer's"):
                await consumer.seek(MessageQueue(topic, "elsewhere", 0), 0)
        assert heard.texts == ["0", "1", "2", "3", "2", "3", "0", "1", "2", "3"]

    asyncio.run(story())


def test_a_topic_that_comes_later_is_heard(mq: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        topic, heard = f"late-{new_group()}", Heard()
        consumer = PushConsumer(mq.name_servers, group=new_group())
        consumer.subscribe(topic, heard)
        async with consumer:
            assert consumer.queues == frozenset()
            await send(mq, topic, ["first of all"])
            await heard.until(1)
            again = Heard()
            other = new_topic(mq)
            consumer.subscribe(other, again)
            await send(mq, other, ["subscribed while running"])
            await again.until(1)
            consumer.unsubscribe(other)
            assert {queue.topic for queue in consumer.queues} == {topic}

    asyncio.run(story())
    assert [one.getMessage() for one in caplog.records if one.levelname == "WARNING"] == []


# --- broadcasting ----------------------------------------------------------------------------------------------------


def test_everybody_hears_a_broadcast_and_keeps_its_own_place(mq: EmbeddedBroker, tmp_path: Path) -> None:
    async def story() -> None:
        topic, group = new_topic(mq), new_group()
        for first in (0, 5):
            ears = [Heard(), Heard()]
            consumers = [
                PushConsumer(mq.name_servers, group=group, broadcast=True, offsets_dir=tmp_path / str(number))
                for number in range(2)
            ]
            for consumer, heard in zip(consumers, ears, strict=True):
                consumer.subscribe(topic, heard)
            async with consumers[0], consumers[1]:
                await send(mq, topic, bodies(5, first))
                for heard in ears:
                    await heard.until(5)
            for heard in ears:
                assert sorted(heard.texts, key=int) == bodies(5, first)
        assert (tmp_path / "0" / f"{group}.json").exists()

    asyncio.run(story())


def test_a_broadcast_that_failed_is_tried_again_here_and_then_given_up(mq: EmbeddedBroker, tmp_path: Path) -> None:
    async def story() -> None:
        topic, heard = new_topic(mq), Heard()
        heard.failures = {"bad": 99}
        consumer = PushConsumer(
            mq.name_servers, group=new_group(), broadcast=True, max_attempts=2, pause_s=0.05, offsets_dir=tmp_path
        )
        consumer.subscribe(topic, heard)
        async with consumer:
            await send(mq, topic, ["bad"])
            await eventually(lambda: consumer.statistics().fetched == 1 and consumer.statistics().lag == 0)
        assert heard.texts == ["bad", "bad"]

    asyncio.run(story())


# --- the end ---------------------------------------------------------------------------------------------------------


def test_a_stop_lets_handlers_end_and_what_was_not_begun_comes_again(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, group = new_topic(mq, queues=1), new_group()
        begun, ended = asyncio.Event(), []
        consumer = PushConsumer(mq.name_servers, group=group, concurrency=1)

        @consumer.on(topic)
        async def slow(message: ReceivedMessage) -> None:
            begun.set()
            await asyncio.sleep(0.1)
            ended.append(message.text)

        async with consumer:
            await send(mq, topic, bodies(5))
            await begun.wait()
        assert 1 <= len(ended) < 5
        assert await committed(mq, group, topic) == len(ended)
        rest = Heard()
        successor = PushConsumer(mq.name_servers, group=group)
        successor.subscribe(topic, rest)
        async with successor:
            await rest.until(5 - len(ended))
        assert ended + rest.texts == bodies(5)

    asyncio.run(story())


def test_a_handler_that_does_not_end_is_cancelled_and_its_message_is_not_lost(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, group, begun = new_topic(mq), new_group(), asyncio.Event()
        consumer = PushConsumer(mq.name_servers, group=group, stop_grace_s=0.1)

        @consumer.on(topic)
        async def hangs(message: ReceivedMessage) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with consumer:
            await send(mq, topic, ["precious"])
            await begun.wait()
        heard = Heard()
        successor = PushConsumer(mq.name_servers, group=group)
        successor.subscribe(topic, heard)
        async with successor:
            await heard.until(1)
        assert heard.texts == ["precious"]

    asyncio.run(story())


def test_a_handler_may_ask_for_the_end_but_not_wait_for_it(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, group = new_topic(mq), new_group()
        stopping: list[asyncio.Task[None]] = []
        refused: list[ClientError] = []
        consumer = PushConsumer(mq.name_servers, group=group)

        @consumer.on(topic)
        async def last_one(message: ReceivedMessage) -> None:
            try:
                await consumer.close()
            except ClientError as error:
                refused.append(error)
            stopping.append(asyncio.create_task(consumer.close()))

        await consumer.start()
        await send(mq, topic, ["enough"])
        await eventually(lambda: bool(stopping))
        await stopping[0]
        assert "cannot wait for its own end" in str(refused[0])
        assert await committed(mq, group, topic) == 1

    asyncio.run(story())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_script_ends_with_a_signal(mq: EmbeddedBroker, how: signal.Signals) -> None:
    async def story() -> None:
        topic, heard, group = new_topic(mq), Heard(), new_group()
        consumer = PushConsumer(mq.name_servers, group=group)
        consumer.subscribe(topic, heard)
        running = asyncio.create_task(consumer.run())
        await send(mq, topic, ["hello"])
        await heard.until(1)
        os.kill(os.getpid(), how)
        async with asyncio.timeout(10):
            await running
        assert await committed(mq, group, topic) == 1

    before = signal.getsignal(how)
    asyncio.run(story())
    assert signal.getsignal(how) == before


def test_it_runs_on_uvloop_as_well(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, heard = new_topic(mq), Heard()
        heard.failures = {"1": 1}
        consumer = PushConsumer(mq.name_servers, group=new_group())
        consumer.subscribe(topic, heard)
        async with consumer:
            await send(mq, topic, bodies(20))
            await heard.until(21)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())


def test_a_run_ends_when_it_is_cancelled(mq: EmbeddedBroker) -> None:
    async def story() -> None:
        topic, heard = new_topic(mq), Heard()
        consumer = PushConsumer(mq.name_servers, group=new_group())
        consumer.subscribe(topic, heard)
        running = asyncio.create_task(consumer.run())
        await send(mq, topic, ["hello"])
        await heard.until(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(ClientClosed):
            consumer.statistics()

    asyncio.run(story())


# --- refusals --------------------------------------------------------------------------------------------------------


def test_what_cannot_work_is_refused_with_a_reason() -> None:
    consumer = PushConsumer("localhost:1", group="mailer")
    with pytest.raises(FilterSyntaxError):
        consumer.subscribe("orders", print, sql="amount >")
    with pytest.raises(ConfigError, match="by tags or by sql"):
        consumer.subscribe("orders", print, sql="a > 5", tags="b")
    with pytest.raises(ConfigError, match="has no handler"):
        asyncio.run(consumer.start())
    with pytest.raises(ConfigError, match="concurrency must be 1 at least"):
        PushConsumer("localhost:1", group="mailer", concurrency=0)
    with pytest.raises(ConfigError, match="strategy is a function"):
        PushConsumer("localhost:1", group="mailer", strategy="sticky")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no group is given"):
        PushConsumer("localhost:1", group=" ")
    with pytest.raises(ConfigError, match="consume_from is"):
        PushConsumer("localhost:1", group="mailer", consume_from="first")  # type: ignore[arg-type]
    with pytest.raises(ClientClosed, match="is not running"):
        consumer.pause()


def test_a_start_without_a_name_server_says_so_and_leaves_nothing_behind() -> None:
    consumer = PushConsumer("127.0.0.1:1", group="mailer")
    consumer.subscribe("orders", print)
    with pytest.raises(Unreachable, match="no name server answers"):
        asyncio.run(consumer.start())
    with pytest.raises(Unreachable, match="no name server answers"):
        asyncio.run(consumer.start())
