"""Typed values in text fields: each kind, missing ones, wrong ones."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.errors import BadRequest
from pyromq.wire.fields import boolean, int32, int64, read_fields, text, wire_names, write_fields


@dataclass(kw_only=True)
class Sample:
    name: str = text("theName", short="a")
    number: int = int32("theNumber", short="b")
    large: int = int64("theLarge", short="c", default=7)
    is_on: bool = boolean("isOn", short="d", default=False)
    note: str | None = text("note", default=None)
    local: int = 0


SAMPLES = st.builds(
    Sample,
    name=st.text(),
    number=st.integers(-(2**31), 2**31 - 1),
    large=st.integers(-(2**63), 2**63 - 1),
    is_on=st.booleans(),
    note=st.none() | st.text(),
)


@settings(deadline=None)
@given(SAMPLES, st.booleans())
def test_what_is_written_is_read_again(sample: Sample, short: bool) -> None:
    assert Sample(**read_fields(Sample, write_fields(sample, short=short), short=short)) == sample


def test_the_table_of_names() -> None:
    full = {"name": "theName", "number": "theNumber", "large": "theLarge", "is_on": "isOn", "note": "note"}
    assert wire_names(Sample) == full
    assert wire_names(Sample, short=True) == {"name": "a", "number": "b", "large": "c", "is_on": "d", "note": "note"}


def test_a_field_with_a_default_may_be_missing_and_others_do_not_matter() -> None:
    assert read_fields(Sample, {"theName": "x", "theNumber": "1", "unknown": "y"}) == {"name": "x", "number": 1}


def test_a_missing_field_is_named_in_full() -> None:
    with pytest.raises(BadRequest, match="the field theNumber is missing"):
        read_fields(Sample, {"a": "x"}, short=True)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "-",
        "--1",
        "+1",
        " 1",
        "1 ",
        "1_0",
        "1.0",
        "0x1",
        "1e3",
        "٣",
        "²",
        "1\0",
        "2147483648",
        "-2147483649",
        "9" * 5000,
    ],
)
def test_what_is_no_number_is_refused_with_the_field_and_what_it_is(value: str) -> None:
    with pytest.raises(BadRequest, match=r"the field theNumber is '.*, and must be a 32-bit number") as refused:
        read_fields(Sample, {"theName": "x", "theNumber": value})
    assert len(str(refused.value)) < 150


@pytest.mark.parametrize(("value", "number"), [("0", 0), ("-1", -1), ("255", 255), ("256", 256), ("007", 7), ("-0", 0)])
def test_numbers(value: str, number: int) -> None:
    assert read_fields(Sample, {"theName": "", "theNumber": value})["number"] == number


def test_the_largest_numbers_of_64_bits_fit_and_the_next_do_not() -> None:
    fields = {"theName": "", "theNumber": "0"}
    for number in (2**63 - 1, -(2**63)):
        assert read_fields(Sample, fields | {"theLarge": str(number)})["large"] == number
    for number in (2**63, -(2**63) - 1):
        with pytest.raises(BadRequest, match="a 64-bit number"):
            read_fields(Sample, fields | {"theLarge": str(number)})


@pytest.mark.parametrize(
    ("value", "is_on"), [("true", True), ("TRUE", True), ("false", False), ("1", False), ("", False)]
)
def test_truth_values_are_read_as_java_reads_them(value: str, is_on: bool) -> None:
    assert read_fields(Sample, {"theName": "", "theNumber": "0", "isOn": value})["is_on"] is is_on
