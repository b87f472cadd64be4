"""Carries bytes of the log to a socket: by the kernel alone where they are in a file, and never waiting for a disk on
the loop's own thread.
"""

from __future__ import annotations

import asyncio
import os
import socket

from pyromq.replication.frames import push_head
from pyromq.replication.log import ReadLog
from pyromq.replication.stream import Span

#: Less than this is sent together with its head, in one call: copying it costs less than another call.
SMALL_BYTES = 64 << 10
#: So near the log's end its bytes go out of the mapping, however many: the system reads ahead of what it sends from a
#: file, and would fill the room behind the log with zeroes.
NEWEST_BYTES = 16 << 20
#: Bytes that are not resident are read in pieces of this size.
FETCH_BYTES = 4 << 20


class LogSender:
    """Sends the log on one connection. `close` also closes the file that it holds open."""

    def __init__(self, connection: socket.socket, log: ReadLog) -> None:
        self._connection = connection
        self._log = log
        self._fetched_to = 0
        #: The file that was sent from last, by the position of its first byte: held open by a descriptor of our own,
        #: since the store may close or remove it while its bytes are on their way.
        self._base = -1
        self._descriptor = -1

    async def send(self, span: Span) -> None:
        """The frame for a span. Raises OSError, OffsetNotFound: the connection is of no more use then."""
        is_new = span.position + span.length + NEWEST_BYTES > self._log.log_end
        if span.length >= SMALL_BYTES and not is_new:
            await self._warm(span)
            # First, as whatever is wrong must come before the head that promises these bytes.
            offset = self._find(span.position)
            if offset is not None:
                await self._send_bytes(push_head(*span), socket.MSG_MORE)
                await self._send_file(offset, span.length)
                return
        elif span.length:
            await self._warm(span)
        await self.send_rest(span, self.send_now(span) if span.length else 0)

    async def _warm(self, span: Span) -> None:
        end = span.position + span.length
        if end > self._fetched_to and not self._log.is_warm(span.position, span.length):
            await asyncio.to_thread(self._log.fetch, span.position, max(FETCH_BYTES, span.length))
            self._fetched_to = span.position + FETCH_BYTES

    def _find(self, position: int) -> int | None:
        """Return the offset of a position in the open file; None if there is no file to send from."""
        found = self._log.in_file(position)
        if found is None:
            return None
        if self._base != position - found.offset:
            self.close()
            self._descriptor, self._base = os.dup(found.descriptor), position - found.offset
        return found.offset

    async def _send_file(self, offset: int, length: int) -> None:
        out = self._connection.fileno()
        while length:
            try:
                sent = os.sendfile(out, self._descriptor, offset, length)
            except BlockingIOError:
                await self._writable()
                continue
            if not sent:
                raise OSError(f"the log's file ends {length} bytes too early")
            offset += sent
            length -= sent

    def can_send_now(self, span: Span) -> bool:
        """Is it of the newest, so that it leaves out of memory and in one call?"""
        end = span.position + span.length
        return end + NEWEST_BYTES > self._log.log_end and self._log.is_warm(span.position, span.length)

    def send_now(self, span: Span) -> int:
        """Send as much of the frame as the socket takes; return the bytes sent. Raises OSError, OffsetNotFound."""
        head = push_head(*span)
        with self._log.log_bytes(span.position, span.length) as data:
            assert len(data) == span.length, "the log became shorter"
            try:
                return self._connection.sendmsg((head, data))
            except BlockingIOError:
                return 0

    async def send_rest(self, span: Span, sent: int) -> None:
        """Send the bytes that `send_now` left. Raises OSError, OffsetNotFound."""
        head = push_head(*span)
        if sent < len(head):
            await self._send_bytes(head[sent:], socket.MSG_MORE if span.length else 0)
            sent = len(head)
        if sent < len(head) + span.length:
            with self._log.log_bytes(span.position, span.length) as data, data[sent - len(head) :] as rest:
                await self._send_bytes(rest)

    async def _send_bytes(self, data: bytes | memoryview, flags: int = 0) -> None:
        while len(data):
            try:
                data = data[self._connection.send(data, flags) :]
            except BlockingIOError:
                await self._writable()

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        out = self._connection.fileno()
        loop.add_writer(out, _wake, ready)
        try:
            await ready
        finally:
            loop.remove_writer(out)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = self._base = -1


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
