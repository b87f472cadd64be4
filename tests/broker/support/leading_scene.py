"""Two brokers of one name that may become master and slave of each other, and a name server that may be forgetful."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from proving import Call, epochs_of, proved
from pyromq import Message, Producer
from pyromq.broker import nameserver_link
from pyromq.broker.broker import Broker
from pyromq.broker.failover import fencing
from pyromq.broker.supervisor import BrokerLife
from pyromq.config import BrokerConfig, NameServerConfig, ReplicationConfig, RetentionConfig, StoreConfig
from pyromq.nameserver.assembly import NameServer
from pyromq.net.client import Client
from pyromq.store.message_store import MessageStore, decode
from pyromq.testing.brokers.ports import free_broker_port
from pyromq.wire.bodies.epochs import BrokerEpochs
from pyromq.wire.bodies.routes import MemberGroup
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.client import Request
from pyromq.wire.requests.nameserver import GetMemberGroup
from pyromq.wire.requests.roles import PromoteBroker, RoleRequest, StepDown

SECONDS = 60
TOPIC = "orders"
SEGMENT = 1 << 16


class Scene:
    """`a` is meant to be the master, `b` the slave, and `c` another one. What they are is decided by them."""

    def __init__(self, root: Path, name_server: NameServer, role: str) -> None:
        self.root = root
        self.name_server = name_server.address
        self._role = role
        self._ports: defaultdict[str, int] = defaultdict(free_broker_port)
        self._running: dict[str, AsyncExitStack] = {}
        self.lives: dict[str, BrokerLife] = {}
        self.client = Client()

    def config(self, name: str) -> BrokerConfig:
        return BrokerConfig(
            name="pair",
            role=self._role if name == "a" else "SLAVE",
            broker_id="abc".index(name),
            listen_port=self._ports[name],
            vip_channel=False,
            name_servers=(self.name_server,),
            auto_create_topics=True,
            default_topic_queues=1,
            auto_create_groups=True,
            replication=ReplicationConfig(metadata_interval_ms=100, timeout_ms=2000, heartbeat_ms=200),
            store=StoreConfig(
                root=self.root / name,
                segment_bytes=SEGMENT,
                max_body_bytes=SEGMENT // 4,
                retention=RetentionConfig(refuse_at=1.0, resume_below=0.99),
            ),
        )

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self, name: str) -> None:
        stack = AsyncExitStack()
        self.lives[name] = await stack.enter_async_context(BrokerLife(self.config(name)).running())
        self._running[name] = stack

    async def stop(self, name: str) -> None:
        await self._running.pop(name).aclose()

    async def stop_brokers(self) -> None:
        for name in list(self._running):
            await self.stop(name)

    async def stop_all(self) -> None:
        await self.stop_brokers()
        await self.client.close()

    def of(self, name: str) -> Broker:
        return self.lives[name].broker

    def lose_end(self, name: str, position: int) -> None:
        """Shorten the log, as a crash does to one that was not flushed."""
        store = MessageStore(self.config(name).store)
        store.open(truncate_at=position)
        store.close()

    # --- asking ------------------------------------------------------------------------------------------------------

    async def ask(self, name: str, request: Request) -> Command:
        """Role requests prove the group secret."""
        if isinstance(request, RoleRequest) and not request.proof:
            request = await proved(self.line_to(name), request)
        return await self.line_to(name)(request, 20.0)

    def line_to(self, name: str) -> Call:
        return partial(self.client.call, self.of(name).address)

    async def epochs(self, name: str) -> BrokerEpochs:
        return await epochs_of(self.line_to(name))

    async def promote(self, name: str, epoch: int, **more: Any) -> Command:
        return await self.ask(name, PromoteBroker(epoch=epoch, reason="a test", **{"force": True, **more}))

    async def step_down(self, name: str, to: str, **more: Any) -> Command:
        return await self.ask(name, StepDown(to=self.of(to).address, reason="a test", **more))

    async def members(self) -> dict[int, str]:
        answer = await self.client.call(self.name_server, GetMemberGroup(broker_name="pair", cluster="DefaultCluster"))
        assert answer.code == ResponseCode.SUCCESS
        return dict(MemberGroup.decode(answer.body).addresses)

    # --- waiting -----------------------------------------------------------------------------------------------------

    async def leads(self, name: str) -> None:
        """Until a broker leads, and the name server says so."""
        await until(lambda: not self.of(name).config.is_slave and self.of(name).parts is not None)
        async with asyncio.timeout(SECONDS):
            while (await self.members()).get(0) != self.of(name).address:  # noqa: ASYNC110  nobody tells us
                await asyncio.sleep(0.02)

    async def follows(self, name: str, other: str) -> None:
        """Until a broker is a slave that has all that another has."""
        await until(lambda: self.of(name).config.is_slave and not self.seeks(name))
        await until(lambda: self.of(name).store.log.end == self.of(other).store.log.end > 0)

    def seeks(self, name: str) -> bool:
        copies = self.of(name).copies
        return copies is None or copies.seeks_master

    # --- messages ----------------------------------------------------------------------------------------------------

    async def send(self, *bodies: str) -> None:
        async with Producer(self.name_server, group="producers", attempts=20, timeout_s=20.0) as producer:
            for body in bodies:
                await producer.send(Message(TOPIC, body.encode()))

    async def part_logs(self, both_have: Iterable[str], then: Iterable[str]) -> None:
        """While `b` is away `a` loses half of the common log, and continues with other messages."""
        await self.send(*both_have)
        await self.follows("b", "a")
        await self.stop("b")
        end = self.of("a").store.log.end
        await self.stop("a")
        self.lose_end("a", end // 2)
        await self.start("a")
        await self.send(*then)

    def bodies(self, name: str) -> list[str]:
        store = self.of(name).store
        store.catch_up()
        found = store.read(TOPIC, 0, 0, max_messages=100_000, max_bytes=64 << 20)
        return [bytes(decode(view).body).decode() for view in found.records]


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():  # noqa: ASYNC110  two brokers tell each other, not us
            await asyncio.sleep(0.01)


@asynccontextmanager
async def scene_in(root: Path, role: str) -> AsyncIterator[Scene]:
    server = NameServer(NameServerConfig(listen_port=0))
    await server.start()
    scene = Scene(root, server, role)
    try:
        await scene.start("a")
        await scene.start("b")
        await until(lambda: not scene.seeks("b"))
        yield scene
    finally:
        await scene.stop_all()
        await server.stop()


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let brokers look at name servers and at each other many times a second."""
    monkeypatch.setattr(nameserver_link, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(nameserver_link, "FIRST_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(fencing, "WATCH_SECONDS", 0.1)
    monkeypatch.setattr(fencing, "TAIL_SECONDS", 0.3)


def copy_with(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    """All brokers of a test have these settings of their copies."""
    usual = Scene.config

    def config(scene: Scene, name: str) -> BrokerConfig:
        given = usual(scene, name)
        return replace(given, replication=replace(given.replication, **settings))

    monkeypatch.setattr(Scene, "config", config)


def told(root: Path, story: Callable[[Scene], Coroutine[Any, Any, None]], role: str = "SYNC_MASTER") -> None:
    async def run() -> None:
        async with asyncio.timeout(3 * SECONDS), scene_in(root, role) as scene:
            await story(scene)

    asyncio.run(run())
