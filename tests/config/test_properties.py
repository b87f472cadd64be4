"""Java's key=value format, as `java.util.Properties` reads it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.config.properties import parse_properties
from pyromq.errors import ConfigError


def pairs(text: str) -> list[tuple[str, str]]:
    return [(entry.key, entry.value) for entry in parse_properties(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", [("a", "b")]),
        ("a = b", [("a", "b")]),
        ("a:b", [("a", "b")]),
        ("a b", [("a", "b")]),
        ("a\tb c", [("a", "b c")]),
        ("a = = b", [("a", "= b")]),
        ("a", [("a", "")]),
        ("a=", [("a", "")]),
        ("=b", [("", "b")]),
        ("  a=b  ", [("a", "b  ")]),
        ("# no\n ! no\n\n   \na=b", [("a", "b")]),
        ("a=b#c", [("a", "b#c")]),
        ("a=b\r\nc=d\re=f", [("a", "b"), ("c", "d"), ("e", "f")]),
        ("a=b\\\n   c\nd=e", [("a", "bc"), ("d", "e")]),
        ("a=b\\\\\nc=d", [("a", "b\\"), ("c", "d")]),
        ("a=b\\\n# not a comment", [("a", "b# not a comment")]),
        ("a=b\\", [("a", "b")]),
        ("a\\=b\\ c=d", [("a=b c", "d")]),
        (r"a=\t\n\r\f\z\u00e9", [("a", "\t\n\r\fzé")]),
        (r"a=\ud83d\ude00", [("a", "😀")]),
        ("a=1\na=2", [("a", "1"), ("a", "2")]),
        ("", []),
    ],
)
def test_the_rules(text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(text) == expected


def test_lines_are_counted_where_an_entry_starts() -> None:
    entries = parse_properties("# head\r\na=1\\\r\n  2\r\n\r\nb=3\r\n")
    assert [(entry.key, entry.line) for entry in entries] == [("a", 2), ("b", 5)]


def test_half_an_escape_is_named_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"line 2: \\u needs four hexadecimal digits"):
        parse_properties("a=b\nc=\\u12")


def escaped(text: str, *, key: bool) -> str:
    """As `Properties.store` writes it: everything that could be read as something else has a backslash."""
    special = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "\\": "\\\\"}
    special |= {char: "\\" + char for char in "=:#!"}
    head = len(text) if key else len(text) - len(text.lstrip(" "))
    return "".join("\\ " if char == " " and at < head else special.get(char, char) for at, char in enumerate(text))


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


@given(st.lists(st.tuples(TEXT, TEXT), max_size=6), st.sampled_from(["=", ":", " = ", "\t"]))
def test_what_java_writes_is_read_back(entries: list[tuple[str, str]], separator: str) -> None:
    named = [(key or "k", value) for key, value in entries]
    text = "\n".join(escaped(key, key=True) + separator + escaped(value, key=False) for key, value in named)
    assert pairs(text) == named


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_with_a_sentence(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert all(entry.line >= 1 for entry in parse_properties(text))
