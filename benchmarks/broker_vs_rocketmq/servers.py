"""Both systems as child processes, started, paused and ended in the same way.

A `System` is a name server and a broker with the same settings file on either side. Whichever is not measured is
paused (SIGSTOP): it costs nothing, and the other need not be started and warmed up for every load. Everything listens
on the loopback only, in a network of its own where the system allows one. Only processes started here are ended, by
their pid, and with SIGKILL: their data is thrown away.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from broker_vs_rocketmq import remoting
from broker_vs_rocketmq.loads import OURS, QUEUES, SEND_TOPIC, THEIRS, WARM_TOPIC
from interop.support import apache
from interop.support.loopback import enter_private_network

START_TIMEOUT_S = 60
END_TIMEOUT_S = 20
PROBE_INTERVAL_S = 0.01
#: After a pause both sides find late timers; they are not part of a load.
RESUME_S = 1.0
#: A master's ports and its slave's fit between two sets.
PORTS_APART = 24
SAID_CHARS = 3000

FLUSH_DISK_TYPE = {"async": "ASYNC_FLUSH", "sync": "SYNC_FLUSH"}
#: As its own start script, scaled to the machine: the heap is whole from the start, and every compiler is on.
BROKER_JVM = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=4g")
NAMESRV_JVM = ("-Xmx256m",)
OPENED = ("java.nio", "sun.nio.ch", "jdk.internal.ref", "jdk.internal.misc")


class ServerFailed(Exception):
    """A server did not start; what it said is in the message."""


@dataclass(frozen=True, slots=True)
class Command:
    """How to start a server; the settings file's name is appended."""

    arguments: list[str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Recipe:
    name_server: Command
    broker: Command


def pyromq_recipe(kernel: str) -> Recipe:
    environment = {**os.environ, "PYROMQ_KERNEL": kernel}

    def command(server: str) -> Command:
        return Command([sys.executable, "-m", "pyromq", server, "--config"], environment)

    return Recipe(command("nameserver"), command("broker"))


def apache_recipe(home: Path) -> Recipe:
    tools = apache.toolchain()
    home.mkdir(parents=True, exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NAMESRV")}
    environment = {**inherited, "ROCKETMQ_HOME": str(home), "HOME": str(home)}
    places = [f"-Duser.home={home}", f"-Djava.io.tmpdir={home}"]
    opened = [f"--add-{how}=java.base/{name}=ALL-UNNAMED" for how in ("opens", "exports") for name in OPENED]

    def command(main: str, *options: str) -> Command:
        return Command([tools.java, *options, *places, *opened, "-cp", tools.classpath, main, "-c"], environment)

    return Recipe(
        command(apache.NAMESRV_MAIN, *NAMESRV_JVM, *apache.WITHOUT_TLS),
        command(apache.BROKER_MAIN, *BROKER_JVM, *apache.BROKER_OPTIONS),
    )


def before_start(core: int | None) -> Callable[[], None]:
    """What a child does before it becomes a server or the generator."""
    enter = enter_private_network()

    def prepare() -> None:
        if enter is not None:
            enter()
        if core is not None:
            os.sched_setaffinity(0, {core})

    return prepare


@dataclass(slots=True)
class System:
    """One of the two; `start` waits until it has stored a message."""

    name: str
    recipe: Recipe
    directory: Path
    ports: apache.Ports
    flush: str
    core: int | None = None
    #: From the start of the broker's process until it acknowledged a message.
    start_seconds: float = 0.0
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def broker_pid(self) -> int:
        return self._processes[-1].pid

    def start(self) -> None:
        self.directory.mkdir(parents=True)
        self._launch(self.recipe.name_server, "nameserver", apache.namesrv_conf(self.ports, self.directory))
        self._answers(self.ports.namesrv, None)
        settings = {**apache.broker_conf(self.ports, self.directory / "store"), **self._settings()}
        began = time.monotonic()
        self._launch(self.recipe.broker, "broker", settings)
        self._answers(self.ports.broker, remoting.send_one("bench_probe", int(time.time() * 1000)))
        self.start_seconds = time.monotonic() - began
        for topic in (SEND_TOPIC, WARM_TOPIC):
            inside(partial(remoting.ask, self.ports.broker, remoting.create_topic(topic, QUEUES)))

    def _settings(self) -> dict[str, str]:
        return {"flushDiskType": FLUSH_DISK_TYPE[self.flush], "autoCreateSubscriptionGroup": "true"}

    def pause(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGCONT)
        time.sleep(RESUME_S)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(END_TIMEOUT_S)
        self._processes.clear()

    def said(self) -> str:
        texts = (file.read_text("utf-8", errors="replace") for file in sorted(self.directory.glob("*.out")))
        return "\n".join(text[-SAID_CHARS:] for text in texts)

    def _launch(self, command: Command, server: str, settings: Mapping[str, str]) -> None:
        conf = self.directory / f"{server}.conf"
        conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), "utf-8")
        with (self.directory / f"{server}.out").open("wb") as out:
            process = subprocess.Popen(
                [*command.arguments, str(conf)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=dict(command.environment),
                preexec_fn=before_start(self.core),
            )
        self._processes.append(process)

    def _answers(self, port: int, request: bytes | None) -> None:
        """Waits until the newest process accepts connections, or answers a request with success."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while (reason := inside(partial(_unready, port, request))) is not None:
            if self._processes[-1].poll() is not None:
                raise ServerFailed(f"{self.name} ended instead of starting ({reason}):\n{self.said()}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.name} does not serve after {START_TIMEOUT_S} s ({reason}):\n{self.said()}")
            time.sleep(PROBE_INTERVAL_S)


def _unready(port: int, request: bytes | None) -> str | None:
    """Why not, or None when it is."""
    try:
        if request is None:
            remoting.connect(port).close()
        else:
            remoting.ask(port, request)
    except (OSError, remoting.Refused) as reason:
        return str(reason)
    return None


Answer = TypeVar("Answer")
_INSIDE = ThreadPoolExecutor(1, "inside", initializer=before_start(None))


def inside(call: Callable[[], Answer]) -> Answer:
    """The call's answer, from a thread that is in the servers' network."""
    return _INSIDE.submit(call).result()


@contextlib.contextmanager
def both(directory: Path, recipes: Mapping[str, Recipe], flush: str, core: int | None) -> Iterator[dict[str, System]]:
    """Both systems, started one after the other, each alone, and paused; ended whatever happens."""
    with contextlib.ExitStack() as stack:
        systems = {}
        for name, ports in zip((OURS, THEIRS), distant_ports(2), strict=True):
            systems[name] = System(name, recipes[name], directory / name, ports, flush, core)
            stack.callback(systems[name].end)
            os.sync()  # a start is not measured while the disk is busy with what was before
            systems[name].start()
            systems[name].pause()
        yield systems


def distant_ports(count: int) -> list[apache.Ports]:
    """Sets that do not overlap, those of slaves included: from outside the servers' network none is seen as taken."""
    found: list[apache.Ports] = []
    while len(found) < count:
        ports = apache.free_ports()
        if all(abs(ports.broker - other.broker) >= PORTS_APART for other in found):
            found.append(ports)
    return found
