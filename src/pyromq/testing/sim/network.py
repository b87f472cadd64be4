"""Connections in memory: bytes arrive late, in any pieces, damaged, or not at all, as a seed says.

    link = SimLink(rng)
    link.a.send(b"...")          # on its way
    link.b.receive()             # some of it, or nothing yet
    link.cut()                   # both ends may still receive bytes in flight, up to some byte, and then the end

Several links between the same two run side by side, and nothing says that an older one ends before a newer one begins.
"""

from __future__ import annotations

import random


class SimEnd:
    """One end of a connection."""

    __slots__ = ("_inbox", "_link", "closed", "peer")

    def __init__(self, link: SimLink) -> None:
        self._link = link
        self._inbox = bytearray()
        self.peer: SimEnd = self
        #: Nothing more comes, and nothing more goes.
        self.closed = False

    def send(self, data: bytes) -> None:
        if not self.closed and not self._link.is_cut:
            self.peer._inbox += data

    @property
    def waiting(self) -> int:
        return len(self._inbox)

    def receive(self) -> bytes:
        """Return a piece of the bytes in flight, perhaps none."""
        piece = bytes(self._inbox[: self._link.piece(len(self._inbox))])
        del self._inbox[: len(piece)]
        if not self._inbox and self._link.is_cut:
            self.closed = True
        return piece

    def close(self) -> None:
        self.closed = True
        self._inbox.clear()
        self._link.cut()

    def lose_tail(self, kept: int) -> None:
        del self._inbox[kept:]

    def flip_bit(self, place: int, bit: int) -> None:
        """Zeroes stay: the padding of a segment has no checksum, and no reader."""
        if self._inbox[place]:
            self._inbox[place] ^= 1 << bit


class SimLink:
    """A connection. Pieces are drawn between a byte and everything."""

    __slots__ = ("_rng", "a", "b", "is_cut")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.is_cut = False
        self.a, self.b = SimEnd(self), SimEnd(self)
        self.a.peer, self.b.peer = self.b, self.a

    def piece(self, waiting: int) -> int:
        if waiting < 2 or self._rng.random() < 0.5:
            return waiting
        return self._rng.randrange(waiting + 1)

    def cut(self) -> None:
        """Send nothing from now on; a part of the bytes in flight arrives, down to half a message."""
        if self.is_cut:
            return
        self.is_cut = True
        for end in (self.a, self.b):
            end.lose_tail(self._rng.randrange(end.waiting + 1))
            end.closed |= not end.waiting
