"""The records that most are, read in few steps: both hosts IPv4, a topic of up to 127 bytes, no transaction.

`record` is the definition, and knows all the others; where a record is read here, both find the same in it.
"""

from __future__ import annotations

import struct

from pyromq.records import layout
from pyromq.records.properties import NAME_END, VALUE_END

#: Everything before the body: HEAD, host, STORED_AT, host, TAIL.
PLAIN_HEAD = struct.Struct(f"{layout.HEAD.format}8s{layout.STORED_AT.format[1:]}8s{layout.TAIL.format[1:]}")

_NOT_PLAIN = layout.FLAG_BORN_HOST_V6 | layout.FLAG_STORE_HOST_V6 | layout.FLAG_TRANSACTION_MASK

#: The terms of a message in queues and index: its tag, its unique key, its other keys; empty if it has none.
Terms = tuple[bytes, bytes, bytes]
#: Position, size, what its queue is looked up by, queue offset, store time, topic, terms.
PlainRecord = tuple[int, int, bytes, int, int, bytes, Terms]


def terms_of(properties: bytes) -> Terms:
    tag = unique_key = keys = b""
    for entry in properties.split(VALUE_END):
        name, _, value = entry.partition(NAME_END)
        if not value:
            continue
        if name == b"TAGS":
            tag = value
        elif name == b"UNIQ_KEY":
            unique_key = value
        elif name == b"KEYS":
            keys = value
    return tag, unique_key, keys


def plain_records(buffer: memoryview, start: int, limit: int) -> list[PlainRecord]:
    """The records from `start` on that are all in `[start, limit)`, up to the first that is not plain."""
    records: list[PlainRecord] = []
    at = start
    while at + layout.SMALLEST_RECORD <= limit:
        size, magic, _, _, _, queue_offset, position, flags, _, _, stored_ms, _, _, _, body_size = (
            PLAIN_HEAD.unpack_from(buffer, at)
        )
        topic_at, end = at + PLAIN_HEAD.size + body_size, at + size
        if magic != layout.MAGIC_V1 or flags & _NOT_PLAIN or body_size < 0 or end > limit or topic_at + 3 > end:
            break
        behind_body = bytes(buffer[topic_at:end])
        topic_end = behind_body[0] + 1
        properties_at = topic_end + 2
        properties_size = int.from_bytes(behind_body[topic_end:properties_at], "big")
        if topic_end == 1 or properties_at + properties_size != len(behind_body):
            break
        topic, queue_id = behind_body[1:topic_end], buffer[at + layout.QUEUE_ID_AT : at + layout.USER_FLAG_AT]
        terms = terms_of(behind_body[properties_at:])
        records.append((position, size, topic + queue_id, queue_offset, stored_ms, topic, terms))
        at = end
    return records
