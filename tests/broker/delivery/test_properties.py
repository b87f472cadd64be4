"""Properties in record form: reads and changes agree with a reader of the record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.broker.delivery import properties
from pyromq.records.properties import split_properties

NAMES = st.sampled_from([b"A", b"AA", b"CLUSTER", b"MYCLUSTER", b"CLUSTERS", b"DELAY"])
#: Values that hold what looks like a name, none at all, and entries that are no property.
VALUES = st.sampled_from([b"", b"1", b"A\x01x", b"CLUSTER\x01x", b"text"])
ENTRIES = st.one_of(st.tuples(NAMES, VALUES).map(lambda pair: b"%b\x01%b" % pair), NAMES, st.just(b""))
RUNS = st.tuples(st.lists(ENTRIES, max_size=6), st.booleans()).map(
    lambda run: b"\x02".join(run[0]) + (b"\x02" if run[1] else b"")
)


def read(run: bytes) -> dict[bytes, bytes]:
    return dict(split_properties(run))


@given(RUNS, NAMES)
def test_get_finds_what_a_reader_finds(run: bytes, name: bytes) -> None:
    assert properties.get(run, name) == read(run).get(name)


@given(RUNS, NAMES, st.sampled_from([b"7", b"text"]))
def test_put_sets_one_property_and_leaves_the_others(run: bytes, name: bytes, value: bytes) -> None:
    assert read(properties.put(run, name, value)) == {**read(run), name: value}


@given(RUNS, NAMES)
def test_put_if_absent_keeps_what_is_there(run: bytes, name: bytes) -> None:
    assert read(properties.put_if_absent(run, name, b"new")) == {name: b"new", **read(run)}


@given(RUNS, NAMES)
def test_remove_takes_one_property_away(run: bytes, name: bytes) -> None:
    left = read(run)
    left.pop(name, None)
    assert read(properties.remove(run, name)) == left


@given(RUNS, RUNS)
def test_the_second_of_two_runs_counts(first: bytes, second: bytes) -> None:
    assert read(properties.joined(first, second)) == {**read(first), **read(second)}


def test_a_name_inside_another_is_not_found() -> None:
    run = b"MYCLUSTER\x01mine\x02X\x01CLUSTER\x01no\x02"
    assert properties.get(run, b"CLUSTER") is None
    assert properties.put(run, b"CLUSTER", b"c1") == run + b"CLUSTER\x01c1\x02"
    assert properties.remove(run, b"CLUSTER") == run


@pytest.mark.parametrize(
    ("value", "number"),
    [(b"3", 3), (b"-1", -1), (b"0", 0), (b"x", None), (b"-", None), (b"1.5", None), (b"9" * 5000, None), (b"", None)],
)
def test_a_number(value: bytes, number: int | None) -> None:
    assert properties.get_int(b"DELAY\x01" + value, b"DELAY") == number


def test_true_in_whichever_case() -> None:
    assert properties.is_true(b"TRAN_MSG\x01True\x02", properties.HALF)
    assert not properties.is_true(b"TRAN_MSG\x01trueish\x02", properties.HALF)
    assert not properties.is_true(b"", properties.HALF)
