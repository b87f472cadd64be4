"""A client that blocks, with the frames of one send or pull: for a thread or a process of its own."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

from pyromq.records.record import decode
from pyromq.wire.command import Command
from pyromq.wire.frames import decode_frame

SEND = {"a": "shop", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
        "i": "TAGS\x01red\x02", "j": "0", "k": "false", "m": "false"}  # fmt: skip
PULL = {
    "consumerGroup": "shop", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4",
    "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*", "subVersion": "7",
    "expressionType": "TAG",
}  # fmt: skip


def frame(code: int, fields: dict[str, str], correlation_id: int, body: bytes = b"") -> bytes:
    head = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": correlation_id}
    written = json.dumps({**head, "serializeTypeCurrentRPC": "JSON", "version": 513}, separators=(",", ":")).encode()
    return (4 + len(written) + len(body)).to_bytes(4, "big") + len(written).to_bytes(4, "big") + written + body


def send(number: int, body: bytes) -> bytes:
    return frame(310, SEND, number, body)


def pull(number: int, offset: int) -> bytes:
    return frame(11, {**PULL, "queueOffset": str(offset)}, number)


class Client:
    """Blocks, on a thread of its own: the broker's loop has no other client."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.settimeout(20)
        self._stream = self.sock.makefile("rb")

    def ask(self, request: bytes) -> Command:
        self.sock.sendall(request)
        return self.answer()

    def answer(self) -> Command:
        size = self._stream.read(4)
        whole = size + self._stream.read(int.from_bytes(size, "big"))
        if len(whole) < 4 or len(whole) < 4 + int.from_bytes(size, "big"):
            raise ConnectionError("the connection ended in the middle of an answer")
        return decode_frame(memoryview(whole), 0, len(whole))

    def close(self) -> None:
        self._stream.close()
        self.sock.close()


def messages(answer: Command) -> Iterator[bytes]:
    view, at = memoryview(answer.body), 0
    while at < len(view):
        size = int.from_bytes(view[at : at + 4], "big")
        yield bytes(decode(view[at : at + size]).body)
        at += size
