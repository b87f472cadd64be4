"""A network of their own for Apache's servers, with a loopback interface and nothing else.

The broker's replication port listens on every interface and no setting changes that. In a network namespace every
interface is the loopback, so nothing that a test starts can be reached from outside.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


@functools.cache
def enter_private_network() -> Callable[[], None] | None:
    """Return the function a child process calls before it starts, to be inside; None if the system forbids it."""
    libc = ctypes.CDLL(None, use_errno=True)
    made: list[int] = []

    def make() -> None:  # a namespace belongs to the thread that made it; the descriptor keeps it for the others
        if libc.unshare(_CLONE_NEWNET) == 0:
            _bring_up_loopback()
            made.append(os.open(Path("/proc/thread-self/ns/net"), os.O_RDONLY | os.O_CLOEXEC))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if not made:
        return None
    return lambda: None if libc.setns(made[0], _CLONE_NEWNET) == 0 else os._exit(127)


def run_inside(story: Callable[[], None]) -> None:
    """Run something where the servers are, in a thread of its own; whatever it raises is raised here."""
    failures: list[BaseException] = []

    def inside() -> None:
        enter = enter_private_network()
        if enter is not None:
            enter()
        try:
            story()
        except BaseException as error:  # noqa: BLE001  it is raised again where the test can see it
            failures.append(error)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh22x", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(control, _SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))
