"""One record: check a draft, encode it, decode and verify it. The readable definition of the format.

The compiled twin of `encode_into` is in `_kernel`; a differential test holds the two equal.
"""

from __future__ import annotations

from typing import NamedTuple

from pyromq.errors import IllegalMessage
from pyromq.model.ids import LogPosition, QueueOffset
from pyromq.model.message import Draft, StoredMessage
from pyromq.records import layout
from pyromq.records.checksum import positive_crc32
from pyromq.records.layout import HEAD, STORED_AT, TAIL
from pyromq.records.properties import decode_properties, without_crc

_BITS = {
    "queue_id": 32,
    "user_flag": 32,
    "storage_flags": 32,
    "reconsume_times": 32,
    "born_timestamp_ms": 64,
    "prepared_position": 64,
}

_CRC_PROPERTY = layout.CRC_PROPERTY_NAME + b"\x01%b\x02"


def check_draft(draft: Draft, max_body_bytes: int) -> None:
    """Raise IllegalMessage, with a sentence for the sender, when the record could not hold the draft."""
    _check_types(draft)
    topic_size = len(draft.topic)
    if not 0 < topic_size <= layout.MAX_TOPIC:
        raise IllegalMessage(f"a topic has 1 to {layout.MAX_TOPIC} bytes, this one has {topic_size}")
    if b"\0" in draft.topic or b"/" in draft.topic or draft.topic in (b".", b".."):
        raise IllegalMessage(f"the topic {draft.topic!r} cannot be the name of a directory")
    if len(draft.body) > max_body_bytes:
        raise IllegalMessage(f"the body has {len(draft.body)} bytes, the limit is {max_body_bytes}")
    if len(draft.properties) > layout.MAX_PROPERTIES - layout.CRC_PROPERTY_SIZE - 1:
        raise IllegalMessage(
            f"the properties have {len(draft.properties)} bytes, the limit is "
            f"{layout.MAX_PROPERTIES - layout.CRC_PROPERTY_SIZE - 1}"
        )
    for host in (draft.born_host, draft.store_host):
        if len(host) not in (layout.HOST_V4, layout.HOST_V6):
            raise IllegalMessage(f"a host is 8 (IPv4) or 20 (IPv6) bytes long, not {len(host)}")
    if not 0 <= draft.queue_id < 1 << 31:
        raise IllegalMessage(f"{draft.queue_id} is not a queue id")
    for name, bits in _BITS.items():
        if not -(1 << bits - 1) <= getattr(draft, name) < 1 << bits - 1:
            raise IllegalMessage(f"{name} = {getattr(draft, name)} does not fit in {bits} bits")


def _check_types(draft: Draft) -> None:
    """A draft is what its fields are said to be: the compiled form takes them at their word."""
    for name in ("topic", "properties", "born_host", "store_host"):
        if type(getattr(draft, name)) is not bytes:
            raise IllegalMessage(f"{name} must be bytes, not {type(getattr(draft, name)).__name__}")
    body = draft.body
    if not isinstance(body, bytes | bytearray) and not (
        isinstance(body, memoryview) and body.format == "B" and body.ndim == 1 and body.contiguous
    ):
        raise IllegalMessage("the body must be bytes, or a view of bytes that lie one behind the other")
    for name in _BITS:
        if type(getattr(draft, name)) is not int:
            raise IllegalMessage(f"{name} must be an integer, not {getattr(draft, name)!r}")


def record_properties(draft: Draft, with_crc: bool) -> bytes:
    """The draft's properties as the record holds them, up to the CRC."""
    properties = without_crc(draft.properties)
    if with_crc:
        return properties + b"\x02" if properties and not properties.endswith(b"\x02") else properties
    # Properties that end like a CRC would be taken for one: empty entries after it, which readers skip, prevent that.
    while stored_crc(memoryview(properties), 0, len(properties)) is not None:
        properties += b"\x02"
    return properties


def storage_flags_of(draft: Draft) -> int:
    """The draft's flags, with the two that say how long the hosts are."""
    flags = draft.storage_flags & ~(layout.FLAG_BORN_HOST_V6 | layout.FLAG_STORE_HOST_V6)
    if len(draft.born_host) == layout.HOST_V6:
        flags |= layout.FLAG_BORN_HOST_V6
    if len(draft.store_host) == layout.HOST_V6:
        flags |= layout.FLAG_STORE_HOST_V6
    return flags


def encoded_size(draft: Draft, with_crc: bool) -> int:
    return _size(draft, len(record_properties(draft, with_crc)) + (layout.CRC_PROPERTY_SIZE if with_crc else 0))


def _size(draft: Draft, properties_size: int) -> int:
    return (
        HEAD.size
        + len(draft.born_host)
        + STORED_AT.size
        + len(draft.store_host)
        + TAIL.size
        + len(draft.body)
        + (1 if len(draft.topic) <= layout.MAX_TOPIC_V1 else 2)
        + len(draft.topic)
        + 2
        + properties_size
    )


def encode(draft: Draft, position: int, queue_offset: int, store_timestamp_ms: int, with_crc: bool) -> bytes:
    """The record's bytes. The draft must have passed `check_draft`."""
    topic_is_short = len(draft.topic) <= layout.MAX_TOPIC_V1
    properties = record_properties(draft, with_crc)
    properties_size = len(properties) + (layout.CRC_PROPERTY_SIZE if with_crc else 0)
    record = bytearray()
    record += HEAD.pack(
        _size(draft, properties_size),
        layout.MAGIC_V1 if topic_is_short else layout.MAGIC_V2,
        positive_crc32(draft.body),
        draft.queue_id,
        draft.user_flag,
        queue_offset,
        position,
        storage_flags_of(draft),
        draft.born_timestamp_ms,
    )
    record += draft.born_host
    record += STORED_AT.pack(store_timestamp_ms)
    record += draft.store_host
    record += TAIL.pack(draft.reconsume_times, draft.prepared_position, len(draft.body))
    record += draft.body
    record += len(draft.topic).to_bytes(1 if topic_is_short else 2, "big")
    record += draft.topic
    record += properties_size.to_bytes(2, "big")
    record += properties
    if with_crc:
        record += crc_property(positive_crc32(record))
    return bytes(record)


def crc_property(crc: int) -> bytes:
    """The property that holds a record's CRC: ten digits, least significant first."""
    return _CRC_PROPERTY % (b"%010d" % crc)[::-1]


class Spans(NamedTuple):
    """The parts of varying length, as offsets into the buffer."""

    total_size: int
    storage_flags: int
    store_timestamp_at: int
    tail_at: int
    body: int
    body_end: int
    topic: int
    topic_end: int
    properties: int
    properties_end: int


def spans_of(buffer: memoryview, start: int, limit: int) -> Spans | str:
    """Follow the lengths of the record at `start`; the reason why not when they do not add up."""
    if start + layout.SMALLEST_RECORD > limit:
        return "the record is cut off"
    total_size, magic, _, _, _, _, _, flags, _ = HEAD.unpack_from(buffer, start)
    if magic not in (layout.MAGIC_V1, layout.MAGIC_V2):
        return f"the magic number is 0x{magic:08X}"
    end = start + total_size
    if total_size < layout.SMALLEST_RECORD or end > limit:
        return f"the size {total_size} is impossible here"
    stored_at = start + HEAD.size + (layout.HOST_V6 if flags & layout.FLAG_BORN_HOST_V6 else layout.HOST_V4)
    tail = stored_at + STORED_AT.size + (layout.HOST_V6 if flags & layout.FLAG_STORE_HOST_V6 else layout.HOST_V4)
    body = tail + TAIL.size
    length_size = 1 if magic == layout.MAGIC_V1 else 2
    if body + length_size + 2 > end:
        return "the parts do not fit in the size"
    body_size: int = TAIL.unpack_from(buffer, tail)[2]
    body_end = body + body_size
    if body_size < 0 or body_end + length_size + 2 > end:
        return f"the body length {body_size} does not fit in the size"
    topic = body_end + length_size
    topic_size = int.from_bytes(buffer[body_end:topic], "big")
    topic_end = topic + topic_size
    if topic_end + 2 > end or not topic_size:
        return f"the topic length {topic_size} does not fit in the size"
    properties = topic_end + 2
    if properties + int.from_bytes(buffer[topic_end:properties], "big") != end:
        return "the lengths of its parts do not add up to its size"
    return Spans(total_size, flags, stored_at, tail, body, body_end, topic, topic_end, properties, end)


#: A damaged CRC property still looks like one: this many of its 20 bytes being as they must be tells it from a
#: record that has none. A user's property may share its ten digits and two separators by chance, hardly more.
_CRC_LIKENESS = 16
_DIGITS = frozenset(b"0123456789")


def stored_crc(buffer: memoryview, properties: int, end: int) -> int | None:
    """The CRC that the record carries; None when it carries none; -1 when what it carries is damaged."""
    start = end - layout.CRC_PROPERTY_SIZE
    if start < properties:
        return None
    tail = bytes(buffer[start:end])
    alike = sum(a == b for a, b in zip(tail[:9], b"__CRC32#\x01", strict=True))
    alike += sum(byte in _DIGITS for byte in tail[9:19]) + (tail[19] == 2)
    if alike == layout.CRC_PROPERTY_SIZE:
        return int(tail[18:8:-1])
    return -1 if alike >= _CRC_LIKENESS or _is_torn(tail) else None


def _is_torn(tail: bytes) -> bool:
    """One side of a CRC property is there and the other is zeroes, or all of it is: a write that did not complete."""
    left, right = tail.rstrip(b"\0"), tail.lstrip(b"\0")
    if len(left) == len(right) == len(tail):
        return False
    return all(map(_fits_crc, left, range(len(tail)))) or all(
        map(_fits_crc, right, range(len(tail) - len(right), len(tail)))
    )


def _fits_crc(byte: int, at: int) -> bool:
    """May this byte stand here in a CRC property?"""
    return byte == b"__CRC32#\x01"[at] if at < 9 else byte in _DIGITS if at < 19 else byte == 2


def verify(buffer: memoryview, start: int, limit: int, position: int) -> Spans | str:
    """Lengths, position and checksums of the record at `start`; the reason when one of them is wrong."""
    spans = spans_of(buffer, start, limit)
    if isinstance(spans, str):
        return spans
    found_position = layout.position_of(buffer, start)
    if found_position != position:
        return f"it says that it belongs to position {found_position}"
    crc = stored_crc(buffer, spans.properties, spans.properties_end)
    if crc is not None:
        if positive_crc32(buffer[start : spans.properties_end - layout.CRC_PROPERTY_SIZE]) != crc:
            return "the record's CRC does not match"
    elif positive_crc32(buffer[spans.body : spans.body_end]) != layout.body_crc_of(buffer, start):
        return "the body's CRC does not match"
    return spans


def stored_at_ms(buffer: memoryview, start: int, limit: int) -> int | None:
    """Return the store time of the record at `start`; None if there is no record."""
    spans = spans_of(buffer, start, limit)
    if isinstance(spans, str):
        return None
    (timestamp_ms,) = STORED_AT.unpack_from(buffer, spans.store_timestamp_at)
    return int(timestamp_ms)


def decode(buffer: memoryview, start: int = 0) -> StoredMessage:
    """The record at `start` as a value. Raises IllegalMessage when the bytes are no record."""
    spans = spans_of(buffer, start, len(buffer))
    if isinstance(spans, str):
        raise IllegalMessage(f"not a record: {spans}")
    total_size, _, body_crc, queue_id, user_flag, queue_offset, position, flags, born = HEAD.unpack_from(buffer, start)
    reconsume_times, prepared_position, _ = TAIL.unpack_from(buffer, spans.tail_at)
    return StoredMessage(
        position=LogPosition(position),
        size=total_size,
        topic=str(buffer[spans.topic : spans.topic_end], "utf-8", "replace"),
        queue_id=queue_id,
        queue_offset=QueueOffset(queue_offset),
        body=bytes(buffer[spans.body : spans.body_end]),
        body_crc=body_crc,
        properties=decode_properties(bytes(buffer[spans.properties : spans.properties_end])),
        user_flag=user_flag,
        storage_flags=flags,
        born_timestamp_ms=born,
        born_host=bytes(buffer[start + HEAD.size : spans.store_timestamp_at]),
        store_timestamp_ms=STORED_AT.unpack_from(buffer, spans.store_timestamp_at)[0],
        store_host=bytes(buffer[spans.store_timestamp_at + STORED_AT.size : spans.tail_at]),
        reconsume_times=reconsume_times,
        prepared_position=prepared_position,
    )
