"""Answers that a peer has not taken yet. The connection owns them, and hands its transport a chunk at a time.

A transport keeps what it was given until its socket is closed, which is a turn of the loop after `abort`. Bytes in here
are free as soon as they are dropped: the limits over all connections hold within one turn, too.
"""

from __future__ import annotations

from collections import deque

#: Bytes per write to a transport: large enough to cost little, small enough that every connection may hold one.
CHUNK_BYTES = 64 << 10


class Outbox:
    """The unwritten bytes of one connection, in their order.

    They are kept as chunks, each an object of its own: a view of the rest of an answer would keep all of the answer in
    memory, up to 16 MiB for the last bytes that a peer has not taken.
    """

    __slots__ = ("_chunks", "size")

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self.size = 0

    def put(self, data: bytes | memoryview) -> None:
        """Copy an answer, or the rest of one."""
        view = memoryview(data)
        for at in range(0, len(view), CHUNK_BYTES):
            self._chunks.append(bytes(view[at : at + CHUNK_BYTES]))
        self.size += len(view)

    def next_chunk(self) -> bytes:
        """Take out the next bytes."""
        chunk = self._chunks.popleft()
        self.size -= len(chunk)
        return chunk

    def clear(self) -> None:
        self._chunks.clear()
        self.size = 0
