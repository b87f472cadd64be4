"""The shared part of all connections of one server or client: the handler, the limits, and their memory.

Two sums are kept. Unsent answers: above a quarter of the limit pulls get the smallest answers, above half of it slow
peers are not read from, above three quarters the slowest is cut off: the last
quarter is for buffers that are not counted. Requests that have not arrived whole: above the limit the one that has
waited longest is cut off, so that a peer which sends the half of something cannot crowd out those that send the whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pyromq.clock import Clock, SystemClock
from pyromq.config import LimitsConfig
from pyromq.errors import NotSupported
from pyromq.net.memory import Released
from pyromq.net.peer import Peer
from pyromq.net.rate_limited_log import Complaints
from pyromq.net.service import Answer
from pyromq.net.slices import MIN_ANSWER_BYTES, TURN_ANSWER_BYTES
from pyromq.wire.codes import code_name
from pyromq.wire.command import Command
from pyromq.wire.frames import FrameLimits
from pyromq.wire.responses import refusal

if TYPE_CHECKING:
    from pyromq.net.connection import Connection

Handle = Callable[[Command, Peer], Answer]
#: Puts into a request what says who sends it.
Sign = Callable[[Command], None]

#: The read buffer. One serves all connections: it is consumed before the next read.
READ_BYTES = 256 << 10


class Taker(Protocol):
    """Handles the frames of shapes that it knows, without making commands of them."""

    def take(self, data: memoryview, at: int, connection: Connection) -> int:
        """Handle frames from `at` on, and return where the first one begins that is not whole or not known.

        Answers go to `connection.put_bytes`; when that says that there is no more room, this must return. `data` is
        borrowed: no view of it may be kept. Whatever is wrong with a frame is left to the ordinary path.
        """


class Turns(Protocol):
    """Called before and after the intake reads all connections."""

    def begin_turn(self) -> Any:
        """Return the shortcut that `Intake.turn` takes."""

    def end_turn(self) -> None:
        """All connections have been read."""


class Inlet(Protocol):
    """One connection as an intake knows it."""

    #: No partial request, no unsent answer, not halted: the intake may take and answer requests without asking.
    is_plain: bool
    last_tick: int

    def send(self, data: bytes | memoryview, /) -> int:
        """Write to the peer if nothing is in the way; return the bytes that it took."""


class Intake(Protocol):
    """Reads all connections of a server together, with one call for each turn of the loop."""

    #: Limit of an answer that can be made smaller: by the unsent bytes, and also by the connections of this turn.
    max_answer_bytes: int

    @property
    def answer_room(self) -> int: ...

    #: Readable when one of the connections is.
    @property
    def descriptor(self) -> int: ...

    def new_inlet(self, connection: Connection, descriptor: int, host: bytes, /) -> Inlet: ...

    def add(self, inlet: Any, /) -> None:
        """Begin to read a connection. Raises OSError."""

    def remove(self, inlet: Any, /) -> None: ...

    def turn(self, shortcut: Any, tick: int, /) -> None:
        """Read every readable connection; its bytes go to the shortcut first, if there is one."""

    def close(self) -> None: ...


def _nobody(command: Command, _: Peer) -> Answer:
    return refusal(NotSupported(f"{code_name(command.code)} is not supported here"))


class Home:
    """The connections of one server or client."""

    def __init__(
        self, handle: Handle | None, limits: LimitsConfig | None = None, *, clock: Clock | None = None
    ) -> None:
        self.handle: Handle = handle or _nobody
        self.limits = limits or LimitsConfig()
        self.frame_limits = FrameLimits(
            frame_bytes=self.limits.max_frame_bytes,
            header_bytes=self.limits.max_header_bytes,
            fields=self.limits.max_header_fields,
        )
        #: Is asked before the handler, with all frames that were received.
        self.fast_path: Taker | None = None
        self.sign: Sign | None = None
        #: Called with a peer that has not answered one of our calls in time, repeatedly until it does.
        self.on_slow: Callable[[Connection], None] | None = None
        self.complaints = Complaints(clock or SystemClock())
        self.scratch = memoryview(bytearray(READ_BYTES))
        #: Reads all connections together; None: each transport reads for itself.
        self.intake: Intake | None = None
        self.connections: set[Connection] = set()
        #: Requests without an answer whose sender is gone: they are carried out all the same.
        self.orphans: set[asyncio.Future[Any]] = set()
        #: Grows now and then; a connection notes it when it reads, which tells how long it has been idle.
        self.tick = 0
        #: Connections whose peers have not taken all that was written, and how many bytes that is in all.
        self.behind: set[Connection] = set()
        self.unsent_bytes = 0
        #: Limit of an answer that can be made smaller, by the unsent bytes alone.
        self.max_answer_bytes = TURN_ANSWER_BYTES
        self.released = Released()
        #: Connections with the half of a frame, the oldest first, and the tick at which it began.
        self.partial: dict[Connection, int] = {}
        self.partial_bytes = 0

    def opened(self, connection: Connection) -> bool:
        """A connection was made; False when it may not stay."""
        self.connections.add(connection)
        return True

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def complain(self, connection: Connection, why: str, level: int = logging.WARNING) -> None:
        self.complaints.say(connection.host, f"connection of {connection.address} closed: {why}", level)

    # --- the two sums ------------------------------------------------------------------------------------------------

    @property
    def unsent_room(self) -> int:
        """Return the unsent bytes above which a connection is not read from."""
        limits = self.limits
        return limits.max_unsent_bytes_per_connection if self.unsent_bytes <= limits.max_unsent_bytes // 2 else 0

    def answer_room(self, waiting: int) -> int:
        """Return the limit of an answer that can be made smaller, with `waiting` connections waiting for a turn."""
        room = self.max_answer_bytes if self.intake is None else self.intake.answer_room
        return max(min(room, TURN_ANSWER_BYTES // (waiting + 1)), MIN_ANSWER_BYTES)

    def count_unsent(self, more: int) -> None:
        self.unsent_bytes += more
        is_scarce = self.unsent_bytes > self.limits.max_unsent_bytes // 4
        self.max_answer_bytes = MIN_ANSWER_BYTES if is_scarce else TURN_ANSWER_BYTES
        if self.intake is not None:
            self.intake.max_answer_bytes = self.max_answer_bytes
        if more < 0:
            self.released.count(-more)
        while self.unsent_bytes > self.limits.max_unsent_bytes * 3 // 4 and self.behind:
            most = max(self.behind, key=lambda one: one.unsent_bytes)
            most.abort(
                f"it has not taken {most.unsent_bytes} bytes of its answers, and all peers together have not taken "
                "three quarters of limits.max_unsent_bytes"
            )

    def count_partial(self, more: int) -> None:
        self.partial_bytes += more
        while self.partial_bytes > self.limits.max_partial_bytes and self.partial:
            oldest = next(iter(self.partial))
            oldest.abort(
                f"it has sent {oldest.partial_bytes} bytes of an unfinished request, longer ago than any other peer, "
                "and all of them together have sent limits.max_partial_bytes"
            )
