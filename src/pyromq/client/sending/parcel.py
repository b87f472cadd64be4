"""A message, or several, made ready to be sent: checked, named, compressed, with properties in their wire form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pyromq.client.message import Message, property_text
from pyromq.errors import IllegalMessage, IllegalName
from pyromq.records.batch import encode_batch
from pyromq.records.compression import compress
from pyromq.records.layout import MAX_PROPERTIES, MAX_TOPIC_V1

_NOTHING: Mapping[str, str] = {}
#: A message of a batch: user flag, body, properties; and its further fields.
BatchEntry = tuple[int, bytes, bytes]
BATCH_OVERHEAD = 22
#: The answer to a batch names every message in its header, and headers have a limit.
MAX_BATCH = 2000


class Parcel:
    """The content of one request."""

    __slots__ = ("batch", "body", "born_ms", "message_ids", "properties", "storage_flags", "topic", "user_flag")

    def __init__(
        self,
        topic: str,
        body: bytes,
        properties: str,
        message_ids: Sequence[str],
        born_ms: int,
        storage_flags: int = 0,
        user_flag: int = 0,
        *,
        batch: bool = False,
    ) -> None:
        self.topic = topic
        self.body = body
        self.properties = properties
        self.message_ids = message_ids
        self.born_ms = born_ms
        self.storage_flags = storage_flags
        self.user_flag = user_flag
        self.batch = batch


class Packing:
    """A producer's limits, and the size from which bodies are compressed."""

    __slots__ = ("_compress_above", "_compression", "_max_bytes")

    def __init__(self, max_message_bytes: int, compress_above: int | None, compression: str) -> None:
        self._max_bytes = max_message_bytes
        self._compress_above = compress_above
        self._compression = compression

    def pack(
        self, message: Message, message_id: str, born_ms: int, extra: Mapping[str, str] = _NOTHING, flags: int = 0
    ) -> Parcel:
        """Raises IllegalMessage for what no broker would take."""
        body = message.body
        self.check(message)
        properties = property_text(message, message_id, extra)
        if len(properties) > MAX_PROPERTIES or not properties.isascii():
            _encoded(properties)
        if self.is_compressed(message):
            body, more = compress(body, self._compression)
            flags |= more
        return Parcel(message.topic, body, properties, (message_id,), born_ms, flags, message.user_flag)

    def check(self, message: Message) -> None:
        """Return the fault of a single message."""
        size = len(message.body)
        if size > self._max_bytes:
            raise IllegalMessage(f"the body has {size} bytes; this producer sends at most {self._max_bytes}")
        if not size:
            raise IllegalMessage("the body is empty, and brokers take no message without one")
        if not 0 < len(message.topic) <= MAX_TOPIC_V1:
            raise IllegalName(f"the topic {message.topic[:40]!r} must have 1 to {MAX_TOPIC_V1} characters")

    def is_compressed(self, message: Message) -> bool:
        """Return whether the body is large enough to compress."""
        return self._compress_above is not None and len(message.body) >= self._compress_above

    def batch_entry(self, message: Message, message_id: str, extra: Mapping[str, str] = _NOTHING) -> BatchEntry:
        """A message as it stands in a batch. Raises IllegalMessage."""
        body = message.body
        if not 0 < len(body) <= self._max_bytes or not 0 < len(message.topic) <= MAX_TOPIC_V1:
            self.check(message)
        if message.delay_level or message.deliver_at is not None or message.deliver_after is not None:
            raise IllegalMessage("a message of a batch cannot be held back: send it alone")
        properties = property_text(message, message_id, extra)
        if len(properties) <= MAX_PROPERTIES and properties.isascii():
            return message.user_flag, body, properties.encode()
        return message.user_flag, body, _encoded(properties)


def join(topic: str, entries: list[BatchEntry], message_ids: Sequence[str], born_ms: int) -> Parcel:
    """Several messages in one request."""
    return Parcel(topic, encode_batch(entries), "WAIT\x01true\x02", message_ids, born_ms, batch=True)


def split_by_size(entries: list[BatchEntry], limit: int) -> Iterator[slice]:
    """Parts of a batch, each as large as the limit and the broker's answer allow."""
    start, size = 0, 0
    for number, entry in enumerate(entries):
        more = entry_size(entry)
        if number > start and (size + more > limit or number - start >= MAX_BATCH):
            yield slice(start, number)
            start, size = number, 0
        size += more
    if entries:
        yield slice(start, len(entries))


def entry_size(entry: BatchEntry) -> int:
    return BATCH_OVERHEAD + len(entry[1]) + len(entry[2])


def _encoded(properties: str) -> bytes:
    try:
        data = properties.encode()
    except UnicodeEncodeError as problem:
        raise IllegalMessage(f"the properties hold half of a surrogate pair: that is no text ({problem})") from None
    if len(data) > MAX_PROPERTIES:
        raise IllegalMessage(f"the properties have {len(data)} bytes; a message has room for {MAX_PROPERTIES}")
    return data
