"""Whom an intake waits for: one that is alone, and quick."""

from __future__ import annotations

from typing import Any

import pytest

from pyromq import accelerated

ACCELERATED = accelerated.load("net")

pytestmark = pytest.mark.skipif(ACCELERATED is None, reason="without the kernel nobody is waited for")

QUICKLY, SLOWLY = 100_000, 10_000_000  # ns from an answer to the next request
START = 1_000_000_000


def patience() -> Any:
    assert ACCELERATED is not None
    return ACCELERATED.Patience()


def asks(one: Any, now: int, after: int) -> tuple[bool, int]:
    """An answer now, and the next request some time later."""
    one.answered(now)
    return one.asked(now + after), now + after


def test_alone_is_who_was_it_the_last_time_as_well() -> None:
    one = patience()
    seen = [one.alone_again(descriptor) for descriptor in (7, 7, 7, -1, 7, 8, 8, -1, -1)]
    assert seen == [False, True, True, False, False, False, True, False, False]


def test_whoever_asks_again_at_once_is_worth_waiting_for_and_whoever_does_not_is_not() -> None:
    one, now = patience(), START
    for after, worth in ((QUICKLY, True), (QUICKLY, True), (SLOWLY, False), (QUICKLY, True)):
        found, now = asks(one, now, after)
        assert found == worth


def test_who_had_no_answer_was_not_quick() -> None:
    """It was not alone, or what it asked for takes its time."""
    one = patience()
    one.answered(START)
    assert one.asked(START + QUICKLY)
    assert not one.asked(START + 2 * QUICKLY)


def times_it_has_to_be_quick(one: Any) -> int:
    now, times, found = START, 0, False
    while not found:
        found, now = asks(one, now, QUICKLY)
        times += 1
    return times


def test_after_a_wait_in_vain_one_has_to_be_quick_four_times_as_often() -> None:
    one, needed = patience(), []
    for _ in range(3):
        one.did_not_come()
        needed.append(times_it_has_to_be_quick(one))
    assert needed == [4, 16, 64]
    assert (one.stays, one.stays_in_vain) == (0, 3)


@pytest.mark.parametrize(("came", "needed"), [(1, 32), (2, 16), (6, 1), (60, 1)])
def test_each_time_it_comes_while_it_is_waited_for_half_as_often_is_enough(came: int, needed: int) -> None:
    one = patience()
    for _ in range(3):
        one.did_not_come()
    for _ in range(came):
        one.came()
    one.asked(START)  # after a pause
    assert times_it_has_to_be_quick(one) == needed
    assert (one.stays, one.stays_in_vain) == (came, 3)


def test_however_often_it_was_in_vain_there_is_a_next_time() -> None:
    one = patience()
    for _ in range(40):
        one.did_not_come()
    assert times_it_has_to_be_quick(one) == 4096
