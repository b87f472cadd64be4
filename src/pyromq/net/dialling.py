"""A bare connection to an address, for what speaks no remoting protocol."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct

from pyromq.net.address import parse_address


async def dial(address: str, timeout_s: float) -> socket.socket:
    """Raises OSError, TimeoutError, ValueError."""
    host, port = parse_address(address)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout_s):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, where = found[0]
        connection = socket.socket(family, kind, protocol)
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, where)
            refuse_itself(connection)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            connection.close()
            raise
    return connection


def refuse_itself(connection: socket.socket) -> None:
    """Raise ConnectionRefusedError if a connection is connected to itself.

    The system may give a connection to a local port without a listener that same port as its own: both ends are
    then one socket, which would keep the server from binding the port.
    """
    try:
        is_itself = connection.getsockname() == connection.getpeername()
    except OSError:  # the peer has already closed, so it was another socket
        return
    if is_itself:
        # Reset on close: the port must not stay in TIME_WAIT for a minute.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


def why_not(error: Exception) -> str:
    """Return the reason for a failed connection attempt, for people."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error) or "no answer in time"
