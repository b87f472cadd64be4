"""The sender of a request, as a service sees it: an address, and a way to send requests in return."""

from __future__ import annotations

from typing import Protocol

from pyromq.model.message import PackedHost
from pyromq.wire.command import Command
from pyromq.wire.requests.client import Request


class Peer(Protocol):
    """The other end of a connection. Both directions share it: a server may ask its client something too."""

    #: `address:port`, as logs and admin tools show it.
    address: str
    #: The same in record form.
    packed_address: PackedHost

    @property
    def is_open(self) -> bool: ...

    @property
    def answer_room(self) -> int:
        """Most bytes of an answer; a larger one is given only if the peer has its turn."""

    @property
    def has_turn(self) -> bool:
        """Return whether the peer waited for a turn of its own: one answer may be larger than `answer_room`."""

    def tell(self, request: Request) -> None:
        """Send a request that has no answer. Nothing happens on a closed connection."""

    async def call(self, request: Request, timeout_s: float) -> Command:
        """Send a request and wait for its answer. Raises Unreachable, CallTimeout."""

    def close(self, why: str) -> None: ...
