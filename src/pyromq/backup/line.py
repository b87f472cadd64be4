"""A connection to the replication port of a broker that copies its log without counting as a replica.

A sync master acknowledges what its slaves report, so a backup must report nothing that could be taken for a copy:

- To our own broker it says so first, and then counts for nothing: neither in sync nor out of it. It asks for ranges,
  as much as it can take.
- RocketMQ's broker does not know that word. The backup sends it the first position, which it takes for a report of all
  bytes below, and after its first frame that the log ends far below 0: no send waits for such a position, and no
  replica that far behind is in sync. The first word alone could acknowledge something: a send that still waits for
  its slave, and that an earlier run has already. So none begins right after another; see `settled_in`. It is sent
  the whole log, and read as fast as it can be saved.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from pyromq.errors import BackupError
from pyromq.net.dialling import dial, why_not
from pyromq.replication.frames import PushReader, encode_grant, encode_observer, encode_report

#: Of a broker that asks no more than RocketMQ does, no send waits for slaves longer than this.
SETTLED_SECONDS = 10.0
#: Sent to a broker of RocketMQ's instead of a position.
NO_COPY = 1 << 62
#: Asked for at once, of our own broker.
WINDOW_BYTES = 16 << 20
CONNECT_SECONDS = 5.0
#: Brokers say something at least every five seconds.
SILENCE_SECONDS = 20.0
SIGN_SECONDS = 1.0


class BrokerGone(BackupError):
    """The connection broke, or could not be made: to be tried again."""


def settled_in(made_ms: int, now_ms: int) -> float:
    """Seconds until no send can wait any more that a backup of that time has."""
    return min(max(made_ms / 1000 + SETTLED_SECONDS - now_ms / 1000, 0.0), SETTLED_SECONDS)


class LogLine:
    """Gives the bytes of the log one after the other, from `start` on."""

    def __init__(self, connection: socket.socket, address: str, start: int, *, ours: bool, window: int) -> None:
        self._connection = connection
        self._address = address
        self._ours = ours
        self._window = window
        self._start = start
        self._pushes = PushReader()
        self._has_begun = asyncio.Event()
        #: Behind the last byte that came, and up to where was asked for.
        self._position = self._asked_to = start

    async def hello(self) -> None:
        # RocketMQ's brokers take position 0 for "I have nothing", and begin with their last file then.
        words = encode_observer() + encode_report(self._start) if self._ours else encode_report(max(self._start, 1))
        await self._say(words)

    async def following(self, until: int) -> memoryview:
        """Bytes that come next; good until the next call. `until`: no more than that is needed. Raises BrokerGone."""
        await self._ask(until)
        if not self._ours and self._position == 0:
            # It was not asked for: the first byte of a log is the highest of a record's length, and no record has
            # 16 MiB. If one has, the check of what arrives says so.
            self._position = 1
            return memoryview(b"\0")
        while True:
            push = self._pushes.next()
            if push is None:
                await self._receive()
                continue
            self._has_begun.set()
            if push.position != self._position and (push.data or self._ours):
                raise BackupError(
                    f"{self._address} sends position {push.position} of its log where {self._position} was asked for: "
                    "what is before it is gone there, or it is another log. Run the backup again: it says more"
                )
            if push.data:
                self._position = push.end
                return push.data

    async def _ask(self, until: int) -> None:
        """In ranges: no more is on its way than can be taken."""
        wanted = min(until, self._position + self._window)
        if self._ours and wanted > self._asked_to and self._is_due(wanted, until):
            await self._say(encode_grant(wanted - self._asked_to))
            self._asked_to = wanted

    def _is_due(self, wanted: int, until: int) -> bool:
        """All the rest, or half a window is free: not a word for every frame."""
        return wanted == until or 2 * (self._asked_to - self._position) <= self._window

    async def _receive(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                count = await loop.sock_recv_into(self._connection, self._pushes.space())
        except TimeoutError:
            raise BrokerGone(f"{self._address} has said nothing for {SILENCE_SECONDS:g} s") from None
        except OSError as error:
            raise BrokerGone(f"the connection with {self._address} broke ({error.strerror or error})") from None
        if not count:
            raise BrokerGone(f"{self._address} ended the connection")
        self._pushes.filled(count)

    async def _say(self, words: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self._connection, words)
        except OSError as error:
            raise BrokerGone(f"the connection with {self._address} broke ({error.strerror or error})") from None

    async def give_signs(self) -> None:
        """Until cancelled: a broker takes one for gone that says nothing, also while all that came is being saved."""
        with contextlib.suppress(BrokerGone):  # the reader raises it too
            if not self._ours:  # a word sent before its first frame might be read instead of the first position
                await self._has_begun.wait()
            while True:
                await self._say(encode_report(self._start if self._ours else -NO_COPY))
                await asyncio.sleep(SIGN_SECONDS)


@contextlib.asynccontextmanager
async def log_line(address: str, start: int, *, ours: bool, window: int = WINDOW_BYTES) -> AsyncIterator[LogLine]:
    """Raises BrokerGone."""
    with await _connect(address) as connection:
        line = LogLine(connection, address, start, ours=ours, window=window)
        await line.hello()
        signs = asyncio.get_running_loop().create_task(line.give_signs())
        try:
            yield line
        finally:
            signs.cancel()
            await asyncio.gather(signs, return_exceptions=True)


async def _connect(address: str) -> socket.socket:
    try:
        return await dial(address, CONNECT_SECONDS)
    except (OSError, ValueError, TimeoutError) as error:
        raise BrokerGone(
            f"there is no replication port at {address} ({why_not(error)}): give the right one with --ha-address"
        ) from None
