"""Answers that leave when the log has reached a position, in the page cache or on the disk: nothing is said before.

The readable form of `_kernel.HeldAnswers`, which writes them to their peers at once where this one leaves that to the
end of the loop's turn.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from pyromq.net.connection import Connection


class Held(NamedTuple):
    """To the sends of one read."""

    position: int
    connection: Connection
    answers: bytes
    sends: int


class HeldAnswers:
    """In the order of their positions."""

    def __init__(self) -> None:
        self._held: deque[Held] = deque()
        #: Sends that wait, and what the log must reach for the last of them.
        self.count = 0
        self.last_position = 0

    def hold(self, position: int, connection: Connection, answers: bytes, sends: int) -> None:
        self._held.append(Held(position, connection, answers, sends))
        self.count += sends
        self.last_position = position

    def release(self, position: int) -> None:
        """The log has come this far: all that this reaches leave together."""
        while self._held and self._held[0].position <= position:
            held = self._held.popleft()
            self.count -= held.sends
            held.connection.put_bytes(held.answers)

    def take_back(self, position: int) -> list[tuple[Connection, bytes]]:
        """Those that the log need not reach any more, in order: something else is to be said."""
        taken = []
        while self._held and self._held[0].position <= position:
            held = self._held.popleft()
            self.count -= held.sends
            taken.append((held.connection, held.answers))
        return taken
