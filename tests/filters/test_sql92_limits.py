"""Hostile expressions: refused in words and in little time, whatever they are made of."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from filters import sql_reference as reference
from late import in_time
from pyromq.errors import FilterSyntaxError
from pyromq.filters.sql92 import MAX_LENGTH, MAX_NODES, compile_sql
from pyromq.filters.sql_terms import MAX_DEPTH
from pyromq.filters.sql_tokens import KEYWORDS

#: Far above what the slowest takes, far below what anything quadratic would.
SECONDS = 2.0


@pytest.mark.parametrize(
    ("head", "repeated", "tail"),
    [
        ("", "(", ""),
        ("", "(", "a = 1"),
        ("", "NOT ", "a"),
        ("", "- ", "a"),
        ("", "-", "a"),
        ("", "+", "a = 1"),
        ("", "-(", "a"),
        ("a", " IS NULL", ""),
        ("a", " = a", ""),
        ("a", " <> a", ""),
        ("a", " CONTAINS 'x'", ""),
        ("", "-((a BETWEEN ", "1"),
        ("", "'", ""),
        ("", "/*", ""),
        ("", "--", ""),
        ("", "a OR ", "a"),
        ("", "a AND NOT ", "a"),
        ("a > ", "9", ""),
        ("a > ", "9", ".5"),
        ("a > 1e", "9", ""),
        ("", "a = 1 ", ""),
        ("", "\x00", ""),
        ("", "😀", ""),
    ],
)
def test_repetition_is_refused_quickly(head: str, repeated: str, tail: str) -> None:
    times = (MAX_LENGTH - len(head) - len(tail)) // len(repeated)
    started = time.process_time()
    with pytest.raises(FilterSyntaxError):
        compile_sql(head + repeated * times + tail)
    in_time(time.process_time() - started, SECONDS)


def test_nesting_is_taken_to_the_limit_and_no_further() -> None:
    def nested(levels: int) -> str:
        return "NOT (" * (levels // 2 - 1) + "a = 1" + ")" * (levels // 2 - 1)

    assert not compile_sql(nested(MAX_DEPTH)).matches({"a": "1"})
    with pytest.raises(FilterSyntaxError, match="nested more than 64 levels"):
        compile_sql(nested(MAX_DEPTH + 4))


def test_a_long_chain_is_not_deep() -> None:
    conditions = [f"a = {number}" for number in range(MAX_NODES // 3)]
    found = compile_sql(" OR ".join(conditions))
    assert found.matches({"a": str(len(conditions) - 1)})
    assert not found.matches({"a": str(len(conditions))})
    with pytest.raises(FilterSyntaxError, match="more than 1024 operands"):
        compile_sql(" OR ".join([*conditions, "a = 1", "a = 2"]))


def test_the_texts_of_a_list_are_not_counted() -> None:
    names = ", ".join(f"'{number}'" for number in range(5 * MAX_NODES))
    assert compile_sql(f"a IN ({names})").matches({"a": "4999"})


def test_length_is_limited() -> None:
    fits = "a = 1".ljust(MAX_LENGTH)
    assert compile_sql(fits).matches({"a": "1"})
    with pytest.raises(FilterSyntaxError, match="longer than 65536 characters"):
        compile_sql(fits + " ")


def test_nested_ranges_are_evaluated_once_each() -> None:
    """Taking BETWEEN for two comparisons would double the work at every level."""
    text = "a"
    for _ in range(MAX_DEPTH // 3):
        text = f"-({text} BETWEEN 1 AND 2)"
    started = time.process_time()
    assert compile_sql(f"{text} IS NULL").matches({"a": "1"})
    in_time(time.process_time() - started, SECONDS)


pieces = st.sampled_from(
    [*KEYWORDS, *"=<>()+-,.*/'\"\n$", "<>", ">=", "<=", "--", "/*", "*/", "''", "a", "b", "5", "5.5", "1e3", "'x'", " "]
)


def accepts_or_refuses(text: str) -> None:
    """Any other exception is a failure."""
    with contextlib.suppress(FilterSyntaxError):
        compile_sql(text).matches({"a": "5", "b": "x"})


@settings(max_examples=500)
@given(st.lists(pieces, max_size=40).map(" ".join) | st.lists(pieces, max_size=40).map("".join))
@example("a = 'x")
def test_any_words_are_a_filter_or_refused(text: str) -> None:
    accepts_or_refuses(text)


@given(st.text())
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    accepts_or_refuses(text)


@given(reference.sensible.map(reference.shown), st.data())
def test_a_damaged_expression_is_a_filter_or_refused(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    accepts_or_refuses(text[:at] + data.draw(pieces) + text[at + data.draw(st.integers(0, 3)) :])


@given(st.text(), st.text())
def test_any_property_can_be_asked(number: str, text: str) -> None:
    for condition in ("a > 5", "a = 9223372036854775807", "a < 5.5", "a > b", "a = TRUE", "a BETWEEN 1 AND 2.5"):
        assert compile_sql(condition).matches({"a": number, "b": text}) in (True, False)
