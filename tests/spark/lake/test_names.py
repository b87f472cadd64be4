"""Topics as names of directories."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.spark.lake.names import NO_VALUE, directory_of, escaped

topics = st.text(min_size=1, max_size=40)


@given(topics)
def test_a_topic_becomes_one_safe_name_and_comes_back(topic: str) -> None:
    name = escaped(topic)
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.%")
    assert unquote(name) == topic


@given(topics, topics)
def test_no_two_topics_share_a_directory(one: str, other: str) -> None:
    assert (escaped(one) == escaped(other)) == (one == other)


@pytest.mark.parametrize(
    ("topic", "name"),
    [("orders", "orders"), ("%RETRY%group", "%25RETRY%25group"), ("a|b", "a%7Cb"), ("../up", "..%2Fup"), ("~", "%7E")],
)
def test_what_it_looks_like(topic: str, name: str) -> None:
    assert directory_of(topic, "2026-01-31") == f"topic={name}/date=2026-01-31"


def test_the_name_for_no_value_is_never_used() -> None:
    assert escaped(NO_VALUE) != NO_VALUE
    assert unquote(escaped(NO_VALUE)) == NO_VALUE
