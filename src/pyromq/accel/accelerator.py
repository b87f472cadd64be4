"""The plug of the accelerated ways: `broker.wiring` makes one `Accelerator`; the server asks it before the handlers.

Each way takes the frames that it knows, as long as one of them gets on; every other frame goes to the request handlers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyromq.accel._intake import Intake
from pyromq.accel._pulls import ShortcutsInTurn
from pyromq.accel.pulls import FastPulls
from pyromq.accel.sends import FastSends
from pyromq.model.message import PackedHost
from pyromq.net.connection import Connection
from pyromq.net.endpoint import Taker
from pyromq.records.layout import HOST_V4
from pyromq.store.message_store import MessageStore

if TYPE_CHECKING:
    from pyromq.broker.wiring import Parts

__all__ = ["Accelerator", "Intake", "Turns"]


class Turns:
    """Several ways, each tried in turn, and the turns of the loop in which connections are read together."""

    def __init__(self, sends: FastSends | None, pulls: FastPulls | None, *others: Taker) -> None:
        self._sends = sends
        self._ways: tuple[Taker, ...] = tuple(way for way in (sends, pulls, *others) if way is not None)
        self._shortcuts = ShortcutsInTurn(None if pulls is None else pulls.loop)

    def take(self, data: memoryview, at: int, connection: Connection) -> int:
        """Take frames as long as one of the ways does; where the first one begins that none of them takes."""
        size = len(data)
        while True:
            before = at
            for way in self._ways:
                at = way.take(data, at, connection)
                if at == size:
                    return at
            if at == before or not connection.is_reading:  # one of them had no room for more answers
                return at

    def begin_turn(self) -> ShortcutsInTurn:
        """Return the compiled loops that take frames before a connection sees them."""
        self._shortcuts.sends = None if self._sends is None else self._sends.begin_turn()
        return self._shortcuts

    def end_turn(self) -> None:
        if self._sends is not None:
            self._sends.end_turn()


class Accelerator(Turns):
    """The accelerated sends and pulls of one broker."""

    def __init__(self, parts: Parts, store: MessageStore, store_host: PackedHost, *others: Taker) -> None:
        """`others` take frames after them, also where there are no accelerated sends: on slaves, and with IPv6."""
        config = parts.config
        self.sends: FastSends | None = None
        if len(store_host) == HOST_V4 and not config().is_slave:
            self.sends = FastSends(
                config, parts.saved_topics, store, parts.overload, store_host, parts.statistics, parts.ack_mark
            )
        self.pulls = FastPulls(
            parts.pull, parts.consumers, parts.progress, parts.resets, store, parts.statistics, parts.read_advice
        )
        super().__init__(self.sends, self.pulls, *others)

    def topics_changed(self) -> None:
        if self.sends is not None:
            self.sends.topics_changed()
        self.pulls.forget()

    def groups_changed(self) -> None:
        self.pulls.forget()

    def settings_changed(self) -> None:
        if self.sends is not None:
            self.sends.settings_changed()
        self.pulls.forget()

    def sent(self, topic: str) -> None:
        """A request handler has taken a send to this topic."""
        if self.sends is not None:
            self.sends.learn(topic)

    async def stop(self) -> None:
        """Release the store's files, and return when every send is answered."""
        self.pulls.forget()
        if self.sends is not None:
            await self.sends.settled()
