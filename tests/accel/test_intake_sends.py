"""Sends from many connections of a whole broker, read together or each by its transport: stored and answered alike."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.support.lone_client import SEND, frame
from pyromq.broker.broker import Broker
from pyromq.config import BrokerConfig, FlushConfig, StoreConfig
from pyromq.model.topic import TopicConfig
from pyromq.wire.command import Command
from pyromq.wire.frames import decode_frame
from store.support import read_all

PEERS, ROUNDS = 5, 20
READINGS = ["each", "together"]


def send(correlation_id: int, body: bytes, **changes: str) -> bytes:
    return frame(310, SEND | changes, correlation_id, body)


async def answer(reader: asyncio.StreamReader) -> Command:
    size = await reader.readexactly(4)
    frame = size + await reader.readexactly(int.from_bytes(size, "big"))
    return decode_frame(memoryview(frame), 0, len(frame))


async def one_by_one(port: int, number: int) -> list[tuple[int, int]]:
    """A peer with one send in flight: code and correlation id of each answer. Every fifth needs the ordinary way."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    seen = []
    for turn in range(ROUNDS):
        properties = "TAGS\x01red\x02" + ("CLUSTER\x01c\x02" if turn % 5 == 4 else "")
        request = send(turn, b"%d/%d" % (number, turn), i=properties, e=str(number % 4))
        writer.write(request[:30])  # in two pieces now and then
        if turn % 3 == 0:
            await asyncio.sleep(0)
        writer.write(request[30:])
        got = await answer(reader)
        seen.append((got.code, got.correlation_id))
    writer.close()
    return seen


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("reading", READINGS)
def test_every_send_is_answered_and_stored_once(
    reading: str, sync: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reading == "each":
        monkeypatch.setattr("pyromq.broker.broker.new_intake", lambda: None)
    store = StoreConfig(root=tmp_path, segment_bytes=1 << 20, prefault_bytes=0, flush=FlushConfig(sync=sync))

    async def story() -> list[str]:
        async with asyncio.timeout(30), Broker(BrokerConfig(listen_port=0, store=store)).running() as broker:
            assert broker.parts is not None
            broker.parts.topics.make(TopicConfig("orders", 4, 4))
            port = broker.server.port
            answers = await asyncio.gather(*(one_by_one(port, number) for number in range(PEERS)))
            assert answers == [[(0, turn) for turn in range(ROUNDS)]] * PEERS
            return sorted(_bodies(broker))

    stored = asyncio.run(story())
    assert stored == sorted(f"{number}/{turn}" for number in range(PEERS) for turn in range(ROUNDS))


def _bodies(broker: Broker) -> list[str]:
    broker.store.dispatch()
    return [body.decode() for queue in range(4) for body in read_all(broker.store, queue=queue)]
