"""The machines of the chaos tests themselves: what is cut is cut, what is slow is slow, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.support.machines import NAMESPACES, PREFIX, Machine, Network, sweep, why_not
from late import before, in_time
from pyromq.net.tcp_state import is_sent_in_vain

PORT = 7


@pytest.fixture(autouse=True)
def machines() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with Network(tmp_path, disk_bytes=4 << 20) as network:
        yield network


def listens(machine: Machine) -> socket.socket:
    """Answers whoever connects with what they say, until it is closed."""
    with machine.inside():
        listener = socket.create_server((machine.address, PORT))

    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)

    threading.Thread(target=answer, daemon=True).start()
    return listener


def seconds_to(machine: Machine, other: Machine, size: int = 1, patience_s: float = 5.0) -> float:
    """How long it takes to get so many bytes there and back. Raises OSError when it takes too long."""
    with machine.inside(), socket.create_connection((other.address, PORT), patience_s) as connection:
        began = time.monotonic()
        connection.sendall(bytes(size))
        while size > 0:
            size -= len(connection.recv(size))
        return time.monotonic() - began


def test_what_is_cut_is_cut_for_these_two_and_until_it_is_healed(network: Network) -> None:
    a, b, c = (network.machine(name) for name in "abc")
    with listens(a), listens(b):
        in_time(seconds_to(a, b), 1)
        network.cut(a, b, only_from_one=True)
        with pytest.raises(TimeoutError):
            seconds_to(b, a, patience_s=0.3)  # its questions arrive, the answers do not
        in_time(seconds_to(c, a), 1)
        in_time(seconds_to(c, b), 1)
        network.heal()
        in_time(seconds_to(b, a), 1)
        network.unplug(b)
        for asker in (a, c):
            with pytest.raises(OSError):
                seconds_to(asker, b, patience_s=0.3)
        network.heal()
        in_time(seconds_to(a, b), 5)


def test_slow_lines_hold_back_everything_that_passes_them(network: Network) -> None:
    a, b, c = (network.machine(name) for name in "abc")
    with listens(a), listens(b):
        network.slow(b, 0.1)
        assert seconds_to(a, b) >= 0.2
        in_time(seconds_to(c, a), 0.2)
        network.heal()
        network.narrow(b, 50_000)
        assert seconds_to(a, b, 100_000) > 0.5
        network.heal()
        in_time(seconds_to(a, b, 100_000), 0.5)


def test_a_disk_is_filled_and_freed(network: Network) -> None:
    machine = network.machine("a")
    machine.fill_disk(leave=8192)
    file = machine.disk / "file"
    with pytest.raises(OSError, match="No space left"):
        file.write_bytes(bytes(20_000))
    machine.free_disk()
    file.write_bytes(bytes(20_000))


LEFT = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from chaos.support.machines import Network
network = Network(Path({home!r})).__enter__()
machine = network.machine("a")
import os, subprocess
subprocess.Popen(["sleep", "600"], preexec_fn=lambda: os.setpgrp() or machine.step_in())
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_test_left_is_swept_away(tmp_path: Path) -> None:
    program = LEFT.format(path=sys.path, home=str(tmp_path))
    killed = subprocess.Popen([sys.executable, "-c", program])
    killed.wait()
    prefix = f"{PREFIX}-{killed.pid}-"
    assert any(found.name.startswith(prefix) for found in NAMESPACES.iterdir())
    assert prefix in Path("/proc/mounts").read_text()
    sweep()
    assert not any(found.name.startswith(prefix) for found in NAMESPACES.iterdir())
    assert prefix not in Path("/proc/mounts").read_text()
    assert not os.path.ismount(tmp_path / "a" / "disk")


def test_the_system_tells_a_machine_that_is_gone_from_one_that_does_not_read(network: Network) -> None:
    """What clients go by who have waited long for an answer."""
    one, other = network.machine("one"), network.machine("other")
    with other.inside():
        listener = socket.create_server((other.address, PORT))
    with one.inside(), socket.create_connection((other.address, PORT), 5.0) as connection:
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                connection.send(bytes(1 << 16))
        time.sleep(1.0)  # longer than the system waits before it sends again
        assert not is_sent_in_vain(connection.fileno()), "it says that it has no room"
        accepted, _ = listener.accept()
        with accepted:
            accepted.recv(1 << 20)
            network.unplug(other)
            deadline = time.monotonic() + 20
            while not is_sent_in_vain(connection.fileno()):
                before(deadline, "it does not come about")
                with contextlib.suppress(BlockingIOError):
                    connection.send(b"more")
                time.sleep(0.05)
    listener.close()
