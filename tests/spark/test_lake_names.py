"""Topics as names of directories."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.spark.lake.names import NO_VALUE, directory_of, escaped, partition_of, unescaped

topics = st.text(min_size=1, max_size=40)


@given(topics)
def test_a_topic_becomes_one_safe_name_and_comes_back(topic: str) -> None:
    name = escaped(topic)
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.%")
    assert unescaped(name) == topic


@given(topics, topics)
def test_no_two_topics_share_a_directory(one: str, other: str) -> None:
    assert (escaped(one) == escaped(other)) == (one == other)


@given(topics, st.dates())
def test_topic_and_day_are_found_again_in_the_path(topic: str, day) -> None:
    assert partition_of(f"{directory_of(topic, day.isoformat())}/x.parquet") == (topic, day.isoformat())


@pytest.mark.parametrize(
    ("topic", "name"),
    [("orders", "orders"), ("%RETRY%group", "%25RETRY%25group"), ("a|b", "a%7Cb"), ("../up", "..%2Fup"), ("~", "%7E")],
)
def test_what_it_looks_like(topic: str, name: str) -> None:
    assert directory_of(topic, "2026-01-31") == f"topic={name}/date=2026-01-31"


def test_the_name_for_no_value_is_never_used() -> None:
    assert escaped(NO_VALUE) != NO_VALUE
    assert unescaped(escaped(NO_VALUE)) == NO_VALUE


def test_other_paths_are_no_partition() -> None:
    assert partition_of("_pyromq/commits/1.json") is None
    assert partition_of("topic=x/elsewhere/y") is None
