"""Java's `String.hashCode`, which RocketMQ uses for tags and keys: over UTF-16 units, in 32 bits."""

from __future__ import annotations

import re
import sys
from array import array


def java_hash(text: str) -> int:
    """The signed 32-bit hash of a string."""
    if text.isascii():
        units: bytes | array[int] = text.encode("ascii")
    else:
        units = array("H", text.encode("utf-16-le", "surrogatepass"))
        if sys.byteorder == "big":
            units.byteswap()
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


#: Half of a surrogate pair in three bytes, which is no UTF-8: Java reads one unknown character, Python three.
_LONE_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")


def java_text(data: bytes) -> str:
    """UTF-8 as Java reads it, broken or not."""
    if data.isascii():
        return data.decode("ascii")
    return _LONE_SURROGATE.sub("\ufffd".encode(), data).decode("utf-8", "replace")


def tag_code(tag: bytes) -> int:
    """What a consume-queue entry holds of a tag (given in UTF-8); 0 for no tag."""
    return java_hash(java_text(tag))


def key_hash(topic: bytes, key: bytes) -> int:
    """What a key-index entry holds of a key: the hash of `topic#key` made positive, as `Math.abs` does it."""
    value = abs(java_hash(java_text(topic + b"#" + key)))
    return 0 if value == 1 << 31 else value
