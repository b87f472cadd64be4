"""Hostile brokers, disks and programs: a consumer neither loses a message nor hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from client.support.consumer_scene import Heard, bodies, eventually
from client.support.fake_broker import TOPIC, FakeBroker, stored
from pyromq import PullConsumer, PushConsumer, ReceivedMessage
from pyromq.client.consuming.process_queue import Allowance, ProcessQueue
from pyromq.client.group.progress import FileProgress
from pyromq.client.group.starting_point import ConsumeFrom
from pyromq.client.received import split_records
from pyromq.errors import ClientClosed, ClientError, ConfigError, PyroMQError
from pyromq.model.queue import MessageQueue
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import GetConsumerList, PullMessage
from pyromq.wire.responses import Response

QUEUE = MessageQueue(TOPIC, "broker-a", 0)


def consumer_of(broker: FakeBroker, handle: Any, **settings: Any) -> PushConsumer:
    settings.setdefault("consume_from", ConsumeFrom.FIRST)
    consumer = PushConsumer(broker.address, group="mailer", **settings)
    consumer.subscribe(TOPIC, handle)
    return consumer


# --- a broker that says: go on elsewhere -----------------------------------------------------------------------------


def moving(broker: FakeBroker, asked_for: int, go_on_at: int) -> Any:
    """Answers the fetch at one offset, once, with another offset."""
    left = [1]

    def answer(request: PullMessage) -> Any:
        if request.topic == TOPIC and request.offset == asked_for and left.pop() if left else False:
            return broker.result(ResponseCode.PULL_OFFSET_MOVED, go_on_at)
        return broker.pull(request)

    return answer


def test_what_was_fetched_is_handled_and_counted_when_the_broker_has_deleted_what_follows() -> None:
    async def story() -> None:
        broker, heard, gate = FakeBroker(), Heard(), asyncio.Event()
        broker.store(*bodies(4))
        broker.answers[PullMessage] = moving(broker, 4, 100)

        async def handle(message: ReceivedMessage) -> None:
            await gate.wait()
            await heard(message)

        async with broker.running(), consumer_of(broker, handle, concurrency=1, hold_s=0.1) as consumer:
            await eventually(lambda: any(pull.offset == 100 for pull in broker.all_of(PullMessage)))
            await consumer.commit()
            told = [pull.commit_offset for pull in broker.all_of(PullMessage) if pull.topic == TOPIC]
            assert {*told, broker.committed} <= {0, None}, "four messages are not handled yet"
            gate.set()
            await heard.until(4)
        assert heard.texts == bodies(4)
        assert broker.committed == 100

    asyncio.run(story())


def test_a_broker_that_lost_its_end_is_asked_again_for_what_is_not_handled() -> None:
    async def story() -> None:
        broker, heard, gate = FakeBroker(), Heard(), asyncio.Event()
        broker.store(*bodies(4))
        broker.answers[PullMessage] = moving(broker, 4, 3)

        async def handle(message: ReceivedMessage) -> None:
            await gate.wait()
            await heard(message)

        async with broker.running(), consumer_of(broker, handle, concurrency=1, hold_s=0.1):
            await eventually(lambda: [pull.offset for pull in broker.all_of(PullMessage)].count(0) >= 2)
            gate.set()
            await eventually(lambda: set(heard.texts) == set(bodies(4)))
        assert broker.committed == 4

    asyncio.run(story())


def test_an_answer_that_does_not_move_on_neither_repeats_messages_nor_keeps_the_loop_busy() -> None:
    async def story() -> None:
        broker, heard = FakeBroker(), Heard()
        broker.store("once")

        def stuck(request: PullMessage) -> Any:
            if request.topic != TOPIC:
                return broker.pull(request)
            found = [data for offset, data in broker.messages.items() if offset >= request.offset]
            return broker.result(ResponseCode.SUCCESS, request.offset, body=b"".join(found))

        broker.answers[PullMessage] = stuck
        async with broker.running(), consumer_of(broker, heard):
            await heard.until(1)
            await asyncio.sleep(0.5)
            pulls = [pull for pull in broker.all_of(PullMessage) if pull.topic == TOPIC]
        assert heard.texts == ["once"]
        assert len(pulls) < 20

    asyncio.run(story())


# --- back-pressure ---------------------------------------------------------------------------------------------------


def test_messages_that_are_handled_are_let_go_also_behind_one_that_takes_long() -> None:
    queue = ProcessQueue(QUEUE, 0, Allowance(100, 1 << 20))
    slow = queue.add(split_records(stored("slow", 0), QUEUE), 1, 100)
    fast = queue.add(split_records(stored("fast", 1), QUEUE), 2, 100)
    assert slow is not None
    assert fast is not None
    fast.finish(0)
    assert not fast.messages
    assert not list(fast.todo)
    assert queue.bounds() == (0, 1)
    assert queue.committable == 0
    slow.finish(0)
    assert queue.committable == 2
    assert queue.handled == 2


# --- pause -----------------------------------------------------------------------------------------------------------


def test_a_paused_topic_stays_paused_when_its_queues_go_and_come_back() -> None:
    async def story() -> None:
        broker, heard = FakeBroker(), Heard()
        async with broker.running(), consumer_of(broker, heard, hold_s=0.1) as consumer:
            consumer.pause(TOPIC)
            me = list(broker.members)
            broker.answers[GetConsumerList] = lambda _: members(["#aaa", *me])
            assert consumer._member is not None
            await consumer._member.look()
            assert not consumer.queues
            broker.answers[GetConsumerList] = lambda _: members(me)
            await eventually(lambda: bool(consumer.queues))
            broker.store("unwanted")
            await asyncio.sleep(0.8)
            assert heard.texts == []
            consumer.resume(TOPIC)
            await heard.until(1)

    asyncio.run(story())


def members(names: list[str]) -> Response:
    return Response(body=orjson.dumps({"consumerIdList": names}))


# --- progress in a file ----------------------------------------------------------------------------------------------


def test_two_who_write_progress_at_the_same_time_do_not_undo_each_other(tmp_path: Path) -> None:
    async def story() -> None:
        progress = FileProgress(tmp_path, "mailer")
        queues = [MessageQueue(TOPIC, "broker-a", number) for number in range(8)]
        assert await progress.read(queues[0]) is None
        await asyncio.gather(*(progress.write({queue: lambda: 7}) for queue in queues))
        again = FileProgress(tmp_path, "mailer")
        assert [await again.read(queue) for queue in queues] == [7] * 8

    asyncio.run(story())


def test_a_directory_that_cannot_be_read_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "mailer.json").mkdir()

    async def story() -> None:
        with pytest.raises(PyroMQError, match=r"mailer\.json"):
            await FileProgress(tmp_path, "mailer").read(QUEUE)

    asyncio.run(story())


# --- asking for messages ---------------------------------------------------------------------------------------------


def test_whoever_waits_for_a_message_hears_of_the_end() -> None:
    async def story() -> None:
        broker = FakeBroker()
        async with broker.running():
            consumer = PullConsumer(broker.address, group="mailer", hold_s=0.1)
            await consumer.start()
            await consumer.subscribe(TOPIC)

            async def read_all() -> int:
                count = 0
                async for _ in consumer:
                    count += 1
                return count

            polling = asyncio.create_task(consumer.poll(timeout_s=None))
            await asyncio.sleep(0.05)
            await consumer.close()
            async with asyncio.timeout(2):
                with pytest.raises(ClientClosed):
                    await polling
            await consumer.start()
            await consumer.subscribe(TOPIC)
            reading = asyncio.create_task(read_all())
            await asyncio.sleep(0.05)
            await consumer.close()
            async with asyncio.timeout(2):
                assert await reading == 0

    asyncio.run(story())


def test_polls_that_make_no_sense_are_refused() -> None:
    async def story() -> None:
        broker = FakeBroker()
        broker.store("one")
        async with broker.running(), PullConsumer(broker.address, group="mailer", hold_s=0.1) as consumer:
            await consumer.subscribe(TOPIC)
            with pytest.raises(ConfigError):
                await consumer.poll(0)
            first = asyncio.create_task(consumer.poll(timeout_s=None))
            await asyncio.sleep(0.05)
            if not first.done():
                with pytest.raises(ClientError, match="poll"):
                    await consumer.poll(timeout_s=0.1)
            broker.store("two")
            async with asyncio.timeout(5):
                await first

    asyncio.run(story())


# --- two readers of one queue, for a moment --------------------------------------------------------------------------


def test_who_is_behind_does_not_undo_what_another_has_told_but_may_go_back_on_purpose() -> None:
    async def story() -> None:
        broker, heard = FakeBroker(), Heard()
        broker.store(*bodies(5))
        async with broker.running(), consumer_of(broker, heard, hold_s=0.1, commit_every_s=60) as consumer:
            await heard.until(5)
            broker.committed = 8  # by another member, which has the queue too and is further
            await consumer.commit()
            assert broker.committed == 8
            await consumer.seek(QUEUE, 3)
            assert broker.committed == 3
            await heard.until(7)
            await consumer.commit()
            assert broker.committed == 5

    asyncio.run(story())
