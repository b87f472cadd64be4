"""Whom an intake waits for: one that is alone, and quick."""

from __future__ import annotations

from typing import Any

import pytest

from pyromq.net.compiled import KERNEL

pytestmark = pytest.mark.skipif(KERNEL is None, reason="without the kernel nobody is waited for")

QUICKLY, SLOWLY = 100_000, 10_000_000  # ns from an answer to the next request


def patience() -> Any:
    assert KERNEL is not None
    return KERNEL.Patience()


def asks(one: Any, now: int, after: int) -> tuple[bool, int]:
    """An answer now, and the next request some time later."""
    one.answered(now)
    return one.asked(now + after), now + after


def test_alone_is_who_was_it_the_last_time_as_well() -> None:
    one = patience()
    seen = [one.is_alone(descriptor) for descriptor in (7, 7, 7, -1, 7, 8, 8, -1, -1)]
    assert seen == [False, True, True, False, False, False, True, False, False]


def test_whoever_asks_again_at_once_is_worth_waiting_for_and_whoever_does_not_is_not() -> None:
    one, now = patience(), 0
    for after, worth in ((QUICKLY, True), (QUICKLY, True), (SLOWLY, False), (QUICKLY, True)):
        found, now = asks(one, now, after)
        assert found == worth


def test_who_had_no_answer_was_not_quick() -> None:
    """It was not alone, or what it asked for takes its time."""
    one = patience()
    one.answered(10 * SLOWLY)
    assert one.asked(10 * SLOWLY + QUICKLY)
    assert not one.asked(10 * SLOWLY + 2 * QUICKLY)


def test_after_a_wait_in_vain_it_has_to_be_quick_four_times_as_often() -> None:
    one, now, needed = patience(), 0, []
    for _ in range(3):
        one.did_not_come()
        times, found = 0, False
        while not found:
            found, now = asks(one, now, QUICKLY)
            times += 1
        needed.append(times)
    assert needed == [4, 16, 64]
    assert (one.stays, one.stays_in_vain) == (0, 3)


def test_that_is_forgotten_when_it_comes_while_it_is_waited_for() -> None:
    one = patience()
    for _ in range(3):
        one.did_not_come()
    for _ in range(6):
        one.came()
    assert asks(one, 0, QUICKLY)[0], "once is enough again"
    assert (one.stays, one.stays_in_vain) == (6, 3)


def test_it_never_has_to_be_quick_more_often_than_a_client_can_be() -> None:
    one, now, times, found = patience(), 0, 0, False
    for _ in range(40):
        one.did_not_come()
    while not found:
        found, now = asks(one, now, QUICKLY)
        times += 1
    assert times == 4096
