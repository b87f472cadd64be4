"""The message id that a send returns: the address of the broker that has it, and its position, in hex."""

from __future__ import annotations

from pyromq import accelerated
from pyromq.errors import OffsetNotFound
from pyromq.model.ids import LogPosition
from pyromq.model.message import PackedHost
from pyromq.records.layout import HOST_V4, HOST_V6

ACCELERATED = accelerated.load("records")


def encode_message_id(store_host: PackedHost, position: LogPosition) -> str:
    return (store_host + position.to_bytes(8, "big")).hex().upper()


def encode_message_ids_readable(store_host: PackedHost, positions: list[LogPosition]) -> str:
    """The ids of several messages of one broker, with commas between them."""
    return ",".join([encode_message_id(store_host, position) for position in positions])


encode_message_ids = encode_message_ids_readable if ACCELERATED is None else ACCELERATED.encode_message_ids


def decode_message_id(text: str) -> tuple[PackedHost, LogPosition]:
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) not in (HOST_V4 + 8, HOST_V6 + 8):
        raise OffsetNotFound(f"{text!r} is not a message id: it has 32 (IPv4) or 56 (IPv6) hexadecimal digits")
    return data[:-8], LogPosition(int.from_bytes(data[-8:], "big"))
