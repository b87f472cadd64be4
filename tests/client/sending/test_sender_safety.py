"""Hostile brokers and programs: a producer's answers stay true, in time, and in bounded memory."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from client.support.fake_cluster import _never, cluster
from late import in_time
from pyromq import Message, Producer, TransactionProducer
from pyromq.client import trace
from pyromq.client.hooks import Hook, Sending
from pyromq.client.options import ClientOptions
from pyromq.client.routes import Routes
from pyromq.client.sending.batching import BatchOptions
from pyromq.client.transaction_producer import Decision
from pyromq.errors import IllegalMessage, SendError, SendUnknown, Unreachable
from pyromq.records.java_hash import java_hash
from pyromq.wire.bodies.routes import BrokerData, QueueData, TopicRoute
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.client import Request
from pyromq.wire.responses import Response, SendReceipt

# --- true answers ----------------------------------------------------------------------------------------------------


def test_a_name_server_in_trouble_does_not_hide_that_the_message_may_be_stored() -> None:
    """The first try is taken and not answered; before the second, the route is gone and cannot be had."""

    async def story() -> None:
        async with cluster() as brokers, Producer(brokers.name_servers, group="g", timeout_s=0.6) as producer:
            await producer.send("orders", b"all is well")
            brokers["a"].say_nothing()
            brokers.broken = True
            sending = asyncio.create_task(producer.send("orders", b"perhaps"))
            await asyncio.sleep(0.05)
            producer._routes.known.clear()
            producer._session.routes._known.clear()
            with pytest.raises(SendUnknown):
                await sending

    asyncio.run(story())


def test_messages_with_a_sharding_key_go_to_its_queue_in_batches_too() -> None:
    async def story() -> None:
        async with cluster() as brokers, Producer(brokers.name_servers, group="g") as producer:
            for _ in range(5):
                receipts = await producer.send_batch([Message("orders", b"x", sharding_key="o-17")] * 3)
                assert {receipt.queue.queue_id for receipt in receipts} == {abs(java_hash("o-17")) % 4}
            mixed = [Message("orders", b"x", sharding_key="a"), Message("orders", b"x", sharding_key="b")]
            with pytest.raises(IllegalMessage, match="sharding key"):
                await producer.send_batch(mixed)

    asyncio.run(story())


def test_a_batch_of_which_a_part_is_stored_did_not_fail_as_a_whole() -> None:
    async def story() -> None:
        settings: Any = {"max_message_bytes": 1000, "timeout_s": 0.5}
        async with cluster() as brokers, Producer(brokers.name_servers, group="g", **settings) as producer:
            broker = brokers["a"]
            full = Response(code=ResponseCode.SYSTEM_BUSY, reason="said the story")
            broker.decide = lambda ask: broker.stored(ask) if len(broker.sends) == 1 else full
            with pytest.raises(SendUnknown, match="1 of 3 messages are stored") as caught:
                await producer.send_batch([Message("orders", b"x" * 600)] * 3)
            assert isinstance(caught.value.receipt, list)
            assert [one.queue.topic for one in caught.value.receipt] == ["orders"]

    asyncio.run(story())


def test_hooks_see_batches_and_messages_without_an_answer_too() -> None:
    class Seen(Hook):
        def __init__(self) -> None:
            self.before: list[str] = []
            self.after: list[Sending] = []

        def before_send(self, sending: Sending) -> None:
            sending.properties["traceparent"] = "00-1"
            self.before.append(sending.message_id)

        def after_send(self, sending: Sending) -> None:
            self.after.append(sending)

    async def story() -> None:
        seen = Seen()
        async with cluster() as brokers, Producer(brokers.name_servers, group="g", hooks=[seen]) as producer:
            receipts = await producer.send_batch([Message("orders", b"1"), Message("orders", b"2")])
            assert [one.message_id for one in receipts] == seen.before
            assert [one.receipt for one in seen.after] == receipts
            assert brokers["a"].sends[-1].body.count(b"traceparent\x0100-1") == 2
            await producer.send_one_way(Message("orders", b"3"))
            assert [one.message.body for one in seen.after[2:]] == [b"3"]
            assert seen.after[-1].error is None
            with pytest.raises(IllegalMessage):
                await producer.send_batch([Message("orders", b"4"), Message("orders", b"")])
            assert len(seen.after) == len(seen.before) == 5
            assert isinstance(seen.after[-1].error, IllegalMessage)

    asyncio.run(story())


def test_a_broker_that_names_no_place_for_a_half_does_not_undo_what_was_done() -> None:
    async def story() -> None:
        async with cluster() as brokers:
            brokers["a"].decide = lambda _: SendReceipt(message_id="nonsense", queue_id=0, queue_offset=0)
            check = lambda _: Decision.COMMIT  # noqa: E731
            async with TransactionProducer(brokers.name_servers, group="g", check=check) as producer:
                _, decision = await producer.send_in_transaction(Message("orders", b"x"), check)
                assert decision is Decision.COMMIT

    asyncio.run(story())


@pytest.mark.parametrize("body", [5, [1, 2], {"a": 1}, None])
def test_a_body_is_bytes_or_text_and_nothing_that_python_would_make_bytes_of(body: Any) -> None:
    with pytest.raises(TypeError, match="body"):
        Message("orders", body)


# --- in time ---------------------------------------------------------------------------------------------------------


def test_a_message_that_waits_for_a_batch_has_one_deadline_all_the_same() -> None:
    async def story() -> None:
        async with cluster() as brokers:
            brokers["a"].say_nothing()
            options = BatchOptions(in_flight=1, max_messages=2, max_waiting_bytes=500)
            async with Producer(brokers.name_servers, group="g", timeout_s=0.5, auto_batch=options) as producer:

                async def timed() -> float:
                    began = time.monotonic()
                    with pytest.raises(SendError):
                        await producer.send("orders", b"x" * 100)
                    return time.monotonic() - began

                took = await asyncio.gather(*(timed() for _ in range(30)))
                in_time(max(took), 0.9)

    asyncio.run(story())


def test_closing_does_not_wait_for_traces_that_nobody_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "FINISH_SECONDS", 0.3)

    async def story() -> None:
        async with cluster() as brokers:
            brokers["a"].decide = lambda ask: _never() if ask.topic == trace.TRACE_TOPIC else brokers["a"].stored(ask)
            producer = Producer(brokers.name_servers, group="g", timeout_s=0.3, trace=True)
            await producer.start()
            for _ in range(1000):
                await producer.send("orders", b"x")
            began = time.monotonic()
            await producer.close()
            in_time(time.monotonic() - began, 1.5)

    asyncio.run(story())


# --- in bounded memory -----------------------------------------------------------------------------------------------


async def flood(producer: Producer, message: Message) -> None:
    for _ in range(200):
        await producer.send_one_way(message)


def test_messages_without_an_answer_are_sent_no_faster_than_they_leave() -> None:
    async def story() -> None:
        settings: Any = {"timeout_s": 0.3, "compress_above": None}
        async with cluster() as brokers, Producer(brokers.name_servers, group="g", **settings) as producer:
            await producer.send("orders", b"first")
            peer: Any = brokers["a"].peers[-1]
            peer._read_no_more()
            connection = producer._session.connected(brokers["a"].address)
            assert connection is not None
            body = b"x" * (1 << 20)
            with pytest.raises(Unreachable, match="could not leave"):
                await flood(producer, Message("orders", body))
            assert connection.backlog < 16 << 20

    asyncio.run(story())


@pytest.mark.parametrize(
    "route",
    [
        TopicRoute((QueueData("a", 2**31 - 1, 2**31 - 1, 6),), (BrokerData("c", "a", {0: "127.0.0.1:1"}),)),
        TopicRoute((), (BrokerData("c", "a", {0: "127.0.0.1:1"}),), order_conf="a:" + "9" * 12),
    ],
    ids=["queues", "ordered queues"],
)
def test_a_route_cannot_have_any_number_of_queues(route: TopicRoute) -> None:
    async def story() -> None:
        async def ask(address: str, request: Request) -> Command:
            return Command(code=0, body=route.encode(standard=True))

        with pytest.raises(Unreachable, match="queues"):
            await Routes(["here:1"], ask).writable("orders")

    asyncio.run(story())


# --- for as long as it runs ------------------------------------------------------------------------------------------


def test_one_refusal_of_a_name_server_does_not_end_the_refreshing_of_routes() -> None:
    async def story() -> None:
        options = ClientOptions(route_refresh_s=0.05)
        async with cluster() as brokers, Producer(brokers.name_servers, group="g", options=options) as producer:
            await producer.send("orders", b"x")
            brokers.broken = True
            await asyncio.sleep(0.2)
            brokers.broken = False
            asked = brokers.routes_asked
            await asyncio.sleep(0.3)
            assert brokers.routes_asked > asked

    asyncio.run(story())


def test_a_name_server_that_has_forgotten_a_topic_for_a_while_does_not_freeze_its_route() -> None:
    async def story() -> None:
        options = ClientOptions(route_refresh_s=0.05)
        async with cluster() as brokers, Producer(brokers.name_servers, group="g", options=options) as producer:
            await producer.send("orders", b"x")
            brokers.unknown_topics.add("orders")
            await asyncio.sleep(0.2)
            await producer.send("orders", b"the broker still takes it")
            brokers.unknown_topics.clear()
            brokers.queues = 8
            async with asyncio.timeout(5):
                while len(await producer.queues("orders")) < 8:  # noqa: ASYNC110  there is no event for it
                    await asyncio.sleep(0.02)

    asyncio.run(story())
