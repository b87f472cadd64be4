"""Message properties in record form: `name 0x01 value 0x02` repeated; the last 0x02 may be missing.

Reading follows RocketMQ: an entry without a name or without a value does not exist, and of two entries with one
name the later counts. Names and values are UTF-8; broken UTF-8 reads as U+FFFD, as Java does it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pyromq.errors import IllegalMessage
from pyromq.records.java_hash import java_text
from pyromq.records.layout import CRC_PROPERTY_NAME, CRC_PROPERTY_SIZE

NAME_END = b"\x01"
VALUE_END = b"\x02"
#: The CRC as the log writes it: whole, and behind all the others.
_CRC_AT_THE_END = re.compile(rb"(?<![^\x02])" + CRC_PROPERTY_NAME + rb"\x01[0-9]{10}\x02\Z")

TAGS = "TAGS"
KEYS = "KEYS"
UNIQUE_KEY = "UNIQ_KEY"
DELAY_LEVEL = "DELAY"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Record form. Raises IllegalMessage for names and values that could not be read back."""
    parts: list[str] = []
    for name, value in properties.items():
        if not name or not value:
            raise IllegalMessage(f"property {name!r} has an empty name or value, which the record cannot hold")
        if not {"\x01", "\x02"}.isdisjoint(name) or "\x02" in value:
            raise IllegalMessage(f"property {name!r} contains a separator (0x01 or 0x02)")
        parts.append(f"{name}\x01{value}\x02")
    try:
        return "".join(parts).encode("utf-8")
    except UnicodeEncodeError as error:
        raise IllegalMessage(f"the properties contain half of a surrogate pair, which is no text ({error})") from None


def split_properties(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Names and values as bytes, in order, with the entries that RocketMQ skips left out."""
    for entry in data.split(VALUE_END):
        name, found, value = entry.partition(NAME_END)
        if found and name and value:
            yield name, value


def decode_properties(data: bytes) -> dict[str, str]:
    return {java_text(name): java_text(value) for name, value in split_properties(data)}


def without_crc(data: bytes) -> bytes:
    """The same properties with no record CRC among them: a client that sends one back must not confuse the log."""
    if CRC_PROPERTY_NAME not in data:
        return data
    if data.count(CRC_PROPERTY_NAME) == 1 and _CRC_AT_THE_END.match(data, len(data) - CRC_PROPERTY_SIZE):
        return data[:-CRC_PROPERTY_SIZE]
    kept = [entry for entry in data.split(VALUE_END) if entry.partition(NAME_END)[0] != CRC_PROPERTY_NAME]
    return VALUE_END.join(kept)
