"""Sending to a real broker: every kind of send, and the stored messages."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from client.support.real_broker import eventually, messages_of, real_broker, run
from pyromq.client.message import Message
from pyromq.client.producer import Producer
from pyromq.client.sending.batching import BatchOptions
from pyromq.client.sending.queue_choice import queue_of_key
from pyromq.errors import ClientClosed, ConfigError, IllegalMessage, IllegalName
from pyromq.model.queue import MessageQueue


def test_what_was_sent_is_there_with_everything_it_had() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="signup") as producer:
            sent = Message(
                "orders", "grüße", tags="paid", keys=["o-17", "u-3"], properties={"country": "IT"}, user_flag=7
            )
            receipt = await producer.send(sent)
            (found,) = await messages_of(mq, "orders")
            assert (found.body, found.tags, found.keys) == (sent.body, "paid", ("o-17", "u-3"))
            assert (found.properties, found.user_flag) == ({"country": "IT"}, 7)
            assert found.message_id == receipt.message_id
            assert found.offset_message_id == receipt.offset_message_id
            assert (found.queue, found.queue_offset) == (receipt.queue, receipt.queue_offset)

    run(story())


def test_topic_and_body_are_enough() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="g") as producer:
            await producer.send("orders", b"hello", tags="t", keys="k")
            (found,) = await messages_of(mq, "orders")
            assert (found.body, found.tags, found.keys) == (b"hello", "t", ("k",))
            with pytest.raises(TypeError, match="not both"):
                await producer.send(Message("orders", b"x"), b"y")  # type: ignore[call-overload]

    run(story())


def test_messages_go_round_all_queues() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="g") as producer:
            receipts = [await producer.send("orders", b"x") for _ in range(8)]
            assert Counter(receipt.queue.queue_id for receipt in receipts) == {0: 2, 1: 2, 2: 2, 3: 2}

    run(story())


def test_a_topic_comes_into_being_with_its_first_message() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="g", topic_queues=2) as producer:
            await producer.send("brand-new", b"first")
            assert len(await messages_of(mq, "brand-new")) == 1
            for _ in range(3):
                assert (await producer.send("brand-new", b"more")).queue.queue_id < 2

    run(story())


def test_messages_with_one_key_keep_their_order_in_one_queue() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="g") as producer:
            for number in range(10):
                await producer.send("orders", b"%d" % number, sharding_key="order-17")
            found = await messages_of(mq, "orders")
            assert [message.body for message in found] == [b"%d" % number for number in range(10)]
            assert {message.queue for message in found} == {queue_of_key(await producer.queues("orders"), "order-17")}

    run(story())


def test_the_program_chooses_the_queue() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="g") as producer:
            last = await producer.send("orders", b"x", select=lambda queues, message: queues[-1])
            assert last.queue.queue_id == 3
            second = (await producer.queues("orders"))[1]
            assert (await producer.send("orders", b"x", queue=second)).queue == second
            with pytest.raises(IllegalMessage, match="queue is one of"):
                await producer.send("orders", b"x", queue=MessageQueue("users", second.broker_name, 0))

    run(story())


@pytest.mark.parametrize("compression", ["zlib", "lz4", "zstd"])
def test_large_bodies_are_compressed_on_the_way(compression: str) -> None:
    async def story() -> None:
        async with (
            real_broker() as mq,
            Producer(mq.name_servers, group="g", compression=compression) as producer,  # type: ignore[arg-type]
        ):
            body = b"again and again " * 1000
            await producer.send("orders", body)
            (found,) = await messages_of(mq, "orders")
            assert found.storage_flags & 1
            assert found.size < len(body) / 4
            assert found.body == body

    run(story())


def test_a_message_can_be_handed_over_without_waiting() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="g") as producer:
            await producer.send_one_way(Message("orders", b"and gone"))
            (found,) = await eventually(mq, "orders", 1)
            assert found.body == b"and gone"

    run(story())


def test_a_delayed_message_comes_later() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="g") as producer:
            await producer.send("orders", b"later", delay_level=1)
            assert not await messages_of(mq, "orders")
            (found,) = await eventually(mq, "orders", 1)
            assert found.body == b"later"

    run(story())


# --- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_stays_together_and_each_message_has_its_receipt() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="g") as producer:
            batch = [Message("orders", b"%d" % number, keys=[f"k{number}"]) for number in range(20)]
            receipts = await producer.send_batch(batch)
            found = await messages_of(mq, "orders")
            assert [message.body for message in found] == [message.body for message in batch]
            assert [message.message_id for message in found] == [receipt.message_id for receipt in receipts]
            assert [message.offset_message_id for message in found] == [one.offset_message_id for one in receipts]
            assert [message.queue_offset for message in found] == [receipt.queue_offset for receipt in receipts]

    run(story())


def test_a_batch_above_the_limit_is_sent_in_parts_to_one_queue() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="g", max_message_bytes=4000) as producer:
            receipts = await producer.send_batch([Message("orders", b"x" * 1000) for _ in range(10)])
            assert [receipt.queue_offset for receipt in receipts] == list(range(10))
            assert len({receipt.queue for receipt in receipts}) == 1

    run(story())


def test_what_cannot_be_in_a_batch_is_refused_before_anything_is_sent() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="g") as producer:
            good = Message("orders", b"x")
            with pytest.raises(IllegalMessage, match="one topic"):
                await producer.send_batch([good, Message("users", b"x")])
            with pytest.raises(IllegalMessage, match="held back"):
                await producer.send_batch([good, Message("orders", b"x", delay_level=3)])
            assert await producer.send_batch([]) == []
            assert not await messages_of(mq, "orders")

    run(story())


def test_automatic_batches_keep_every_message_and_every_receipt_is_right() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="g", auto_batch=True) as producer:
            receipts = await asyncio.gather(*(producer.send("orders", b"%d" % number) for number in range(1500)))
            found = {message.message_id: message for message in await messages_of(mq, "orders")}
            assert len(found) == 1500
            for number, receipt in enumerate(receipts):
                message = found[receipt.message_id]
                assert message.body == b"%d" % number
                assert (message.queue, message.queue_offset) == (receipt.queue, receipt.queue_offset)
                assert message.offset_message_id == receipt.offset_message_id

    run(story())


def test_automatic_batches_take_keys_to_their_queues_and_leave_the_rest_alone() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="g", auto_batch=True) as producer:
            queues = await producer.queues("orders")
            keyed = [producer.send("orders", b"x", sharding_key=f"key-{number}") for number in range(30)]
            large = producer.send("orders", b"y" * 10_000)
            receipts = await asyncio.gather(*keyed, large)
            for number, receipt in enumerate(receipts[:-1]):
                assert receipt.queue == queue_of_key(queues, f"key-{number}")
            assert sum(message.storage_flags & 1 for message in await messages_of(mq, "orders")) == 1

    run(story())


def test_a_lone_message_does_not_wait_for_company() -> None:
    async def story() -> None:
        async with real_broker() as mq, Producer(mq.name_servers, group="g", auto_batch=True) as producer:
            await producer.send("orders", b"first")
            async with asyncio.timeout(2):
                for _ in range(20):
                    await producer.send("orders", b"x")

    run(story())


def test_closing_sends_what_was_handed_over() -> None:
    async def story() -> None:
        async with real_broker() as mq:
            async with Producer(mq.name_servers, group="g", auto_batch=BatchOptions(linger_s=30)) as producer:
                waiting = asyncio.ensure_future(producer.send("orders", b"wait for me"))
                await asyncio.sleep(0)
            assert (await waiting).queue_offset == 0
            assert len(await messages_of(mq, "orders")) == 1

    run(story())


def test_a_send_waits_when_too_much_is_under_way() -> None:
    async def story() -> None:
        small = BatchOptions(max_waiting_bytes=2000, max_messages=4)
        async with real_broker() as mq, Producer(mq.name_servers, group="g", auto_batch=small) as producer:
            await asyncio.gather(*(producer.send("orders", b"x" * 500) for _ in range(100)))
            assert len(await messages_of(mq, "orders")) == 100

    run(story())


# --- refused at once -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message("orders", b""), IllegalMessage),
        (Message("orders", b"x" * 2000), IllegalMessage),
        (Message("", b"x"), IllegalName),
        (Message("t" * 128, b"x"), IllegalName),
        (Message("orders", b"x", properties={"TAGS": "mine"}), IllegalMessage),
        (Message("orders", b"x", properties={"a": "\x02"}), IllegalMessage),
        (Message("orders", b"x", properties={"a": "\ud800"}), IllegalMessage),
        (Message("orders", b"x", properties={"a": "v" * 40_000}), IllegalMessage),
        (Message("orders", b"x", keys=["two words"]), IllegalMessage),
    ],
)
@pytest.mark.parametrize("auto_batch", [False, True])
def test_an_illegal_message_is_refused_before_it_is_sent(
    message: Message, error: type[Exception], auto_batch: bool
) -> None:
    async def story() -> None:
        nobody = "127.0.0.1:1"  # nothing may be sent
        async with Producer(nobody, group="g", max_message_bytes=1000, auto_batch=auto_batch) as producer:
            with pytest.raises(error):
                await producer.send(message)

    run(story())


@pytest.mark.parametrize(
    "settings",
    [{"group": " "}, {"attempts": 0}, {"timeout_s": 0}, {"compression": "gzip"}, {"topic_queues": 0},
     {"max_message_bytes": 0}],
)  # fmt: skip
def test_settings_that_cannot_be_used_are_named(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Producer("127.0.0.1:1", **{"group": "g", **settings})  # type: ignore[arg-type]


def test_a_producer_that_is_not_running_says_so() -> None:
    async def story() -> None:
        producer = Producer("127.0.0.1:1", group="g")
        with pytest.raises(ClientClosed):
            await producer.send("orders", b"x")
        async with producer:
            pass
        with pytest.raises(ClientClosed):
            await producer.send("orders", b"x")
        await producer.close()

    run(story())
