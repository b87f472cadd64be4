"""The JSON of RocketMQ's bodies, written and read: standard JSON, and the two liberties that fastjson takes.

    {0:"127.0.0.1:10911"}                          the whole-number keys of a map have no quotes
    {{"queueId":0,"topic":"t"}:{"minOffset":0}}    the keys of a map are objects

A dict with whole numbers for keys is the first kind of map, an `ObjectKeyed` the second. `dumps` writes both as
fastjson does, which old clients expect; `dumps_standard` quotes numbers, and knows no object keys, which standard JSON
cannot say.

Whatever the bytes are, `loads` returns a value that `dumps` can write again, or raises `NotJson`. It takes time in
proportion to the length, and nesting is limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from json import JSONDecodeError, JSONDecoder
from math import isfinite
from typing import Any

import orjson

from pyromq.errors import NotJson
from pyromq.model.json_form import Json
from pyromq.model.lenient_json import MAX_DEPTH

Pairs = tuple[tuple[Json, Json], ...]

_SPACE = re.compile(r"[ \t\r\n]*+")
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,20}+(?![0-9.eE])")
_SCALAR = re.compile(
    r"(?P<word>true|false|null)(?![A-Za-z0-9_])"
    r"|(?P<whole>-?(?:0|[1-9][0-9]*+))(?P<rest>(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)"
)
_STRINGS = JSONDecoder()
_WORDS: dict[str, Json] = {"true": True, "false": False, "null": None}
#: No field of any body has more digits, and reading very long numbers takes long.
_MAX_DIGITS = 40


@dataclass(frozen=True, slots=True)
class ObjectKeyed:
    """A map whose keys are objects, which no dict can be."""

    pairs: Pairs = ()


def standard_for(version: int, accepts_standard_only: bool = False) -> bool:
    """Return True if a client of this version gets standard JSON: from 4.9.4 on, or if it asks."""
    return version >= 401 or accepts_standard_only


def dumps(value: Json) -> bytes:
    """In fastjson's dialect. Raises NotJson for what JSON cannot say."""
    out = bytearray()
    _write(value, out, MAX_DEPTH)
    return bytes(out)


def dumps_standard(value: Json) -> bytes:
    """Standard JSON, whole numbers that are keys in quotes. Raises NotJson for what it cannot say."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS)
    except orjson.JSONEncodeError as error:
        raise NotJson(str(error)) from None


def map_pieces(items: Iterable[tuple[Json, Json]]) -> Iterator[bytes]:
    """Yield a map in pieces, one for each item, which is not asked for before the one before it was taken."""
    before = b"{"
    for key, item in items:
        yield b"".join((before, dumps(key), b":", dumps(item)))
        before = b","
    yield b"}" if before == b"," else b"{}"


def list_pieces(items: Iterable[Json]) -> Iterator[bytes]:
    """Yield a list in pieces, one for each item."""
    before = b"["
    for item in items:
        yield before + dumps(item)
        before = b","
    yield b"]" if before == b"," else b"[]"


def loads(data: bytes) -> Json:
    """The value of either dialect: dict, list, text, number, truth value, None or `ObjectKeyed`. Keys are text."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise NotJson(f"it is not UTF-8 at byte {error.start}") from None
    reader = _Reader(text)
    value, at = reader.value(reader.skip(0), MAX_DEPTH)
    if reader.skip(at) != len(text):
        raise reader.problem("the end", at)
    return value


# --- writing ---------------------------------------------------------------------------------------------------------


def _write(value: Json, out: bytearray, depth: int) -> None:
    """Append the largest parts that are standard JSON with one call each.

    One call per scalar would cost a result of some KiB each, which a list of pieces would keep until the end.
    """
    if depth == 0:
        raise NotJson(f"it is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, ObjectKeyed):
        _write_map(value.pairs, out, depth)
        return
    try:
        out += orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATACLASS)
    except orjson.JSONEncodeError as error:
        if isinstance(value, Mapping):
            _write_map(value.items(), out, depth)
        elif isinstance(value, list | tuple | set | frozenset):
            _write_list(value, out, depth)
        else:
            raise NotJson(str(error)) from None


def _write_map(items: Iterable[tuple[Any, Json]], out: bytearray, depth: int) -> None:
    before = b"{"
    for key, item in items:
        out += before
        _write(key, out, depth - 1)
        out += b":"
        _write(item, out, depth - 1)
        before = b","
    out += b"}" if before == b"," else b"{}"


def _write_list(items: Iterable[Json], out: bytearray, depth: int) -> None:
    before = b"["
    for item in items:
        out += before
        _write(item, out, depth - 1)
        before = b","
    out += b"]" if before == b"," else b"[]"


# --- reading ---------------------------------------------------------------------------------------------------------


class _Reader:
    """Reads one text. Every step takes a position and returns the one behind what it read."""

    def __init__(self, text: str) -> None:
        self._text = text

    def skip(self, at: int) -> int:
        space = _SPACE.match(self._text, at)
        assert space is not None
        return space.end()

    def problem(self, expected: str, at: int) -> NotJson:
        return NotJson(f"{expected} expected at character {at + 1}")

    def value(self, at: int, depth: int) -> tuple[Json, int]:
        if depth == 0:
            raise NotJson(f"it is nested more than {MAX_DEPTH} levels deep")
        first = self._text[at : at + 1]
        if first == '"':
            return self._string(at)
        if first == "{":
            return self._map(at, depth)
        if first == "[":
            return self._list(at, depth)
        return self._scalar(at)

    def _string(self, at: int) -> tuple[str, int]:
        try:
            found, end = _STRINGS.raw_decode(self._text, at)
            text = str(found)
            text.encode()
        except (JSONDecodeError, UnicodeEncodeError):  # the second: half a surrogate pair
            raise self.problem("text", at) from None
        return text, end

    def _scalar(self, at: int) -> tuple[Json, int]:
        found = _SCALAR.match(self._text, at)
        if found is None or found.end() - at > _MAX_DIGITS:
            raise self.problem("a value", at)
        if found["word"]:
            return _WORDS[found["word"]], found.end()
        number = float(found[0]) if found["rest"] else int(found["whole"])
        if not (isfinite(number) if isinstance(number, float) else -(2**63) <= number < 2**64):
            raise self.problem("a number that is not as large", at)
        return number, found.end()

    def _list(self, at: int, depth: int) -> tuple[list[Json], int]:
        items: list[Json] = []
        at = self.skip(at + 1)
        if self._text[at : at + 1] == "]":
            return items, at + 1
        while True:
            item, at = self.value(at, depth - 1)
            items.append(item)
            is_last, at = self._next(at, "]")
            if is_last:
                return items, at

    def _map(self, at: int, depth: int) -> tuple[dict[str, Json] | ObjectKeyed, int]:
        pairs: list[tuple[Json, Json]] = []
        at = self.skip(at + 1)
        if self._text[at : at + 1] == "}":
            return {}, at + 1
        is_object_keyed = self._text[at : at + 1] == "{"
        while True:
            key, at = self._map_key(at, depth, is_object_keyed)
            at = self.skip(at)
            if self._text[at : at + 1] != ":":
                raise self.problem("a colon", at)
            item, at = self.value(self.skip(at + 1), depth - 1)
            pairs.append((key, item))
            is_last, at = self._next(at, "}")
            if is_last:
                return ObjectKeyed(tuple(pairs)) if is_object_keyed else dict(pairs), at

    def _map_key(self, at: int, depth: int, is_object: bool) -> tuple[Json, int]:
        first = self._text[at : at + 1]
        if is_object and first == "{":
            return self.value(at, depth - 1)
        if not is_object and first == '"':
            return self._string(at)
        number = None if is_object else _WHOLE_NUMBER.match(self._text, at)
        if number is None:
            raise self.problem("a key", at)
        return number[0], number.end()

    def _next(self, at: int, closing: str) -> tuple[bool, int]:
        """Behind a comma, and False; or behind the end of the list or map, and True."""
        at = self.skip(at)
        mark = self._text[at : at + 1]
        if mark == closing:
            return True, at + 1
        if mark != ",":
            raise self.problem(f"a comma or {closing}", at)
        return False, self.skip(at + 1)
