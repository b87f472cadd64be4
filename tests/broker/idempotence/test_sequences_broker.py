"""Numbered messages and a whole broker: over the network, among other messages, over a stop, over a removed topic."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from broker.support.numbered_scene import NAME, WRITER, as_text, number, numbers
from pyromq.broker.broker import Broker
from pyromq.client.sending.writer_identity import writer_identity
from pyromq.config import BrokerConfig, StoreConfig
from pyromq.model.topic import TopicConfig
from pyromq.net.client import Client
from pyromq.records import record
from pyromq.wire.command import Command
from pyromq.wire.requests.admin import DeleteTopic, GetRuntimeInfo
from pyromq.wire.requests.client import IssueWriter, Request, SendMessage


class Running:
    """A broker that runs, and a client of it."""

    def __init__(self, broker: Broker, client: Client) -> None:
        self.broker = broker
        self._client = client
        self.token: str | None = None

    async def call(self, request: Request) -> Command:
        return await self._client.call(self.broker.address, request)

    async def send(self, batch: int, index: int) -> Command:
        request = message(as_text({"TAGS": "red", **number(batch, index)}))
        request.writer_token = self.token
        return await self.call(request)

    async def ask_for_identity(self) -> None:
        answer = await self.call(IssueWriter(seed=writer_identity(NAME).seed))
        assert WRITER.startswith(answer.fields["writer"] + "/")
        self.token = answer.fields["writerToken"]

    def make_topic(self) -> None:
        assert self.broker.parts is not None
        self.broker.parts.topics.make(TopicConfig("orders", 1, 1))

    def stored(self) -> list[str]:
        store = self.broker.store
        store.dispatch()
        found = store.read("orders", 0, 0, max_messages=1000).records
        return [record.decode(view).properties.get("PYROMQ_SEQUENCE", "") for view in found]

    async def figures(self) -> dict[str, str]:
        table = json.loads(bytes((await self.call(GetRuntimeInfo())).body))["table"]
        told = ("pyromq.idempotentWriters", "pyromq.writersRemembered", "pyromq.repeatsDropped")
        return {name: table[name] for name in told}


def message(properties: str) -> SendMessage:
    return SendMessage(producer_group="spark", topic="orders", queue_id=0, properties=properties, body=b"tea")


@asynccontextmanager
async def running(root: Path) -> AsyncIterator[Running]:
    store = StoreConfig(root=root, segment_bytes=1 << 20, prefault_bytes=0)
    client = Client()
    try:
        async with asyncio.timeout(60), Broker(BrokerConfig(listen_port=0, store=store)).running() as broker:
            here = Running(broker, client)
            await here.ask_for_identity()
            yield here
    finally:
        await client.close()


def test_many_at_once_keep_their_order_and_are_known_after_a_stop(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as here:
            here.make_topic()
            answers = await asyncio.gather(*(here.send(0, index) for index in range(200)))
            assert {answer.code for answer in answers} == {0}
            assert here.stored() == numbers(0, 0, 200)
            assert await here.figures() == {
                "pyromq.idempotentWriters": "true",
                "pyromq.writersRemembered": "1",
                "pyromq.repeatsDropped": "0",
            }
        async with running(tmp_path) as here:
            answers = await asyncio.gather(*(here.send(0, index) for index in range(190, 210)))
            assert [answer.fields.get("repeated") for answer in answers] == ["1"] * 10 + [None] * 10
            assert here.stored() == numbers(0, 0, 210)
            assert (await here.figures())["pyromq.repeatsDropped"] == "10"

    asyncio.run(story())


def test_messages_with_and_without_numbers_lie_in_the_order_in_which_they_were_sent(tmp_path: Path) -> None:
    """The others take the fast way, and numbered ones must not fall behind them, nor take it."""

    async def story() -> None:
        async with running(tmp_path) as here:
            here.make_topic()
            await here.send(0, 0)
            plain = message("TAGS\x01red\x02")
            turns = [call for index in range(1, 30) for call in (here.send(0, index), here.call(plain))]
            assert {answer.code for answer in await asyncio.gather(*turns)} == {0}
            assert here.stored()[1:] == [one for index in range(1, 30) for one in (f"0:{index}", "")]

    asyncio.run(story())


def test_a_gap_is_told_over_the_network(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as here:
            here.make_topic()
            answer = await here.send(3, 5)
            assert (answer.code, answer.fields) == (13, {"expected": "3:0"})

    asyncio.run(story())


def test_a_topic_that_is_removed_and_made_again_begins_anew(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as here:
            here.make_topic()
            await here.send(7, 0)
            assert (await here.call(DeleteTopic(topic="orders"))).code == 0
            here.make_topic()
            assert "repeated" not in (await here.send(0, 0)).fields
        async with running(tmp_path) as here:
            assert (await here.send(0, 0)).fields["repeated"] == "1"
            assert here.stored() == ["0:0"]

    asyncio.run(story())
