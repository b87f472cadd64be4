"""A master and its slaves beside the test, on a loop of their own, for commands that change who leads; and a producer
that sends all the while."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest

from admin.scene import with_admin
from cli.support.cluster_scene import Shell
from late import before
from pyromq import Admin, ConsumeFrom, Message, Producer, PullConsumer
from pyromq.broker import nameserver_link
from pyromq.broker.supervisor import BrokerLife
from pyromq.config import BrokerConfig, NameServerConfig, ReplicationConfig, RetentionConfig, StoreConfig
from pyromq.errors import SendError
from pyromq.nameserver.assembly import NameServer
from pyromq.testing.brokers.ports import free_port

SECONDS = 60.0
TOPIC = "orders"

Result = TypeVar("Result")


class Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.begin(work).result(SECONDS)

    def begin(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()


class Pair:
    """Brokers by a name that only the test knows; all are called `pair` in the cluster. Their ports stay the same."""

    def __init__(self, root: Path, loop: Loop, name_server: NameServer, role: str) -> None:
        self._root = root
        self._loop = loop
        self._role = role
        self.name_servers = name_server.address
        self.shell = Shell(self.name_servers)
        self._ports: dict[str, tuple[int, int]] = {}
        self._stacks: dict[str, contextlib.AsyncExitStack] = {}
        self.lives: dict[str, BrokerLife] = {}

    def address(self, which: str) -> str:
        return f"127.0.0.1:{self._ports[which][0]}"

    def _config(self, which: str, broker_id: int) -> BrokerConfig:
        port, ha_port = self._ports.setdefault(which, (free_port(), free_port()))
        return BrokerConfig(
            name="pair",
            role="SLAVE" if broker_id else self._role,
            broker_id=broker_id,
            listen_port=port,
            vip_channel=False,
            name_servers=(self.name_servers,),
            auto_create_topics=True,
            auto_create_groups=True,
            replication=ReplicationConfig(
                listen_port=ha_port, metadata_interval_ms=100, timeout_ms=3000, heartbeat_ms=200
            ),
            store=StoreConfig(
                root=self._root / which,
                segment_bytes=1 << 20,
                retention=RetentionConfig(refuse_at=1.0, resume_below=0.99),
            ),
        )

    def start(self, which: str, broker_id: int) -> None:
        async def begin() -> None:
            stack = self._stacks[which] = contextlib.AsyncExitStack()
            life = BrokerLife(self._config(which, broker_id))
            self.lives[which] = await stack.enter_async_context(life.running())

        self._loop.do(begin())

    def stop(self, which: str) -> None:
        self._loop.do(self._stacks.pop(which).aclose())

    def stop_all(self) -> None:
        for which in list(self._stacks):
            self.stop(which)

    # --- looking -----------------------------------------------------------------------------------------------------

    def roles(self) -> dict[str, str]:
        """Who is what, by the address that name servers know: 0 leads."""
        names = {self.address(which): which for which in self._ports}
        found = with_admin(self.name_servers, lambda admin: admin.brokers.statuses())
        return {
            names[one.address]: "master" if one.broker_id == 0 else "slave"
            for one in found
            if one.problem is None and one.copying is not None and one.copying.is_slave == (one.broker_id != 0)
        }

    def until_in_sync(self, count: int) -> None:
        """So many slaves follow one master, and it says that they are in sync."""

        async def look(admin: Admin) -> int:
            return sum(len(one.copying.in_sync) for one in await admin.brokers.statuses() if one.copying)

        until(lambda: with_admin(self.name_servers, look) == count)

    def stored(self, count: int) -> list[str]:
        """What the topic has, once so many are there."""
        return self._loop.do(read_all(self.name_servers, count))


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        before(deadline, "it does not come about")
        time.sleep(0.05)  # brokers tell each other, not us


@contextlib.contextmanager
def pair_in(root: Path, role: str = "SYNC_MASTER", slaves: int = 1) -> Iterator[Pair]:
    """A master `a` and slaves `b`, `c` …, in sync."""
    loop = Loop()
    server = NameServer(NameServerConfig(listen_port=0))
    loop.do(server.start())
    pair = Pair(root, loop, server, role)
    patches = pytest.MonkeyPatch()
    # Brokers run in the process of the command here: what they log must not go to what it prints.
    patches.setattr("pyromq.cli.app.show_warnings", lambda: None)
    patches.setattr(nameserver_link, "CHECK_SECONDS", 0.2)
    try:
        for number, which in enumerate("abcd"[: 1 + slaves]):
            pair.start(which, number)
        pair.until_in_sync(slaves)
        yield pair
    finally:
        pair.stop_all()
        patches.undo()
        loop.do(server.stop())
        loop.close()


async def read_all(name_servers: str, count: int) -> list[str]:
    found: list[str] = []
    async with PullConsumer(
        name_servers, group=f"reader-{time.monotonic_ns()}", consume_from=ConsumeFrom.FIRST
    ) as reader:
        await reader.subscribe(TOPIC)
        async with asyncio.timeout(SECONDS):
            while len(set(found)) < count:
                found += [message.text for message in await reader.poll(timeout_s=1.0)]
    return found


class Load:
    """Sends orders, one after the other, until the block ends; one that did not go well is sent again. What was
    acknowledged must be there afterwards."""

    def __init__(self, name_servers: str) -> None:
        self._name_servers = name_servers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._send()), daemon=True)
        self.acknowledged: list[str] = []
        #: What the producer gave up, after trying often.
        self.failed: list[SendError] = []

    def __enter__(self) -> Load:
        self._thread.start()
        until(lambda: bool(self.acknowledged))
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(SECONDS)

    async def _send(self) -> None:
        async with Producer(self._name_servers, group="load", attempts=20, timeout_s=30.0) as producer:
            while not self._stop.is_set():
                order = f"order {len(self.acknowledged)}"
                try:
                    await producer.send(Message(TOPIC, order.encode()))
                    self.acknowledged.append(order)
                except SendError as error:
                    self.failed.append(error)
                await asyncio.sleep(0.002)
