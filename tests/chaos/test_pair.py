"""A master and its slave killed under load, again and again, and one's store thrown away: nothing acknowledged is lost.

A sync pair has every acknowledged message twice. So when the master's store is gone, its slave is started as the
master; when the slave's is gone, an empty one takes its place. An async pair may lose what its lag showed, and no more.
`PYROMQ_CHAOS_PAIR_ROUNDS` sets the number of rounds.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from chaos.support.client import Gone, Wire, connected, messages_in, pull, send
from chaos.support.recorder import Recorder
from chaos.support.server import SETTINGS, Server
from pyromq.testing.brokers.ports import free_port
from pyromq.wire.bodies.routes import decode_kv_table
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.admin import GetRuntimeInfo, UpdateTopic

ROUNDS = int(os.environ.get("PYROMQ_CHAOS_PAIR_ROUNDS", "5"))
TOPIC, QUEUES = "orders", 4
PATIENCE_S = 30.0
AT_ONCE = 16

PAIR = """
name = "broker-a"
role = "{role}"
broker_id = {broker_id}
name_servers = ["127.0.0.1:{name_server}"]
vip_channel = false
register_interval_ms = 500
replication.listen_port = {ha_port}
replication.timeout_ms = 1000
replication.heartbeat_ms = 500
replication.metadata_interval_ms = 300
"""
LARGE_FILES, SMALL_FILES = "segment_bytes = 16777216", "segment_bytes = 1048576"


class Node:
    """A machine: it keeps its store when it is started in another role, unless that is thrown away."""

    def __init__(self, home: Path, name_server: int, more: str = "") -> None:
        """`more` are settings of the broker."""
        home.mkdir()
        self._home = home
        self._more = more
        self._name_server = name_server
        self._starts = 0
        self.server: Server | None = None

    @property
    def running(self) -> Server:
        assert self.server is not None
        return self.server

    def start(self, role: str) -> None:
        self._starts += 1
        home = self._home / str(self._starts)
        home.mkdir()
        settings = PAIR.format(
            role=role, broker_id=int(role == "SLAVE"), name_server=self._name_server, ha_port=free_port()
        )
        small = SETTINGS.replace(LARGE_FILES, SMALL_FILES)
        self.server = Server(home, settings=settings + self._more + small, store=self._home / "store").start()

    def kill(self) -> None:
        if self.server is not None:
            self.server.kill()

    def throw_away(self) -> None:
        shutil.rmtree(self._home / "store")

    def log(self) -> bytes:
        files = sorted(file for file in (self._home / "store" / "commitlog").iterdir() if file.name.isdigit())
        return b"".join(file.read_bytes() for file in files).rstrip(b"\0")


class Pair:
    def __init__(self, home: Path, role: str, more: str = "") -> None:
        (home / "names").mkdir()
        self._names = Server(home / "names", settings='kv_config_path = "kv.json"\n', program="nameserver")
        self._role = role
        self.master, self.slave = (Node(home / name, self._names.port, more) for name in "ab")
        self.record = Recorder()
        self._sent = 0
        #: How sends were answered.
        self.codes: Counter[int] = Counter()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Pair]:
        try:
            await asyncio.to_thread(self._names.start)
            await asyncio.to_thread(self.master.start, self._role)
            await asyncio.to_thread(self.slave.start, "SLAVE")
            async with connected(self.master.running.port) as wire:
                topic = UpdateTopic(topic=TOPIC, read_queues=QUEUES, write_queues=QUEUES, permission=6)
                assert (await wire.call(topic)).code == ResponseCode.SUCCESS
            await self.level()
            yield self
        finally:
            for node in (self.master, self.slave):
                node.kill()
            self._names.kill()

    # --- load --------------------------------------------------------------------------------------------------------

    async def load(self, seconds: float, fault: Callable[[], None] | None = None) -> None:
        """Send, and let the fault happen in the middle; until the master is gone or the time is up."""
        loop = asyncio.get_running_loop()
        async with connected(self.master.running.port) as wire:
            end = loop.time() + seconds
            senders = [asyncio.ensure_future(self._send(wire, number, end)) for number in range(AT_ONCE)]
            await asyncio.sleep(seconds / 2)
            if fault is not None:
                await asyncio.to_thread(fault)
            await asyncio.gather(*senders)

    async def _send(self, wire: Wire, sender: int, end: float) -> None:
        loop, queue = asyncio.get_running_loop(), sender % QUEUES
        while loop.time() < end:
            self._sent += 1
            body = b"message %d of %d " % (self._sent, sender) + b"." * random.randrange(400)
            self.record.attempt(TOPIC, queue, body)
            try:
                answer = await wire.call(send(TOPIC, body, queue))
            except (Gone, TimeoutError):
                return
            self.codes[answer.code] += 1
            if answer.code == ResponseCode.SUCCESS:
                self.record.ack(TOPIC, queue, int(answer.fields["queueOffset"]), body)

    # --- looking -----------------------------------------------------------------------------------------------------

    async def figures(self, node: Node) -> dict[str, str]:
        async with connected(node.running.port) as wire:
            return dict(decode_kv_table((await wire.call(GetRuntimeInfo())).body))

    async def level(self) -> None:
        """Until the slave has what the master has."""
        master = slave = {"commitLogMaxOffset": "?"}
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    slave, master = await self.figures(self.slave), await self.figures(self.master)
                    if (
                        master["commitLogMaxOffset"] == slave["commitLogMaxOffset"]
                        and master.get("pyromq.slaves") == "1"
                    ):
                        return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"not level: {master} {slave}\n{self.slave.running.tail()}") from None

    async def nothing_is_lost(self, *, drained: bool = False) -> None:
        await self.level()
        async with connected(self.master.running.port) as wire:
            await self.record.read_all(wire)
        self.record.check(drained=drained)

    # --- faults ------------------------------------------------------------------------------------------------------

    async def slave_dies(self, *, with_its_store: bool) -> None:
        await self.load(0.6, self.slave.kill)
        if with_its_store:
            self.slave.throw_away()
        await asyncio.to_thread(self.slave.start, "SLAVE")
        await self.level()
        await self.load(0.3)

    async def master_dies(self) -> None:
        await self.load(0.6, self.master.kill)
        await asyncio.to_thread(self.master.start, self._role)
        await self.level()
        await self.load(0.3)

    async def master_dies_with_its_store(self) -> None:
        """The slave leads from now on, and an empty one follows it."""
        await self.load(0.6, self.master.kill)
        self.master.throw_away()
        self.slave.kill()
        self.master, self.slave = self.slave, self.master
        await asyncio.to_thread(self.master.start, self._role)
        await asyncio.to_thread(self.slave.start, "SLAVE")
        await self.level()
        await self.load(0.3)


def test_a_sync_pair_loses_nothing_when_either_is_killed_and_its_store_thrown_away(tmp_path: Path) -> None:
    async def story() -> None:
        async with Pair(tmp_path, "SYNC_MASTER").running() as pair:
            await pair.load(0.3)
            for number in range(ROUNDS):
                pair.record.killed()
                match number % 4:
                    case 0:
                        await pair.master_dies_with_its_store()
                    case 1:
                        await pair.slave_dies(with_its_store=True)
                    case 2:
                        await pair.master_dies()
                    case _:
                        await pair.slave_dies(with_its_store=False)
                await pair.nothing_is_lost()
            await pair.nothing_is_lost(drained=True)
            assert pair.record.acks > 50 * ROUNDS
            assert pair.master.log() == pair.slave.log()
            print(f"{ROUNDS} rounds, {pair.record.acks} acknowledged")

    asyncio.run(story())


def test_a_slave_that_stalls_makes_sends_late_and_loses_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with Pair(tmp_path, "SYNC_MASTER").running() as pair:
            await pair.load(0.3)
            pair.record.killed()
            slave = pair.slave.running.process
            await pair.load(4.0, lambda: slave.send_signal(signal.SIGSTOP))
            assert pair.codes[ResponseCode.FLUSH_SLAVE_TIMEOUT] > 0
            slave.send_signal(signal.SIGCONT)
            await pair.level()
            await pair.load(0.3)
            await pair.nothing_is_lost(drained=True)

    asyncio.run(story())


def test_an_async_pair_loses_no_more_than_its_lag_showed(tmp_path: Path) -> None:
    async def story() -> None:
        async with Pair(tmp_path, "ASYNC_MASTER").running() as pair:
            loading = asyncio.ensure_future(pair.load(1.5, pair.master.kill))
            replicated = 0
            while pair.master.running.is_running():
                try:
                    replicated = int((await pair.figures(pair.master))["pyromq.replicatedTo"])
                except (Gone, OSError, TimeoutError):
                    break
                await asyncio.sleep(0.02)
            await loading
            assert replicated > 0
            pair.master.throw_away()
            kept = len(pair.slave.log())
            assert kept >= replicated
            async with connected(pair.slave.running.port) as wire:
                last = [await _last_end(wire, queue) for queue in range(QUEUES)]
            assert max(last) <= kept

    asyncio.run(story())


async def _last_end(wire: Wire, queue: int) -> int:
    """Where the last message of a queue ends in the log."""
    offset, end = 0, 0
    while messages := messages_in(await wire.call(pull(TOPIC, queue, offset, most=1000))):
        offset, end = messages[-1].queue_offset + 1, messages[-1].position + messages[-1].size
    return end
