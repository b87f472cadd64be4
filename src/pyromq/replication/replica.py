"""A broker that follows: connects to the replication port of its primary, takes the log, reports, and connects again.

One connection at a time. Whatever ends it is said once, and tried again with growing patience: a full disk, a primary
that restarts. Problems that need an operator (logs that differ, damage on arrival) are retried rarely, and shown as
such.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from pyromq.clock import Clock
from pyromq.errors import BadFrame, PyroMQError
from pyromq.net.address import shown_address
from pyromq.net.dialling import dial, why_not
from pyromq.replication.arrival import StreamDamaged
from pyromq.replication.identity import Refused
from pyromq.replication.introduction import Introduction
from pyromq.replication.log import CopyLog
from pyromq.replication.log_matching import Parted
from pyromq.replication.stream import Ahead, Gap, LeftBehind, ReplicaStream, StreamTimes

log = logging.getLogger("pyromq.replication")

TICK_SECONDS = 0.5
CONNECT_SECONDS = 5.0
FIRST_RETRY_SECONDS = 0.2
LONGEST_RETRY_SECONDS = 5.0
#: Interval between two retries of a problem that needs an operator.
HOPELESS_RETRY_SECONDS = 30.0
CLOSED_AT_ONCE = (
    "it closed the connection and said nothing: is this its replication port (haListenPort, else the one above its "
    "port), and does it admit this machine?"
)


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The state for admin tools."""

    primary: str | None
    connected: bool
    #: Behind the last byte that the primary sent.
    primary_end: int
    #: Why the last connection ended; None: it did not.
    problem: str | None
    #: The primary no longer has what follows our log: a new copy would begin there. None: it has.
    left_behind_at: int | None = None


class Replica:
    """Follows one primary until `follow` names another."""

    def __init__(
        self,
        store: CopyLog,
        clock: Clock,
        *,
        times: StreamTimes = StreamTimes(),  # noqa: B008  a value
        window_bytes: int | None = None,
        on_caught_up: Callable[[], None] = lambda: None,
        compare: Callable[[str], Awaitable[Introduction | None]] | None = None,
        changed: Callable[[ReplicaState], None] = lambda state: None,
    ) -> None:
        """`window_bytes`: be sent no more than that at a time, for a slow link; our own primaries alone know it.

        `compare` looks whether both logs are one, and raises a PyroMQError when they must not become one. It returns
        our introduction to a primary of ours: the handshake shows whether it is still the one that was
        compared with. With any other primary it is called again when there is a connection and nothing has been said: a
        primary that becomes another one closes it.
        """
        self._store = store
        self._clock = clock
        self._times = times
        self._window_bytes = window_bytes
        self._on_caught_up = on_caught_up
        self._compare = compare
        self._changed = changed
        self._address: str | None = None
        self._moved = asyncio.Event()
        #: Set when the copy became safer: there may be something to report.
        self._safer = asyncio.Event()
        self._retry_s = FIRST_RETRY_SECONDS
        #: The unsent rest of a report.
        self._unsaid = b""
        #: The problem, and the beginning of a copy, that were told of last: the same again is no news.
        self._said: str | None = None
        self._said_copying: tuple[str, int] | None = None
        #: Something came over this connection.
        self._heard = False
        self.state = ReplicaState(None, False, 0, None)
        #: Time at which the copy had all bytes that the primary had sent, by the monotonic clock; None: never yet.
        self.level_ms: int | None = None
        #: Our end of the connection, by which the primary knows us; empty: there is none.
        self.own_address = ""

    def follow(self, address: str | None) -> None:
        """Follow this primary from now on; None: no primary."""
        if address != self._address:
            self._address = address
            self._moved.set()

    def copy_became_safer(self) -> None:
        self._safer.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._moved.clear()
            if self._address is None:
                self._show(ReplicaState(None, False, self.state.primary_end, None))
                await self._moved.wait()
                continue
            started = self._clock.monotonic()
            hopeless = await self._follow(self._address)
            lasted = self._clock.monotonic() - started > LONGEST_RETRY_SECONDS
            if lasted:  # whatever ends the next one is news
                self._said = None
            await self._be_patient(hopeless=hopeless, afresh=lasted or self._moved.is_set())

    async def _be_patient(self, *, hopeless: bool, afresh: bool) -> None:
        """Each time longer, unless there is another primary."""
        if afresh:
            self._retry_s = FIRST_RETRY_SECONDS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HOPELESS_RETRY_SECONDS if hopeless else self._retry_s):
                await self._moved.wait()
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_SECONDS)

    async def _follow(self, address: str) -> bool:
        """One connection, from its beginning to its end; True when another attempt is likely to end the same way."""
        behind_at: int | None = None
        hopeless = False
        try:
            problem = await self._follow_once(address)
        except (OSError, TimeoutError, ValueError) as error:
            at_once = self.own_address and not self._heard and isinstance(error, ConnectionResetError | BrokenPipeError)
            problem = CLOSED_AT_ONCE if at_once else f"there is no connection with {address} ({why_not(error)})"
        except PyroMQError as error:
            problem = str(error)
            hopeless = isinstance(error, StreamDamaged | Gap | Ahead | BadFrame | Parted) or (
                isinstance(error, Refused) and error.for_good
            )
            behind_at = error.position if isinstance(error, LeftBehind) else None
        if problem != self._said:
            log.warning("the copy of %s stopped, trying on: %s", address, problem)
            self._said, self._said_copying = problem, None
        self.own_address = ""
        self._show(ReplicaState(address, False, self.state.primary_end, problem, behind_at))
        return hopeless

    def _show(self, state: ReplicaState) -> None:
        if state != self.state:
            self.state = state
            self._changed(state)

    async def _follow_once(self, address: str) -> str:
        """Why it ended. Raises OSError, PyroMQError."""
        await self._until_safe()
        introduction = await self._compare(address) if self._compare is not None else None
        with await dial(address, CONNECT_SECONDS) as connection:
            if self._compare is not None and introduction is None:
                introduction = await self._compare(address)
            return await self._copy(connection, address, introduction)

    async def _until_safe(self) -> None:
        """The first word counts as a report: all that we have must be as safe as we promise."""
        while not self._store.is_empty and self._store.copy_safe < self._store.copy_end:
            self._safer.clear()
            await self._tick()

    async def _tick(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TICK_SECONDS):
                await self._safer.wait()

    async def _copy(self, connection: socket.socket, address: str, introduction: Introduction | None) -> str:
        now_ms = self._now_ms()
        stream = ReplicaStream(
            self._store, times=self._times, now_ms=now_ms, window_bytes=self._window_bytes, introduction=introduction
        )
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, stream.hello(now_ms))
        self.own_address = shown_address(*connection.getsockname()[:2])
        if stream.is_accepted:
            self._begin(address, stream)
        self._unsaid, self._heard = b"", False
        hearing: asyncio.Future[None] = loop.create_future()
        speaking = loop.create_task(self._report(connection, stream))
        moving = loop.create_task(self._moved.wait())
        tasks = (hearing, speaking, moving)
        loop.add_reader(connection, self._hear, connection, stream, hearing)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(connection)
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        # An error of the received bytes says more than a failed report.
        for end in ends:
            if isinstance(end, Exception):
                raise end
        if self._moved.is_set():
            return "there is another primary"
        return "it closed the connection" if self._heard else CLOSED_AT_ONCE

    def _begin(self, address: str, stream: ReplicaStream) -> None:
        """The stream begins."""
        self._show(ReplicaState(address, True, stream.primary_end, None))
        if self._said_copying != (address, self._store.copy_end):
            self._said_copying = (address, self._store.copy_end)
            log.info("copying the log of %s from %d on", *self._said_copying)
            if stream.uncounted:
                log.error("this slave does not count for acknowledgements of %s: %s", address, stream.uncounted)

    def _hear(self, connection: socket.socket, stream: ReplicaStream, ended: asyncio.Future[None]) -> None:
        """Once in a turn of the loop, and no task is woken: bytes come thousands of times a second."""
        if ended.done():
            return
        try:
            received = connection.recv_into(stream.space())
            if received:
                self._take(connection, stream, received)
            else:
                ended.set_result(None)
        except BlockingIOError:
            return
        except Exception as error:  # noqa: BLE001  `_copy` raises it
            ended.set_exception(error)

    def _take(self, connection: socket.socket, stream: ReplicaStream, received: int) -> None:
        self._heard = True
        now_ms = self._now_ms()
        was_accepted = stream.is_accepted
        stream.filled(received, now_ms)
        if stream.is_accepted and not was_accepted and self._address is not None:
            self._begin(self._address, stream)
        if stream.primary_end != self.state.primary_end:
            self._show(replace(self.state, primary_end=stream.primary_end))
        if not self._unsaid:
            self._say(connection, stream.report(now_ms))
        if stream.is_accepted and self._store.copy_end >= stream.primary_end:
            self.level_ms = now_ms
            self._on_caught_up()

    def _say(self, connection: socket.socket, said: bytes) -> None:
        """At once, if the connection takes it; else `_report` does when it can."""
        try:
            self._unsaid = said[connection.send(said) :] if said else b""
        except BlockingIOError:
            self._unsaid = said
        if self._unsaid:
            self._safer.set()

    async def _report(self, connection: socket.socket, stream: ReplicaStream) -> None:
        """Send the unsent rest, the bytes synced since, and heartbeats."""
        loop = asyncio.get_running_loop()
        while True:
            self._safer.clear()
            self._unsaid = self._unsaid or stream.report(self._now_ms())
            if self._unsaid:
                await loop.sock_sendall(connection, self._unsaid)
                self._unsaid = b""  # until now no other sender wrote
            else:
                await self._tick()

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
