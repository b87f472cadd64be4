"""Request and reply: a producer asks, a consumer answers, and the answer finds the one who asked."""

from __future__ import annotations

import asyncio

import pytest

from client.support.real_broker import eventually, messages_of, real_broker, run
from pyromq.client.message import Message
from pyromq.client.producer import Producer
from pyromq.client.received import ReceivedMessage
from pyromq.errors import IllegalMessage, NoReply
from pyromq.records import property_names as names
from pyromq.testing import LocalBroker


async def answer_all(mq: LocalBroker, count: int) -> list[ReceivedMessage]:
    """A consumer that replies to this many requests with their body in capitals."""
    async with Producer(mq.name_servers, group="answerers") as producer:
        requests = await eventually(mq, "orders", count)
        for request in requests:
            await producer.reply(request, request.body.upper())
    return requests


def test_a_request_gets_its_reply() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="askers") as producer:
            answering = asyncio.ensure_future(answer_all(mq, 1))
            reply = await producer.request(Message("orders", b"how much?", tags="price"), timeout_s=5)
            (request,) = await answering
            assert reply.body == b"HOW MUCH?"
            assert reply.get_property(names.CORRELATION_ID) == request.get_property(names.CORRELATION_ID)
            assert request.get_property(names.REPLY_TO_CLIENT) == producer.client_id
            assert request.get_property(names.TIME_TO_LIVE) == "5000"
            assert request.tags == "price"
            assert reply.stored_at > 0

    run(story())


def test_many_requests_at_once_get_each_its_own_reply() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="askers") as producer:
            answering = asyncio.ensure_future(answer_all(mq, 20))
            asked = [producer.request(Message("orders", f"question {n}"), timeout_s=5) for n in range(20)]
            replies = await asyncio.gather(*asked)
            await answering
            assert [reply.text for reply in replies] == [f"QUESTION {n}" for n in range(20)]

    run(story())


def test_a_large_reply_is_compressed_and_read_again() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="askers") as producer:
            answering = asyncio.ensure_future(answer_all(mq, 1))
            reply = await producer.request(Message("orders", b"long " * 4000), timeout_s=5)
            await answering
            assert reply.body == b"LONG " * 4000
            assert reply.storage_flags & 1

    run(story())


def test_when_nobody_replies_the_request_was_sent_all_the_same() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="askers") as producer:
            with pytest.raises(NoReply, match=r"within 0\.3 s"):
                await producer.request(Message("orders", b"anybody?"), timeout_s=0.3)
            (late,) = await messages_of(mq, "orders")
            await producer.reply(late, b"too late")  # is accepted and dropped

    run(story())


def test_a_message_that_asks_for_nothing_has_no_reply() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="g") as producer:
            await producer.send("orders", b"just so you know")
            (message,) = await messages_of(mq, "orders")
            with pytest.raises(IllegalMessage, match="asks for no reply"):
                await producer.reply(message, b"thanks")

    run(story())
