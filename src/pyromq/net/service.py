"""From a command to the handler of its request, and from errors to answers: the one place that translates both.

A service is a table from request types to handlers. A handler returns its answer, or an awaitable of it,
or None without an answer. Its exception becomes the answer: our own errors
with their code and sentence, any other as a system error whose details are in the log only.

An awaitable is cancelled when the peer disconnects, unless the request was one-way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pyromq.errors import NotSupported, ProtocolError, PyroMQError
from pyromq.net.peer import Peer
from pyromq.wire.body_limits import check_body
from pyromq.wire.codes import ResponseCode, code_name
from pyromq.wire.command import Command
from pyromq.wire.requests.client import Request, decode_request
from pyromq.wire.responses import Response, refusal

log = logging.getLogger("pyromq.net")

Answer = Response | Awaitable[Response | None] | None
#: Returned by a handler whose answer is larger than the peer's share of this turn: the request is handled again when
#: the connection has its turn (`Peer.has_turn`).
NEXT_TURN = Response(code=ResponseCode.SYSTEM_BUSY, reason="this answer is larger than one turn gives out")
#: The first argument is the type that the handler stands under in the table.
Handler = Callable[[Any, Peer], Answer]


class Service:
    """A server's handlers."""

    def __init__(self, handlers: Mapping[type[Request], Handler]) -> None:
        self._handlers = dict(handlers)

    def handle(self, command: Command, peer: Peer) -> Answer:
        try:
            check_body(command.code, command.body)
            request = decode_request(command)
            handler = self._handlers.get(type(request))
            if handler is None:
                raise NotSupported(f"{code_name(command.code)} is not supported here")
            answer = handler(request, peer)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  whatever it is, the client gets an answer
            return answer_for(error, command, peer)
        return answer

    def register(self, kind: type[Request], handler: Handler) -> None:
        """From now on this one handles such requests."""
        self._handlers[kind] = handler


def answer_for(error: BaseException, command: Command, peer: Peer) -> Response:
    """The answer that tells the client of an error."""
    if isinstance(error, PyroMQError):
        level = logging.WARNING if isinstance(error, ProtocolError | NotSupported) else logging.DEBUG
        log.log(level, "%s of %s was refused: %s", code_name(command.code), peer.address, error)
        return refusal(error)
    log.error("%s of %s failed", code_name(command.code), peer.address, exc_info=error)
    return Response(
        code=ResponseCode.SYSTEM_ERROR,
        reason=f"{code_name(command.code)} failed because of a fault in the server; its log has the details",
    )
