"""The fast ways one behind the other: each takes the frames that it knows, as long as one of them gets on."""

from __future__ import annotations

from pyromq.net.connection import Connection
from pyromq.net.home import FastPath


class FastPaths:
    """A `FastPath` of the server, made of several."""

    def __init__(self, *paths: FastPath) -> None:
        self._paths = paths

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
