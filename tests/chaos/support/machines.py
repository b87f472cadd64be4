"""Machines with a network between them: a namespace and a small disk each, and a router in the middle that can fail.

    with Network(home) as network:
        a, b = network.machine("a"), network.machine("b")
        process = a.start([...])
        network.cut(a, b)

Every packet between two machines passes the router: there it is dropped (a cut, in one direction if asked for), sent
through a narrow pipe, or handed to a program that holds it for a while or loses it (`slow_net`). Names have the
number of the process that made them: what a killed test left behind is swept away by the next one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

PREFIX = "pyromq-chaos"
OURS = re.compile(rf"{PREFIX}-(\d+)-[\w-]+")
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
NAMESPACES = Path("/run/netns")
#: In the order in which the router asks its rules.
CUT_RULE, HELD_ALREADY_RULE, HOLD_RULE = "50", "100", "200"
HELD_TABLE = "77"
BLOCK = 4096
_libc = ctypes.CDLL(None, use_errno=True)


@cache
def why_not() -> str | None:
    """Why there can be no such machines here; None: there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    for program in ("ip", "tc", "mount"):
        if shutil.which(program) is None:
            return f"network namespaces need the program {program}"
    name = f"{PREFIX}-{os.getpid()}-probe"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"network namespaces cannot be made here: {tried.stderr.strip()}"
    _run("ip", "netns", "delete", name)
    return None


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def sweep() -> None:
    """Remove what tests that are no more have left: processes, namespaces, disks."""
    for name in [found.name for found in NAMESPACES.iterdir()] if NAMESPACES.is_dir() else []:
        if _is_left_over(name):
            _remove_namespace(name)
    for line in Path("/proc/mounts").read_text().splitlines():
        source, where, *_ = line.split()
        if _is_left_over(source):
            subprocess.run(["umount", "-l", where], check=False)


def _is_left_over(name: str) -> bool:
    found = OURS.fullmatch(name)
    return found is not None and not Path(f"/proc/{found[1]}").exists()


def _remove_namespace(name: str) -> None:
    inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    for pid in inside.stdout.split():
        if int(pid) != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


class Machine:
    """Where processes run that reach others through the network only."""

    def __init__(self, name: str, number: int, home: Path, network: Network) -> None:
        self.name = name
        self.address = f"10.77.{number}.2"
        self.gateway = f"10.77.{number}.1"
        self.home = home
        self.namespace = network.namespace(name)
        #: The router's end of the cable.
        self.cable = f"to-{name}"
        self.disk = home / "disk"
        self._ballast = self.disk / "ballast"
        self._fd = -1

    def _open(self, network: Network, disk_bytes: int) -> None:
        _run("ip", "netns", "add", self.namespace)
        self._fd = os.open(NAMESPACES / self.namespace, os.O_RDONLY)
        _run("ip", "-n", network.router, "link", "add", self.cable, "type", "veth",
             "peer", "name", "eth0", "netns", self.namespace)  # fmt: skip
        _run("ip", "-n", network.router, "address", "add", f"{self.gateway}/24", "dev", self.cable)
        _run("ip", "-n", network.router, "link", "set", self.cable, "up")
        _run("ip", "-n", self.namespace, "address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run("ip", "-n", self.namespace, "link", "set", device, "up")
        _run("ip", "-n", self.namespace, "route", "add", "default", "via", self.gateway)
        self.disk.mkdir(parents=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={disk_bytes}", self.namespace, str(self.disk))

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        _remove_namespace(self.namespace)
        if os.path.ismount(self.disk):
            subprocess.run(["umount", "-l", str(self.disk)], check=False)

    def step_in(self) -> None:
        """For a process about to begin: it is on this machine, and ends when the test does."""
        _enter(self._fd)
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This thread, and processes and threads that it starts, are on the machine for a block."""
        outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _enter(self._fd)
            yield
        finally:
            _enter(outside)
            os.close(outside)

    # --- its disk ----------------------------------------------------------------------------------------------------

    def fill_disk(self, leave: int = 0) -> None:
        """Another program's file takes all that is free, but so many bytes."""
        with self._ballast.open("wb") as file:
            taken = 0
            while (size := self._free_bytes() - leave) >= BLOCK:
                with contextlib.suppress(OSError):  # somebody else took some of it just now
                    os.posix_fallocate(file.fileno(), taken, size)
                    taken += size

    def _free_bytes(self) -> int:
        disk = os.statvfs(self.disk)
        return disk.f_bavail * disk.f_frsize

    def free_disk(self) -> None:
        self._ballast.unlink(missing_ok=True)


class Network:
    """The router and the machines around it."""

    def __init__(self, home: Path, *, disk_bytes: int = 512 << 20) -> None:
        self._home = home
        self._disk_bytes = disk_bytes
        self.router = self.namespace("router")
        self.machines: list[Machine] = []
        self._slow_net: subprocess.Popen[bytes] | None = None
        self._undo: list[Callable[[], object]] = []

    @staticmethod
    def namespace(name: str) -> str:
        return f"{PREFIX}-{os.getpid()}-{name}"

    def __enter__(self) -> Self:
        sweep()
        try:
            _run("ip", "netns", "add", self.router)
            _run("ip", "-n", self.router, "link", "set", "lo", "up")
            with _namespace_of(self.router):
                Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
                for device in ("all", "default"):
                    Path(f"/proc/sys/net/ipv4/conf/{device}/rp_filter").write_text("0")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._slow_net is not None:
            self._slow_net.kill()
            self._slow_net.wait()
            assert self._slow_net.stdin is not None
            self._slow_net.stdin.close()
        for machine in self.machines:
            machine._close()
        _remove_namespace(self.router)

    def machine(self, name: str) -> Machine:
        machine = Machine(name, len(self.machines) + 1, self._home / name, self)
        self.machines.append(machine)
        machine._open(self, self._disk_bytes)
        return machine

    # --- faults ------------------------------------------------------------------------------------------------------

    def cut(self, one: Machine, other: Machine, *, only_from_one: bool = False) -> None:
        """Packets vanish between the two, or only those that `one` sends; connections stay open."""
        self._rule("from", one.address, "to", other.address, "blackhole", priority=CUT_RULE)
        if not only_from_one:
            self._rule("from", other.address, "to", one.address, "blackhole", priority=CUT_RULE)

    def unplug(self, machine: Machine) -> None:
        """The cable is out: it notices that itself."""
        self._tool("ip", "link", "set", machine.cable, "down")
        self._undo.append(lambda: self._tool("ip", "link", "set", machine.cable, "up"))

    def narrow(self, machine: Machine, bytes_per_s: int) -> None:
        """All that it sends and is sent, each way."""
        pipe = ["root", "tbf", "rate", f"{bytes_per_s * 8}bit", "burst", "16kb", "latency", "300ms"]
        for namespace, device in ((self.router, machine.cable), (machine.namespace, "eth0")):
            _run("tc", "-n", namespace, "qdisc", "add", "dev", device, *pipe)
            self._undo.append(
                lambda namespace=namespace, device=device: _run(
                    "tc", "-n", namespace, "qdisc", "del", "dev", device, "root"
                )
            )

    def slow(self, machine: Machine, delay_s: float, jitter_s: float = 0.0, loss: float = 0.0) -> None:
        """All that it sends and is sent is held for so long each way, and a share of it lost."""
        self._start_slow_net()
        assert self._slow_net is not None
        assert self._slow_net.stdin is not None
        self._slow_net.stdin.write(f"{delay_s} {jitter_s} {loss}\n".encode())
        self._slow_net.stdin.flush()
        for direction in ("from", "to"):
            self._rule(direction, machine.address, "lookup", HELD_TABLE, priority=HOLD_RULE)

    def heal(self) -> None:
        """Everything passes again."""
        while self._undo:
            self._undo.pop()()

    def _rule(self, *words: str, priority: str) -> None:
        rule = [*words, "priority", priority]
        self._tool("ip", "rule", "add", *rule)
        self._undo.append(lambda: self._tool("ip", "rule", "delete", *rule))

    def _tool(self, program: str, *words: str) -> str:
        return _run(program, "-n", self.router, *words)

    def _start_slow_net(self) -> None:
        if self._slow_net is not None:
            return
        program = Path(__file__).with_name("slow_net.py")
        self._slow_net = self._start_in_router([sys.executable, str(program)])
        assert self._slow_net.stdout is not None
        device = self._slow_net.stdout.readline().decode().strip()
        self._slow_net.stdout.close()
        self._tool("ip", "link", "set", device, "up")
        self._tool("ip", "route", "add", "default", "dev", device, "table", HELD_TABLE)
        self._tool("ip", "rule", "add", "iif", device, "lookup", "main", "priority", HELD_ALREADY_RULE)

    def _start_in_router(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with _namespace_of(self.router):
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@contextlib.contextmanager
def _namespace_of(name: str) -> Iterator[None]:
    outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    inside = os.open(NAMESPACES / name, os.O_RDONLY)
    try:
        _enter(inside)
        yield
    finally:
        _enter(outside)
        os.close(inside)
        os.close(outside)
