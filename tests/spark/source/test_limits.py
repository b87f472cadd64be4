"""Dividing a limit among queues, and the smallest batch worth running."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyromq.model.queue import MessageQueue
from pyromq.spark.source.limits import Patience, earlier, shares, within_bytes, within_rows
from pyromq.spark.source.offsets import Span

WAITING = st.dictionaries(st.integers(0, 50), st.integers(0, 10**12), max_size=20)


@given(WAITING, st.integers(1, 10**13))
def test_the_parts_make_the_limit(waiting: dict[int, int], limit: int) -> None:
    some = [size for size in waiting.values() if size]
    given_out = shares(waiting, limit)
    assert sum(given_out.values()) == min(sum(some), max(limit, len(some)))


@given(WAITING, st.integers(1, 10**13))
def test_nobody_gets_more_than_it_has_and_nobody_who_has_something_gets_nothing(
    waiting: dict[int, int], limit: int
) -> None:
    given_out = shares(waiting, limit)
    assert given_out.keys() == {key for key, size in waiting.items() if size}
    assert all(1 <= part <= waiting[key] for key, part in given_out.items())


@given(WAITING, st.integers(1, 10**13))
def test_who_has_more_gets_more(waiting: dict[int, int], limit: int) -> None:
    given_out = shares(waiting, limit)
    for one in given_out:
        for other in given_out:
            if waiting[one] > waiting[other]:
                assert given_out[one] >= given_out[other] - 1


def test_even_queues_get_even_parts() -> None:
    assert shares({"a": 2500, "b": 2500, "c": 2500, "d": 2500}, 3000) == dict.fromkeys("abcd", 750)


def test_a_small_queue_is_not_left_behind_a_large_one() -> None:
    assert shares({"small": 1, "large": 10**9}, 10) == {"small": 1, "large": 9}
    assert shares({"small": 1, "large": 10**9}, 1) == {"small": 1, "large": 1}


A, B = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)


def test_rows() -> None:
    assert within_rows([Span(A, 100, 200), Span(B, 0, 100)], 20) == {A: 110, B: 10}
    assert within_rows([Span(A, 100, 200)], 1000) == {A: 200}


def test_bytes() -> None:
    sizes = {A: 1000.0, B: 10.0}
    ends = within_bytes([Span(A, 0, 1000), Span(B, 0, 1000)], sizes, 101_000)
    assert 98 <= ends[A] <= 101
    assert 98 <= ends[B] <= 110


def test_of_two_limits_both_hold() -> None:
    assert earlier({A: 10, B: 20}, {A: 15, B: 5}) == {A: 10, B: 5}


def test_one_message_is_read_even_when_it_is_larger_than_the_limit() -> None:
    assert within_bytes([Span(A, 5, 9)], {A: 10.0**6}, 10) == {A: 6}


@given(st.integers(1, 1000), st.floats(0, 10**6), st.integers(1, 10**9))
def test_bytes_stay_within_the_limit(count: int, size: float, limit: int) -> None:
    end = within_bytes([Span(A, 0, count)], {A: size}, limit)[A]
    assert 1 <= end <= count
    assert end == 1 or end * max(size, 1) <= limit * 1.001 + 1


def test_a_batch_waits_until_it_is_worth_it_or_too_late() -> None:
    patience = Patience(min_rows=100, max_delay_s=60, last_s=0)
    assert not patience.is_enough(99, 1)
    assert patience.is_enough(100, 2)
    assert not patience.is_enough(5, 61)
    assert patience.is_enough(5, 62)
    assert not patience.is_enough(0, 1000)
