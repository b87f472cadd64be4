"""Connections to servers, made when they are needed and made again when they broke."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable

from pyromq.config import LimitsConfig
from pyromq.errors import CallTimeout, TlsFailed, Unreachable
from pyromq.net.address import parse_address
from pyromq.net.connection import Connection
from pyromq.net.dialling import refuse_itself
from pyromq.net.endpoint import Handle, Home, Sign
from pyromq.wire.command import Command
from pyromq.wire.requests.client import Request

CONNECT_SECONDS = 3.0


class Client:
    """Calls servers by address. `handle` answers what they ask in return.

    With `tls` every connection is encrypted. `sign` signs every request before it is sent. `on_slow` is called with the
    address of a peer on which a call of `Connection.call_nowait` has waited for its `slow_s`.
    """

    def __init__(
        self,
        handle: Handle | None = None,
        limits: LimitsConfig | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        sign: Sign | None = None,
        on_slow: Callable[[str], None] | None = None,
        connect_timeout_s: float = CONNECT_SECONDS,
    ) -> None:
        self._home = Home(handle, limits)
        self._home.sign = sign
        self._home.on_slow = self._slow
        self._on_slow = on_slow
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._by_address: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Lock] = {}
        #: The tick at which each connection was made: one that reads something notes a later one.
        self._made_at: dict[str, int] = {}
        self._is_closed = False

    async def call(self, address: str, request: Request, timeout_s: float = 3.0) -> Command:
        """The answer of the server at `host:port`. Raises Unreachable, CallTimeout."""
        connection = await self.connect(address)
        self._home.tick += 1
        began = self._home.tick
        try:
            return await connection.call(request, timeout_s)
        except CallTimeout:
            if connection.last_tick < began:  # the peer sent nothing since: the next call must reconnect
                connection.abort(f"nothing came back within {timeout_s:g} s")
            raise
        except Unreachable:
            if self._is_closed or self._tls is not None or connection.last_tick > self._made_at.get(address, -1):
                raise
            raise Unreachable(
                f"{address} closed the connection without an answer: is it a server of this kind, and does it perhaps "
                "want TLS (`tls=`, or PYROMQ_TLS for the command line)?"
            ) from None

    async def tell(self, address: str, request: Request) -> None:
        """Send a request that has no answer. Raises Unreachable if the connection cannot be made."""
        (await self.connect(address)).tell(request)

    def connected(self, address: str) -> Connection | None:
        """The open connection to an address, if there is one."""
        known = self._by_address.get(address)
        return known if known is not None and known.is_open else None

    async def connect(self, address: str) -> Connection:
        """The connection to an address, made now if there is none. Raises Unreachable."""
        known = self._by_address.get(address)
        if known is not None and known.is_open:
            return known
        async with self._connecting.setdefault(address, asyncio.Lock()):
            known = self._by_address.get(address)
            if known is None or not known.is_open:
                known = self._by_address[address] = await self._connect(address)
                self._made_at[address] = known.last_tick
                self._home.tick += 1
            return known

    def _slow(self, connection: Connection) -> None:
        """Abort the connection if the peer's machine is gone, so that callers retry; else report it: it may be busy."""
        if connection.is_sent_in_vain:
            connection.abort("what is sent there does not arrive")
            return
        for address, known in self._by_address.items():
            if known is connection and self._on_slow is not None:
                self._on_slow(address)
                return

    def forget(self, address: str, why: str) -> None:
        """Break the connection to an address: its pending calls fail, so that their callers try another server."""
        known = self._by_address.pop(address, None)
        if known is not None and known.is_open:
            known.abort(why)

    async def _connect(self, address: str) -> Connection:
        if self._is_closed:
            raise Unreachable(f"{address} is not called any more: this client is closed")
        loop = asyncio.get_running_loop()
        try:
            host, port = parse_address(address)
            async with asyncio.timeout(self._connect_timeout_s):
                transport, connection = await loop.create_connection(
                    lambda: Connection(self._home), host, port, ssl=self._tls
                )
            self._refuse_itself(transport)
        except ssl.SSLError as error:
            raise TlsFailed(f"{address} and this client do not agree on TLS: {error}") from None
        except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError) as error:
            if self._tls is None:
                raise Unreachable(f"{address} hung up at once ({error})") from None
            raise TlsFailed(f"{address} hung up when this client began with TLS: does it speak TLS?") from None
        except (OSError, ValueError, TimeoutError) as error:
            raise Unreachable(f"nobody answers at {address} ({_why(error)})") from None
        if self._is_closed:
            connection.abort()
            raise Unreachable(f"{address} is not called any more: this client is closed")
        return connection

    def _refuse_itself(self, transport: asyncio.Transport) -> None:
        connection = transport.get_extra_info("socket")
        try:
            if connection is not None:  # it may be gone already
                refuse_itself(connection)
        except OSError:
            transport.abort()
            raise

    async def close(self, grace_s: float = 1.0) -> None:
        """Finish answering what the servers asked, for as long as the grace, and close every connection."""
        self._is_closed = True
        open_ones = [connection for connection in self._by_address.values() if connection.is_open]
        self._by_address.clear()
        finishing = [asyncio.ensure_future(connection.finish()) for connection in open_ones]
        try:
            if finishing:
                await asyncio.wait(finishing, timeout=grace_s)
        finally:  # also if the closing task is cancelled
            for task in finishing:
                task.cancel()
            for connection in open_ones:
                connection.abort()


def _why(error: BaseException) -> str:
    """Without the addresses, which asyncio names again, and without the same reason for each address of a host."""
    numbers = dict.fromkeys(re.findall(r"\[Errno (\d+)\]", str(error)))
    if numbers:
        return " and ".join(os.strerror(int(number)).lower() for number in numbers)
    return getattr(error, "strerror", None) or str(error) or "no answer in time"
