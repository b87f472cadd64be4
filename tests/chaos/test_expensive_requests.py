"""Requests that cost a server much, sent to real processes: others are served all the while, and memory is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import orjson
import pytest

from chaos.support.client import Gone, Wire, connected, send
from chaos.support.server import Server
from chaos.test_slow_readers import peak_of
from late import in_time
from pyromq.records.batch import encode_batch
from pyromq.wire.codes import RequestCode, ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests import admin as ask
from pyromq.wire.requests import nameserver
from pyromq.wire.requests.client import PullMessage, Request, encode_request

MIB = 1 << 20
FRAME = 16 * MIB - 4096
#: What another client may wait. A request takes less than 100 ms of it; machines that run tests have few cores.
SERVED_SECONDS = 1.0
#: A request takes 64 MiB at most; the frame that it came in is not all of them.
REQUEST_MIB = 64
QUEUES = 4096

LINES = b"a\n" * (FRAME // 2)
VALUES = b"[" + b"[]," * (FRAME // 3 - 2) + b"[]]"
LONG = " OR ".join(f"b = 'x{number}'" for number in range(1000))
#: Codes of the broker whose bodies are JSON.
JSON = (
    RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ, RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.QUERY_ASSIGNMENT, RequestCode.SET_MESSAGE_REQUEST_MODE,
)  # fmt: skip


def _pull() -> PullMessage:
    return PullMessage(
        group="g", topic="sql", queue_id=0, offset=0, max_messages=32, flags=4, suspend_ms=0, subscription=LONG,
        expression_type="SQL92",
    )  # fmt: skip


def _empty() -> Command:
    return send("empty", encode_batch([(0, b"", b"")] * 190_000), code=RequestCode.SEND_BATCH_MESSAGE)


#: Of each case: what each of some connections asks, and how many connections there are.
CASES: dict[str, tuple[Callable[[], list[Command | Request]], int]] = {
    "settings": (lambda: [ask.UpdateBrokerConfig(body=LINES)], 1),
    "json": (lambda: [Command(code=code, body=VALUES) for code in JSON], 1),
    "the same topic again and again": (lambda: [ask.GetConsumeStats(group="g", topics=";".join(["big"] * 60))], 4),
    "statistics": (lambda: [ask.GetTopicStats(topic="big")] * 50, 1),
    "expressions": (lambda: [_pull()] * 20, 10),
    "a batch": (lambda: [_empty()], 2),
}


@contextlib.asynccontextmanager
async def somebody_else(port: int) -> AsyncIterator[None]:
    """Asks something small all the while. Raises TookTooLong if an answer took too long."""
    longest = 0.0

    async def keep_asking(wire: Wire) -> None:
        nonlocal longest
        while True:
            began = time.monotonic()
            await wire.call(Command(code=RequestCode.GET_MAX_OFFSET, fields={"topic": "big", "queueId": "0"}))
            longest = max(longest, time.monotonic() - began)
            await asyncio.sleep(0.005)

    async with connected(port) as wire:
        asking = asyncio.ensure_future(keep_asking(wire))
        try:
            yield
        finally:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
    in_time(longest, SERVED_SECONDS, "an answer to somebody else")


async def all_answered(port: int, requests: list[Command | Request]) -> None:
    async with connected(port) as wire:
        answers = [wire.put(encode_request(one, 0) if isinstance(one, Request) else one) for one in requests]
        async with asyncio.timeout(60):
            for answer in answers:
                with contextlib.suppress(Gone):
                    await answer


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("expensive")) as server:
        asyncio.run(_fill(server))
        yield server


async def _fill(server: Server) -> None:
    topics = [{"topicName": "big", "readQueueNums": QUEUES, "writeQueueNums": QUEUES}]
    messages = [(0, b"x", b"a\x01%d\x02b\x01some text to look for\x02" % number) for number in range(1000)]
    async with connected(server.port) as wire:
        for command in (
            ask.UpdateTopicList(body=orjson.dumps({"topicConfigList": topics})),
            ask.UpdateGroup(body=orjson.dumps({"groupName": "g"})),
            send("sql", encode_batch(messages), code=RequestCode.SEND_BATCH_MESSAGE),
        ):
            answer = await wire.call(command)
            assert answer.code == ResponseCode.SUCCESS, answer.reason


@pytest.mark.parametrize("name", CASES)
def test_a_broker_serves_others_while_somebody_asks_for_much(broker: Server, name: str) -> None:
    make, connections = CASES[name]

    async def story() -> None:
        requests = [make() for _ in range(connections)]
        base = broker.anonymous_kib() >> 10
        with peak_of(broker) as peak:
            async with somebody_else(broker.port):
                await asyncio.gather(*(all_answered(broker.port, some) for some in requests))
        print(f"{name}: {peak[0] - base} MiB")
        assert peak[0] - base < REQUEST_MIB * max(1, connections // 2)

    asyncio.run(story())
    assert broker.is_running()


@pytest.mark.parametrize("shape", [LINES, VALUES], ids=["lines", "values"])
def test_a_name_server_serves_others_while_somebody_asks_for_much(tmp_path: Path, shape: bytes) -> None:
    registration = nameserver.RegisterBroker(
        cluster="c", broker_name="b", broker_id=0, address="10.0.0.1:10911", body=shape
    )

    async def story(server: Server) -> None:
        requests: list[Command | Request] = [nameserver.UpdateNameServerConfig(body=shape), registration]
        base = server.anonymous_kib() >> 10
        with peak_of(server) as peak:
            async with somebody_else(server.port):
                await all_answered(server.port, requests)
        assert peak[0] - base < REQUEST_MIB

    with Server(tmp_path, settings="", program="nameserver") as server:
        asyncio.run(story(server))
