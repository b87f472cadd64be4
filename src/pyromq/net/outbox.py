"""Answers that a peer has not taken yet. The connection owns them, and hands its transport a chunk at a time.

A transport keeps what it was given until its socket is closed, which is a turn of the loop after `abort`. Bytes in here
are free as soon as they are dropped: the limits over all connections hold within one turn, too.
"""

from __future__ import annotations

from collections import deque

#: What a transport is given at once: large enough to cost little, small enough to be held by every connection.
CHUNK_BYTES = 64 << 10


class Outbox:
    """The unwritten bytes of one connection, in their order."""

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self.size = 0

    def put(self, data: bytes) -> None:
        self._pieces.append(memoryview(data))
        self.size += len(data)

    def next_chunk(self) -> bytes:
        """Take out the next bytes: a copy, so that the rest is not kept alive by the transport."""
        first = self._pieces[0]
        chunk = bytes(first[:CHUNK_BYTES])
        if len(chunk) == len(first):
            self._pieces.popleft()
        else:
            self._pieces[0] = first[len(chunk) :]
        self.size -= len(chunk)
        return chunk

    def clear(self) -> None:
        self._pieces.clear()
        self.size = 0
