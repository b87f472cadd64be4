"""SQL92 expressions as stories: matches, mismatches, and refusals with their messages."""

from __future__ import annotations

import pytest

from pyromq.errors import FilterSyntaxError
from pyromq.filters.sql92 import compile_sql

ORDER = {
    "TAGS": "paid",
    "amount": "15",
    "weight": "7.5",
    "region": "eu-west",
    "gift": "true",
    "note": "it's late",
    "huge": "3000000000",
    "zero": "0",
}


def matches(text: str, **properties: str) -> bool:
    return compile_sql(text).matches(properties or ORDER)


@pytest.mark.parametrize(
    "text",
    [
        "region = 'eu-west'",
        "region <> 'us-east'",
        "amount = 15 AND amount > 14 AND amount >= 15 AND amount < 16 AND amount <= 15",
        "15 = amount AND 14 < amount",
        "weight = 7.5 AND weight > 7.4 AND weight < 8.0",
        "weight > .5 AND weight < 1E3 AND weight < 80.e-1 AND weight > 5.",
        "amount BETWEEN 15 AND 15",
        "amount NOT BETWEEN 1 AND 14",
        "amount NOT BETWEEN 20 AND 1",  # only BETWEEN minds the order
        "amount BETWEEN -5 AND 20",
        "region IN ('us-east', 'eu-west')",
        "region NOT IN ('us-east')",
        "region IN ('a', 'b', 'c', 'd', 'e', 'eu-west')",
        "missing IS NULL AND region IS NOT NULL",
        "region CONTAINS '-' AND region STARTSWITH 'eu' AND region ENDSWITH 'west'",
        "region NOT CONTAINS '+' AND region NOT STARTSWITH 'us' AND region NOT ENDSWITH 'east'",
        "note = 'it''s late'",
        "gift = TRUE",
        "NOT (gift = FALSE)",
        "TRUE",
        "NOT FALSE",
        "region is not null and Region is null",  # keywords in any case, names not
        "zero = 0 OR missing > 1",
        "missing > 1 OR zero = 0",
        "FALSE OR FALSE OR TRUE AND TRUE",
        "TRUE OR FALSE AND FALSE",  # AND binds tighter
        "- 15 < amount",
        "+15 = amount",
        "TAGS = 'paid'",
        "(((amount))) = (15)",
        "amount /* of money */ > -- in euros\n 10",
        "amount > 10 -- the last line's comment needs no end",
        "amount = --15",
        "(amount > 10) = TRUE",
        "huge > 2147483648 AND huge < 9223372036854775807",
        "huge > -2147483648",  # a 64-bit literal behind the sign
        "amount\t>\f10\r\nAND\nweight > 7.0",
        "$a_1 IS NULL AND _b IS NULL",
    ],
)
def test_matches(text: str) -> None:
    assert matches(text)


@pytest.mark.parametrize(
    "text",
    [
        "region = 'EU-WEST'",
        "region = 'eu-west '",
        "amount > 15",
        "amount NOT BETWEEN 1 AND 20",
        "region IN ('us-east')",
        "region NOT IN ('eu-west')",
        "region CONTAINS 'east'",
        "region NOT CONTAINS 'west'",
        "FALSE",
        "NULL",
        "gift",  # text is never true
        "gift = FALSE",
        "note = 'it'",
    ],
)
def test_does_not_match(text: str) -> None:
    assert not matches(text)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("missing = 1", None),
        ("missing <> 1", None),
        ("missing > 1", None),
        ("missing BETWEEN 1 AND 2", None),
        ("missing IN ('a')", None),
        ("missing NOT IN ('a')", None),
        ("missing", None),
        ("-region > 1", None),  # only numbers have a negative
        ("missing = 1 AND FALSE", False),
        ("missing = 1 AND TRUE", None),
        ("missing = 1 OR TRUE", True),
        ("missing = 1 OR FALSE", None),
        ("FALSE AND missing = 1", False),
        ("1 = missing", False),  # a missing property on the right is not equal
        ("1 <> missing", True),
        ("missing = absent", True),
        ("missing IS NULL", True),
        ("(missing = 1) IS NULL", True),
        ("missing CONTAINS 'a'", False),  # never unknown
        ("missing NOT CONTAINS 'a'", False),
        ("region CONTAINS ''", False),
        ("region NOT ENDSWITH ''", False),
        ("5 CONTAINS '5'", False),
        ("amount NOT BETWEEN 20 AND missing", True),
        ("amount BETWEEN 20 AND missing", False),
        ("amount BETWEEN missing AND 20", None),
        ("amount BETWEEN missing AND 10", False),
        ("NOT gift", True),
        ("NOT missing", None),
        ("NOT amount = 15", False),  # (NOT amount) = 15
    ],
)
def test_unknown_is_neither_true_nor_false(text: str, outcome: bool | None) -> None:
    """The expression, its opposite and IS NULL tell the three outcomes apart."""
    assert matches(f"({text})") is (outcome is True)
    assert matches(f"NOT ({text})") is (outcome is False)
    assert matches(f"({text}) IS NULL") is (outcome is None)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a > 5", "7.5"),  # compared with an integer, the property is read as an integer
        ("a > 5", "3000000000"),  # of 32 bits
        ("a > 5", " 7"),
        ("a > 5", "seven"),
        ("a > 5", "1_0"),
        ("a > 5", ""),
        ("a > 5", "9" * 5000),
        ("a > 2147483648", "9223372036854775808"),  # of 64 bits
        ("a > 0.5", "seven"),
        ("a > 0.5", "inf"),
        ("a > 0.5", "9" * 5000),
        ("a <> 5", "seven"),
        ("a > b", "seven"),
        ("TRUE = a", "true"),  # a truth value on the left compares with no text
    ],
)
def test_what_cannot_be_compared_does_not_match(text: str, value: str) -> None:
    """Nor does its opposite: the evaluation as a whole has failed. Only a part that is not reached cannot fail."""
    properties = {"a": value, "b": "1"}
    assert not compile_sql(text).matches(properties)
    assert not compile_sql(f"NOT ({text})").matches(properties)
    assert not compile_sql(f"{text} OR TRUE").matches(properties)
    assert compile_sql(f"TRUE OR {text}").matches(properties)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a = 5", "+5"),
        ("a = 5", "0005"),
        ("a = 5", "٥"),
        ("a = -5", "-5"),
        ("a > 5.5", " 7.5f "),
        ("a = 16.0", "0x1p4"),
        ("a > 5.5", "NaN"),  # above everything
        ("a > 5.5", "Infinity"),
        ("a > 5.5", "0x1p99999"),
        ("a < -5.5", "-0x1p99999"),
        ("a = 9007199254740992.0", "9007199254740993"),
        ("a > b", "10"),  # two properties are doubles for <, text for =
        ("a <> b", "9.0"),
        ("a = TRUE", "TrUe"),
        ("a = FALSE", "yes"),
    ],
)
def test_text_is_read_as_java_reads_it(text: str, value: str) -> None:
    assert matches(text, a=value, b="9")


def test_zero_has_a_sign_between_properties() -> None:
    assert matches("a < b", a="-0.0", b="0.0")
    assert not matches("a < b", a="0.0", b="0")


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("", 0, "expected a property, a value, NOT or (, found the end"),
        ("  ", 2, "found the end"),
        ("a >", 3, "expected a property, a value, NOT or (, found the end"),
        ("a > 5 b", 6, "expected AND, OR or the end, found b"),
        ("a > 5)", 5, "expected AND, OR or the end, found )"),
        ("a LIKE 'x%'", 2, "expected CONTAINS, STARTSWITH or ENDSWITH (there is no LIKE), found LIKE"),
        ("(a > 5", 6, "expected ) or an operator, found the end"),
        ("a == 5", 3, "expected a property, a value, NOT or (, found ="),
        ("a != 5", 2, "not equal is written <>"),
        ('a = "x"', 4, "text is put between single quotes"),
        ("a = 'x", 4, "expected a quote that ends this text"),
        ("a = 'x''", 4, "expected a quote that ends this text"),
        ("a.b = 1", 1, "the name of a property has letters, digits, _ and $ only"),
        ("a = 1 /* b", 6, "expected */ to end this comment"),
        ("a = ü", 4, "this character has no meaning in an expression"),
        ("a IS 5", 5, "expected NULL or NOT NULL, found 5"),
        ("a IS NOT 5", 9, "expected NULL, found 5"),
        ("a NOT 5", 6, "expected CONTAINS, STARTSWITH, ENDSWITH, BETWEEN, IN, found 5"),
        ("a IN 'x'", 5, "expected ( and a list of texts, found 'x'"),
        ("a IN (1)", 6, "expected text between single quotes, found 1"),
        ("a IN ()", 6, "expected text between single quotes, found )"),
        ("a IN ('x' 'y')", 10, "expected a comma or ), found 'y'"),
        ("a CONTAINS b", 11, "expected text between single quotes, found b"),
        ("a BETWEEN 1 OR 2", 12, "expected AND and the upper bound, found OR"),
        ("a BETWEEN 2 AND 1", 10, "expected the lower bound of BETWEEN first"),
        ("a BETWEEN 'x' AND 5", 10, "only numbers are less or greater"),
        ("a BETWEEN 1 AND NULL", 16, "only numbers are less or greater"),
        ("5 IN ('5')", 0, "expected the name of a property before IN"),
        ("NOT a IN ('x')", 0, "expected the name of a property before IN"),
        ("a > 'x'", 4, "only numbers are less or greater"),
        ("a > TRUE", 4, "only numbers are less or greater"),
        ("(a = 1) > 0", 1, "only numbers are less or greater"),
        ("a = NULL", 4, "NULL cannot be compared; write IS NULL"),
        ("TRUE = 1", 7, "expected TRUE or FALSE"),
        ("5", 0, "expected a condition, found a value"),
        ("a = 1 AND 'x'", 10, "expected a condition, found a value"),
        ("NOT -a", 4, "expected a condition, found a value"),
        ("a = 9223372036854775808", 4, "expected a number up to 9223372036854775807"),
        ("a = -9223372036854775808", 5, "expected a number up to 9223372036854775807"),
        ("a > 0.0", 4, "zero is written 0"),
        ("a > 1e-400", 4, "zero is written 0"),
        ("a > 1e309", 4, "expected a number between"),
        ("a = 007", 5, "expected AND, OR or the end, found 0"),
    ],
)
def test_refusals_say_where_and_what_was_expected(text: str, position: int, words: str) -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        compile_sql(text)
    assert words in str(caught.value)
    assert caught.value.position == position
    assert f"at character {position + 1}" in str(caught.value)
