"""A bare connection to an address, for what speaks no remoting protocol."""

from __future__ import annotations

import asyncio
import os
import socket

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
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            connection.close()
            raise
    return connection


def why_not(error: Exception) -> str:
    """What kept us from it, in words."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error) or "no answer in time"
