"""Tag expressions, read as RocketMQ reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import FilterSyntaxError
from pyromq.filters.subscription import ALL_TAGS, MAX_LENGTH, MAX_TAGS, parse_tags
from pyromq.records.java_hash import java_hash


@pytest.mark.parametrize("text", ["", "*"])
def test_nothing_and_a_star_mean_everything(text: str) -> None:
    found = parse_tags(text)
    assert found == ALL_TAGS
    assert found.tag_codes is None
    assert found.matches("TagA")
    assert found.matches(None)


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("TagA", {"TagA"}),
        ("TagA||TagB", {"TagA", "TagB"}),
        ("  TagA  ||\tTagB\n", {"TagA", "TagB"}),
        ("TagA || TagA", {"TagA"}),
        ("TagA || || TagB ||", {"TagA", "TagB"}),  # empty places do not count
        ("TagA|TagB", {"TagA|TagB"}),  # one bar is a letter like any other
        ("TagA|||TagB", {"TagA", "|TagB"}),
        ("TagA || *", {"TagA", "*"}),  # a star means everything only when alone
        (" * ", {"*"}),
        ("über || \u3000x", {"über", "\u3000x"}),  # a wide space is not a blank for Java
        ("   ", set()),
        ("|| ||", set()),
    ],
)
def test_tags_are_what_stands_between_bars(text: str, tags: set[str]) -> None:
    found = parse_tags(text)
    assert found.tags == tags
    assert found.codes == {java_hash(tag) for tag in tags}
    assert all(found.matches(tag) for tag in tags)
    assert not found.matches("another")
    assert not found.matches(None)


@pytest.mark.parametrize("text", ["||", "||||"])
def test_only_bars_are_refused(text: str) -> None:
    with pytest.raises(FilterSyntaxError, match="expected a tag"):
        parse_tags(text)


def test_an_expression_may_be_long_but_not_endless() -> None:
    assert len(parse_tags("||".join(map(str, range(MAX_TAGS)))).tags) == MAX_TAGS
    with pytest.raises(FilterSyntaxError, match="names 4097 tags, the limit is 4096"):
        parse_tags("||".join(map(str, range(MAX_TAGS + 1))))
    assert parse_tags("x" * MAX_LENGTH).matches("x" * MAX_LENGTH)
    with pytest.raises(FilterSyntaxError, match="longer than 65536 characters"):
        parse_tags("x" * (MAX_LENGTH + 1))


def test_a_code_may_be_shared_but_a_tag_is_not() -> None:
    """`Aa` and `BB` are Java's famous pair: queue entries cannot tell them apart, records can."""
    found = parse_tags("Aa")
    assert found.codes == {java_hash("BB")}
    assert found.matches_properties({"TAGS": "Aa"})
    assert not found.matches_properties({"TAGS": "BB"})
    assert not found.matches_properties({})


@given(st.text())
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    try:
        found = parse_tags(text)
    except FilterSyntaxError:
        assert set(text) == {"|"}
    else:
        assert (found.codes is None) == (text in ("", "*"))
