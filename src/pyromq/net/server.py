"""A TCP server for the remoting protocol. It is handed `handle(command, peer)` and knows nothing of any service."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
from collections import Counter
from collections.abc import Callable
from math import ceil

from pyromq.clock import Clock
from pyromq.config import LimitsConfig
from pyromq.errors import ConfigError, NotNow
from pyromq.net.address import MAX_PORT
from pyromq.net.connection import Connection
from pyromq.net.endpoint import Handle, Home, Intake, Turns
from pyromq.net.peer import Peer
from pyromq.net.service import Answer
from pyromq.wire.command import Command
from pyromq.wire.responses import refusal

log = logging.getLogger("pyromq.net")

#: The longest interval between two searches for idle and stalled connections.
TICK_SECONDS = 1.0
#: With fewer left connections are refused, with a line in the log: the store must be able to open its own.
FEW_FILES = 32
#: File descriptors that are left to everything else: segments, listening sockets, connections of our own.
RESERVED_FILES = 512


def _ignore(_: Peer) -> None:
    pass


def _refuse_because_stopping(_: Command, __: Peer) -> Answer:
    return refusal(NotNow("this server is stopping; ask another one, or this one again when it is back"))


class Server(Home):
    """Listens, keeps within its limits, and stops without dropping what it began."""

    #: Makes an intake that receives into a buffer; None: each transport reads its own connection.
    new_intake: Callable[[memoryview], Intake] | None = None

    def __init__(
        self,
        handle: Handle,
        limits: LimitsConfig | None = None,
        *,
        on_disconnect: Callable[[Peer], None] = _ignore,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(handle, limits, clock=clock)
        #: Called before and after each turn of the intake.
        self.turns: Turns | None = None
        self.stopping = False
        self.host = ""
        self.port = 0
        self._on_disconnect = on_disconnect
        self._per_host: Counter[str] = Counter()
        self._max_connections = self.limits.max_connections
        self._listening: list[asyncio.Server] = []
        self._housekeeping: asyncio.Task[None] | None = None
        self._emptied = asyncio.Event()
        #: Why no connection is taken for lack of files; None: there are enough.
        self._few_files: str | None = None
        self._tick_s = self._tick_seconds()

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises ConfigError when the address cannot be had."""
        if not 0 <= port <= MAX_PORT:  # uvloop would take the low 16 bits
            raise ConfigError(f"cannot listen on {host}:{port}: ports are numbers from 0 to {MAX_PORT}")
        self._max_connections = _connections_with_files(self.limits.max_connections)
        self.host, self.port = host, await self._listen(host, port)
        self._open_intake()
        self._housekeeping = asyncio.get_running_loop().create_task(self._keep_house())

    async def listen_also(self, port: int) -> bool:
        """Listen at another port of the same address, for the same clients; False when it cannot be had."""
        try:
            await self._listen(self.host, port)
        except ConfigError as problem:
            log.info("%s; this port is done without", problem)
            return False
        return True

    def _open_intake(self) -> None:
        """Read all connections together, if there is an accelerator and the system has epoll."""
        if self.new_intake is not None and self.intake is None:
            loop = asyncio.get_running_loop()
            with contextlib.suppress(OSError):
                self.intake = self.new_intake(self.scratch)
                loop.add_reader(self.intake.descriptor, self._take_in)

    def _take_in(self) -> None:
        intake, turns = self.intake, self.turns
        if intake is not None and turns is not None:
            try:
                intake.turn(turns.begin_turn(), self.tick)
            finally:
                turns.end_turn()
        elif intake is not None:
            intake.turn(None, self.tick)

    def _close_intake(self) -> None:
        if self.intake is not None:
            asyncio.get_running_loop().remove_reader(self.intake.descriptor)
            self.intake.close()
            self.intake = None

    async def _listen(self, host: str, port: int) -> int:
        loop = asyncio.get_running_loop()
        try:
            listening = await loop.create_server(lambda: Connection(self), host, port, backlog=1024)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {_why(error)}") from error
        self._listening.append(listening)
        return int(listening.sockets[0].getsockname()[1])

    async def stop(self, grace_s: float | None = None) -> None:
        """Accept nothing more, answer the accepted requests, close. Requests unanswered after the grace are dropped."""
        self.stopping = True
        self.handle, self.fast_path, self.turns = _refuse_because_stopping, None, None
        for listening in self._listening:
            listening.close()
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        await self._finish_all(self.limits.stop_grace_ms / 1000 if grace_s is None else grace_s)
        for connection in tuple(self.connections):
            connection.abort()
        if self.connections:
            self._emptied.clear()
            await self._emptied.wait()
        self._close_intake()
        self.complaints.settle()
        for listening in self._listening:
            await listening.wait_closed()

    async def _finish_all(self, grace_s: float) -> None:
        finishing = [asyncio.ensure_future(connection.finish()) for connection in self.connections]
        if not finishing and not self.orphans:
            return
        _, late = await asyncio.wait([*finishing, *self.orphans], timeout=grace_s)
        if late:
            log.warning("%d connections or requests were not finished in %g s and are cut off", len(late), grace_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=grace_s)

    # --- what connections tell ---------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> bool:
        why = self._why_not(connection.host)
        if why is not None:
            self.complaints.say(connection.host, f"connection of {connection.address} refused: {why}")
            return False
        self._per_host[connection.host] += 1
        return super().opened(connection)

    def _why_not(self, host: str) -> str | None:
        if self.stopping:
            return "this server is stopping"
        if len(self.connections) >= self._max_connections:
            return f"{len(self.connections)} are open, which is the limit (limits.max_connections)"
        if self._few_files is not None:
            return self._few_files
        limit = self.limits.max_connections_per_host
        if limit and self._per_host[host] >= limit:
            return f"{limit} of this host are open, which is the limit (limits.max_connections_per_host)"
        return None

    def closed(self, connection: Connection) -> None:
        if connection not in self.connections:
            return
        super().closed(connection)
        self._per_host[connection.host] -= 1
        if not self._per_host[connection.host]:
            del self._per_host[connection.host]
        if not self.connections:
            self._emptied.set()
        try:
            self._on_disconnect(connection)
        except Exception as error:  # one that goes must not disturb the others
            log.error("what follows the disconnection of %s failed", connection.address, exc_info=error)

    # --- housekeeping ------------------------------------------------------------------------------------------------

    def _tick_seconds(self) -> float:
        """Short enough to keep each time limit to a quarter."""
        limits = self.limits
        return min(TICK_SECONDS, min(limits.idle_close_ms, limits.stalled_close_ms, limits.partial_close_ms) / 4000)

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            self.look_after_connections()

    def look_after_connections(self) -> None:
        """One tick: close connections that are idle, stalled, or too slow to send one request."""
        self.tick += 1
        self._look_at_files()
        self._close_idle()
        self._cut_off_stalled()
        self._cut_off_unfinished()
        self.released.give_back()
        self.complaints.settle()

    def _look_at_files(self) -> None:
        """The system cuts connections off without a word when the process may open no more files."""
        left = _files_left()
        self._few_files = None if left >= FEW_FILES else f"this process may open only {left} more files (ulimit -n)"
        if self._few_files is not None:
            self.complaints.say("open files", f"new connections are refused: {self._few_files}; raise it and restart")

    def _ticks(self, limit_ms: int) -> int:
        return ceil(limit_ms / 1000 / self._tick_s)

    def _close_idle(self) -> None:
        allowed = self._ticks(self.limits.idle_close_ms)
        for one in [one for one in self.connections if self.tick - one.last_tick > allowed and one.is_reading]:
            one.close_idle(f"nothing came for {self.limits.idle_close_ms / 1000:g} s")

    def _cut_off_stalled(self) -> None:
        allowed = self._ticks(self.limits.stalled_close_ms)
        for one in [one for one in tuple(self.behind) if one.check_stalled(allowed)]:
            one.abort(
                f"it has taken none of the {one.unsent_bytes} bytes that wait for it in "
                f"{self.limits.stalled_close_ms / 1000:g} s"
            )

    def _cut_off_unfinished(self) -> None:
        allowed = self._ticks(self.limits.partial_close_ms)
        for one in [one for one, began in self.partial.items() if self.tick - began > allowed and one.is_reading]:
            one.abort(
                f"it began a request {self.limits.partial_close_ms / 1000:g} s ago and has sent {one.partial_bytes} "
                "bytes of it"
            )


def _connections_with_files(wanted: int) -> int:
    """Return the number of connections the process may have, after raising its limit of open files if possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    possible = max(soft - RESERVED_FILES, soft // 2)
    log.info("at most %d connections: the system allows %d open files (ulimit -n)", possible, soft)
    return possible


def _files_left() -> int:
    """Return the number of files this process may still open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        lowest_free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    os.close(lowest_free)  # all below it are in use
    return FEW_FILES if limit == resource.RLIM_INFINITY else max(limit - lowest_free, 0)


def _why(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program listens there; stop it, or choose another port"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address"
    if error.errno == errno.EACCES:
        return "ports below 1024 need more rights"
    return error.strerror or str(error)
