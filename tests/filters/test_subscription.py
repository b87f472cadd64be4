"""Subscriptions of both kinds, asked in the same way."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pyromq.errors import FilterSyntaxError, PyroMQError
from pyromq.filters.subscription import SQL92, TAG, Subscription, build
from pyromq.records.java_hash import java_hash

PAID: Mapping[str, str] = {"TAGS": "paid", "amount": "12"}
FREE: Mapping[str, str] = {"TAGS": "free", "amount": "0"}


def delivered(subscription: Subscription, properties: Mapping[str, str]) -> bool:
    """The two stages of reading a queue."""
    wanted = subscription.filter
    code = java_hash(properties["TAGS"])
    if wanted.tag_codes is not None and code not in wanted.tag_codes:
        return False
    return not wanted.needs_properties or wanted.matches_properties(properties)


@pytest.mark.parametrize(
    ("text", "kind", "paid", "free"),
    [
        ("*", TAG, True, True),
        ("paid", TAG, True, False),
        ("paid || free", TAG, True, True),
        ("amount > 10", SQL92, True, False),
        ("TAGS = 'free'", SQL92, False, True),
    ],
)
def test_both_kinds_are_asked_alike(text: str, kind: str, paid: bool, free: bool) -> None:
    subscription = build("orders", text, kind, 1)
    assert delivered(subscription, PAID) is paid
    assert delivered(subscription, FREE) is free
    assert subscription.filter.matches_properties(PAID) is paid
    assert subscription.filter.matches_properties(FREE) is free


@pytest.mark.parametrize("kind", [None, "", TAG])
@pytest.mark.parametrize("text", [None, "", "*"])
def test_what_is_left_out_means_everything(kind: str | None, text: str | None) -> None:
    subscription = build("orders", text, kind, 7)
    assert subscription == Subscription("orders", "*", TAG, 7, frozenset(), subscription.filter)
    assert subscription.filter.tag_codes is None
    assert not subscription.filter.needs_properties


def test_a_subscription_is_a_value() -> None:
    assert build("orders", "a || b", TAG, 1) == build("orders", "a || b", TAG, 1)
    assert build("orders", "a > 1", SQL92, 1) == build("orders", "a > 1", SQL92, 1)
    assert build("orders", "a > 1", SQL92, 1) != build("orders", "a > 1", SQL92, 2)
    assert build("orders", "a || b", TAG, 1).tags == {"a", "b"}
    assert len({build("orders", "a > 1", SQL92, 1).filter, build("bills", "a > 1", SQL92, 2).filter}) == 1


@pytest.mark.parametrize(
    ("text", "kind"), [("", SQL92), (None, SQL92), ("a >", SQL92), ("a", "XPATH"), ("a", "sql92"), ("||", TAG)]
)
def test_what_cannot_be_understood_has_the_code_clients_know(text: str | None, kind: str) -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        build("orders", text, kind, 1)
    assert isinstance(caught.value, PyroMQError)
    assert caught.value.code == 23
