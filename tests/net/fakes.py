"""A scripted transport, frames to feed a connection with, and both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from pyromq.net.connection import Connection
from pyromq.net.endpoint import Home
from pyromq.net.slices import slices_of
from pyromq.wire.command import Command, Serialization
from pyromq.wire.frames import decode_frame, encode_frame, frame_end

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run(story: Coroutine[Any, Any, None], loop: str = "asyncio") -> None:
    """The story, with every task's end awaited; an unhandled error fails the test."""
    unseen: list[dict[str, Any]] = []

    async def told() -> None:
        running = asyncio.get_running_loop()
        running.set_exception_handler(lambda _, context: unseen.append(context))
        slices_of(running).cpu_time = lambda: 0.0  # no work takes time unless a test says so
        async with asyncio.timeout(8):
            await story

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(told())
    assert not unseen, unseen


async def turns(count: int = 5) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    """For what only the system knows the moment of."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def request(
    code: int = 30, correlation_id: int = 1, *, flags: int = 0, body: bytes = b"", form: int = 0, **fields: str
) -> bytes:
    return encode_frame(
        Command(
            code=code, fields=fields, body=body, correlation_id=correlation_id, flags=flags,
            serialization=Serialization(form),
        )
    )  # fmt: skip


def frames_in(data: bytes) -> list[Command]:
    view, at, found = memoryview(data), 0, []
    while (end := frame_end(view, at)) is not None and end <= len(view):
        found.append(decode_frame(view, at, end))
        at = end
    assert at == len(data)
    return found


class FakeTransport(asyncio.Transport):
    """A connection's view of a socket. `is_stuck`: the peer takes nothing."""

    def __init__(self, home: Home, address: tuple[str, int] = ("10.0.0.1", 5000)) -> None:
        super().__init__({"peername": address})
        self.writes: list[bytes] = []
        self.unsent = 0
        self.is_stuck = False
        self.is_reading_paused = False
        self.has_said_all = False
        self.was_aborted = False
        self._closing = False
        self._home = home
        self.connection = Connection(home)
        self.connection.connection_made(self)

    # --- the peer's side ---------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """The peer's bytes arrive, in reads as large as the buffer."""
        view = memoryview(data)
        while len(view):
            assert not self.is_reading_paused, "read although reading is paused"
            buffer = self.connection.get_buffer(-1)
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            self.connection.buffer_updated(count)
            view = view[count:]

    def take_all(self) -> None:
        """The peer reads again."""
        self.is_stuck = False
        if self.unsent:
            self.unsent = 0
            self.connection.resume_writing()

    @property
    def answers(self) -> list[Command]:
        return frames_in(b"".join(self.writes))

    # --- the connection's side ---------------------------------------------------------------------------------------

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._closing
        assert not self.has_said_all
        self.writes.append(bytes(data))
        if self.is_stuck:
            was_behind, self.unsent = self.unsent > 0, self.unsent + len(data)
            if not was_behind:
                self.connection.pause_writing()

    def pause_reading(self) -> None:
        assert not self.is_reading_paused
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        assert self.is_reading_paused
        self.is_reading_paused = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_said_all = True

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self.unsent:
                asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def abort(self) -> None:
        if not self.was_aborted:
            self.was_aborted = self._closing = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)
