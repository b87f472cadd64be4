"""The values of SQL92 expressions and how Java compares them.

A property is text; a literal is text, a truth value or a number. RocketMQ has three kinds of numbers, and the kind of
the literal decides how the text of a property is read: compared with a 32-bit integer as one (so `7.5` and
`3000000000` are no numbers there), with a 64-bit integer as one, with a double as a double. Unreadable text and an
impossible comparison raise `Incomparable`, and the message does not match.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from pyromq.records.java_hash import java_trim

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

#: Longer text is no number here. A double has at most 767 digits that count; without a limit, properties made of
#: thousands of digits would be read for every comparison of every message.
MAX_NUMBER_LENGTH = 1024


class Long(int):
    """A 64-bit integer. A plain `int` is a 32-bit one: its size alone does not tell, -2147483648 is a Long."""

    __slots__ = ()


Scalar = str | bool | int | float
Value = Scalar | None


class Incomparable(Exception):
    """These two values cannot be compared; never leaves this package."""


#: Fewer digits than the largest 32-bit integer has: the usual case, and quick to tell.
_ALWAYS_FITS = 10

# Java's digits are those of every script, but not those beyond the first 65536 characters.
_INTEGER = re.compile(r"[+-]?(?:[0-9]+|(?:(?![\U00010000-\U0010ffff])\d)+)")
_DOUBLE = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?"
    r"|(?P<hex>0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?))"
)


def read_bool(text: str) -> bool:
    return text.lower() == "true"


def read_int(text: str) -> int:
    return _read_integer(text, INT_MAX)


def read_long(text: str) -> Long:
    return Long(_read_integer(text, LONG_MAX))


def _read_integer(text: str, highest: int) -> int:
    if len(text) < _ALWAYS_FITS and text.isascii() and text.isdecimal():
        return int(text)
    if len(text) > MAX_NUMBER_LENGTH or not _INTEGER.fullmatch(text):
        raise Incomparable
    value = int(text)
    if not -highest - 1 <= value <= highest:
        raise Incomparable
    return value


def read_double(text: str) -> float:
    """As Java's `Double.valueOf`: blanks around it, a type letter behind it, and hexadecimal are fine."""
    text = java_trim(text)
    form = _DOUBLE.fullmatch(text) if len(text) <= MAX_NUMBER_LENGTH else None
    if form is None:
        raise Incomparable
    if form["hex"]:
        return _read_hex(text.rstrip("fFdD"))
    return float(text if text[-1] in "Ny" else text.rstrip("fFdD"))


def _read_hex(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return -math.inf if text[0] == "-" else math.inf


#: Parsers of text that is compared with a value of each type.
READERS: dict[type, Callable[[str], Any]] = {bool: read_bool, int: read_int, Long: read_long, float: read_double}


def negated(value: Value) -> Value:
    """Only numbers have a negative; a property is text, even when it looks like a number."""
    kind = type(value)
    if kind is Long:
        return Long(-value)  # type: ignore[operator]
    return -value if kind in (int, float) else None  # type: ignore[operator]


def is_equal(left: Value, right: Value) -> bool | None:
    """Nothing equals nothing. Of one value that is missing, the side tells: left is unknown, right is different."""
    if left is None:
        return True if right is None else None
    return right is not None and compare(left, right) == 0


def order(left: Scalar, right: Scalar) -> int:
    """Below zero, zero or above, for < and its family: two texts are compared as doubles."""
    if isinstance(left, str) and isinstance(right, str):
        return _compare_doubles(read_double(left), read_double(right))
    return compare(left, right)


def compare(left: Scalar, right: Scalar) -> int:
    """Compare two values. Text is parsed as the type of the other value; of two number types the narrower widens."""
    if type(left) is not type(right):
        if isinstance(left, str):
            left = READERS[type(right)](left)
        elif isinstance(left, bool):
            return _bool_with_other(right)
        elif isinstance(right, str):
            right = READERS[type(left)](right)
        elif isinstance(right, bool):
            return -1
    if isinstance(left, float) or isinstance(right, float):
        return _compare_doubles(float(left), float(right))
    return (left > right) - (left < right)  # type: ignore[operator]


def _bool_with_other(right: Scalar) -> int:
    """RocketMQ means to read text as a truth value here, and fails at it whatever the text is."""
    if isinstance(right, str):
        raise Incomparable
    return -1


def _compare_doubles(left: float, right: float) -> int:
    """Java's total order: -0.0 is below 0.0, and NaN equals itself and is above everything."""
    if left == right:
        return int(math.copysign(1, left) - math.copysign(1, right))
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) - math.isnan(right)
    return 1 if left > right else -1
