"""The servers of all contestants as child processes on the loopback, started and ended in the same way.

A server is a few commands in an empty directory; whether it serves is for a client to find out. Everything listens on
127.0.0.1 only, in a network of its own where the system allows one. Only processes started here are ended, by their
pid and with SIGKILL: their data is thrown away.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

from broker_vs_rocketmq import remoting

from client_vs_peers import getting
from client_vs_peers.getting import Cache
from interop.support import apache
from interop.support.loopback import enter_private_network

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 60
END_TIMEOUT_S = 20
PROBE_INTERVAL_S = 0.01
SAID_CHARS = 2000
QUEUES = 4
CREATE_GROUP = 200  #: RocketMQ's code of the request
#: As the start scripts of both have them, scaled to a small machine.
KAFKA_JVM = ("-Xms1g", "-Xmx1g")
ROCKETMQ_JVM = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=4g")
OPENED = ("java.nio", "sun.nio.ch", "jdk.internal.ref", "jdk.internal.misc")


class ServerFailed(Exception):
    """A server did not start; what it said is in the message."""


@dataclass
class Server:
    """Started once in its own directory. A kind of server says how in `launch`."""

    cache: Cache
    directory: Path
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    #: How a contestant's clients call it.
    address: str = ""
    kind: ClassVar[str] = ""

    def prepare(self) -> None:
        """What is laid out before anything is measured; the address is known from here on."""
        self.directory.mkdir(parents=True)
        self.address = f"{LOOPBACK}:{free_ports(1)[0]}"

    def launch(self) -> None:
        """Starts the processes and returns: clients wait until they are served."""
        raise NotImplementedError

    def make_room(self, topic: str, group: str) -> None:
        """For servers whose topics and groups do not come into being by themselves."""

    @property
    def port(self) -> str:
        return self.address.rpartition(":")[2]

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(END_TIMEOUT_S)
        self._processes.clear()

    def said(self) -> str:
        texts = (file.read_text("utf-8", errors="replace") for file in sorted(self.directory.glob("*.out")))
        return "\n".join(text[-SAID_CHARS:] for text in texts)

    def alive(self) -> bool:
        return all(process.poll() is None for process in self._processes)

    def _start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        with (self.directory / f"{name}.out").open("wb") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env={**os.environ, "HOME": str(self.directory), **(environment or {})},
                preexec_fn=enter_private_network(),
            )
        self._processes.append(process)

    def _write(self, name: str, settings: Mapping[str, object]) -> str:
        file = self.directory / name
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), "utf-8")
        return str(file)


@dataclass
class PyroMQ(Server):
    kind: ClassVar[str] = "pyromq"

    _ports: list[str] = field(default_factory=list)

    def prepare(self) -> None:
        super().prepare()
        self._ports = ["--nameserver-port", self.port, "--broker-port", str(free_ports(1)[0])]

    def launch(self) -> None:
        data = ["--data-dir", str(self.directory / "data")]
        self._start("pyromq", [sys.executable, "-m", "pyromq", "up", *data, *self._ports])


@dataclass
class Kafka(Server):
    """One node in KRaft mode. Its storage is laid out beforehand, as an installation does it once."""

    kind: ClassVar[str] = "kafka"
    _command: list[str] = field(default_factory=list)
    _settings: str = ""

    def prepare(self) -> None:
        super().prepare()
        settings = kafka_settings(self.address, f"{LOOPBACK}:{free_ports(1)[0]}", self.directory / "data")
        self._settings = self._write("server.properties", settings)
        self._command = [getting.java(), *KAFKA_JVM, "-cp", self.cache.jars(getting.KAFKA_JARS)]
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        laid_out = [*self._command, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", self._settings]
        done = subprocess.run(laid_out, capture_output=True, text=True, cwd=self.directory, timeout=60, check=False)
        if done.returncode:
            raise ServerFailed(f"Kafka's storage cannot be laid out: {done.stderr[-SAID_CHARS:]}")

    def launch(self) -> None:
        self._start("kafka", [*self._command, "kafka.Kafka", self._settings])


def kafka_settings(client: str, controller: str, data: Path) -> dict[str, object]:
    """Its defaults, but on one node, and without the three seconds that a new group waits for more members."""
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{controller}",
        "listeners": f"PLAINTEXT://{client},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{client}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": data,
        "num.partitions": QUEUES,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": QUEUES,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
    }


@dataclass
class RocketMQ(Server):
    """A name server, and a broker with the proxy in one process, as `mqbroker --enable-proxy` starts them."""

    kind: ClassVar[str] = "rocketmq"
    _ports: apache.Ports | None = None
    _command: list[str] = field(default_factory=list)
    _mains: list[list[str]] = field(default_factory=list)

    def prepare(self) -> None:
        super().prepare()
        self._ports = ports = apache.free_ports()
        opened = [f"--add-{how}=java.base/{name}=ALL-UNNAMED" for how in ("opens", "exports") for name in OPENED]
        places = [f"-Duser.home={self.directory}", f"-Djava.io.tmpdir={self.directory}"]
        self._command = [getting.java(), *places, *opened, "-cp", self.cache.jars(getting.ROCKETMQ_JARS)]
        name_server = self._write("nameserver.conf", apache.namesrv_conf(ports, self.directory))
        broker = {**apache.broker_conf(ports, self.directory / "store"), "enableControllerMode": "false"}
        conf = self._write("broker.conf", broker)
        proxy = self.directory / "proxy.json"
        settings = {"grpcServerPort": int(self.port), "remotingListenPort": free_ports(1)[0]}
        proxy.write_text(json.dumps({"rocketMQClusterName": broker["brokerClusterName"], **settings}), "utf-8")
        address = f"{LOOPBACK}:{ports.namesrv}"
        self._mains = [
            [apache.NAMESRV_MAIN, "-c", name_server],
            ["org.apache.rocketmq.proxy.ProxyStartup", "-pm", "local", "-bc", conf, "-pc", str(proxy), "-n", address],
        ]

    def launch(self) -> None:
        assert self._ports is not None
        environment = {"ROCKETMQ_HOME": str(self.directory), "HOME": str(self.directory)}
        small = [self._command[0], "-Xmx256m", *apache.WITHOUT_TLS, *self._command[1:]]
        self._start("nameserver", [*small, *self._mains[0]], environment)
        self._await(partial(_accepts, self._ports.namesrv))
        large = [self._command[0], *ROCKETMQ_JVM, *apache.BROKER_OPTIONS, *self._command[1:]]
        self._start("broker", [*large, *self._mains[1]], environment)

    def make_room(self, topic: str, group: str) -> None:
        """The proxy makes neither topics nor groups; its broker is asked, as RocketMQ's command line asks it."""
        assert self._ports is not None
        settings = json.dumps({"groupName": group}).encode()
        for request in (remoting.create_topic(topic, QUEUES), remoting.frame(CREATE_GROUP, {}, settings)):
            self._await(partial(_answers, self._ports.broker, request))

    def _await(self, ready: Callable[[], bool]) -> None:
        limit = time.monotonic() + START_TIMEOUT_S
        while not inside(ready):
            if not self.alive() or time.monotonic() > limit:
                raise ServerFailed(f"RocketMQ does not start: {self.said()}")
            time.sleep(PROBE_INTERVAL_S)


@dataclass
class Nats(Server):
    kind: ClassVar[str] = "nats"

    def launch(self) -> None:
        program = self.cache.nats_server()
        data = ["-js", "-sd", str(self.directory / "data")]
        self._start("nats", [program.path, "-a", LOOPBACK, "-p", self.port, *data], program.environment)


@dataclass
class Redis(Server):
    kind: ClassVar[str] = "redis"

    def launch(self) -> None:
        program = self.cache.redis_server()
        durable = ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        command = [program.path, "--bind", LOOPBACK, "--port", self.port, "--dir", str(self.directory), *durable]
        self._start("redis", command, program.environment)


JARS = {"kafka": getting.KAFKA_JARS, "rocketmq": getting.ROCKETMQ_JARS}
KINDS: dict[str, type[Server]] = {kind.kind: kind for kind in (PyroMQ, Kafka, RocketMQ, Nats, Redis)}


def have(kind: str, cache: Cache) -> None:
    """Fetches what the server needs, before anything is measured; CannotBeHad says why not."""
    if kind == "nats":
        cache.nats_server()
    elif kind == "redis":
        cache.redis_server()
    elif kind in JARS:
        getting.java()
        cache.jars(JARS[kind])


# --- In the servers' network -----------------------------------------------------------------------------------------

Answer = TypeVar("Answer")


def _enter() -> None:
    if (enter := enter_private_network()) is not None:
        enter()


_INSIDE = ThreadPoolExecutor(1, "inside", initializer=_enter)


def inside(call: Callable[[], Answer]) -> Answer:
    """The call's answer, from a thread that is in the servers' network."""
    return _INSIDE.submit(call).result()


def free_ports(number: int) -> list[int]:
    def find() -> list[int]:
        probes = [socket.create_server((LOOPBACK, 0)) for _ in range(number)]
        ports = [probe.getsockname()[1] for probe in probes]
        for probe in probes:
            probe.close()
        return ports

    return inside(find)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), 1).close()
    except OSError:
        return False
    return True


def _answers(port: int, request: bytes) -> bool:
    try:
        remoting.ask(port, request)
    except (OSError, remoting.Refused):
        return False
    return True


def versions(cache: Cache, kinds: Collection[str]) -> dict[str, str]:
    """For the file of results: the jars' from their names, the programs' in their own words."""
    found = {kind: coordinates.rpartition(":")[2] for kind, coordinates in JARS.items() if kind in kinds}
    for kind, find in (("nats", cache.nats_server), ("redis", cache.redis_server)):
        if kind in kinds:
            program = find()
            asked, environment = [program.path, "--version"], {**os.environ, **program.environment}
            said = subprocess.run(asked, capture_output=True, text=True, env=environment, timeout=10, check=False)
            found[kind] = said.stdout.strip()
    return found
