"""Handlers that end in unusual ways: none of them costs a worker, a queue or a message."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import pytest

from client.support.consumer_scene import eventually
from client.support.fake_broker import TOPIC, FakeBroker
from pyromq import PushConsumer, ReceivedMessage
from pyromq.client.consuming import ordered, workers
from pyromq.client.group.starting_point import ConsumeFrom
from pyromq.wire.requests.client import SendBack

Handle = Callable[[ReceivedMessage], Any]


class Outcome(BaseException):
    """As test frameworks raise it to say that something failed: no `Exception`."""


def consumer_of(broker: FakeBroker, handle: Handle, **settings: Any) -> PushConsumer:
    consumer = PushConsumer(
        broker.address, group="mailer", consume_from=ConsumeFrom.FIRST, concurrency=1, hold_s=0.1, **settings
    )
    consumer.subscribe(TOPIC, handle)
    return consumer


async def sent_back_and_all_others_handled(handle: Handle, handled: list[str], **settings: Any) -> None:
    """The first message makes the only worker's handler fail; the second one is handled all the same."""
    broker = FakeBroker()
    broker.store("bad", "good")
    async with broker.running(), consumer_of(broker, handle, **settings):
        await eventually(lambda: handled == ["good"])
        await eventually(lambda: [one.position for one in broker.all_of(SendBack)] == [0])
        await eventually(
            lambda: broker.committed == 2 or any(getattr(one, "commit_offset", 0) == 2 for one in broker.asked)
        )


@pytest.mark.parametrize("error", [asyncio.CancelledError, Outcome])
def test_a_handler_may_raise_what_is_no_exception(error: type[BaseException]) -> None:
    handled: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        if message.text == "bad":
            raise error
        handled.append(message.text)

    asyncio.run(sent_back_and_all_others_handled(handle, handled))


def test_a_handler_may_wait_for_a_task_that_somebody_cancelled() -> None:
    handled: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        if message.text == "bad":
            task = asyncio.create_task(asyncio.sleep(10))
            task.cancel()
            await task
        handled.append(message.text)

    asyncio.run(sent_back_and_all_others_handled(handle, handled))


def own_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def _cancel_and_wait() -> None:
    own_task().cancel()
    await asyncio.sleep(0)


async def _cancelled_by_a_callback() -> None:
    asyncio.get_running_loop().call_soon(own_task().cancel)
    await asyncio.sleep(10)


async def _cancelled_by_a_child() -> None:
    worker = own_task()

    async def child() -> None:
        worker.cancel()

    task = asyncio.create_task(child())
    await asyncio.sleep(10)
    await task


CANCELLING = [_cancel_and_wait, _cancelled_by_a_callback, _cancelled_by_a_child]


@pytest.mark.parametrize("cancel", CANCELLING, ids=lambda one: one.__name__)
@pytest.mark.parametrize("batch", [None, 1])
def test_a_handler_that_cancels_its_own_task_costs_no_worker(
    cancel: Callable[[], Awaitable[None]], batch: int | None
) -> None:
    handled: list[str] = []

    async def handle(message: Any) -> None:
        [one] = message if batch else [message]
        if one.text == "bad":
            await cancel()
        handled.append(one.text)

    async def story() -> None:
        broker = FakeBroker()
        broker.store("bad", "good")
        async with broker.running():
            consumer = consumer_of(broker, handle)
            consumer.subscribe(TOPIC, handle, batch=batch or 0)
            async with consumer:
                await eventually(lambda: handled == ["good"])
                await eventually(lambda: [one.position for one in broker.all_of(SendBack)] == [0])

    asyncio.run(story())


def test_a_handler_that_returns_after_it_cancelled_its_task_has_handled_its_message() -> None:
    """The next message must not pay for it."""
    handled: list[str] = []

    async def story() -> None:
        broker = FakeBroker()
        broker.store("a", "b", "c")

        async def handle(message: ReceivedMessage) -> None:
            own_task().cancel()
            handled.append(message.text)

        async with broker.running(), consumer_of(broker, handle):
            await eventually(lambda: handled == ["a", "b", "c"])
            await eventually(
                lambda: broker.committed == 3 or any(getattr(one, "commit_offset", 0) == 3 for one in broker.asked)
            )
        assert broker.all_of(SendBack) == []

    asyncio.run(story())


def test_a_worker_that_is_cancelled_while_it_waits_is_replaced() -> None:
    """As by a timer that a handler set and forgot."""
    handled: list[str] = []
    workers_seen: list[asyncio.Task[Any]] = []

    async def story() -> None:
        broker = FakeBroker()
        broker.store("a")

        async def handle(message: ReceivedMessage) -> None:
            workers_seen.append(own_task())
            handled.append(message.text)

        async with broker.running(), consumer_of(broker, handle):
            await eventually(lambda: handled == ["a"])
            workers_seen[0].cancel()
            await asyncio.wait(workers_seen[:1])
            broker.store("b")
            await eventually(lambda: handled == ["a", "b"])

    asyncio.run(story())


@pytest.mark.parametrize("cancel", CANCELLING, ids=lambda one: one.__name__)
def test_in_an_ordered_queue_a_handler_that_cancels_its_task_gets_its_message_again(
    cancel: Callable[[], Awaitable[None]],
) -> None:
    async def story() -> None:
        broker = FakeBroker()
        broker.store("a", "b")
        heard: list[str] = []

        async def handle(message: ReceivedMessage) -> None:
            heard.append(message.text)
            if len(heard) < 3:
                await cancel()

        async with broker.running(), consumer_of(broker, handle, ordered=True, pause_s=0.01):
            await eventually(lambda: len(heard) >= 4)
            assert heard == ["a", "a", "a", "b"]

    asyncio.run(story())


@pytest.mark.parametrize("ordered_queue", [True, False])
def test_a_loop_that_ends_ends_handlers_at_work(ordered_queue: bool) -> None:
    """`asyncio.run` cancels the remaining tasks and waits for them: nothing may start again."""
    seen: list[asyncio.Task[Any]] = []

    async def story() -> None:
        broker = FakeBroker()
        broker.store("a")

        async def handle(message: ReceivedMessage) -> None:
            seen.append(own_task())
            await asyncio.Event().wait()

        running = broker.running()
        await running.__aenter__()
        await consumer_of(broker, handle, ordered=ordered_queue).start()
        await eventually(lambda: bool(seen))

    asyncio.run(story())
    assert [task.cancelled() for task in seen] == [True]


def _stop_iteration() -> NoReturn:
    next(iter(()))
    raise AssertionError


def _cancelled() -> NoReturn:
    raise concurrent.futures.CancelledError


@pytest.mark.parametrize("fail", [_stop_iteration, _cancelled, sys.exit], ids=lambda one: one.__name__)
def test_a_handler_on_a_thread_may_raise_what_no_future_can_carry(fail: Callable[[], NoReturn]) -> None:
    handled: list[str] = []

    def handle(message: ReceivedMessage) -> None:
        if message.text == "bad":
            fail()
        handled.append(message.text)

    asyncio.run(sent_back_and_all_others_handled(handle, handled))


def test_messages_that_no_thread_takes_because_the_process_ends_are_nobodys_failure() -> None:
    """Python ends the threads before the rest: work for them is refused then."""

    async def story() -> None:
        broker, asked = FakeBroker(), []
        broker.store("a", "b")
        over = concurrent.futures.ThreadPoolExecutor(1)
        over.shutdown()

        def no_threads() -> concurrent.futures.Executor:
            asked.append(1)
            return over

        async with broker.running():
            consumer = consumer_of(broker, lambda _: None, stop_grace_s=0.1)
            consumer._executor = no_threads  # type: ignore[method-assign]
            consumer.subscribe(TOPIC, lambda _: None)
            async with consumer:
                await eventually(lambda: bool(asked))
                await asyncio.sleep(0.1)
            assert broker.all_of(SendBack) == []
            assert broker.committed in (None, 0)

    asyncio.run(story())


def test_a_function_that_chooses_the_delay_may_fail() -> None:
    handled: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        if message.text == "bad":
            raise ValueError("not today")
        handled.append(message.text)

    def no_delay(message: ReceivedMessage) -> int:
        raise KeyError("no such customer")

    asyncio.run(sent_back_and_all_others_handled(handle, handled, retry_delay=no_delay))


def test_a_record_that_lies_about_its_inside_costs_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size is right, so that the next record can be found; the bytes between are not a message."""
    monkeypatch.setattr(workers, "AGAIN_SECONDS", 0.05)

    async def story() -> None:
        broker = FakeBroker()
        broker.store("bad", "good")
        lying = bytearray(broker.messages[0])
        lying[84:88] = (1 << 30).to_bytes(4, "big")  # the length of the body
        broker.messages[0] = bytes(lying)
        handled: list[str] = []
        tries: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            tries.append(message.queue_offset)
            handled.append(message.text)

        async with broker.running(), consumer_of(broker, handle) as consumer:
            await eventually(lambda: handled == ["good"])
            await eventually(lambda: tries.count(0) > 2)
            await consumer.commit()
            assert broker.committed in (None, 0), "nobody goes past what could not be handled"

    asyncio.run(story())


def test_in_an_ordered_queue_nothing_overtakes_a_message_that_fails_often() -> None:
    """RocketMQ's own clients have no last attempt there unless one is set."""

    async def story() -> None:
        broker = FakeBroker()
        broker.store("a", "b")
        heard: list[str] = []

        async def handle(message: ReceivedMessage) -> None:
            heard.append(message.text)
            if len(heard) < 30:
                raise ValueError("not today")

        async with broker.running(), consumer_of(broker, handle, ordered=True, pause_s=0.001):
            await eventually(lambda: "b" in heard)
        assert heard == ["a"] * 30 + ["b"]
        assert broker.all_of(SendBack) == []

    asyncio.run(story())


@pytest.mark.parametrize("error", [asyncio.CancelledError, Outcome])
def test_in_an_ordered_queue_they_are_tried_again_in_their_place(error: type[BaseException]) -> None:
    async def story() -> None:
        broker = FakeBroker()
        broker.store("a", "b")
        heard: list[str] = []

        async def handle(message: ReceivedMessage) -> None:
            heard.append(message.text)
            if len(heard) == 1:
                raise error

        async with broker.running(), consumer_of(broker, handle, ordered=True, pause_s=0.01):
            await eventually(lambda: len(heard) >= 3)
            assert heard == ["a", "a", "b"]

    asyncio.run(story())


def test_in_an_ordered_queue_a_lying_record_holds_up_the_queue_and_not_the_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ordered, "LOCK_SECONDS", 0.01)

    async def story() -> None:
        broker = FakeBroker()
        broker.store("bad", "good")
        lying = bytearray(broker.messages[0])
        lying[84:88] = (1 << 30).to_bytes(4, "big")
        broker.messages[0] = bytes(lying)
        tries: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            tries.append(message.queue_offset)
            message.text  # noqa: B018

        async with broker.running(), consumer_of(broker, handle, ordered=True, pause_s=0.01):
            await eventually(lambda: len(tries) > 2)
            assert set(tries) == {0}

    asyncio.run(story())
