"""Answers that wait for the log: nothing leaves before the log has reached it."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from pyromq.accel._sends import HeldAnswers
from pyromq.net.connection import Connection


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


def test_answers_leave_when_the_log_has_reached_them_and_in_their_order() -> None:
    held, one, other = HeldAnswers(), peer(), peer()
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


def test_those_that_waited_too_long_can_be_taken_back() -> None:
    held, one, other = HeldAnswers(), peer(), peer()
    held.hold(10, one, b"a", 1)
    held.hold(20, other, b"b", 2)
    held.hold(30, one, b"c", 1)
    assert held.take_back(9) == []
    assert held.take_back(20) == [(one, b"a"), (other, b"b")]
    assert held.count == 1
    held.release(100)
    assert (one.out, other.out, held.count) == (b"c", b"", 0)


def test_of_all_that_are_taken_back_nothing_leaves_any_more() -> None:
    held, one = HeldAnswers(), peer()
    held.hold(10, one, b"a", 1)
    held.hold(20, one, b"b", 2)
    assert held.take_back(held.last_position) == [(one, b"a"), (one, b"b")]
    assert held.count == 0
    held.release(100)
    assert one.out == b""


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 30)), max_size=30))
def test_whatever_is_released_it_leaves_once_and_in_order(steps: list[tuple[int, int, int]]) -> None:
    """Each step holds an answer for one of three peers, and releases up to some position before it."""
    held, peers = HeldAnswers(), [peer() for _ in range(3)]
    waiting: list[tuple[int, int, int]] = []
    expected = [b"", b"", b""]
    for position, (who, sends, back) in enumerate(steps):
        held.hold(position, peers[who], b"%d." % position, sends)
        held.release(position - back)
        waiting.append((position, who, sends))
        for left, receiver, _ in waiting:
            if left <= position - back:
                expected[receiver] += b"%d." % left
        waiting = [one for one in waiting if one[0] > position - back]
        assert held.count == sum(one[2] for one in waiting)
        assert held.last_position == position
        assert [one.out for one in peers] == expected


def test_any_number_may_be_left_when_it_goes() -> None:
    held, one = HeldAnswers(), peer()
    for number in range(1_000_000):
        held.hold(number, one, b"", 0)
    del held
