"""A message as it comes from a broker. Its fields are decoded when they are asked for: most programs want one or two.

A received message shares the bytes of the answer that it came in with the others of that answer, until it is gone.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Mapping
from typing import Any

from pyromq.client.message import Message
from pyromq.errors import IllegalMessage
from pyromq.model.ids import LogPosition
from pyromq.model.names import is_retry_topic
from pyromq.model.queue import MessageQueue
from pyromq.net.address import shown_address
from pyromq.records import layout
from pyromq.records import property_names as names
from pyromq.records.java_hash import java_text
from pyromq.records.layout import FLAG_BORN_HOST_V6, FLAG_COMPRESSED, FLAG_STORE_HOST_V6, HEAD, STORED_AT, TAIL
from pyromq.records.message_id import encode_message_id
from pyromq.records.properties import NAME_END, VALUE_END, decode_properties
from pyromq.records.record import Spans, spans_of

#: The fields needed of every message: its size, its offset in the queue, its storage flags.
_SIZE_OFFSET_FLAGS = struct.Struct(">I16xq8xi")
#: Most programs want the body, and most records have it here: both hosts are IPv4, and it is not compressed.
_FLAGS_AND_BODY_SIZE = struct.Struct(">36xi44xi")
_PLAIN_BODY = _FLAGS_AND_BODY_SIZE.size
#: A compressed body that unpacks to more is not kept with its message: a run of them would take gigabytes.
KEPT_BYTES = 4 << 20
_NOT_PLAIN = FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6 | FLAG_COMPRESSED


class ReceivedMessage(Message):
    """A message, and where it was."""

    __slots__ = (
        "_data",
        "_spans",
        "_start",
        "all_properties",
        "born_at",
        "born_host",
        "message_id",
        "offset_message_id",
        "position",
        "queue",
        "queue_offset",
        "reconsume_times",
        "size",
        "storage_flags",
        "stored_at",
    )  # fmt: skip

    #: The queue it was read from: that of the retry topic for one that is delivered again.
    queue: MessageQueue
    queue_offset: int
    #: Bytes that it has in the log.
    size: int
    #: The producer's id of the message; the same when it is delivered again, or stored twice.
    message_id: str
    #: The id of its position: the broker's address and the position in its log.
    offset_message_id: str
    position: int
    reconsume_times: int
    #: Seconds since 1970: when it was made, and when the broker stored it.
    born_at: float
    stored_at: float
    #: `address:port` of the producer.
    born_host: str
    storage_flags: int
    #: The program's own, and those that RocketMQ adds.
    all_properties: Mapping[str, str]
    _spans: Spans

    def __init__(self, data: bytes, start: int, size: int, queue: MessageQueue, queue_offset: int) -> None:
        # Not super().__init__: unset fields are decoded by __getattr__ on first access.
        self._data = data
        self._start = start
        self.size = size
        self.queue = queue
        self.queue_offset = queue_offset

    def __getattr__(self, name: str) -> Any:
        decode = _DECODERS.get(name)
        if decode is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = decode(self)
        if name != "body" or len(value) <= KEPT_BYTES or not self.storage_flags & FLAG_COMPRESSED:
            setattr(self, name, value)
        return value

    def unpack(self, limit: int) -> bool:
        """Unpack a compressed body if it has at most `limit` bytes then, and keep it; return whether it has.

        Raises UnreadableBody, IllegalMessage.
        """
        from pyromq.records.compression import decompress_up_to

        spans = self._spans
        body = decompress_up_to(self._data[spans.body : spans.body_end], spans.storage_flags, limit)
        if body is not None:
            self.body = body
        return body is not None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a pickle has the bytes of this message, and not of the whole answer."""
        record = self._data[self._start : self._start + self.size]
        return type(self), (record, 0, self.size, self.queue, self.queue_offset)

    @property
    def delivery_attempt(self) -> int:
        """1 when it is delivered for the first time."""
        return self.reconsume_times + 1

    @property
    def transaction_id(self) -> str | None:
        return self.get_property(names.TRANSACTION_ID) or self.get_property(names.UNIQUE_KEY)

    def get_property(self, name: str) -> str | None:
        """One property, without decoding the others."""
        spans = self._spans
        before = b"%b%b%b" % (VALUE_END, name.encode(), NAME_END)
        text = VALUE_END + self._data[spans.properties : spans.properties_end] + VALUE_END
        at = text.rfind(before)
        return None if at < 0 else java_text(text[at + len(before) : text.index(VALUE_END, at + 1)]) or None


def split_records(data: bytes, queue: MessageQueue) -> list[ReceivedMessage]:
    """The messages in the body of an answer, one behind the other. Raises IllegalMessage when they do not add up."""
    messages = []
    at, end = 0, len(data)
    unpack, least = _SIZE_OFFSET_FLAGS.unpack_from, _SIZE_OFFSET_FLAGS.size
    while at < end:
        size, offset, flags = unpack(data, at) if end - at >= least else (0, 0, 0)
        if size < least or at + size > end:
            raise IllegalMessage(f"the answer is no row of messages: at byte {at} of {end} one cannot be told")
        message = ReceivedMessage(data, at, size, queue, offset)
        message.storage_flags = flags
        messages.append(message)
        at += size
    return messages


# --- one decoder for each field --------------------------------------------------------------------------------------


def _find_spans(message: ReceivedMessage) -> Spans:
    start = message._start
    spans = spans_of(memoryview(message._data), start, start + message.size)
    if isinstance(spans, str):
        raise IllegalMessage(f"what the broker sent is no message: {spans}")
    return spans


def _topic(message: ReceivedMessage) -> str:
    spans = message._spans
    topic = message._data[spans.topic : spans.topic_end].decode(errors="replace")
    return (message.get_property(names.RETRY_TOPIC) or topic) if is_retry_topic(topic) else topic


def _body(message: ReceivedMessage) -> bytes:
    data, start = message._data, message._start
    if message.size > _PLAIN_BODY:
        flags, body_size = _FLAGS_AND_BODY_SIZE.unpack_from(data, start)
        if not flags & _NOT_PLAIN and 0 <= body_size < message.size - _PLAIN_BODY:
            return data[start + _PLAIN_BODY : start + _PLAIN_BODY + body_size]
    return _any_body(message)


def _any_body(message: ReceivedMessage) -> bytes:
    spans = message._spans
    body = message._data[spans.body : spans.body_end]
    if not spans.storage_flags & FLAG_COMPRESSED:
        return body
    from pyromq.records.compression import decompress  # most bodies are not compressed

    return decompress(body, spans.storage_flags)


def _all_properties(message: ReceivedMessage) -> Mapping[str, str]:
    spans = message._spans
    return decode_properties(message._data[spans.properties : spans.properties_end])


def _own_properties(message: ReceivedMessage) -> dict[str, str]:
    return {name: value for name, value in message.all_properties.items() if name not in names.RESERVED}


def _keys(message: ReceivedMessage) -> tuple[str, ...]:
    return tuple((message.get_property(names.KEYS) or "").split())


def _number(message: ReceivedMessage, name: str) -> int | None:
    written = message.get_property(name)
    return int(written) if written and written.isascii() and written.isdigit() else None


def _deliver_at(message: ReceivedMessage) -> float | None:
    at_ms = _number(message, names.DELIVER_AT_MS)
    return None if at_ms is None else at_ms / 1000


def _deliver_after(message: ReceivedMessage) -> float | None:
    after_ms = _number(message, names.DELIVER_AFTER_MS)
    return None if after_ms is None else after_ms / 1000


def _message_id(message: ReceivedMessage) -> str:
    return message.get_property(names.UNIQUE_KEY) or message.offset_message_id


def _offset_message_id(message: ReceivedMessage) -> str:
    spans = message._spans
    host = message._data[spans.store_timestamp_at + STORED_AT.size : spans.tail_at]
    return encode_message_id(host, LogPosition(message.position))


def _born_host(message: ReceivedMessage) -> str:
    host = message._data[message._start + HEAD.size : message._spans.store_timestamp_at]
    return shown_address(str(ipaddress.ip_address(host[:-4])), int.from_bytes(host[-4:], "big"))


def _head(field: Callable[[bytes, int], int]) -> Callable[[ReceivedMessage], Any]:
    return lambda message: field(message._data, message._start)


def _stored_at(message: ReceivedMessage) -> float:
    stored_ms: int = STORED_AT.unpack_from(message._data, message._spans.store_timestamp_at)[0]
    return stored_ms / 1000


_DECODERS: dict[str, Callable[[ReceivedMessage], Any]] = {
    "_spans": _find_spans,
    "topic": _topic,
    "body": _body,
    "tags": lambda message: message.get_property(names.TAGS),
    "keys": _keys,
    "properties": _own_properties,
    "sharding_key": lambda message: message.get_property(names.SHARDING_KEY),
    "delay_level": lambda message: _number(message, names.DELAY_LEVEL) or 0,
    "deliver_at": _deliver_at,
    "deliver_after": _deliver_after,
    "user_flag": _head(layout.user_flag_of),
    "position": _head(layout.position_of),
    "storage_flags": _head(layout.storage_flags_of),
    "born_at": lambda message: layout.born_timestamp_of(message._data, message._start) / 1000,
    "born_host": _born_host,
    "stored_at": _stored_at,
    "reconsume_times": lambda message: TAIL.unpack_from(message._data, message._spans.tail_at)[0],
    "message_id": _message_id,
    "offset_message_id": _offset_message_id,
    "all_properties": _all_properties,
}
