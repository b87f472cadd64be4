"""The fast ways one behind the other: each takes the frames that it knows, as long as one of them gets on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyromq import accelerated
from pyromq.broker.fast_pulls import FastPulls
from pyromq.broker.fast_sends import FastSends
from pyromq.net.connection import Connection
from pyromq.net.endpoint import Taker

if TYPE_CHECKING:
    from pyromq.broker._kernel import ShortcutsInTurn
    from pyromq.net._kernel import Shortcut

ACCELERATED = accelerated.load("broker")


class FastPaths:
    """A `FastPath` of the server, made of several."""

    def __init__(self, sends: FastSends | None, pulls: FastPulls | None, *others: Taker) -> None:
        self._sends = sends
        self._paths: tuple[Taker, ...] = tuple(path for path in (sends, pulls, *others) if path is not None)
        self._shortcuts: ShortcutsInTurn | None = None
        if ACCELERATED is not None:
            self._shortcuts = ACCELERATED.ShortcutsInTurn(None if pulls is None else pulls.loop)

    def take(self, data: memoryview, at: int, connection: Connection) -> int:
        size = len(data)
        while True:
            before = at
            for path in self._paths:
                at = path.take(data, at, connection)
                if at == size:
                    return at
            if at == before or not connection.is_reading:  # one of them had no room for more answers
                return at

    def begin_turn(self) -> Shortcut | None:
        shortcut = None if self._sends is None else self._sends.begin_turn()
        if self._shortcuts is None:
            return shortcut
        self._shortcuts.sends = shortcut
        return self._shortcuts

    def end_turn(self) -> None:
        if self._sends is not None:
            self._sends.end_turn()
