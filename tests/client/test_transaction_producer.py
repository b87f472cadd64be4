"""Transactions: consumers see a message when, and only when, the local work went well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from client.support.fake_cluster import cluster
from client.support.real_broker import eventually, messages_of, real_broker, run
from pyromq.client.message import Message
from pyromq.client.received import ReceivedMessage
from pyromq.client.transaction_producer import Decision, TransactionProducer
from pyromq.errors import IllegalMessage, SendUnknown
from pyromq.testing import LocalBroker
from pyromq.wire.codes import ResponseCode

PAID = Message("orders", b"paid", keys=["o-17"])
#: Checks open transactions at short intervals.
SOON = {"transaction.timeout_ms": 200, "transaction.check_interval_ms": 100}


def not_asked(message: ReceivedMessage) -> Decision:
    raise AssertionError("nobody should ask")


@asynccontextmanager
async def scene(check: Any = not_asked, **settings: Any) -> AsyncIterator[tuple[LocalBroker, TransactionProducer]]:
    async with (
        real_broker(**settings) as mq,
        TransactionProducer(mq.name_servers, group="pay", check=check) as producer,
    ):
        yield mq, producer


def test_a_commit_delivers_the_message() -> None:
    async def story() -> None:
        async with scene() as (mq, producer):
            seen = []

            async def pay(message: Message) -> Decision:
                assert not await messages_of(mq, "orders"), "not before the work is done"
                seen.append(message)
                return Decision.COMMIT

            receipt, decision = await producer.send_in_transaction(PAID, pay)
            (found,) = await eventually(mq, "orders", 1)
            assert (seen, decision) == ([PAID], Decision.COMMIT)
            assert (found.body, found.keys, found.message_id) == (b"paid", ("o-17",), receipt.message_id)

    run(story())


def test_a_rollback_delivers_nothing() -> None:
    async def story() -> None:
        async with scene() as (mq, producer):
            await producer.send_in_transaction(PAID, lambda _: Decision.ROLLBACK)
            await producer.send_in_transaction(Message("orders", b"marker"), lambda _: Decision.COMMIT)
            assert [message.body for message in await eventually(mq, "orders", 1)] == [b"marker"]

    run(story())


def test_a_block_that_ends_well_commits_and_one_that_raises_rolls_back() -> None:
    async def story() -> None:
        async with scene() as (mq, producer):
            with pytest.raises(KeyError):
                async with producer.transaction(PAID):
                    raise KeyError("no money")
            async with producer.transaction(PAID) as undone:
                undone.roll_back()
            async with producer.transaction(Message("orders", b"marker")) as done:
                assert done.transaction_id == done.receipt.message_id
            assert [message.body for message in await eventually(mq, "orders", 1)] == [b"marker"]

    run(story())


def ends_told(failing: Any) -> list[int]:
    """Return the decisions a broker got for transactions with this local work."""
    told: list[int] = []

    async def story() -> None:
        async with (
            cluster("a") as world,
            TransactionProducer(world.name_servers, group="pay", check=not_asked) as producer,
        ):
            await failing(producer)
            async with asyncio.timeout(2):
                await world["a"].ended.wait()
            told.extend(end.decision for end in world["a"].ends)

    run(story())
    return told


def test_work_that_raises_is_unknown_to_the_broker_and_the_error_goes_on() -> None:
    async def failing(producer: TransactionProducer) -> None:
        def pay(_: Message) -> Decision:
            raise KeyError("how far did it come?")

        with pytest.raises(KeyError):
            await producer.send_in_transaction(PAID, pay)

    assert ends_told(failing) == [Decision.UNKNOWN.value]


def test_work_that_decides_nothing_is_a_mistake_that_is_shown() -> None:
    async def failing(producer: TransactionProducer) -> None:
        with pytest.raises(TypeError, match="Decision"):
            await producer.send_in_transaction(PAID, lambda _: None)  # type: ignore[arg-type,return-value]

    assert ends_told(failing) == [Decision.UNKNOWN.value]


def test_a_cancelled_block_is_unknown_to_the_broker() -> None:
    async def failing(producer: TransactionProducer) -> None:
        inside = asyncio.Event()

        async def work() -> None:
            async with producer.transaction(PAID):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(work())
        await inside.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert ends_told(failing) == [Decision.UNKNOWN.value]


def test_a_half_that_is_not_safe_is_rolled_back_and_no_work_is_done() -> None:
    async def story() -> None:
        async with (
            cluster("a") as world,
            TransactionProducer(world.name_servers, group="pay", check=not_asked) as producer,
        ):
            broker = world["a"]
            broker.decide = lambda request: broker.stored(request, ResponseCode.FLUSH_DISK_TIMEOUT)
            with pytest.raises(SendUnknown):
                await producer.send_in_transaction(PAID, lambda _: pytest.fail("no work"))
            async with asyncio.timeout(2):
                await broker.ended.wait()
            assert [end.decision for end in broker.ends] == [Decision.ROLLBACK.value]

    run(story())


def test_the_broker_asks_what_became_of_a_message_and_the_check_decides() -> None:
    async def story() -> None:
        asked: list[str] = []

        async def look_up(message: ReceivedMessage) -> Decision:
            asked.append(message.message_id)
            return Decision.UNKNOWN if len(asked) == 1 else Decision.COMMIT

        async with scene(look_up, config=SOON) as (mq, producer):
            receipt, _ = await producer.send_in_transaction(PAID, lambda _: Decision.UNKNOWN)
            (found,) = await eventually(mq, "orders", 1)
            assert found.body == b"paid"
            assert asked[:2] == [receipt.message_id] * 2

    run(story())


def test_a_check_that_fails_is_asked_again() -> None:
    async def story() -> None:
        asked: list[str] = []

        def look_up(message: ReceivedMessage) -> Decision:
            asked.append(message.body.decode())
            if len(asked) == 1:
                raise ConnectionError("the database is away")
            return Decision.COMMIT

        async with scene(look_up, config=SOON) as (mq, producer):
            await producer.send_in_transaction(PAID, lambda _: Decision.UNKNOWN)
            await eventually(mq, "orders", 1)
            assert asked == ["paid", "paid"]

    run(story())


def test_a_message_of_a_transaction_cannot_be_held_back() -> None:
    async def story() -> None:
        async with scene() as (_, producer):
            with pytest.raises(IllegalMessage, match="held back"):
                await producer.send_in_transaction(Message("orders", b"x", delay_level=2), lambda _: Decision.COMMIT)

    run(story())


def test_it_sends_ordinary_messages_too() -> None:
    async def story() -> None:
        async with scene() as (mq, producer):
            await producer.send("orders", b"plain")
            assert len(await messages_of(mq, "orders")) == 1

    run(story())
