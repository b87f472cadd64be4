"""A master and its slaves, each a process on a machine of its own, and one more machine for name server and clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import gettempdir

from chaos.support.client import Gone, Wire, connected
from chaos.support.machines import Machine, Network
from chaos.support.server import START_SECONDS, Server
from pyromq.testing.history.replicas import LogFiles
from pyromq.wire.bodies.routes import decode_kv_table
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.admin import GetRuntimeInfo, UpdateTopic
from pyromq.wire.requests.nameserver import GetRoute

NAME = "broker-a"
TOPICS = {"news": 4, "steps": 3}
BROKER_PORT, REPLICATION_PORT, NAME_SERVER_PORT = 10911, 10912, 9876
ANSWER_SECONDS = 2.0
#: How long a pair may take to be level when nothing is wrong any more: as long as a replica waits between two attempts,
#: and on a machine that has other work.
PATIENCE_SECONDS = 30.0
#: Of the replication, shorter than in real life: silence that ends a connection, and a send's patience.
SILENCE_SECONDS, COPY_SECONDS = 1.5, 0.8

BROKER = """
name = "{name}"
role = "{role}"
broker_id = {broker_id}
listen_host = "{host}"
allow_public = true
name_servers = ["{name_server}"]
vip_channel = false
auto_create_topics = true
auto_create_groups = true
register_interval_ms = 500
client_expiry_ms = 8000
queue_lock_expiry_ms = 4000
offsets_flush_interval_ms = 200
config_flush_interval_ms = 200
limits.stop_grace_ms = 300
store.flush.sync = {sync_flush}
store.segment_bytes = 1048576
store.queue_file_entries = 2000
store.index_slots = 5000
store.index_entries = 20000
store.prefault_bytes = 0
store.retention.refuse_at = {refuse_at}
store.retention.resume_below = {resume_below}
store.retention.interval_ms = 300
replication.listen_port = {replication_port}
replication.timeout_ms = {copy_ms}
replication.heartbeat_ms = 300
replication.peer_timeout_ms = {peer_timeout_ms}
replication.metadata_interval_ms = 300
replication.min_in_sync = {min_in_sync}
replication.copies = {copies}
"""
NAME_SERVER = """
listen_host = "{host}"
allow_public = true
kv_config_path = "kv.json"
"""


@dataclass(frozen=True, slots=True)
class Mode:
    """What the master promises."""

    role: str
    sync_flush: bool
    #: Sends are refused at this share of a full disk; 1.0: when nothing can be written any more.
    refuse_at: float = 1.0
    #: With fewer copies in sync nothing is accepted.
    min_in_sync: int = 1
    #: The size of the group, the master included.
    brokers: int = 2
    #: Copies of an acknowledged message; 0: the default of the role.
    copies: int = 0

    @property
    def is_sync(self) -> bool:
        return self.role == "SYNC_MASTER"

    @property
    def every_log_has_all(self) -> bool:
        """Is an acknowledged message in the log of every broker? Only then a replaced master acknowledges nothing."""
        return self.is_sync and (self.copies or 2) == self.brokers

    def __str__(self) -> str:
        flush = "SYNC" if self.sync_flush else "ASYNC"
        return (
            f"{self.brokers} brokers, {self.role}, {flush}_FLUSH, {self.copies or 'default'} copies, "
            f"{self.min_in_sync} in sync"
        )


@cache
def slow_disk_library() -> Path | None:
    """Built once; None where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    library = Path(gettempdir()) / f"pyromq-slow-disk-{os.getpid()}.so"
    source = Path(__file__).with_name("slow_disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


class Node:
    """A broker on its machine."""

    def __init__(self, machine: Machine, mode: Mode, name_server: str, broker_id: int) -> None:
        self.machine = machine
        self.name = machine.name
        self.is_slave_by_settings = broker_id > 0
        self.store = machine.disk / "store"
        self._delays = machine.home / "delays"
        self._delays.write_bytes(bytes(8))
        settings = BROKER.format(
            name=NAME, role="SLAVE" if broker_id else mode.role, broker_id=broker_id, host=machine.address,
            name_server=name_server, sync_flush=str(mode.sync_flush).lower(), refuse_at=mode.refuse_at,
            resume_below=mode.refuse_at - 0.01, replication_port=REPLICATION_PORT,
            copy_ms=int(COPY_SECONDS * 1000), peer_timeout_ms=int(SILENCE_SECONDS * 1000), min_in_sync=mode.min_in_sync,
            copies=mode.copies,
        )  # fmt: skip
        library = slow_disk_library()
        slow = {} if library is None else {"LD_PRELOAD": str(library), "SLOW_DISK": str(self._delays)}
        self.server = Server(
            machine.home, settings=settings, store=self.store, port=BROKER_PORT, environment=slow,
            step_in=machine.step_in,
        )  # fmt: skip
        self._stopped = False

    @property
    def address(self) -> str:
        return f"{self.machine.address}:{BROKER_PORT}"

    @property
    def log(self) -> LogFiles:
        return LogFiles(self.store / "commitlog")

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self.server.begin()
        try:
            async with asyncio.timeout(START_SECONDS):
                while not self.server.is_ready:
                    assert self.server.is_running(), f"{self.name} ended:\n{self.server.tail()}"
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"{self.name} is not up after {START_SECONDS} s:\n{self.server.tail()}") from None

    def kill(self) -> None:
        if self.server.is_running():
            self.server.kill()

    def pause(self) -> None:
        self.server.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        if self.server.is_running():
            self.server.process.send_signal(signal.SIGCONT)

    def throw_away(self) -> None:
        """Its disk is gone, and replaced by an empty one."""
        assert not self.server.is_running()
        shutil.rmtree(self.store, ignore_errors=True)

    def slow_disk(self, sync_s: float, write_s: float = 0.0) -> None:
        with self._delays.open("r+b") as file:
            file.write(struct.pack("=II", int(sync_s * 1e6), int(write_s * 1e6)))

    # --- looking -----------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def wire(self, own: socket.socket | None = None) -> AsyncIterator[Wire]:
        """Raises OSError, TimeoutError."""
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(ANSWER_SECONDS):
                wire = await stack.enter_async_context(connected(BROKER_PORT, self.machine.address, own))
            yield wire

    @contextlib.asynccontextmanager
    async def local_wire(self) -> AsyncIterator[Wire]:
        """A connection from the broker's own machine: role requests from others are refused.

        Raises OSError, TimeoutError.
        """
        with self.machine.inside():
            own = socket.socket()
        own.setblocking(False)
        with own:
            async with self.wire(own) as wire:
                yield wire

    async def figures(self) -> dict[str, str]:
        """Raises OSError, TimeoutError, Gone."""
        async with self.wire() as wire:
            answer = await wire.call(GetRuntimeInfo(), ANSWER_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise Gone  # it is about to restart
        return dict(decode_kv_table(answer.body))

    async def try_figures(self) -> dict[str, str]:
        """Nothing when it does not answer."""
        try:
            return await self.figures()
        except (OSError, TimeoutError, Gone):
            return {}


class Pair:
    """The brokers of one name, of which one leads. `slave` is the one that the next fault is for."""

    def __init__(self, home: Path, network: Network, mode: Mode) -> None:
        self.network = network
        self.mode = mode
        self.base = network.machine("base")
        machines = [network.machine(name) for name in "abcde"[: mode.brokers]]
        self.names = self._name_server()
        self.name_server = f"{self.base.address}:{NAME_SERVER_PORT}"
        self.nodes = [Node(machine, mode, self.name_server, number) for number, machine in enumerate(machines)]
        self.master, self.slave = self.nodes[:2]
        #: By slave, the position up to which its log was found to be the master's.
        self._compared: dict[str, int] = {}

    @property
    def slaves(self) -> list[Node]:
        return [node for node in self.nodes if node is not self.master]

    def _name_server(self) -> Server:
        return Server(
            self.base.home, settings=NAME_SERVER.format(host=self.base.address), program="nameserver",
            port=NAME_SERVER_PORT, step_in=self.base.step_in,
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Pair]:
        try:
            await asyncio.to_thread(self._start_names)
            for node in self.nodes:
                await node.start()
            await self._make_topics()
            await self.level()
            yield self
        finally:
            for node in self.nodes:
                node.kill()
            if self.names.is_running():
                self.names.kill()

    def _start_names(self) -> None:
        self.names.start()

    async def _make_topics(self) -> None:
        async with self.master.wire() as wire:
            for topic, queues in TOPICS.items():
                made = UpdateTopic(topic=topic, read_queues=queues, write_queues=queues, permission=6)
                assert (await wire.call(made)).code == ResponseCode.SUCCESS
        async with asyncio.timeout(10), connected(NAME_SERVER_PORT, self.base.address) as wire:
            for topic in TOPICS:
                while (await wire.call(GetRoute(topic=topic))).code != ResponseCode.SUCCESS:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    def swap(self) -> None:
        """`slave` leads now."""
        self.master, self.slave = self.slave, self.master
        self._compared.clear()

    def forget_comparison(self) -> None:
        self._compared.clear()

    # --- all of them -------------------------------------------------------------------------------------------------

    async def heal(self) -> None:
        """Everything works again, and every broker runs."""
        self.network.heal()
        for node in self.nodes:
            node.machine.free_disk()
            node.slow_disk(0)
            node.go_on()
        for node in self.nodes:
            if not node.server.is_running():
                await node.start()

    async def level(self) -> None:
        """Until every slave has the log that the master had when this began: there may be load."""
        goal: int | None = None
        figures: dict[str, dict[str, str]] = {}
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    figures = {node.name: await node.try_figures() for node in self.nodes}
                    master = figures[self.master.name]
                    if master and goal is None:
                        goal = int(master["commitLogMaxOffset"])
                    if goal is not None and self._are_level(figures, goal):
                        return
                    await asyncio.sleep(0.03)
        except TimeoutError:
            raise AssertionError(self._not_level(goal, figures)) from None

    def _are_level(self, figures: dict[str, dict[str, str]], goal: int) -> bool:
        master = figures[self.master.name]
        return (
            bool(master)
            and master["pyromq.role"] != "SLAVE"
            and int(master["pyromq.slaves"]) >= len(self.slaves)
            and all(self._is_level(figures[node.name], goal) for node in self.slaves)
        )

    @staticmethod
    def _is_level(slave: dict[str, str], goal: int) -> bool:
        return (
            bool(slave)
            and slave["pyromq.role"] == "SLAVE"
            and slave["pyromq.masterConnected"] == "true"
            and int(slave["commitLogMaxOffset"]) >= goal
        )

    def _not_level(self, goal: int | None, figures: dict[str, dict[str, str]]) -> str:
        def shown(figures: dict[str, str]) -> dict[str, str]:
            return {k: v for k, v in figures.items() if k.startswith("pyromq.") or k == "commitLogMaxOffset"}

        lines = [f"not level after {PATIENCE_SECONDS} s; the goal was {goal}, the master is {self.master.name}"]
        for node in self.nodes:
            lines += [f"--- {node.name}: {shown(figures.get(node.name, {}))}", node.server.tail()]
        return "\n".join(lines)

    def compare(self) -> int:
        """H10: all logs are the same as far as they go. How far that is in all of them."""
        for slave in self.slaves:
            compared = self._compared.get(slave.name, 0)
            self._compared[slave.name] = self.master.log.same_as(slave.log, compared)
        return min(self._compared.values())
