"""Ports for test servers that must restart on the same one.

A port that the system picks lies where it also picks the ports of outgoing connections. While such a server is down,
one of them may take its port: in the worst case that of a client that tries to reach it, and then talks to itself.

Concurrent tests do not take each other's ports either while a server is down: a port that was given out
here is reserved for all processes by the UDP port of the same number, until it is released or its process ends.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Container

from pyromq.errors import NotNow

LOOPBACK = "127.0.0.1"
#: Below what systems give to outgoing connections, above what well-known programs listen on.
LOWEST, HIGHEST = 20_000, 32_000
ATTEMPTS = 200
#: Reserve at most this many, the newest: servers of finished tests do not restart.
MOST_HELD = 512

#: Of its own: a test that seeds the shared one must not give all processes of a run the same ports.
_rng = random.Random()  # noqa: S311  a port is no secret
#: By port, oldest first. Descriptors, because unclosed sockets would warn at the end of the process.
_held: dict[int, int] = {}


def free_port(besides: Container[int] = ()) -> int:
    """Return a loopback port without a listener, which no outgoing connection will take. Raises NotNow."""
    return free_ports(0, besides=besides)


def free_broker_port(besides: Container[int] = ()) -> int:
    """The same for a broker, which also listens on the port above its own and on the one two below. Raises NotNow."""
    return free_ports(*broker_ports(0), besides=besides)


def broker_ports(port: int) -> tuple[int, ...]:
    """All ports of a broker."""
    return port - 2, port, port + 1


def free_ports(*steps: int, besides: Container[int] = ()) -> int:
    """A number from which each of these steps leads to a free port. Raises NotNow."""
    for _ in range(ATTEMPTS):
        first = _rng.randrange(LOWEST - min(steps), HIGHEST - max(steps))
        ports = [first + step for step in steps]
        if not any(port in besides for port in ports) and _all_held(ports):
            return first
    raise NotNow(f"no free port was found between {LOWEST} and {HIGHEST}: stop some of the servers that listen there")


def give_back(*ports: int) -> None:
    """Their server is gone for good."""
    for port in ports:
        mark = _held.pop(port, None)
        if mark is not None:
            os.close(mark)


def _all_held(ports: list[int]) -> bool:
    with contextlib.ExitStack() as so_far:
        try:
            marks = [so_far.enter_context(_mark(port)) for port in ports]
        except OSError:
            return False
        so_far.pop_all()
    for port, mark in zip(ports, marks, strict=True):
        if len(_held) == MOST_HELD:
            give_back(next(iter(_held)))
        _held[port] = mark.detach()
    return True


def _mark(port: int) -> socket.socket:
    """Raise OSError if the port has a listener, on any address, or another test has reserved it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", port))
    mark = socket.socket(type=socket.SOCK_DGRAM)
    try:
        mark.bind((LOOPBACK, port))
    except OSError:
        mark.close()
        raise
    return mark
