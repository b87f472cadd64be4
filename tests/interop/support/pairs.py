"""A master and a slave of which one is ours and the other Apache RocketMQ's own, as processes that a user would start.

The master's side brings the name server. Both may be ended and started again, alone; addresses stay the same.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from interop.support.apache import ApacheCluster, Ports
from interop.support.cluster import Cluster, PyromqCluster
from pyromq import Message, Producer
from pyromq.errors import SendError
from pyromq.net.client import Client
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.client import Request

#: Apache's brokers look for the master, and copy its tables, every ten seconds.
PATIENCE_S = 60.0

#: Small files, so that a story crosses their ends; a log and its copy have files of the same size.
BOTH = {
    "mappedFileSizeCommitLog": str(256 << 10),
    "mappedFileSizeConsumeQueue": str(20 * 2000),
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "autoCreateSubscriptionGroup": "true",
    "registerNameServerPeriod": "10000",
    "slaveReadEnable": "true",
    "flushIntervalCommitLog": "50",
}
MASTER = {**BOTH, "brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}
SLAVE = {**BOTH, "brokerRole": "SLAVE", "brokerId": "1"}


class _ApacheBroker(ApacheCluster):
    """A broker alone: the name server is another one's."""

    def know(self, name_server_port: int) -> None:
        self._ports = Ports(name_server_port, self._ports.broker)

    def start(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="apache-rocketmq-")
        self.start_broker()


class _PyromqBroker(PyromqCluster):
    def know(self, name_server_port: int) -> None:
        self._ports = Ports(name_server_port, self._ports.broker)

    def start(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="pyromq-interop-"))
        self.start_broker()


class Pair:
    """`master` and `slave`, both running."""

    def __init__(self, root: Path, *, ours_leads: bool) -> None:
        self.master: Cluster
        self.slave: _ApacheBroker | _PyromqBroker
        if ours_leads:
            self.master = ours = PyromqCluster(root / "master", MASTER)
            self.slave = _ApacheBroker(root / "slave", broker_conf=SLAVE)
            # Apache's slave says nothing of itself: it counts because the settings name it.
            ours.env["PYROMQ_BROKER_REPLICATION__MEMBERS"] = f"1@{self.slave.broker_address}"
        else:
            self.master = ApacheCluster(root / "master", broker_conf=MASTER)
            self.slave = _PyromqBroker(root / "slave", SLAVE)
        self.slave.know(int(self.master.namesrv_address.rpartition(":")[2]))

    @property
    def name_server(self) -> str:
        return self.master.namesrv_address

    @contextmanager
    def running(self) -> Iterator[Pair]:
        try:
            self.master.start()
            self.slave.start()
            yield self
        finally:
            self.slave.kill()
            self.master.kill()

    def logs(self) -> tuple[bytes, bytes]:
        """Return the written bytes of both logs, without the free room of the last file."""
        return written(self.master.store_root), written(self.slave.store_root)


def written(store: Path) -> bytes:
    files = sorted(file for file in (store / "commitlog").iterdir() if file.name.isdigit())
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")


def killed(broker: Cluster) -> None:
    broker.end_broker(signal.SIGKILL)


async def until(holds: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    try:
        async with asyncio.timeout(patience_s):
            while not holds():  # noqa: ASYNC110  files send no event when they change
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {patience_s} s: {what}") from None


async def asked(address: str, request: Request) -> Command:
    client = Client()
    try:
        return await client.call(address, request, 5.0)
    finally:
        await client.close()


async def asked_until(address: str, request: Request, enough: Callable[[Command], bool]) -> Command:
    """Ask a broker again and again, until the answer will do."""
    answer = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while answer is None or answer.code != ResponseCode.SUCCESS or not enough(answer):
                await asyncio.sleep(0.2)
                answer = await asked(address, request)
    except TimeoutError:
        raise AssertionError(f"{address} still answers {answer} to {request}") from None
    return answer


async def acknowledged(producer: Producer, topic: str, bodies: list[str]) -> None:
    """Send each until it is acknowledged: by a sync master that is, when the slave has it too."""
    for body in bodies:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await producer.send(Message(topic, body.encode(), keys=body.split()[0]))
                    break
                except SendError:
                    await asyncio.sleep(0.2)
