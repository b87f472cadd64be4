"""Ports that stay those of the test that has got them."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from pyromq.errors import NotNow
from pyromq.testing.brokers import ports

#: Another test, in a process of its own, that wants a port where there are three.
WANTS_ONE = """
from pyromq.testing.brokers import ports
ports.LOWEST, ports.HIGHEST = {first}, {first} + 3
print(ports.free_port())
"""


def three_in_a_row(monkeypatch: pytest.MonkeyPatch) -> int:
    first = ports.free_ports(0, 1, 2)
    ports.give_back(first, first + 1, first + 2)
    monkeypatch.setattr(ports, "LOWEST", first)
    monkeypatch.setattr(ports, "HIGHEST", first + 3)
    return first


def test_nobody_else_gets_a_port_whose_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    first = three_in_a_row(monkeypatch)
    ours = {ports.free_port(), ports.free_port()}
    assert len(ours) == 2
    (left,) = {first, first + 1, first + 2} - ours
    other = subprocess.run(
        [sys.executable, "-c", WANTS_ONE.format(first=first)], capture_output=True, text=True, check=True
    )
    assert int(other.stdout) == left
    assert ports.free_port() == left, "which it gave back when it ended"
    with pytest.raises(NotNow, match="no free port was found"):
        ports.free_port()


def test_a_port_on_which_somebody_listens_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    first = three_in_a_row(monkeypatch)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", first + 1))
        listener.listen()
        assert {ports.free_port(), ports.free_port()} == {first, first + 2}
        with pytest.raises(NotNow):
            ports.free_ports(0, 1)


def test_servers_of_long_ago_do_not_keep_their_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    three_in_a_row(monkeypatch)
    monkeypatch.setattr(ports, "_held", {})
    monkeypatch.setattr(ports, "MOST_HELD", 2)
    given = [ports.free_port() for _ in range(3)]
    assert len(set(given)) == 3
    assert ports.free_port() == given[0]
    ports.give_back(*given)


def test_a_broker_gets_all_its_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ports.free_ports(0, 1, 2, 3)
    ports.give_back(*range(first, first + 4))
    monkeypatch.setattr(ports, "LOWEST", first)
    monkeypatch.setattr(ports, "HIGHEST", first + 4)
    port = ports.free_broker_port()
    assert ports.broker_ports(port) == (first, first + 2, first + 3)
    assert ports.free_port() == first + 1, "all that is left"
    ports.give_back(first + 1, *ports.broker_ports(port))
