"""Java's `.properties` format, which RocketMQ's `.conf` files are written in: text in, entries out.

Comments start with `#` or `!`; the key ends at the first `=`, `:` or white space that is not escaped; a backslash at
the end of a line continues it; `\\t \\n \\r \\f \\uXXXX` are escapes, and a backslash before anything else is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pyromq.errors import ConfigError

_SPACE = " \t\f"
_LINE_END = re.compile(r"\r\n|\r|\n")
_KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*(?:[=:][ \t\f]*)?")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(u)|(.?))", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Entry(NamedTuple):
    key: str
    value: str
    #: Number of its first line, from 1.
    line: int


def parse_properties(text: str) -> list[Entry]:
    """Return all entries in file order, repeated keys included. Raises ConfigError with the line."""
    return [_entry(line, number) for number, line in _logical_lines(text)]


def _entry(line: str, number: int) -> Entry:
    key = _KEY.match(line)
    assert key is not None
    separator = _SEPARATOR.match(line, key.end())
    assert separator is not None
    return Entry(_unescape(key.group(), number), _unescape(line[separator.end() :], number), number)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield logical lines: joined with their continuations, without comments and empty lines."""
    gathered, first = "", 0
    for number, raw in enumerate(_LINE_END.split(text), 1):
        line = raw.lstrip(_SPACE)
        if not first and (not line or line[0] in "#!"):
            continue
        first = first or number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            gathered += line[:-1]
            continue
        yield first, gathered + line
        gathered, first = "", 0
    if first:
        yield first, gathered


def _unescape(text: str, line: int) -> str:
    def one(found: re.Match[str]) -> str:
        code, bad, letter = found.groups()
        if bad:
            raise ConfigError(f"line {line}: \\u needs four hexadecimal digits; write \\\\ for a backslash")
        return chr(int(code, 16)) if code else _ESCAPED.get(letter, letter)

    return _join_surrogates(_ESCAPE.sub(one, text))


def _join_surrogates(text: str) -> str:
    """Join the two escapes that Java writes for a character above 16 bits. Raises ConfigError for a lone half."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
