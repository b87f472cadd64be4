"""Whole brokers whose replication port strangers reach: nothing that they say acknowledges a message, or keeps a slave
out; and slaves that share an id do not count twice."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from broker.support.leading_scene import until
from pyromq import Message, Producer
from pyromq.broker.broker import Broker
from pyromq.config import BrokerConfig, NameServerConfig, ReplicationConfig, RetentionConfig, StoreConfig
from pyromq.errors import SendError
from pyromq.nameserver.assembly import NameServer
from pyromq.replication.frames import PushReader, encode_observer, encode_report
from pyromq.replication.identity import Identity
from pyromq.replication.introduction import Introduction
from pyromq.replication.primary import MAX_UNKNOWN
from pyromq.replication.stream import ReplicaStream, StreamTimes
from pyromq.testing.brokers.ports import free_broker_port, free_port
from replication.memory_log import MemoryLog

TOPIC = "orders"
SECONDS = 60


class Scene:
    """A sync master, its name server, and slaves that come and go."""

    def __init__(self, root: Path, name_server: NameServer) -> None:
        self.root = root
        self.name_servers = name_server.address
        self.port = free_broker_port()
        self.brokers: dict[str, Broker] = {}
        self.stack = contextlib.AsyncExitStack()

    def config(self, name: str, broker_id: int, **replication: Any) -> BrokerConfig:
        settings: dict[str, Any] = {"timeout_ms": 500, "heartbeat_ms": 200, "metadata_interval_ms": 100}
        is_master = broker_id == 0
        if not is_master:
            settings["primary"] = f"127.0.0.1:{self.port + 1}"
        return BrokerConfig(
            name="pair",
            role="SYNC_MASTER" if is_master else "SLAVE",
            broker_id=broker_id,
            listen_port=self.port if is_master else free_broker_port(),
            vip_channel=False,
            name_servers=(self.name_servers,) if is_master else (),
            auto_create_topics=True,
            default_topic_queues=1,
            replication=ReplicationConfig(**(settings | replication)),
            store=StoreConfig(
                root=self.root / name,
                segment_bytes=1 << 20,
                retention=RetentionConfig(refuse_at=1.0, resume_below=0.99),
            ),
        )

    async def start(self, name: str, broker_id: int, **replication: Any) -> Broker:
        broker = await self.stack.enter_async_context(Broker(self.config(name, broker_id, **replication)).running())
        self.brokers[name] = broker
        return broker

    @property
    def master(self) -> Broker:
        return self.brokers["master"]

    @property
    def copies(self) -> int:
        copies = self.master.copies
        assert copies is not None
        assert copies.primary is not None
        return copies.primary.followers.copies

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the replication port."""
        return await asyncio.open_connection("127.0.0.1", self.port + 1)

    async def send(self, body: bytes = b"x") -> None:
        async with Producer(self.name_servers, group="producers", attempts=1, timeout_s=20.0) as producer:
            await producer.send(Message(TOPIC, body))

    async def is_acknowledged(self, while_it_waits: Any = None) -> bool:
        """Send a message; `while_it_waits` is done when it is in the log."""
        end = self.master.store.log.end
        sending = asyncio.ensure_future(self.send())
        await until(lambda: self.master.store.log.end > end)
        if while_it_waits is not None:
            await while_it_waits()
        try:
            await sending
        except SendError:
            return False
        return True


@contextlib.asynccontextmanager
async def scene_in(root: Path, **replication: Any) -> AsyncIterator[Scene]:
    server = NameServer(NameServerConfig(listen_port=0))
    await server.start()
    scene = Scene(root, server)
    try:
        async with asyncio.timeout(SECONDS):
            await scene.start("master", 0, **replication)
            yield scene
    finally:
        await scene.stack.aclose()
        await server.stop()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Report everything that comes, as a copy would."""
    pushes, end = PushReader(), 0
    while data := await reader.read(1 << 16):
        for push in pushes.feed(data):
            end = max(end, push.end)
        writer.write(encode_report(end))


# --- strangers -------------------------------------------------------------------------------------------------------


def test_eight_bytes_of_a_stranger_do_not_acknowledge_a_waiting_send(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene_in(tmp_path) as scene:

            async def claim() -> None:
                _, writer = await scene.connect()
                writer.write(encode_report(scene.master.store.log.end))

            assert not await scene.is_acknowledged(claim)

    asyncio.run(story())


def test_a_stranger_that_echoes_positions_is_no_copy(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene_in(tmp_path) as scene:
            reader, writer = await scene.connect()
            writer.write(encode_report(0))
            echoing = asyncio.ensure_future(echo(reader, writer))
            assert not await scene.is_acknowledged()
            assert not await scene.is_acknowledged()
            echoing.cancel()

    asyncio.run(story())


def test_strangers_of_every_kind_keep_no_slave_out(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene_in(tmp_path, timeout_ms=20_000) as scene:
            lines = [await scene.connect() for _ in range(60)]
            for number in range(120):
                reader, writer = await scene.connect()
                writer.write((encode_report(0), encode_observer() + encode_report(0))[number % 2])
                lines.append((reader, writer))
            primary = scene.master.copies.primary if scene.master.copies is not None else None
            assert primary is not None
            await until(lambda: len(primary.followers) >= MAX_UNKNOWN)
            slave = await scene.start("slave", 1)
            lines += [await scene.connect() for _ in range(100)]
            assert await scene.is_acknowledged()
            assert slave.store.log.end == scene.master.store.log.end
            assert slave.address in {str(one.identity).split()[0] for one in primary.followers.by_name.values()}
            for _, writer in lines:
                writer.close()

    asyncio.run(story())


def test_a_handshake_without_the_secret_and_one_that_is_replayed_count_for_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene_in(tmp_path) as scene:
            told = scene.master.copies
            assert told is not None
            described = told.described(scene.master.address)
            honest = Introduction(
                cluster=described.cluster, name=described.name, identity=Identity("m", 1, "127.0.0.1:9", "", "p"),
                epochs=told.epochs, primary=described.member, secret=told._others.trust.secret,
            )  # fmt: skip
            recorded = await shaken_hands(scene, honest)
            assert scene.copies == 1
            assert "m" in {one.member for one in told._leading.known.members}, "although nobody answers at its address"
            await until(lambda: scene.copies == 0)
            for words in (recorded, await shaken_hands(scene, replace(honest, secret=None))):
                reader, writer = await scene.connect()
                for part in words:
                    writer.write(part)
                    await reader.read(1 << 16)
                assert scene.copies == 0
                assert not await scene.is_acknowledged(partial(said, scene, writer))
                writer.close()

    asyncio.run(story())


async def said(scene: Scene, writer: asyncio.StreamWriter) -> None:
    writer.write(encode_report(scene.master.store.log.end))


async def shaken_hands(scene: Scene, told: Introduction) -> list[bytes]:
    """Follow with an empty log, and leave; what was said."""
    taking = ReplicaStream(MemoryLog(), times=StreamTimes(), now_ms=0, introduction=told)
    reader, writer = await scene.connect()
    words = [taking.hello(0)]
    writer.write(words[0])
    while not taking.is_accepted:
        taking.received(await reader.read(1 << 16), 0)
        words.append(taking.report(0))
        writer.write(words[-1])
    primary = scene.master.copies.primary if scene.master.copies else None
    assert primary is not None
    await until(lambda: len(primary.followers) == 1)
    writer.close()
    return words


# --- slaves that share an id -----------------------------------------------------------------------------------------


async def problem_of(slave: Broker, reason: str) -> str:
    """Wait until a slave does not replicate for this reason. Before it, a connection may have failed for another."""
    assert slave.copies is not None
    replica = slave.copies.replica
    assert replica is not None
    await until(lambda: reason in (replica.state.problem or ""))
    return replica.state.problem or ""


def test_two_slaves_with_one_broker_id_are_one_copy_and_both_sides_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with scene_in(tmp_path, copies=3) as scene:
            await scene.start("first", 1)
            await until(lambda: scene.copies == 1)
            problem = await problem_of(await scene.start("second", 1), "has the broker id 1, and so has")
            assert scene.brokers["first"].address in problem
            assert scene.copies == 1
            assert not await scene.is_acknowledged()

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    lines = [record.getMessage() for record in caplog.records if "has the broker id 1" in record.getMessage()]
    assert any(line.startswith("the replica") for line in lines), "the master says it"
    assert any(line.startswith("the copy of") for line in lines), "and the slave"


def test_a_copied_store_of_a_slave_is_no_second_copy(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene_in(tmp_path, copies=3) as scene:
            async with Broker(scene.config("first", 1)).running():
                await until(lambda: scene.copies == 1)
            await until(lambda: scene.copies == 0)
            shutil.copytree(tmp_path / "first", tmp_path / "second")
            await scene.start("first", 1)
            await until(lambda: scene.copies == 1)
            await problem_of(await scene.start("second", 2), "one store is a copy of the other")
            assert scene.copies == 1

    asyncio.run(story())


def test_a_slave_that_counts_is_in_the_masters_leadership_file(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene_in(tmp_path) as scene:
            slave = await scene.start("slave", 1)
            await until(lambda: scene.copies == 1)
            assert slave.copies is not None
            known = orjson.loads((tmp_path / "master" / "config" / "leadership.json").read_bytes())["members"]
            assert [(one["member"], one["brokerId"], one["address"]) for one in known] == [
                (slave.copies._leading.known.member, 1, slave.address)
            ]
            assert await scene.is_acknowledged()

    asyncio.run(story())


def test_a_slave_that_comes_back_counts_at_once_for_what_it_has(tmp_path: Path) -> None:
    """Its end is proved by the handshake: nothing has to be sent for it."""

    async def story() -> None:
        async with scene_in(tmp_path, timeout_ms=20_000) as scene:
            async with Broker(scene.config("slave", 1)).running() as slave:
                await until(lambda: scene.copies == 1)
                assert await scene.is_acknowledged()
                await until(lambda: slave.store.log.end == scene.master.store.log.end)
            await until(lambda: scene.copies == 0)
            await scene.start("slave", 1)
            await until(lambda: scene.copies == 1)
            copies = scene.master.copies
            assert copies is not None
            assert copies.primary is not None
            end = scene.master.store.log.end
            assert copies.primary.followers.replicated(2, end) == end

    asyncio.run(story())


def test_a_replaced_slave_is_waited_for_until_the_new_one_has_everything(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene_in(tmp_path, timeout_ms=20_000) as scene:
            async with Broker(scene.config("old", 1)).running():
                assert await scene.is_acknowledged()
            new = await scene.start("new", 1)
            assert await scene.is_acknowledged()
            assert new.copies is not None
            member = new.copies._leading.known.member
            place = tmp_path / "master" / "config" / "leadership.json"
            await until(lambda: [one["member"] for one in orjson.loads(place.read_bytes())["members"]] == [member])

    asyncio.run(story())


# --- brokers that the settings name ----------------------------------------------------------------------------------


def test_a_configured_slave_of_apaches_counts_from_what_it_was_sent(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene_in(tmp_path, members=("1@127.0.0.1:10911",)) as scene:
            reader, writer = await scene.connect()
            writer.write(encode_report(0))
            await until(lambda: scene.copies == 1)
            known = orjson.loads((tmp_path / "master" / "config" / "leadership.json").read_bytes())["members"]
            assert [(one["brokerId"], one["address"]) for one in known] == [(1, "127.0.0.1:10911")]
            echoing = asyncio.ensure_future(echo(reader, writer))
            assert await scene.is_acknowledged()
            echoing.cancel()
            writer.close()
            await until(lambda: scene.copies == 0)

            async def claim() -> None:
                _, again = await scene.connect()
                again.write(encode_report(scene.master.store.log.end))

            assert not await scene.is_acknowledged(claim), "nothing was sent on its new connection"

    asyncio.run(story())


@pytest.mark.parametrize("is_named", [True, False])
def test_a_slave_finds_a_master_whose_replication_port_is_any_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_named: bool
) -> None:
    async def story() -> None:
        ha_port = free_port()
        async with scene_in(tmp_path, listen_port=ha_port, timeout_ms=20_000) as scene:
            members = (f"0@{scene.master.address}",) if is_named else ()
            primary = f"127.0.0.1:{ha_port}"
            with caplog.at_level(logging.WARNING, logger="pyromq.broker"):
                slave = await scene.start("slave", 1, primary=primary, members=members)
                assert slave.copies is not None
                await until(lambda: slave.copies is not None and not slave.copies.seeks_master)
            assert "no broker answers at" not in caplog.text
            assert await scene.is_acknowledged()
            assert slave.parts is not None
            parts = slave.parts
            await until(lambda: parts.metadata_copy.is_complete)

    asyncio.run(story())
