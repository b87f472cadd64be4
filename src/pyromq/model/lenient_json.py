"""The JSON of RocketMQ's small files, read and written.

RocketMQ writes with fastjson, which is standard but for one habit: the integer keys of a map are not quoted
(`{0:12,1:7}`). So `loads` tries standard JSON first and, when that fails, once more with such keys quoted.
Both fastjson and fastjson2 take quoted keys for integer maps, so `dumps` writes standard JSON only.

Whatever the bytes are, `loads` returns a value that `dumps` can write again, or raises `NotJson`. Reading
takes time in proportion to the length, and nesting is limited: damaged or hostile input can neither make it
hang nor overflow the stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import orjson

from pyromq.errors import NotJson
from pyromq.model.json_form import Json

#: RocketMQ's deepest file (the retry policy of a group) has 6 levels; a writer gives up at 254.
MAX_DEPTH = 64
LARGE_BYTES = 1 << 20

# A string, which is skipped (to the end, when it never closes), or an integer key. The quantifiers are
# possessive: going back could not find more, and on damaged input it would take quadratic time.
_STRING_OR_BARE_KEY = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"?'
    rb"|(?P<before>[{,]\s*+)(?P<key>-?\d++)(?P<after>\s*+:)",
    re.DOTALL,
)


def loads_large(data: bytes) -> Json:
    """Read a large body: standard JSON only if it is longer than 1 MiB, and nested as deep as it may be.

    To quote keys and to look at the depth takes many times as long as reading.
    """
    if len(data) <= LARGE_BYTES:
        return loads(data)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise NotJson(f"{error.msg} in line {error.lineno}") from None


def loads(data: bytes) -> Json:
    """The value of JSON or of fastjson's dialect; keys are always text."""
    if not data.strip(b" \t\r\n\0"):
        raise NotJson("it holds only zero bytes" if b"\0" in data else "it is empty")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = _loads_bare_keys(data)
    _check_depth(value)
    return value


def dumps(value: Json) -> bytes:
    """Standard JSON, indented, in the order of the keys. Raises `NotJson` for what JSON cannot say."""
    return _dumps(value, orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def canonical(value: Json) -> bytes:
    """The same bytes for the same value, whatever the order of keys and the white space were."""
    return _dumps(value, orjson.OPT_SORT_KEYS)


def _dumps(value: Json, option: int) -> bytes:
    _check_depth(value)
    try:
        return orjson.dumps(value, option=option)
    except orjson.JSONEncodeError as error:
        raise NotJson(str(error)) from None


def _loads_bare_keys(data: bytes) -> Json:
    try:
        return orjson.loads(_STRING_OR_BARE_KEY.sub(_quote_key, data))
    except orjson.JSONDecodeError as error:
        raise NotJson(f"{error.msg} in line {error.lineno}") from None


def _quote_key(match: re.Match[bytes]) -> bytes:
    if match["key"] is None:
        return match[0]
    return match["before"] + b'"' + match["key"] + b'"' + match["after"]


def _check_depth(value: Json) -> None:
    """Raise NotJson above `MAX_DEPTH` levels. Iterates by level, because recursion itself would overflow."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, (dict, list))]
        if not level:
            return
    raise NotJson(f"it is nested more than {MAX_DEPTH} levels deep")


def _inside(value: Json) -> Iterable[Json]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
