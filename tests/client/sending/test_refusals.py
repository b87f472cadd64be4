"""A client without access or with the wrong protocol: one error of its own type, with advice."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from client.support.fake_broker import TOPIC, FakeBroker
from client.support.fake_cluster import cluster
from pyromq.client.message import Message
from pyromq.client.producer import Producer
from pyromq.client.pull_consumer import PullConsumer
from pyromq.client.push_consumer import PushConsumer
from pyromq.errors import NoPermission, SendFailed, SendUnknown, TlsFailed, Unreachable
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import GetConsumerList, Heartbeat, PullMessage
from pyromq.wire.responses import Response

HELLO = Message("orders", b"hello")
UNSIGNED = Response(code=ResponseCode.NO_PERMISSION, reason="check signature failed.")


# --- keys ------------------------------------------------------------------------------------------------------------


def test_a_send_that_every_broker_forbids_is_no_permission_and_not_just_a_failure() -> None:
    async def story() -> None:
        async with cluster("a", "b") as world, Producer(world.name_servers, group="g") as producer:
            for broker in world.brokers.values():
                broker.refuse(ResponseCode.NO_PERMISSION)
            with pytest.raises(NoPermission, match=r"'orders' is not stored, after 3 tries: .*said the story"):
                await producer.send(HELLO)
            world["b"].refuse(ResponseCode.SYSTEM_BUSY)
            with pytest.raises(SendFailed):
                await producer.send(HELLO)

    asyncio.run(story())


def push(broker: FakeBroker) -> PushConsumer:
    consumer = PushConsumer(broker.address, group="mailer")
    consumer.subscribe(TOPIC, lambda _: None)
    return consumer


def test_a_consumer_whose_keys_no_broker_accepts_does_not_start() -> None:
    async def story() -> None:
        async with FakeBroker().running() as broker:
            broker.answers[Heartbeat] = lambda _: UNSIGNED
            with pytest.raises(NoPermission, match=r"the secret key is not the one .*: check the credentials"):
                await push(broker).start()
            async with PullConsumer(broker.address, group="mailer") as polling:
                with pytest.raises(NoPermission, match="check the credentials"):
                    await polling.subscribe(TOPIC)
            assert not broker.all_of(PullMessage)

    asyncio.run(story())


def test_a_consumer_whose_keys_are_taken_away_tries_on_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with FakeBroker().running() as broker, push(broker) as consumer:
            broker.answers[GetConsumerList] = lambda _: UNSIGNED
            member = consumer._member
            assert member is not None
            for _ in range(5):
                await member.look()
            assert consumer.queues, "what is ours stays ours"

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert caplog.text.count(f"the queues of {TOPIC} are not shared out anew") == 1


# --- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("accurate timer message is not enabled, timerWheelEnable is false", SendFailed),
        ("timer message is under flow control, max num limit is 2", SendFailed),
        ("store putMessage return null", SendUnknown),
    ],
)
def test_a_system_error_is_certain_only_where_its_reason_is(reason: str, error: type[Exception]) -> None:
    async def story() -> None:
        async with cluster("a") as world, Producer(world.name_servers, group="g") as producer:
            world["a"].decide = lambda _: Response(code=ResponseCode.SYSTEM_ERROR, reason=reason)
            with pytest.raises(error, match=reason):
                await producer.send(Message("orders", b"later", deliver_after=1))

    asyncio.run(story())


# --- TLS -------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def hanging_up(first_read: int = 1) -> AsyncIterator[str]:
    """A server that takes something and closes, as one does that wants, or does not want, TLS."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(first_read)
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


def test_plain_text_to_a_server_that_hangs_up_asks_about_tls() -> None:
    async def story() -> None:
        async with hanging_up() as address, Producer(address, group="g") as producer:
            with pytest.raises(SendFailed, match=rf"{address} closed the connection .* perhaps want TLS \(`tls=`"):
                await producer.send(HELLO)

    asyncio.run(story())


def test_a_connection_that_worked_and_broke_does_not_ask_about_tls() -> None:
    async def story() -> None:
        async with FakeBroker().running() as broker, PullConsumer(broker.address, group="mailer") as consumer:
            await consumer.subscribe(TOPIC)
            connection = await consumer._session.connect(broker.address)
            broker.answers[GetConsumerList] = lambda _: connection.abort()
            with pytest.raises(Unreachable, match=r"broke$"):
                await consumer._session.ask(broker.address, GetConsumerList(group="mailer"))

    asyncio.run(story())


@pytest.mark.parametrize("first_read", [1, 1 << 16])
def test_tls_to_a_server_that_hangs_up_is_tls_failed_whoever_asks(first_read: int) -> None:
    """With bytes left unread the connection is reset; without, it ends."""

    async def story() -> None:
        tls = ssl.create_default_context()
        async with hanging_up(first_read) as address, Producer(address, group="g", tls=tls) as producer:
            with pytest.raises(TlsFailed, match=f"{address} hung up when this client began with TLS"):
                await producer.send(HELLO)
            consumer = PushConsumer(address, group="mailer", tls=tls)
            consumer.subscribe(TOPIC, lambda _: None)
            with pytest.raises(TlsFailed, match="does it speak TLS"):
                await consumer.start()

    asyncio.run(story())


def test_one_name_server_without_tls_and_one_that_is_gone_are_both_named() -> None:
    async def story() -> None:
        async with hanging_up() as address:
            servers = [address, "127.0.0.1:1"]
            async with Producer(servers, group="g", tls=ssl.create_default_context()) as producer:
                with pytest.raises(SendFailed, match=rf"{address} hung up .*127\.0\.0\.1:1.*`pyromq up`"):
                    await producer.send(HELLO)

    asyncio.run(story())
