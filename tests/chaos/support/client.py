"""A remoting client that a test has in its hand: any frame, in any form, many at once, and what comes back."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count

from pyromq.model.message import StoredMessage
from pyromq.records.batch import encode_batch
from pyromq.records.record import decode
from pyromq.wire.codes import RequestCode, ResponseCode
from pyromq.wire.command import Command, Serialization
from pyromq.wire.frames import Reassembly, decode_frame, encode_frame, frame_end
from pyromq.wire.requests.client import PullMessage, QueryConsumerOffset, Request, UpdateConsumerOffset, encode_request
from pyromq.wire.responses import Response, answer_to

ANSWER_SECONDS = 20.0
#: Flags of a pull: may be held; carries a subscription.
HOLD, SUBSCRIPTION = 2, 4


class Gone(Exception):
    """The connection ended before the answer."""


class Wire(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._frames = Reassembly()
        self._calls: dict[int, asyncio.Future[Command]] = {}
        self._ids = count(1)
        self.transport: asyncio.Transport | None = None
        self.closed = asyncio.Event()

    @classmethod
    async def open(cls, port: int, host: str = "127.0.0.1", own: socket.socket | None = None) -> Wire:
        """`own` is the socket to use, which may be on another machine."""
        loop = asyncio.get_running_loop()
        if own is None:
            return (await loop.create_connection(cls, host, port))[1]
        await loop.sock_connect(own, (host, port))
        return (await loop.create_connection(cls, sock=own))[1]

    # --- what asyncio calls ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()
        for call in self._calls.values():
            if not call.done():
                call.set_exception(Gone())
                call.exception()  # looked at, even when nobody waits any more
        self._calls.clear()

    def data_received(self, chunk: bytes) -> None:
        data = self._frames.receive(memoryview(chunk))
        at = 0
        while (end := frame_end(data, at)) is not None and end <= len(data):
            answer = decode_frame(data, at, end)
            if answer.is_answer:
                call = self._calls.pop(answer.correlation_id, None)
                if call is not None and not call.done():
                    call.set_result(answer)
            elif not answer.is_one_way:  # the broker asks, with numbers of its own
                self.raw(encode_frame(answer_to(answer, Response(code=ResponseCode.SYSTEM_ERROR))))
            at = end
        self._frames.keep(data, at)

    # --- what tests call ---------------------------------------------------------------------------------------------

    def put(self, command: Command) -> asyncio.Future[Command]:
        """Send; the answer comes when it comes."""
        command.correlation_id = next(self._ids)
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        if self.transport is None or self.transport.is_closing():
            answer.set_exception(Gone())
            answer.exception()
            return answer
        self._calls[command.correlation_id] = answer
        self.transport.write(encode_frame(command))
        return answer

    async def call(self, command: Command | Request, seconds: float = ANSWER_SECONDS) -> Command:
        if isinstance(command, Request):
            command = encode_request(command, 0)
        async with asyncio.timeout(seconds):
            return await self.put(command)

    def raw(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


@asynccontextmanager
async def connected(port: int, host: str = "127.0.0.1", own: socket.socket | None = None) -> AsyncIterator[Wire]:
    wire = await Wire.open(port, host, own)
    try:
        yield wire
    finally:
        wire.close()


# --- requests --------------------------------------------------------------------------------------------------------


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def properties(found: Mapping[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in found.items())


def send(
    topic: str, body: bytes, queue: int = 0, *, more: Mapping[str, str] | None = None, binary: bool = False,
    code: RequestCode = RequestCode.SEND_MESSAGE_V2, group: str = "producers", flags: int = 0,
) -> Command:  # fmt: skip
    """A send as Java's client makes it."""
    fields = {
        "a": group, "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": str(flags), "g": str(now_ms()), "h": "0",
        "i": properties(more or {}), "j": "0", "k": "false", "l": "16",
        "m": str(code == RequestCode.SEND_BATCH_MESSAGE).lower(),
    }  # fmt: skip
    form = Serialization.BINARY if binary else Serialization.JSON
    return Command(code=code, fields=fields, body=body, serialization=form, language="JAVA")


def send_batch(topic: str, bodies: list[bytes], queue: int = 0) -> Command:
    batch = encode_batch([(0, body, b"") for body in bodies])
    return send(topic, batch, queue, code=RequestCode.SEND_BATCH_MESSAGE)


def pull(
    topic: str, queue: int, offset: int, *, most: int = 32, hold_ms: int = 0, group: str = "readers"
) -> PullMessage:
    return PullMessage(
        group=group, topic=topic, queue_id=queue, offset=offset, max_messages=most,
        flags=SUBSCRIPTION | (HOLD if hold_ms else 0), suspend_ms=hold_ms, subscription="*", expression_type="TAG",
    )  # fmt: skip


def messages_in(answer: Command) -> list[StoredMessage]:
    found, at, body = [], 0, memoryview(answer.body)
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        found.append(decode(body, at))
        at += size
    return found


async def read_queue(wire: Wire, topic: str, queue: int, offset: int = 0) -> list[StoredMessage]:
    """Everything from an offset on."""
    found: list[StoredMessage] = []
    while True:
        answer = await wire.call(pull(topic, queue, offset, most=1000))
        if answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST):
            return found
        next_offset = int(answer.fields["nextBeginOffset"])
        if answer.code == ResponseCode.PULL_OFFSET_MOVED and next_offset == offset:
            return found
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), (answer.code, answer.reason)
        found += messages_in(answer)
        offset = next_offset


async def commit(wire: Wire, group: str, topic: str, queue: int, offset: int) -> Command:
    return await wire.call(UpdateConsumerOffset(group=group, topic=topic, queue_id=queue, offset=offset))


async def progress_of(wire: Wire, group: str, topic: str, queue: int) -> int | None:
    answer = await wire.call(QueryConsumerOffset(group=group, topic=topic, queue_id=queue, zero_if_not_found=False))
    return int(answer.fields["offset"]) if answer.code == ResponseCode.SUCCESS else None
