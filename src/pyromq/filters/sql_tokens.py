"""SQL92 text cut into tokens, one at a time, so that nothing behind a mistake is looked at.

Words are ASCII letters, digits, `_` and `$`; keywords may be in any case, names of properties may not. Text is in
single quotes, a quote inside it is doubled. Comments are `/* … */` and `--` to the end of a line. A `--` in the last
line is two minus signs, as it is for RocketMQ: `a = --5` is `a = 5`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pyromq.errors import FilterSyntaxError

KEYWORDS = frozenset(
    ["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"],
)

# Possessive throughout: going back could not find more, and would take time on hostile text.
_SKIPPED = re.compile(r"(?:[ \t\n\r\f]++|--[^\n\r]*+[\n\r]|/\*.*?\*/)*+", re.DOTALL)
_TOKEN = re.compile(
    r"(?P<name>[A-Za-z_$][A-Za-z0-9_$]*+)"
    r"|(?P<float>[0-9]++\.[0-9]*+(?:[eE][+-]?[0-9]++)?+|\.[0-9]++(?:[eE][+-]?[0-9]++)?+|[0-9]++[eE][+-]?[0-9]++)"
    r"|(?P<decimal>0|[1-9][0-9]*+[lL]?+)"
    r"|(?P<text>'(?:[^']++|'')*+')"
    r"|(?P<symbol><>|<=|>=|[=<>(),+-])"
)

#: Tokens of other SQL dialects, and our form of each.
_HINTS = {
    "!": "not equal is written <>",
    '"': "text is put between single quotes",
    "'": "expected a quote that ends this text",
    "/": "expected */ to end this comment, and there is no division",
    ".": "the name of a property has letters, digits, _ and $ only",
    "*": "there is no multiplication",
}


class Token(NamedTuple):
    """`kind` is a keyword in capitals, a symbol, or one of name, text, decimal, float, end."""

    kind: str
    text: str
    at: int
    #: Position from which the next token is searched.
    end: int


def next_token(text: str, start: int) -> Token:
    at = start if (skipped := _SKIPPED.match(text, start)) is None else skipped.end()
    if at == len(text):
        return Token("end", "", at, at)
    found = _TOKEN.match(text, at)
    if found is None:
        hint = _HINTS.get(text[at], "this character has no meaning in an expression")
        raise FilterSyntaxError(at, f"{hint}, found {text[at]!r}")
    return Token(_kind(found), found[0], at, found.end())


def _kind(found: re.Match[str]) -> str:
    group = found.lastgroup or ""
    if group == "symbol":
        return found[0]
    return word if group == "name" and (word := found[0].upper()) in KEYWORDS else group


def unquoted(literal: str) -> str:
    return literal[1:-1].replace("''", "'")
