"""Ports for servers of a test that must come back on the same one.

A port that the system picks lies where it also picks the ports of outgoing connections. While such a server is down,
one of them may take its port: in the worst case that of a client that tries to reach it, and then talks to itself.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Container

from pyromq.errors import NotNow

LOOPBACK = "127.0.0.1"
#: Below what systems give to outgoing connections, above what well-known programs listen on.
LOWEST, HIGHEST = 20_000, 32_000
ATTEMPTS = 200

#: Of its own: a test that seeds the shared one must not give all processes of a run the same ports.
_rng = random.Random()  # noqa: S311  a port is no secret


def free_port(besides: Container[int] = ()) -> int:
    """A loopback port that nobody listens on now, and that no outgoing connection will take. Raises NotNow."""
    for _ in range(ATTEMPTS):
        port = _rng.randrange(LOWEST, HIGHEST)
        if port not in besides and _is_free(port):
            return port
    raise NotNow(f"no free port was found between {LOWEST} and {HIGHEST}: stop some of the servers that listen there")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return True
    return False
