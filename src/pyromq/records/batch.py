"""The body of a batch send: several messages of one topic and queue, in a short form of their own.

    4 size of this message, 4 magic (0), 4 CRC (0), 4 user flag, 4+n body, 2+n properties, repeated

Each becomes a record of its own in the log.
"""

from __future__ import annotations

import struct

from pyromq import accelerated
from pyromq.errors import IllegalMessage
from pyromq.model.message import Draft

ACCELERATED = accelerated.load("records")

_HEAD = struct.Struct(">IIIiI")  # size, magic, CRC, user flag, body length


def encode_batch(messages: list[tuple[int, bytes, bytes]]) -> bytes:
    """(user flag, body, properties) of each message, as a client sends them."""
    pieces: list[bytes] = []
    pack, least = _HEAD.pack, _HEAD.size + 2
    for flag, body, properties in messages:
        size = len(properties)
        pieces += (pack(least + len(body) + size, 0, 0, flag, len(body)), body, size.to_bytes(2, "big"), properties)
    return b"".join(pieces)


def split_batch_readable(template: Draft, at_most: int) -> list[Draft]:
    """Return the first `at_most` drafts of a batch, with the common fields of the template. Raises IllegalMessage.

    There are thousands of them in a full batch: each is made at once, with bytes of its own, which the store takes
    without a closer look.
    """
    data = bytes(template.body)
    drafts: list[Draft] = []
    at = 0
    while at < len(data) and len(drafts) < at_most:
        if at + _HEAD.size + 2 > len(data):
            raise IllegalMessage(f"the batch is cut off at byte {at}")
        size, _, _, user_flag, body_size = _HEAD.unpack_from(data, at)
        body = at + _HEAD.size
        end = at + size
        properties = body + body_size + 2
        if end > len(data) or properties > end:
            raise IllegalMessage(f"message at byte {at} of the batch does not fit in it")
        properties_size = int.from_bytes(data[properties - 2 : properties], "big")
        if properties + properties_size != end:
            raise IllegalMessage(f"the lengths of the message at byte {at} of the batch do not add up")
        draft = Draft(
            template.topic,
            template.queue_id,
            data[body : body + body_size],
            data[properties:end],
            user_flag,
            template.storage_flags,
            template.born_timestamp_ms,
            template.born_host,
            template.store_host,
            template.reconsume_times,
            template.prepared_position,
        )
        drafts.append(draft)
        at = end
    return drafts


if ACCELERATED is None:
    split_batch = split_batch_readable
else:

    def split_batch(template: Draft, at_most: int) -> list[Draft]:
        assert ACCELERATED is not None
        found: list[Draft] | None = ACCELERATED.split_batch(template, at_most, Draft)
        return split_batch_readable(template, at_most) if found is None else found
