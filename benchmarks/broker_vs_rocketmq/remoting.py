"""What the harness itself asks of a broker: to make a topic, to store one message, and whatever it must know.

Plain sockets and no module of ours, so that both brokers are asked by the same stranger.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping

CREATE_TOPIC = 17
SEND = 310
#: How long a broker may take for one answer.
ANSWER_TIMEOUT_S = 5


class Refused(Exception):
    """The broker answered, but not with success."""


def frame(code: int, fields: Mapping[str, str], body: bytes = b"") -> bytes:
    header = {
        "code": code,
        "extFields": dict(fields),
        "flag": 0,
        "language": "JAVA",
        "opaque": 1,
        "serializeTypeCurrentRPC": "JSON",
        "version": 453,
    }
    encoded = json.dumps(header).encode()
    return struct.pack(">ii", 4 + len(encoded) + len(body), len(encoded)) + encoded + body


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), ANSWER_TIMEOUT_S)


def ask(port: int, request: bytes) -> None:
    """OSError while nobody listens, Refused when the answer is not success."""
    asked(port, request)


def asked(port: int, request: bytes) -> bytes:
    """The same, and the body of the answer."""
    with connect(port) as connection:
        connection.sendall(request)
        (length,) = struct.unpack(">i", _exactly(connection, 4))
        answer = _exactly(connection, length)
    (header_size,) = struct.unpack_from(">i", answer)
    body_at = 4 + (header_size & 0xFFFFFF)
    header = json.loads(answer[4:body_at])
    if header["code"] != 0:
        raise Refused(f"{header['code']} {header.get('remark')}")
    return answer[body_at:]


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection in the middle of an answer")
        data += part
    return data


def create_topic(topic: str, queues: int) -> bytes:
    fields = {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "order": "false"}
    queue_numbers = {"readQueueNums": str(queues), "writeQueueNums": str(queues)}
    return frame(CREATE_TOPIC, {**fields, **queue_numbers, "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"})


def send_one(topic: str, born_ms: int) -> bytes:
    """A message to queue 0 of a topic that is made by it."""
    names = dict.fromkeys("hfj", "0") | dict.fromkeys("km", "false")
    return frame(
        SEND, {"a": "bench_probe", "b": topic, "c": "TBW102", "d": "4", "e": "0", "g": str(born_ms), **names}, b"?"
    )
