"""Producers whose brokers are slow, busy, gone, or store a message without an answer; and their errors."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from client.support.fake_cluster import FakeBroker, FakeCluster, cluster
from late import in_time
from pyromq.auth.signature import Credentials, signature
from pyromq.client.message import Message
from pyromq.client.producer import Producer
from pyromq.client.sending.outcomes import receipt_of, receipts_of_batch
from pyromq.client.sending.receipt import SendReceipt, SendStatus
from pyromq.errors import BrokerError, IllegalMessage, SendFailed, SendUnknown, SystemBusy, TopicNotFound
from pyromq.model.queue import MessageQueue
from pyromq.net import connection
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command

HELLO = Message("orders", b"hello")


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def producer_of(world: FakeCluster, **settings: Any) -> Producer:
    return Producer(world.name_servers, group="g", **settings)


def test_a_busy_broker_is_left_for_another_one() -> None:
    async def story() -> None:
        async with cluster("a", "b") as world, producer_of(world) as producer:
            world["a"].refuse(ResponseCode.SYSTEM_BUSY)
            for _ in range(8):
                assert (await producer.send(HELLO)).queue.broker_name == "b"
            assert len(world["a"].sends) <= 1, "after its refusal it is avoided"

    run(story())


def test_the_only_broker_is_asked_again_when_it_was_busy_for_a_moment() -> None:
    async def story() -> None:
        async with cluster("a") as world, producer_of(world) as producer:
            world["a"].refuse(ResponseCode.SYSTEM_BUSY, times=2)
            assert (await producer.send(HELLO)).status is SendStatus.OK
            ids = {request.properties for request in world["a"].sends}
            assert (len(world["a"].sends), len(ids)) == (3, 1), "the same id in every try"

    run(story())


def test_a_broker_that_stays_busy_has_certainly_stored_nothing() -> None:
    async def story() -> None:
        async with cluster("a") as world, producer_of(world, timeout_s=0.5) as producer:
            world["a"].refuse(ResponseCode.SYSTEM_BUSY)
            began = asyncio.get_running_loop().time()
            with pytest.raises(SendFailed, match=r"\d tries") as failed:
                await producer.send(HELLO)
            assert asyncio.get_running_loop().time() - began >= 0.4, "it was tried for as long as there was time"
            assert {type(error) for error in failed.value.attempts} == {SystemBusy}
            assert len(world["a"].sends) == len(failed.value.attempts) > 3

    run(story())


@pytest.mark.parametrize(
    "code",
    ["TOPIC_NOT_EXIST", "SERVICE_NOT_AVAILABLE", "SYSTEM_ERROR", "NO_PERMISSION", "NO_BUYER_ID", "NOT_IN_CURRENT_UNIT",
     "GO_AWAY"],
)  # fmt: skip
def test_these_refusals_are_worth_another_try(code: str) -> None:
    async def story() -> None:
        async with cluster("a", "b") as world, producer_of(world) as producer:
            for broker in world.brokers.values():
                broker.refuse(ResponseCode[code], times=1)
            await producer.send(HELLO)
            assert 1 < len(world.sends()) <= 3

    run(story())


def test_a_message_that_no_broker_would_take_is_not_tried_twice() -> None:
    async def story() -> None:
        async with cluster("a", "b") as world, producer_of(world) as producer:
            for broker in world.brokers.values():
                broker.refuse(ResponseCode.MESSAGE_ILLEGAL)
            with pytest.raises(IllegalMessage, match="said the story"):
                await producer.send(HELLO)
            assert len(world.sends()) == 1

    run(story())


@pytest.mark.parametrize("code", ["SYSTEM_ERROR", "SERVICE_NOT_AVAILABLE"])
def test_a_refusal_that_may_come_after_storing_leaves_it_unknown(code: str) -> None:
    async def story() -> None:
        async with cluster("a") as world, producer_of(world) as producer:
            world["a"].refuse(ResponseCode[code])
            with pytest.raises(SendUnknown):
                await producer.send(HELLO)

    run(story())


def test_no_answer_in_time_means_unknown_and_every_try_has_its_share_of_the_time() -> None:
    async def story() -> None:
        async with cluster("a", "b", "c") as world, producer_of(world, timeout_s=0.6) as producer:
            for broker in world.brokers.values():
                broker.say_nothing()
            began = asyncio.get_running_loop().time()
            with pytest.raises(SendUnknown, match="not known") as unknown:
                await producer.send(HELLO)
            in_time(asyncio.get_running_loop().time() - began, 1.2)
            assert len(unknown.value.attempts) == 3
            assert [len(broker.sends) for broker in world.brokers.values()] == [1, 1, 1]

    run(story())


def test_a_silent_broker_does_not_use_up_the_time_of_the_next() -> None:
    async def story() -> None:
        async with cluster("a", "b") as world, producer_of(world, timeout_s=0.6) as producer:
            world["a"].say_nothing()
            for _ in range(4):
                assert (await producer.send(HELLO)).queue.broker_name == "b"

    run(story())


@pytest.mark.parametrize("brokers", [("a",), ("a", "b")])
def test_a_message_that_no_other_broker_may_take_waits_for_its_own_and_is_sent_once(brokers: tuple[str, ...]) -> None:
    """The only broker of the cluster, or the one of its queue, waits for its slave."""

    async def story() -> None:
        async with cluster(*brokers) as world, producer_of(world, timeout_s=3.0) as producer:
            caught_up = asyncio.Event()
            world["a"].wait_for(caught_up)
            queue = MessageQueue("orders", "a", 0) if len(brokers) > 1 else None
            sending = asyncio.ensure_future(producer.send(HELLO, queue=queue))
            await asked_for_routes(world, 2)
            caught_up.set()
            assert (await sending).status is SendStatus.OK
            assert len(world.sends()) == 1

    run(story())


async def asked_for_routes(world: FakeCluster, times: int) -> None:
    """A sender that has waited for a try's share of the time checks whether another broker leads."""
    before = world.routes_asked
    async with asyncio.timeout(10):
        while world.routes_asked < before + times:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("keys", [None, Credentials("AK", "secret")])
def test_a_broker_in_whose_place_another_one_leads_is_not_waited_for(keys: Credentials | None) -> None:
    async def story() -> None:
        async with cluster("a") as world, producer_of(world, timeout_s=6.0, credentials=keys) as producer:
            old = world["a"]
            old.say_nothing()
            sending = asyncio.ensure_future(producer.send(HELLO))
            while not old.sends:  # noqa: ASYNC110  there is no event for it
                await asyncio.sleep(0.02)
            new = world.brokers["a"] = FakeBroker("a")
            await new.start()
            assert (await sending).status is SendStatus.OK
            assert (len(old.sends), len(new.sends)) == (1, 1)
            await old.stop()

    run(story())


def test_a_broker_that_a_name_server_has_forgotten_is_waited_for() -> None:
    async def story() -> None:
        async with cluster("a") as world, producer_of(world, timeout_s=3.0) as producer:
            caught_up = asyncio.Event()
            await producer.send(HELLO)
            world["a"].wait_for(caught_up)
            world.without_master = 3
            sending = asyncio.ensure_future(producer.send(HELLO))
            await asked_for_routes(world, 2)
            caught_up.set()
            assert (await sending).status is SendStatus.OK
            assert len(world.sends()) == 2

    run(story())


def test_a_machine_that_vanished_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system knows: what it sends there does not arrive."""

    async def story() -> None:
        async with cluster("a") as world, producer_of(world, timeout_s=3.0) as producer:
            world["a"].say_nothing(times=1)
            monkeypatch.setattr(connection, "is_sent_in_vain", lambda _: len(world["a"].sends) == 1)
            assert (await producer.send(HELLO)).status is SendStatus.OK
            assert len(world["a"].sends) == 2
            assert len(set(map(id, world["a"].peers))) == 2, "on a new connection"

    run(story())


def test_the_time_of_a_send_ends_whatever_happens_to_those_who_wonder(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with cluster("a") as world, producer_of(world, timeout_s=0.6) as producer:
            world["a"].say_nothing()
            monkeypatch.setattr(connection, "is_sent_in_vain", lambda _: 1 / 0)
            for _ in range(2):
                with pytest.raises(SendUnknown):
                    await producer.send(HELLO)

    run(story())


def test_an_answer_that_was_lost_after_the_message_was_stored_means_unknown() -> None:
    async def story() -> None:
        async with cluster("a") as world, producer_of(world, attempts=1) as producer:
            world["a"].hang_up()
            with pytest.raises(SendUnknown, match="broke"):
                await producer.send(HELLO)
            assert len(world["a"].sends) == 1

    run(story())


def test_an_unknown_try_followed_by_a_certain_refusal_stays_unknown() -> None:
    async def story() -> None:
        async with cluster("a") as world, producer_of(world, attempts=2) as producer:
            broker = world["a"]
            broker.hang_up(times=1)
            hang_up = broker.decide

            def then_refuse(request: Any) -> Any:
                if len(broker.sends) == 1:
                    return hang_up(request)
                broker.refuse(ResponseCode.MESSAGE_ILLEGAL)
                return broker.decide(request)

            broker.decide = then_refuse
            with pytest.raises(SendUnknown):
                await producer.send(HELLO)

    run(story())


def test_a_broker_that_is_gone_has_certainly_stored_nothing() -> None:
    async def story() -> None:
        async with cluster("a") as world, producer_of(world) as producer:
            await producer.queues("orders")
            await world["a"].stop()
            with pytest.raises(SendFailed, match="not stored"):
                await producer.send(HELLO, timeout_s=0.3)

    run(story())


def test_a_master_that_is_away_for_a_moment_is_found_by_the_next_tries() -> None:
    async def story() -> None:
        async with cluster("a") as world, producer_of(world, attempts=8, timeout_s=20.0) as producer:
            world.without_master = 2
            began = asyncio.get_running_loop().time()
            assert (await producer.send(HELLO)).status is SendStatus.OK
            in_time(asyncio.get_running_loop().time() - began, 5.0)

    run(story())


def test_when_one_of_two_brokers_dies_every_message_gets_through() -> None:
    async def story() -> None:
        async with cluster("a", "b") as world, producer_of(world) as producer:
            await producer.send(HELLO)
            await producer.send(HELLO)
            await world["a"].stop()
            receipts = await asyncio.gather(*(producer.send(HELLO) for _ in range(50)))
            assert {receipt.queue.broker_name for receipt in receipts} == {"b"}

    run(story())


def test_sends_go_on_when_no_name_server_is_left() -> None:
    async def story() -> None:
        async with cluster("a", "b") as world, producer_of(world) as producer:
            await producer.send(HELLO)
            await world.stop_names()
            world["a"].refuse(ResponseCode.SYSTEM_BUSY)
            for _ in range(6):
                assert (await producer.send(HELLO)).queue.broker_name == "b"

    run(story())


@pytest.mark.parametrize("code", ["FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"])
def test_a_message_that_is_stored_but_not_safe_is_unknown_and_has_its_receipt(code: str) -> None:
    async def story() -> None:
        async with cluster("a", "b") as world, producer_of(world) as producer:
            for broker in world.brokers.values():
                broker.decide = lambda request, broker=broker: broker.stored(request, ResponseCode[code])  # type: ignore[misc]
            with pytest.raises(SendUnknown, match=code) as unknown:
                await producer.send(HELLO)
            assert isinstance(unknown.value.receipt, SendReceipt)
            assert unknown.value.receipt.status.name == code
            assert len(world.sends()) == 1, "sending it again would store it twice"

    run(story())


def test_a_sharding_key_is_never_moved_to_another_queue() -> None:
    async def story() -> None:
        async with cluster("a", "b") as world, producer_of(world) as producer:
            message = Message("orders", b"x", sharding_key="order-17")
            home = (await producer.send(message)).queue
            world[home.broker_name].refuse(ResponseCode.SYSTEM_BUSY)
            with pytest.raises(SendFailed):
                await producer.send(message, timeout_s=0.3)
            assert {request.queue_id for request in world[home.broker_name].sends} == {home.queue_id}
            other = "b" if home.broker_name == "a" else "a"
            assert not world[other].sends

    run(story())


def test_a_queue_that_was_asked_for_is_the_one_that_is_tried_again() -> None:
    async def story() -> None:
        async with cluster("a", "b") as world, producer_of(world) as producer:
            world["b"].refuse(ResponseCode.SYSTEM_BUSY, times=1)
            queue = MessageQueue("orders", "b", 2)
            assert (await producer.send(HELLO, queue=queue)).queue == queue
            assert [request.queue_id for request in world["b"].sends] == [2, 2]

    run(story())


def test_a_choice_of_the_program_is_made_once_for_all_tries() -> None:
    async def story() -> None:
        async with cluster("a", "b") as world, producer_of(world) as producer:
            for broker in world.brokers.values():
                broker.refuse(ResponseCode.SYSTEM_BUSY, times=2)
            asked = []

            def next_one(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
                asked.append(message)
                return queues[len(asked)]

            receipt = await producer.send(HELLO, select=next_one)
            assert (asked, receipt.queue) == ([HELLO], MessageQueue("orders", "a", 1))
            assert not world["b"].sends

    run(story())


def test_a_send_whose_producer_is_closed_meanwhile_is_unknown() -> None:
    async def story() -> None:
        async with cluster("a") as world:
            async with producer_of(world) as producer:
                world["a"].say_nothing()
                sending = asyncio.ensure_future(producer.send(HELLO))
                async with asyncio.timeout(2):
                    while not world["a"].sends:  # noqa: ASYNC110  there is no event for it
                        await asyncio.sleep(0.01)
            with pytest.raises(SendUnknown):
                await sending

    run(story())


def test_an_unknown_code_is_shown_with_what_the_broker_said() -> None:
    async def story() -> None:
        async with cluster("a") as world, producer_of(world) as producer:
            world["a"].refuse(ResponseCode.VERSION_NOT_SUPPORTED)
            with pytest.raises(BrokerError, match="said the story"):
                await producer.send(HELLO)

    run(story())


def test_a_topic_that_nobody_has_and_nobody_makes_is_named() -> None:
    async def story() -> None:
        async with cluster("a") as world, producer_of(world) as producer:
            world.unknown_topics |= {"orders", "TBW102"}
            with pytest.raises(TopicNotFound, match="orders"):
                await producer.send(HELLO)

    run(story())


def test_without_a_name_server_the_error_says_what_to_do() -> None:
    async def story() -> None:
        async with cluster("a") as world:
            await world.stop_names()
            async with producer_of(world, timeout_s=0.5) as producer:
                with pytest.raises(SendFailed, match="no name server answers"):
                    await producer.send(HELLO)

    run(story())


def test_a_batch_that_fails_fails_for_each_of_its_messages() -> None:
    async def story() -> None:
        async with cluster("a") as world, producer_of(world, auto_batch=True, attempts=1) as producer:
            world["a"].hang_up()
            outcomes = await asyncio.gather(*(producer.send(HELLO) for _ in range(5)), return_exceptions=True)
            assert [type(one) for one in outcomes] == [SendUnknown] * 5
            assert len(world["a"].sends) == 1

    run(story())


@pytest.mark.parametrize("auto_batch", [False, True])
def test_with_credentials_every_send_is_signed(auto_batch: bool) -> None:
    async def story() -> None:
        keys = Credentials("me", "secret")
        async with (
            cluster("a") as world,
            producer_of(world, credentials=keys, auto_batch=auto_batch) as producer,
        ):
            await producer.send(HELLO)
            await producer.send_one_way(HELLO)
            async with asyncio.timeout(2):
                while len(world["a"].sends) < 2:  # noqa: ASYNC110  there is no event for it
                    await asyncio.sleep(0.01)
            for request in world["a"].sends:
                assert request.command is not None
                fields = request.command.fields
                assert fields["AccessKey"] == "me"
                assert fields["Signature"] == signature(fields, request.body, "secret")

    run(story())


def test_an_answer_with_less_in_it_is_read_too() -> None:
    queue = MessageQueue("orders", "a", 3)
    receipt = receipt_of(Command(0, {"queueId": "1", "queueOffset": "x"}), queue, "ID")
    assert receipt == SendReceipt(SendStatus.OK, "ID", "", MessageQueue("orders", "a", 1), 0)
    assert not receipt_of(Command(0, {"TRACE_ON": "false"}), queue, "ID").trace_on


def test_a_batch_that_the_broker_keeps_as_one_message_has_one_place() -> None:
    answer = Command(0, {"msgId": "ONE", "queueOffset": "7"})
    receipts = receipts_of_batch(answer, MessageQueue("orders", "a", 3), ["x", "y"])
    assert [(one.message_id, one.offset_message_id, one.queue_offset) for one in receipts] == [
        ("x", "ONE", 7), ("y", "ONE", 8),
    ]  # fmt: skip
