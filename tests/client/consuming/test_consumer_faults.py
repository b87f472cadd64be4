"""Consumers whose brokers refuse, correct them, redirect them, or fail."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from client.support.consumer_scene import Heard, bodies, eventually
from client.support.fake_broker import TOPIC, FakeBroker
from pyromq.client.consuming import ordered, queue_worker, workers
from pyromq.client.group import member, queue_locks
from pyromq.client.group.starting_point import ConsumeFrom
from pyromq.client.push_consumer import PushConsumer
from pyromq.client.received import ReceivedMessage
from pyromq.errors import ServiceError, SubscriptionNotFound, SystemBusy
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import (
    GetConsumerList,
    Heartbeat,
    LockQueues,
    PullMessage,
    QueryConsumerOffset,
    Request,
    SendBack,
    SendMessage,
    UnlockQueues,
    UpdateConsumerOffset,
)
from pyromq.wire.responses import OffsetAnswer, Response

Story = Callable[[FakeBroker, Heard], Coroutine[Any, Any, None]]


def play(story: Story, first: int = 0) -> None:
    async def with_broker() -> None:
        async with FakeBroker(first).running() as broker:
            await story(broker, Heard())

    asyncio.run(with_broker())


@asynccontextmanager
async def consuming(broker: FakeBroker, heard: Heard, **settings: Any) -> AsyncIterator[PushConsumer]:
    settings.setdefault("consume_from", ConsumeFrom.FIRST)
    consumer = PushConsumer(broker.address, group="mailer", **settings)
    consumer.subscribe(TOPIC, heard)
    async with consumer:
        yield consumer


def refusing(error: Exception, times: int, then: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Refuse this many times, then answer as usual."""
    left = times

    def answer(request: Request) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            raise error
        return then(request)

    return answer


# --- where to go on --------------------------------------------------------------------------------------------------


def test_the_broker_corrects_an_offset_that_is_gone_and_the_log_tells(caplog: pytest.LogCaptureFixture) -> None:
    async def story(broker: FakeBroker, heard: Heard) -> None:
        broker.committed = 40
        broker.store("kept")

        def too_small(request: PullMessage) -> Any:
            if request.topic == TOPIC and request.offset < broker.first:
                return broker.result(ResponseCode.PULL_OFFSET_MOVED, broker.first)
            return broker.pull(request)

        broker.answers[PullMessage] = too_small
        async with consuming(broker, heard):
            await heard.until(1)
        assert heard.texts == ["kept"]
        assert broker.committed == 101

    with caplog.at_level(logging.WARNING, "pyromq.client"):
        play(story, first=100)
    assert "goes on at 100 in orders/0 of broker-a instead of 40" in caplog.text


class Pausing:
    """In place of the module `asyncio`: notes pauses, and takes none."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


@pytest.mark.parametrize("says", [[0, 50], [50, 60, 70], [50, 50, 0]], ids=str)
def test_an_offset_that_the_broker_moves_again_and_again_is_followed_ever_more_slowly(
    says: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pausing = Pausing()
    monkeypatch.setattr(queue_worker, "asyncio", pausing)

    async def story(broker: FakeBroker, heard: Heard) -> None:
        broker.store("never seen")
        places = itertools.cycle(says)

        def elsewhere(request: PullMessage) -> Any:
            if request.topic != TOPIC:
                return broker.pull(request)
            return broker.result(ResponseCode.PULL_OFFSET_MOVED, next(places))

        broker.answers[PullMessage] = elsewhere
        async with consuming(broker, heard):
            await eventually(lambda: 3.0 in pausing.pauses)

    with caplog.at_level(logging.WARNING, "pyromq.client"):
        play(story)
    grown = [pause for pause in pausing.pauses if pause in (0.1, 0.2, 0.4, 0.8, 1.6, 3.0)]
    assert grown[:6] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.0]
    assert caplog.text.count("goes on at") == 2, "the log is not filled with it"


def test_nobody_begins_anywhere_while_the_progress_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "ASK_AGAIN_SECONDS", 0.02)

    async def story(broker: FakeBroker, heard: Heard) -> None:
        broker.store(*bodies(5))
        broker.committed = 3
        broker.answers[QueryConsumerOffset] = refusing(SystemBusy("too much to do"), 4, broker._progress)
        async with consuming(broker, heard):
            await heard.until(2)
        assert heard.texts == ["3", "4"]
        assert min(pull.offset for pull in broker.all_of(PullMessage) if pull.topic == TOPIC) == 3

    play(story)


def test_progress_travels_with_fetches_and_never_goes_back() -> None:
    async def story(broker: FakeBroker, heard: Heard) -> None:
        async with consuming(broker, heard, commit_every_s=600.0):
            for number in range(5):
                broker.store(str(number))
                await heard.until(number + 1)
            await eventually(lambda: any(pull.commit_offset == 5 for pull in broker.all_of(PullMessage)))
        told = [pull.commit_offset for pull in broker.all_of(PullMessage) if pull.topic == TOPIC]
        told += [commit.offset for commit in broker.all_of(UpdateConsumerOffset) if commit.topic == TOPIC]
        assert told == sorted(told)
        assert told[-1] == 5

    play(story)


def test_only_what_was_handled_is_told() -> None:
    async def story(broker: FakeBroker, heard: Heard) -> None:
        broker.store(*bodies(10))
        gate = asyncio.Event()
        consumer = PushConsumer(broker.address, group="mailer", consume_from=ConsumeFrom.FIRST, commit_every_s=0.02)

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            heard.note(message)
            if message.text == "4":
                await gate.wait()

        async with consumer:
            await heard.until(10)
            await eventually(lambda: broker.committed == 4)
            assert consumer.statistics().lag == 6
            gate.set()
            await eventually(lambda: broker.committed == 10)

    play(story)


# --- back-pressure ---------------------------------------------------------------------------------------------------


def test_no_more_is_fetched_while_enough_waits_to_be_handled() -> None:
    async def story(broker: FakeBroker, heard: Heard) -> None:
        gate = asyncio.Event()

        async def endless(request: PullMessage) -> Response:
            if request.topic != TOPIC:
                return await broker.pull(request)
            at = broker.end = request.offset
            broker.messages.clear()
            broker.store(*bodies(10, first=at))
            return await broker.pull(request)

        broker.answers[PullMessage] = endless
        consumer = PushConsumer(
            broker.address, group="mailer", consume_from=ConsumeFrom.FIRST, concurrency=3, max_buffered_messages=40
        )

        @consumer.on(TOPIC)
        async def handle(message: ReceivedMessage) -> None:
            heard.note(message)
            await gate.wait()

        async with consumer:
            await heard.until(3)
            await asyncio.sleep(0.2)
            buffered = consumer.statistics().buffered_messages
            assert 20 <= buffered <= 30, "half of it is for this queue, the other half for the retry queue"
            assert len(heard.texts) == 3
            gate.set()
            await heard.until(500)

    play(story)


# --- brokers that refuse ---------------------------------------------------------------------------------------------


def test_a_broker_that_has_not_heard_of_us_is_told_at_once() -> None:
    async def story(broker: FakeBroker, heard: Heard) -> None:
        broker.store("hello")
        broker.answers[PullMessage] = refusing(SubscriptionNotFound("who are you?"), 3, broker.pull)
        async with consuming(broker, heard):
            before = len(broker.all_of(Heartbeat))
            await heard.until(1)
            assert len(broker.all_of(Heartbeat)) > before

    play(story)


def test_a_busy_broker_is_asked_again() -> None:
    async def story(broker: FakeBroker, heard: Heard) -> None:
        broker.store("hello")
        broker.answers[PullMessage] = refusing(SystemBusy("later"), 5, broker.pull)
        async with consuming(broker, heard):
            await heard.until(1)

    play(story)


def test_an_answer_that_cannot_be_read_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_worker, "MISREAD_PAUSE_SECONDS", 0.05)

    async def story(broker: FakeBroker, heard: Heard) -> None:
        broker.store("hello")
        good = broker.pull
        broken = iter([True])

        def answer(request: PullMessage) -> Any:
            if request.topic == TOPIC and next(broken, False):
                return broker.result(ResponseCode.SUCCESS, 1, body=b"\0" * 30)
            return good(request)

        broker.answers[PullMessage] = answer
        async with consuming(broker, heard):
            await heard.until(1)
        assert heard.texts == ["hello"]

    play(story)


def test_fetches_go_to_the_copy_that_the_broker_suggests_and_tell_no_progress_there() -> None:
    async def story(broker: FakeBroker, heard: Heard) -> None:
        async with FakeBroker().running() as copy:
            broker.copies = {1: copy.address}
            broker.store("from the master")
            copy.store("from the master", "from the copy")

            def suggesting(request: PullMessage) -> Any:
                if request.topic == TOPIC and request.offset < broker.end:
                    body = b"".join(broker.messages.values())
                    return broker.result(ResponseCode.SUCCESS, broker.end, body=body, suggested_broker_id=1)
                return broker.pull(request)

            broker.answers[PullMessage] = suggesting
            async with consuming(broker, heard):
                await heard.until(2)
            assert heard.texts == ["from the master", "from the copy"]
            assert all(pull.flags & 1 == 0 for pull in copy.all_of(PullMessage))

    play(story)


# --- sending back ----------------------------------------------------------------------------------------------------


def test_sending_back_says_what_the_broker_needs() -> None:
    async def story(broker: FakeBroker, heard: Heard) -> None:
        broker.store(*bodies(2))
        heard.failures = {"1": 1}
        async with consuming(broker, heard, max_attempts=5, retry_delay=7):
            await eventually(lambda: bool(broker.all_of(SendBack)))
        (back,) = broker.all_of(SendBack)
        assert (back.position, back.group, back.delay_level, back.max_reconsume_times) == (1000, "mailer", 7, 4)
        assert (back.origin_topic, back.origin_message_id) == (TOPIC, "id-1")
        assert broker.committed == 2

    play(story)


def test_when_its_broker_refuses_it_the_message_is_sent_to_the_retry_topic() -> None:
    async def story(broker: FakeBroker, heard: Heard) -> None:
        broker.store("again", reconsume_times=2)
        heard.failures = {"again": 1}
        broker.answers[SendBack] = refusing(ServiceError("look message by offset failed"), 1, broker.answers[SendBack])
        async with consuming(broker, heard):
            await eventually(lambda: bool(broker.all_of(SendMessage)))
        (sent,) = broker.all_of(SendMessage)
        assert (sent.topic, sent.body) == ("%RETRY%mailer", b"again")
        assert (sent.reconsume_times, sent.max_reconsume_times) == (3, 15)
        assert "RETRY_TOPIC\x01orders\x02" in sent.properties
        assert "ORIGIN_MESSAGE_ID\x01id-0\x02" in sent.properties
        assert "DELAY\x015\x02" in sent.properties
        assert broker.committed == 1

    play(story)


def test_when_nobody_takes_it_back_it_is_tried_again_here_and_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "AGAIN_SECONDS", 0.05)

    async def story(broker: FakeBroker, heard: Heard) -> None:
        broker.store("precious", "ordinary")
        heard.failures = {"precious": 2}
        for kind in (SendBack, SendMessage):
            broker.answers[kind] = refusing(SystemBusy("later"), 99, broker.answers[kind])
        async with consuming(broker, heard, commit_every_s=0.02):
            await heard.until(2)
            await asyncio.sleep(0.02)
            assert broker.committed in (None, 0)
            await heard.until(4)
            await eventually(lambda: broker.committed == 2)
        assert sorted(heard.texts) == ["ordinary", "precious", "precious", "precious"]

    play(story)


# --- locks -----------------------------------------------------------------------------------------------------------


def test_nothing_is_handled_without_the_lock_and_the_place_is_looked_up_when_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_locks, "ASK_AGAIN_SECONDS", 0.02)

    async def story(broker: FakeBroker, heard: Heard) -> None:
        broker.store(*bodies(6))
        broker.committed = 1
        lock = broker.answers[LockQueues]
        others: list[int] = [1]

        def locked_by_another(request: LockQueues) -> Response:
            return Response(body=b'{"lockOKMQSet":[]}') if others else lock(request)

        broker.answers[LockQueues] = locked_by_another
        consumer = PushConsumer(broker.address, group="mailer", ordered=True)
        consumer.subscribe(TOPIC, heard)
        starting = asyncio.create_task(consumer.start())
        await eventually(lambda: len(broker.all_of(LockQueues)) >= 3)
        assert broker.all_of(PullMessage) == []
        broker.committed = 4  # the other one went on meanwhile
        others.clear()
        await heard.until(2)
        await starting
        await consumer.close()
        assert heard.texts == ["4", "5"]
        assert broker.committed == 6
        assert broker.all_of(UnlockQueues)

    play(story)


def test_a_lock_that_was_lost_stops_the_queue_and_its_new_owner_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_locks, "ASK_AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(queue_locks, "RENEW_SECONDS", 0.1)

    async def story(broker: FakeBroker, heard: Heard) -> None:
        broker.committed = 0
        lock, others = broker.answers[LockQueues], []

        def maybe(request: LockQueues) -> Response:
            return Response(body=b'{"lockOKMQSet":[]}') if others else lock(request)

        broker.answers[LockQueues] = maybe
        async with consuming(broker, heard, ordered=True) as consumer:
            broker.store("0")
            await heard.until(1)
            others.append(1)
            await eventually(lambda: not any(queue.is_locked for queue in consumer.statistics().queues))
            broker.store(*bodies(3, first=1))
            await asyncio.sleep(0.1)
            assert heard.texts == ["0"]
            broker.committed = 3
            others.clear()
            await heard.until(2)
        assert heard.texts == ["0", "3"]

    play(story)


def test_a_lock_that_could_not_be_renewed_in_time_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_locks, "EXPIRY_SECONDS", 0.2)
    monkeypatch.setattr(ordered, "LOCK_SECONDS", 0.01)

    async def story(broker: FakeBroker, heard: Heard) -> None:
        broker.committed = 0
        async with consuming(broker, heard, ordered=True) as consumer:
            await eventually(lambda: all(queue.is_locked for queue in consumer.statistics().queues))
            await asyncio.sleep(0.25)
            asked = len(broker.all_of(LockQueues))
            broker.store("0")
            await heard.until(1)
            assert len(broker.all_of(LockQueues)) > asked

    play(story)


# --- members ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_found_out_leaves_everything_as_it_is() -> None:
    async def story(broker: FakeBroker, heard: Heard) -> None:
        async with consuming(broker, heard) as consumer:
            before = consumer.queues
            assert before
            broker.answers[GetConsumerList] = refusing(SystemBusy("later"), 99, broker.pull)
            await consumer._running().look()
            assert consumer.queues == before
            broker.store("still ours")
            await heard.until(1)

    play(story)


def test_zero_if_near_is_asked_only_where_java_clients_would_get_it() -> None:
    async def story(broker: FakeBroker, heard: Heard) -> None:
        asked: list[bool] = []

        def progress(request: QueryConsumerOffset) -> Response:
            asked.append(request.zero_if_not_found)
            return OffsetAnswer(offset=0)

        broker.answers[QueryConsumerOffset] = progress
        at_the_start: list[list[bool]] = []
        for consume_from in (ConsumeFrom.LAST, ConsumeFrom.FIRST, 1.0):
            asked.clear()
            async with consuming(broker, heard, consume_from=consume_from):
                at_the_start.append(asked.copy())
        assert at_the_start == [[True, True], [False, False], [False, False]]

    play(story)
