"""The port two below: clients with their VIP channel switched on send there and find the same broker."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.config import BrokerConfig, StoreConfig
from pyromq.errors import Unreachable
from pyromq.net.client import Client
from pyromq.wire.requests.admin import GetTopic

PLACE = "127.0.0.1"


def two_ports() -> tuple[int, int]:
    """A port and the one two below, both free."""
    for _ in range(100):
        with socket.socket() as high, socket.socket() as low:
            high.bind((PLACE, 0))
            port = int(high.getsockname()[1])
            try:
                low.bind((PLACE, port - 2))
            except OSError:
                continue
            return port, port - 2
    raise AssertionError("no two ports are free")


async def code_at(port: int) -> int:
    client = Client()
    try:
        return (await client.call(f"{PLACE}:{port}", GetTopic(topic="SELF_TEST_TOPIC"))).code
    finally:
        await client.close()


def broker(root: Path, port: int, *, vip_channel: bool = True) -> Broker:
    store = StoreConfig(root=root, segment_bytes=1 << 20, prefault_bytes=0)
    return Broker(BrokerConfig(listen_port=port, vip_channel=vip_channel, store=store))


def test_the_same_broker_answers_two_ports_below(tmp_path: Path) -> None:
    port, vip = two_ports()

    async def story() -> None:
        async with broker(tmp_path, port).running() as here:
            assert here.address == f"{PLACE}:{port}"
            assert (await code_at(port), await code_at(vip)) == (0, 0)
        with pytest.raises(Unreachable):
            await code_at(vip)

    asyncio.run(story())


def test_a_broker_goes_on_without_a_port_that_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port, vip = two_ports()

    async def story() -> None:
        with socket.create_server((PLACE, vip)):
            async with broker(tmp_path, port).running():
                assert await code_at(port) == 0

    with caplog.at_level(logging.INFO):
        asyncio.run(story())
    assert f"cannot listen on {PLACE}:{vip}" in caplog.text
    assert [line for line in caplog.records if line.levelno > logging.INFO] == []


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    port, vip = two_ports()

    async def story() -> None:
        async with broker(tmp_path, port, vip_channel=False).running():
            assert await code_at(port) == 0
            with pytest.raises(Unreachable):
                await code_at(vip)

    asyncio.run(story())
