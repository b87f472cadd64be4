"""Two brokers and two name servers, each a process of its own behind a proxy: a cluster that a test can hurt."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from chaos.support.client import connected
from chaos.support.server import Server
from pyromq.model.topic import Permission
from pyromq.testing import FaultProxy
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.admin import UpdateTopic
from pyromq.wire.requests.client import Request
from pyromq.wire.requests.nameserver import GetRoute, PutKv

#: Everything that waits for minutes in real life waits for seconds here.
BROKER = """
name = "{name}"
name_servers = [{name_servers}]
advertise_host = "127.0.0.1"
advertise_port = {advertised}
vip_channel = false
auto_create_topics = true
auto_create_groups = true
register_interval_ms = 1000
client_expiry_ms = 8000
queue_lock_expiry_ms = 4000
offsets_flush_interval_ms = 200
config_flush_interval_ms = 200
transaction.timeout_ms = 1000
transaction.check_interval_ms = 500
transaction.check_max = 200
limits.stop_grace_ms = 300
store.segment_bytes = 16777216
store.queue_file_entries = 20000
store.index_slots = 5000
store.index_entries = 20000
store.prefault_bytes = 0
store.retention.refuse_at = 1.0
store.retention.resume_below = 0.99
"""
NAME_SERVER = """
kv_config_path = "kv.json"
order_messages_enabled = true
"""
BROKERS = ("broker-a", "broker-b")
ROUTE_SECONDS = 10.0


class Cluster:
    """Clients are given `addresses`, and reach everything through proxies; the test reaches it directly."""

    def __init__(self, home: Path, topics: Mapping[str, int], ordered: frozenset[str] = frozenset()) -> None:
        """`topics` with their queues on each broker; those in `ordered` keep all queues while a broker is away."""
        self._home = home
        self._topics = topics
        self._ordered = ordered
        self._open = AsyncExitStack()
        self.name_servers = [self._server(f"ns-{number}", NAME_SERVER, "nameserver") for number in (1, 2)]
        self.name_server_proxies = [FaultProxy() for _ in self.name_servers]
        self.brokers: dict[str, Server] = {}
        self.proxies = {name: FaultProxy() for name in BROKERS}
        #: Of each broker. It may forget the latest progress then.
        self.kills: Counter[str] = Counter()

    def _server(self, name: str, settings: str, program: str = "broker") -> Server:
        home = self._home / name
        home.mkdir()
        return Server(home, settings=settings, program=program)

    @property
    def addresses(self) -> str:
        return ";".join(proxy.address for proxy in self.name_server_proxies)

    # --- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _start(self) -> None:
        for proxy, server in zip(self.name_server_proxies, self.name_servers, strict=True):
            proxy.target = f"127.0.0.1:{server.port}"
            await self._open.enter_async_context(proxy)
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in self.name_servers))
        known = ", ".join(f'"127.0.0.1:{server.port}"' for server in self.name_servers)
        for name, proxy in self.proxies.items():
            await self._open.enter_async_context(proxy)
            settings = BROKER.format(name=name, name_servers=known, advertised=proxy.port)
            broker = self.brokers[name] = self._server(name, settings)
            proxy.target = f"127.0.0.1:{broker.port}"
        await asyncio.gather(*(asyncio.to_thread(broker.start) for broker in self.brokers.values()))
        await self._make_topics()

    async def _stop(self) -> None:
        for server in (*self.brokers.values(), *self.name_servers):
            if server.is_running():
                await asyncio.to_thread(server.kill)
        await self._open.aclose()

    async def _make_topics(self) -> None:
        for topic, queues in self._topics.items():
            request = UpdateTopic(
                topic=topic, read_queues=queues, write_queues=queues, permission=int(Permission.READ_WRITE)
            )
            for broker in self.brokers.values():
                await _ask(broker.port, request)
            if topic in self._ordered:
                where = ";".join(f"{name}:{queues}" for name in BROKERS)
                for server in self.name_servers:
                    await _ask(server.port, PutKv(namespace="ORDER_TOPIC_CONFIG", key=topic, value=where))
            for server in self.name_servers:
                await _await_route(server.port, topic)

    # --- faults ------------------------------------------------------------------------------------------------------

    async def kill(self, name: str) -> None:
        """`kill -9` of a broker."""
        self.kills[name] += 1
        await asyncio.to_thread(self.brokers[name].kill)

    async def start(self, name: str) -> None:
        await asyncio.to_thread(self.brokers[name].start)

    def steps_back(self, groups: Collection[str]) -> list[str]:
        """What brokers said of commits that set a group back."""
        lines = [line for broker in self.brokers.values() for line in broker.log_lines() if "goes back in" in line]
        return [line for line in lines if any(f"broker: {group} goes back" in line for group in groups)]

    async def heal(self) -> None:
        for proxy in (*self.proxies.values(), *self.name_server_proxies):
            proxy.heal()
            await proxy.accept()
        for server in (*self.brokers.values(), *self.name_servers):
            if not server.is_running():
                await asyncio.to_thread(server.start)


async def _ask(port: int, request: Request) -> None:
    async with connected(port) as wire:
        answer = await wire.call(request)
        assert answer.code == ResponseCode.SUCCESS, answer.reason


async def _await_route(port: int, topic: str) -> None:
    """Until both brokers have told the name server of it: nobody else tells."""
    async with asyncio.timeout(ROUTE_SECONDS), connected(port) as wire:
        while True:
            answer = await wire.call(GetRoute(topic=topic, standard_json_only=True))
            if all(f'"{name}"'.encode() in answer.body for name in BROKERS):
                return
            await asyncio.sleep(0.02)


def strand(proxy: FaultProxy) -> None:
    """Nothing more passes on the connections that are open, ever; new ones are well. As behind a lost NAT entry."""
    proxy.stall()
    proxy.lines = {direction: type(line)() for direction, line in proxy.lines.items()}
