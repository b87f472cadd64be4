"""`putMessageFailedTimes` counts every send that is answered with an error, on each way that a send can take."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.config import BrokerConfig, FlushConfig, OverloadConfig, StoreConfig
from pyromq.errors import StoreFenced
from pyromq.model.topic import TopicConfig
from pyromq.net.client import Client
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.admin import GetRuntimeInfo
from pyromq.wire.requests.client import Request, SendMessage


class Running:
    def __init__(self, broker: Broker, client: Client) -> None:
        self.broker = broker
        self._client = client

    async def call(self, request: Request) -> Command:
        return await self._client.call(self.broker.address, request)

    async def send(self, topic: str = "orders", **changes: object) -> int:
        message = SendMessage(producer_group="shop", topic=topic, queue_id=0, properties="", body=b"tea")
        for name, value in changes.items():
            setattr(message, name, value)
        return (await self.call(message)).code

    async def failed(self) -> int:
        table = json.loads(bytes((await self.call(GetRuntimeInfo())).body))["table"]
        return int(table["putMessageFailedTimes"])


@asynccontextmanager
async def running(root: Path, *, sync: bool = False, unsynced_bytes: int = 1 << 30) -> AsyncIterator[Running]:
    config = BrokerConfig(
        listen_port=0, vip_channel=False, overload=OverloadConfig(unsynced_bytes=unsynced_bytes),
        store=StoreConfig(root=root, segment_bytes=1 << 20, prefault_bytes=0, flush=FlushConfig(sync=sync)),
    )  # fmt: skip
    client = Client()
    try:
        async with asyncio.timeout(60), Broker(config).running() as broker:
            assert broker.parts is not None
            broker.parts.topics.make(TopicConfig("orders", 1, 1))
            yield Running(broker, client)
    finally:
        await client.close()


def test_a_send_that_the_checks_refuse_is_a_failed_one(tmp_path: Path) -> None:
    async def tell() -> None:
        async with running(tmp_path) as here:
            assert await here.send() == ResponseCode.SUCCESS
            assert await here.failed() == 0
            assert await here.send("nowhere") == ResponseCode.TOPIC_NOT_EXIST
            assert await here.send(queue_id=7) != ResponseCode.SUCCESS
            assert await here.send(properties="TIMER_DELAY_SEC\x015\x02") != ResponseCode.SUCCESS
            assert await here.send() == ResponseCode.SUCCESS
            assert await here.failed() == 3

    asyncio.run(tell())


def test_sends_that_an_overloaded_broker_refuses_are_failed_ones(tmp_path: Path) -> None:
    async def tell() -> None:
        async with running(tmp_path, unsynced_bytes=1) as here:
            marks = here.broker.store.marks
            while marks.appended.value - marks.synced.value <= 1:
                assert await here.send() == ResponseCode.SUCCESS
            before = await here.failed()
            codes = await asyncio.gather(*(here.send() for _ in range(20)))
            refused = codes.count(ResponseCode.SYSTEM_BUSY)
            assert refused
            assert await here.failed() - before == refused

    asyncio.run(tell())


def test_sends_that_the_disk_does_not_confirm_are_failed_ones(tmp_path: Path) -> None:
    async def tell() -> None:
        async with running(tmp_path) as here:
            assert await here.send() == ResponseCode.SUCCESS
            here.broker.store.fence(OSError("the disk is gone"))
            assert await here.send() != ResponseCode.SUCCESS
            assert await here.send(batch=True) != ResponseCode.SUCCESS
            assert here.broker.parts is not None
            assert here.broker.parts.statistics.failed_puts == 2

    with pytest.raises(StoreFenced):  # the broker stops with it
        asyncio.run(tell())
