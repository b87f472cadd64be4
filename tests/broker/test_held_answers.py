"""Both forms of `HeldAnswers`: nothing leaves before the log has reached it."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq import accelerated
from pyromq.broker.held_answers import HeldAnswers
from pyromq.net.connection import Connection

ACCELERATED = accelerated.load("broker")

FORMS: list[Any] = [HeldAnswers] if ACCELERATED is None else [HeldAnswers, ACCELERATED.HeldAnswers]


class Peer:
    """Of an ordinary server: there is no inlet."""

    inlet = None

    def __init__(self) -> None:
        self.out = b""

    def put_bytes(self, frames: bytes) -> bool:
        self.out += frames
        return True


def peer() -> Any:
    return cast(Connection, Peer())


@pytest.mark.parametrize("form", FORMS)
def test_answers_leave_when_the_log_has_reached_them_and_in_their_order(form: Any) -> None:
    held, one, other = form(), peer(), peer()
    held.hold(10, one, b"a", 1)
    held.hold(20, other, b"b", 2)
    held.hold(30, one, b"c", 1)
    assert (held.count, held.last_position) == (4, 30)
    held.release(9)
    assert (one.out, other.out) == (b"", b"")
    held.release(20)
    assert (one.out, other.out, held.count) == (b"a", b"b", 1)
    held.release(100)
    assert (one.out, held.count) == (b"ac", 0)


@pytest.mark.parametrize("form", FORMS)
def test_those_that_waited_too_long_can_be_taken_back(form: Any) -> None:
    held, one, other = form(), peer(), peer()
    held.hold(10, one, b"a", 1)
    held.hold(20, other, b"b", 2)
    held.hold(30, one, b"c", 1)
    assert held.take_back(9) == []
    assert held.take_back(20) == [(one, b"a"), (other, b"b")]
    assert held.count == 1
    held.release(100)
    assert (one.out, other.out, held.count) == (b"c", b"", 0)


@pytest.mark.parametrize("form", FORMS)
def test_of_all_that_are_taken_back_nothing_leaves_any_more(form: Any) -> None:
    held, one = form(), peer()
    held.hold(10, one, b"a", 1)
    held.hold(20, one, b"b", 2)
    assert held.take_back(held.last_position) == [(one, b"a"), (one, b"b")]
    assert held.count == 0
    held.release(100)
    assert one.out == b""


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 30)), max_size=30))
def test_both_forms_do_the_same(steps: list[tuple[int, int, int]]) -> None:
    """Each step holds something for one of three peers, and releases up to some way before or behind it."""
    seen = []
    for form in FORMS:
        held, peers, trace = form(), [peer() for _ in range(3)], []
        for position, (who, sends, back) in enumerate(steps):
            held.hold(position, peers[who], b"%d." % position, sends)
            held.release(position - back)
            trace.append((held.count, held.last_position, [one.out for one in peers]))
        seen.append(trace)
    assert all(trace == seen[0] for trace in seen)


@pytest.mark.parametrize("form", FORMS)
def test_any_number_may_be_left_when_it_goes(form: Any) -> None:
    held, one = form(), peer()
    for number in range(1_000_000):
        held.hold(number, one, b"", 0)
    del held
