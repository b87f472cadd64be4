"""Java's `String.hashCode`, which RocketMQ uses for tags and keys: over UTF-16 units, in 32 bits.

Also the blanks that Java's `String.trim` removes around a text.
"""

from __future__ import annotations

import re
import sys
from array import array
from functools import lru_cache
from operator import mul


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


@lru_cache(maxsize=512)
def tag_code(tag: bytes) -> int:
    """Return the hash of a tag (given in UTF-8) in a consume-queue entry; 0 for no tag."""
    return java_hash(java_text(tag))


def key_hash(topic: bytes, key: bytes) -> int:
    """Return the hash of a key in a key-index entry: that of `topic#key` made positive, as `Math.abs` does it."""
    return _positive(java_hash(java_text(topic + b"#" + key)))


def _positive(value: int) -> int:
    return 0 if value == -(1 << 31) else abs(value)


# --- many keys that begin alike --------------------------------------------------------------------------------------

#: Keys that a client makes one after the other differ in their last letters only.
_TAIL = 8
_POWERS = tuple(31**power & 0xFFFFFFFF for power in reversed(range(_TAIL)))
_TAIL_POWER: int = 31**_TAIL


def key_hash_by_parts(topic: bytes, key: bytes) -> int:
    """The same as `key_hash`, quicker where other keys began as this one does."""
    if len(key) < _TAIL or not key.isascii():
        return key_hash(topic, key)
    tail = sum(map(mul, key[-_TAIL:], _POWERS))
    value = (_hash_before_tail(topic, key[:-_TAIL]) + tail) & 0xFFFFFFFF
    return _positive(value - (1 << 32) if value >= 1 << 31 else value)


@lru_cache(maxsize=512)
def _hash_before_tail(topic: bytes, beginning: bytes) -> int:
    """Return the share of a text's beginning in its hash: each letter behind it multiplies by 31."""
    return java_hash(java_text(topic + b"#" + beginning)) * _TAIL_POWER


_BLANKS = "".join(map(chr, range(0x21)))


def java_trim(text: str) -> str:
    """As `String.trim`: every character up to the space goes, and no other, not even a wide space."""
    return text.strip(_BLANKS)
