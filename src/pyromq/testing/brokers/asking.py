"""One request to a server and its answer, on a plain blocking socket: nothing of it outlives the call."""

from __future__ import annotations

import socket

from pyromq.errors import CallFailed, CallTimeout, Unreachable
from pyromq.net.address import parse_address
from pyromq.wire.codes import code_name
from pyromq.wire.command import Command
from pyromq.wire.frames import decode_frame, encode_frame
from pyromq.wire.requests.client import Request, encode_request

CALL_SECONDS = 5.0


def ask(address: str, request: Request, timeout_s: float = CALL_SECONDS) -> Command:
    """The answer, whatever it says. Raises Unreachable, CallTimeout."""
    try:
        with socket.create_connection(parse_address(address), timeout_s) as connection:
            connection.sendall(encode_frame(encode_request(request, 0)))
            return _answer(connection)
    except TimeoutError:
        raise CallTimeout(
            f"{address} did not answer {code_name(request.CODE)} within {timeout_s:g} s: it may have been carried out"
        ) from None
    except OSError as error:
        raise Unreachable(f"nobody answers at {address} ({error})") from None


def _answer(connection: socket.socket) -> Command:
    length = _exactly(connection, 4)
    frame = length + _exactly(connection, int.from_bytes(length, "big"))
    return decode_frame(memoryview(frame), 0, len(frame))


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        more = connection.recv(size - len(found))
        if not more:
            raise CallFailed("the server closed the connection before it had answered")
        found += more
    return bytes(found)
