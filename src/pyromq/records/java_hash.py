"""Java's `String.hashCode`, which RocketMQ uses for tags and keys: over UTF-16 units, in 32 bits."""

from __future__ import annotations

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


def tag_code(tag: bytes) -> int:
    """What a consume-queue entry holds of a tag (given in UTF-8); 0 for no tag."""
    return java_hash(tag.decode("utf-8", "replace"))


def key_hash(topic: bytes, key: bytes) -> int:
    """What a key-index entry holds of a key: the hash of `topic#key` made positive, as `Math.abs` does it."""
    value = abs(java_hash((topic + b"#" + key).decode("utf-8", "replace")))
    return 0 if value == 1 << 31 else value
