"""A network between clients and a server that fails when a test says so.

    async with FaultProxy(mq.name_servers) as proxy:
        ...                     # clients connect to proxy.address
        proxy.cut()             # all connections are reset
        proxy.stall()           # they stay open, and nothing passes …
        proxy.resume()          # … until now

Bytes pass unchanged and in order, except where `corrupt` was asked for. Faults hold for the connections that are open
and for those that come. A broker tells clients its own address, so one behind a proxy must be told the proxy's:

    async with FaultProxy() as proxy:
        with pyromq.testing.broker(advertise=proxy.address) as mq:
            proxy.target = mq.broker_address

All methods belong to the event loop that the proxy runs on.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterable
from enum import Enum
from types import TracebackType
from typing import NamedTuple, Self

from pyromq.errors import ConfigError, NotNow
from pyromq.net.address import parse_address, shown_address
from pyromq.testing.brokers.ports import LOOPBACK, free_port, give_back

#: Most bytes that are taken from one side at once.
CHUNK_BYTES = 64 << 10
#: Chunks of one direction that may be on their way: what a long delay keeps in memory.
CHUNKS_ON_THE_WAY = 256
#: A slow line passes this many pieces a second, so that a small answer does not wait for a whole chunk's time.
PIECES_PER_SECOND = 50
#: Closing sends a reset at once and drops unsent bytes.
RESET = struct.pack("ii", 1, 0)
#: The effect of `corrupt` on a byte.
FLIPPED_BITS = 0x55


class Direction(Enum):
    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


BOTH = tuple(Direction)


class FaultProxy:
    """Listens on a loopback port and passes every connection on to `target`."""

    def __init__(self, target: str | None = None, *, port: int = 0) -> None:
        """`target` is `host:port`, and may be given later. `port` 0: a free one."""
        #: The target of new connections.
        self.target = target
        self.port = port
        #: The port, if it was chosen here.
        self._own_port = 0
        #: Connections that were accepted so far.
        self.accepted = 0
        self.lines = {direction: _Line() for direction in BOTH}
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """The address for clients."""
        if not self.port:
            raise NotNow("this proxy has no address yet: use it as `async with FaultProxy(target) as proxy:`")
        return shown_address(LOOPBACK, self.port)

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def passed(self, direction: Direction) -> int:
        """Bytes that went through so far."""
        return self.lines[direction].passed

    # --- faults ------------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Reset every connection, as a machine that lost its memory does. New ones may come."""
        for connection in tuple(self._connections):
            connection.reset()

    async def refuse(self) -> None:
        """Refuse connections, as if no server ran here. Open connections stay."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.close()

    async def accept(self) -> None:
        """Let clients connect again. Raises ConfigError when another program took the port."""
        if self._listening is None:
            self._listening = await self._listen()

    def stall(self, direction: Direction | None = None) -> None:
        """Let nothing pass, in one direction or both; connections stay open, and new ones are taken."""
        for line in self._lines(direction):
            line.flows.clear()

    def resume(self, direction: Direction | None = None) -> None:
        """End a stall: what waited passes now."""
        for line in self._lines(direction):
            line.flows.set()

    def delay(self, seconds: float, direction: Direction | None = None) -> None:
        """Delay each byte by this time from now on, without limiting the bytes in flight. 0: no delay."""
        for line in self._lines(direction):
            line.delay_s = seconds

    def throttle(self, bytes_per_s: float | None, direction: Direction | None = None) -> None:
        """Let no more than this pass in a second, on each connection. None: as fast as it goes."""
        if bytes_per_s is not None and bytes_per_s <= 0:
            raise ConfigError(f"bytes_per_s = {bytes_per_s} cannot work: it must be above 0; stall() lets nothing pass")
        for line in self._lines(direction):
            line.bytes_per_s = bytes_per_s

    def half_close(self, direction: Direction) -> None:
        """End this direction for its receiver; the other direction stays open."""
        for connection in tuple(self._connections):
            connection.end(direction)

    def corrupt(self, at: int = 0, direction: Direction = Direction.TO_SERVER) -> None:
        """Change one byte: the one that passes behind `at` others from now on, counted over all connections."""
        line = self.lines[direction]
        line.to_corrupt.add(line.passed + at)

    def heal(self) -> None:
        """End stalls, delays, limits and corruptions that did not happen yet. `accept` is apart."""
        self.resume()
        self.delay(0)
        self.throttle(None)
        for line in self.lines.values():
            line.to_corrupt.clear()

    def _lines(self, direction: Direction | None) -> Iterable[_Line]:
        return self.lines.values() if direction is None else (self.lines[direction],)

    # --- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if not self.port:
            self.port = self._own_port = free_port()
        await self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse()
        give_back(self._own_port)
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self) -> asyncio.Server:
        try:
            return await asyncio.start_server(self._accepted, LOOPBACK, self.port, limit=CHUNK_BYTES)
        except OSError as error:
            raise ConfigError(f"the proxy cannot listen on {LOOPBACK}:{self.port}: {error}") from error

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.ensure_future(self._serve(_End(reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: _End) -> None:
        try:
            server = await self._reach_target()
        except OSError:
            client.reset()
            return
        connection = _Connection(client, server)
        self._connections.add(connection)
        try:
            await connection.carry(self.lines)
        finally:
            self._connections.discard(connection)
            connection.reset()

    async def _reach_target(self) -> _End:
        if self.target is None:
            raise ConnectionRefusedError("this proxy has no target yet")
        host, port = parse_address(self.target)
        return _End(*await asyncio.open_connection(host, port, limit=CHUNK_BYTES))


class _Line:
    """The faults of one direction, on all connections."""

    def __init__(self) -> None:
        self.flows = asyncio.Event()
        self.flows.set()
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self.passed = 0
        #: Positions in the sequence of bytes that passed.
        self.to_corrupt: set[int] = set()

    def changed(self, data: bytes) -> bytes:
        """The bytes as they leave the proxy; counts them."""
        start, self.passed = self.passed, self.passed + len(data)
        hit = {at for at in self.to_corrupt if start <= at < self.passed}
        if not hit:
            return data
        self.to_corrupt -= hit
        bent = bytearray(data)
        for at in hit:
            bent[at - start] ^= FLIPPED_BITS
        return bytes(bent)

    def pieces(self, data: bytes) -> Iterable[bytes]:
        """Small ones on a slow line."""
        size = len(data) if self.bytes_per_s is None else max(1, int(self.bytes_per_s / PIECES_PER_SECOND))
        return (data[at : at + size] for at in range(0, len(data), size))


class _End(NamedTuple):
    """One side of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def reset(self) -> None:
        transport = self.writer.transport
        found = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # it is closed already
            if found is not None:
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        transport.abort()

    def end(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # it is closed already
            if not self.writer.is_closing():
                self.writer.write_eof()


class _Connection:
    """A client, a server, and two lines between them."""

    def __init__(self, client: _End, server: _End) -> None:
        self._client = client
        self._server = server

    async def carry(self, lines: dict[Direction, _Line]) -> None:
        """Until both sides have ended and have everything, or one broke off."""
        ways = [
            (self._client, self._server, lines[Direction.TO_SERVER]),
            (self._server, self._client, lines[Direction.TO_CLIENT]),
        ]
        with contextlib.suppress(OSError, ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for source, sink, line in ways:
                    way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_ON_THE_WAY)
                    group.create_task(_take(source, way, line))
                    group.create_task(_give(sink, way, line))
            for end in (self._client, self._server):
                end.writer.close()
                await end.writer.wait_closed()

    def reset(self) -> None:
        self._client.reset()
        self._server.reset()

    def end(self, direction: Direction) -> None:
        (self._server if direction is Direction.TO_SERVER else self._client).end()


async def _take(source: _End, way: asyncio.Queue[tuple[float, bytes]], line: _Line) -> None:
    """Each chunk with the time at which it is due; an empty one ends the line."""
    loop = asyncio.get_running_loop()
    while True:
        data = await source.reader.read(CHUNK_BYTES)
        await way.put((loop.time() + line.delay_s, data))
        if not data:
            return


async def _give(sink: _End, way: asyncio.Queue[tuple[float, bytes]], line: _Line) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due, data = await way.get()
        if (left := due - loop.time()) > 0:
            await asyncio.sleep(left)
        await line.flows.wait()
        if not data:
            return sink.end()
        for piece in line.pieces(data):
            await line.flows.wait()
            sink.writer.write(line.changed(piece))
            await sink.writer.drain()
            if line.bytes_per_s is not None:
                await asyncio.sleep(len(piece) / line.bytes_per_s)
