"""Transient refusals: their detection, the time clients wait for them, and the state in between."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.support.fake_cluster import FakeCluster, cluster
from pyromq.broker.delivery.ack_mark import AckMark
from pyromq.broker.overload import busy
from pyromq.broker.wiring import _refuse_as_slave
from pyromq.client.message import Message
from pyromq.client.producer import Producer
from pyromq.client.sending.delivery import LAST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, PAUSE_SECONDS, pause_after
from pyromq.client.sending.fault_backoff import FaultBackoff
from pyromq.client.sending.outcomes import refusal_of
from pyromq.client.sending.queue_choice import queue_of_key
from pyromq.client.sending.steady_queues import AWAY_SECONDS, SteadyQueues
from pyromq.clock import ManualClock
from pyromq.config import BrokerConfig, StoreConfig
from pyromq.errors import NoMaster, NotNow, PyroMQError, SendFailed, SendUnknown, StoreFenced
from pyromq.model.queue import MessageQueue
from pyromq.net.server import _refuse_because_stopping
from pyromq.store.message_store import InlineRunner, MessageStore
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.client import SendMessage
from pyromq.wire.responses import Response, refusal

HELLO = Message("orders", b"hello")


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def producer_of(world: FakeCluster, **settings: Any) -> Producer:
    return Producer(world.name_servers, group="g", **settings)


# --- which refusals are of that kind ---------------------------------------------------------------------------------


def raised(call: Any, *given: Any) -> PyroMQError:
    with pytest.raises(PyroMQError) as error:
        call(*given)
    return error.value


def refusing_mark() -> AckMark:
    config = BrokerConfig(store=StoreConfig(root=Path("nowhere")))
    mark = AckMark(config, MessageStore(config.store, runner=InlineRunner()), ManualClock())
    mark.refuse("this broker hands over to h:1: messages go there in a moment")
    return mark


def is_momentary(answer: Response | PyroMQError) -> bool:
    told = refusal(answer) if isinstance(answer, PyroMQError) else answer
    refused = refusal_of(Command(told.code, {}, reason=told.reason), "h:1")
    assert refused.is_certain or not refused.is_momentary
    return refused.is_momentary


def test_what_our_brokers_say_when_they_stop_or_hand_over_or_are_slaves_passes() -> None:
    assert is_momentary(raised(refusing_mark().check_accepts))
    assert is_momentary(raised(_refuse_as_slave, SendMessage, None))
    assert is_momentary(busy("the disk is behind"))
    stopping = _refuse_because_stopping(Command(10), None)  # type: ignore[arg-type]
    assert isinstance(stopping, Response)
    assert is_momentary(stopping)


@pytest.mark.parametrize(
    "answer",
    [
        StoreFenced(OSError(5, "no")),  # waiting messages may be stored
        NotNow("h:1 leads with epoch 2: messages go there"),  # so may what a fenced master had taken
        Response(code=ResponseCode.SERVICE_NOT_AVAILABLE, reason="service not available now"),
        Response(code=ResponseCode.NO_PERMISSION, reason="the topic may not be written to"),
        Response(code=ResponseCode.MESSAGE_ILLEGAL, reason="the message was not stored: it is too large"),
    ],
)
def test_what_may_be_stored_or_will_not_change_does_not(answer: Response | PyroMQError) -> None:
    assert not is_momentary(answer)


# --- how long they are waited for ------------------------------------------------------------------------------------


@given(st.integers(1, 10_000), st.floats(0, 100), st.floats(0, 1))
def test_pauses_grow_up_to_a_second_and_end_before_the_time_does(tries: int, left_s: float, chance: float) -> None:
    pause = pause_after(tries, left_s, chance)
    assert 0 < pause <= LONGEST_PAUSE_SECONDS
    assert pause <= max(left_s / 2, LAST_PAUSE_SECONDS)
    assert pause <= pause_after(tries + 1, left_s, chance)
    assert pause_after(1, 10, 0.0) == PAUSE_SECONDS


def refuse_for(world: FakeCluster, seconds: float, reason: str) -> None:
    broker, until = world["a"], asyncio.get_running_loop().time() + seconds
    answer = Response(code=ResponseCode.SERVICE_NOT_AVAILABLE, reason=reason)
    broker.decide = lambda request: answer if asyncio.get_running_loop().time() < until else broker.stored(request)


@pytest.mark.parametrize("settings", [{}, {"auto_batch": True}, {"attempts": 1}])
@pytest.mark.parametrize("key", [None, "k"])
def test_a_send_waits_for_a_master_that_hands_over(settings: dict[str, Any], key: str | None) -> None:
    async def story() -> None:
        async with cluster("a") as world, producer_of(world, **settings) as producer:
            refuse_for(world, 0.6, "this broker hands over to h:1; the message was not stored")
            await producer.send(Message("orders", b"x", sharding_key=key))
            assert world.routes_asked > 3, "each time the newest route was looked at"

    run(story())


def test_a_broker_that_is_gone_for_a_second_is_waited_for_and_is_sent_a_message_once() -> None:
    async def story() -> None:
        async with cluster("a") as world, producer_of(world) as producer:
            await producer.queues("orders")
            await world["a"].stop()
            sending = asyncio.create_task(producer.send(HELLO))
            await asyncio.sleep(0.5)
            await world["a"].start()
            await sending
            assert len(world["a"].sends) == 1

    run(story())


def test_a_try_that_may_have_stored_it_counts_between_those_that_do_not() -> None:
    async def story() -> None:
        async with cluster("a") as world, producer_of(world, attempts=2) as producer:
            broker = world["a"]
            passing = Response(code=ResponseCode.SYSTEM_BUSY, reason="said the story")

            def decide(request: SendMessage) -> Response | None:
                if len(broker.sends) % 3:
                    return passing
                peer: Any = broker.peers[-1]
                peer.abort()
                return None

            broker.decide = decide
            with pytest.raises(SendUnknown):
                await producer.send(HELLO)
            assert len(broker.sends) == 6, "two of them broke the connection"

    run(story())


def test_without_a_master_until_the_end_it_is_certain_that_nothing_was_stored() -> None:
    async def story() -> None:
        async with cluster("a") as world, producer_of(world, timeout_s=0.3) as producer:
            world.without_master = 1 << 30
            with pytest.raises(SendFailed, match="no master is there at the moment") as failed:
                await producer.send(HELLO)
            assert {type(error) for error in failed.value.attempts} == {NoMaster}

    run(story())


# --- what stays as it is ---------------------------------------------------------------------------------------------

A, B = (tuple(MessageQueue("orders", name, number) for number in range(3)) for name in "ab")


def test_a_broker_that_vanished_keeps_its_queues_for_a_while() -> None:
    steady = SteadyQueues()
    assert not steady.update((*A, *B), (), 0.0)
    home = queue_of_key(steady.queues, "order-17")
    assert steady.update(B, (), 100.0)
    assert queue_of_key(steady.queues, "order-17") == home
    assert steady.update(B, (), 100.0 + AWAY_SECONDS - 0.1)
    assert steady.queues == (*A, *B)
    assert not steady.update(B, (), 100.0 + AWAY_SECONDS)
    assert steady.queues == B


def test_one_that_is_back_has_a_whole_while_again() -> None:
    steady = SteadyQueues()
    for at, there in ((0.0, (*A, *B)), (1.0, B), (2.0, (*A, *B)), (2.0 + AWAY_SECONDS, B)):
        steady.update(there, (), at)
    assert steady.queues == (*A, *B)


def test_a_broker_that_somebody_closed_loses_its_place_at_once() -> None:
    steady = SteadyQueues()
    steady.update((*A, *B), (), 0.0)
    assert not steady.update(B, {"a"}, 1.0)
    assert steady.queues == B


def test_a_key_stays_with_its_broker_while_that_has_no_master() -> None:
    async def story() -> None:
        async with cluster("a", "b") as world, producer_of(world, timeout_s=0.4) as producer:
            keyed = Message("orders", b"x", sharding_key="order-17")
            home = (await producer.send(keyed)).queue
            gone = world.brokers.pop(home.broker_name)
            await gone.stop()
            with pytest.raises(SendFailed):
                await producer.send(keyed)
            assert (await producer.send(HELLO)).queue.broker_name != home.broker_name, "what is free goes elsewhere"
            world.brokers[home.broker_name] = gone
            await gone.start()
            assert (await producer.send(keyed)).queue == home

    run(story())


# --- the broker that is avoided --------------------------------------------------------------------------------------


def test_faults_of_the_old_master_are_not_held_against_the_new_one() -> None:
    clock = ManualClock()
    backoff = FaultBackoff(clock)
    began = clock.monotonic()
    backoff.failed("a", began)
    clock.advance(0.5)
    backoff.replaced("a")
    assert not backoff.avoids("a")
    backoff.failed("a", began)
    backoff.chosen("a")
    assert not backoff.avoids("a"), "what was sent to the old one says nothing of the new one, and all may go there"
    backoff.answered("a", clock.monotonic(), 0.01)
    assert not backoff
    backoff.replaced("a")
    assert not backoff


def test_the_only_broker_asked_again_and_again_while_it_is_away_is_one_fault() -> None:
    clock = ManualClock()
    backoff = FaultBackoff(clock)
    for _ in range(15):
        backoff.failed("a", clock.monotonic())
        clock.advance(0.1)
    clock.advance(0.6)
    assert not backoff.avoids("a")
