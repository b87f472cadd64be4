"""Properties of a message, read and changed as they stand in a record: `name 0x01 value 0x02`, repeated.

Made for the way of every message through the broker: nothing is decoded, and a name that is not there costs one search.
The rules are those of `records.properties`: an entry without a value does not exist, and of two entries with one name
the later counts. A name is found only where an entry begins, never inside another name or a value.
"""

from __future__ import annotations

NAME_END = b"\x01"
VALUE_END = b"\x02"
_VALUE_END_BYTE = 2

CLUSTER = b"CLUSTER"
DELAY = b"DELAY"
DEAD_LETTER_OF = b"DLQ_ORIGIN_TOPIC"
DEAD_LETTER_OF_ID = b"DLQ_ORIGIN_MESSAGE_ID"
HALF = b"TRAN_MSG"
ORIGIN_MESSAGE_ID = b"ORIGIN_MESSAGE_ID"
POP_RECEIPT = b"POP_CK"
REAL_QUEUE = b"REAL_QID"
REGION = b"MSG_REGION"
TRACE = b"TRACE_ON"
REAL_TOPIC = b"REAL_TOPIC"
RETRY_TOPIC = b"RETRY_TOPIC"
UNIQUE_KEY = b"UNIQ_KEY"
WAIT_FOR_DISK = b"WAIT"

#: No integer of the protocol is longer; Python refuses to read one of thousands of digits.
_MAX_DIGITS = 20


def get(properties: bytes, name: bytes) -> bytes | None:
    """The value of a property; None when there is none."""
    key = name + NAME_END
    at = properties.rfind(key)
    while at >= 0:
        if at == 0 or properties[at - 1] == _VALUE_END_BYTE:
            end = properties.find(VALUE_END, at)
            value = properties[at + len(key) : end if end >= 0 else len(properties)]
            if value:
                return value
        at = properties.rfind(key, 0, at + len(key) - 1)
    return None


def get_int(properties: bytes, name: bytes) -> int | None:
    """A property that is a whole number; None when there is none, or something else."""
    value = get(properties, name)
    if value is None or len(value) > _MAX_DIGITS or not value.removeprefix(b"-").isdigit():
        return None
    return int(value)


def is_true(properties: bytes, name: bytes) -> bool:
    """Is the property "true", in whichever case?"""
    return (get(properties, name) or b"").lower() == b"true"


def put(properties: bytes, name: bytes, value: bytes) -> bytes:
    """Set a property, in place of the one that is there."""
    return joined(remove(properties, name), b"%b\x01%b\x02" % (name, value))


def put_if_absent(properties: bytes, name: bytes, value: bytes) -> bytes:
    return properties if get(properties, name) is not None else put(properties, name, value)


def remove(properties: bytes, *names: bytes) -> bytes:
    """The same without some properties, however often they are there."""
    keys = tuple([name + NAME_END for name in names if name + NAME_END in properties])
    if not keys:
        return properties
    kept = [entry for entry in properties.split(VALUE_END) if entry and not entry.startswith(keys)]
    return VALUE_END.join([*kept, b""])


def joined(first: bytes, second: bytes) -> bytes:
    """Two runs of properties as one; where both have a name, the second counts."""
    if first and second and first[-1] != _VALUE_END_BYTE:
        return b"%b\x02%b" % (first, second)
    return first + second
