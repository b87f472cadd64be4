"""Freed memory is given back to the system, not after every answer but after much of it."""

from __future__ import annotations

from pyromq.net.memory import TRIM_BYTES, Released


def test_memory_is_given_back_when_much_was_let_go() -> None:
    trims: list[int] = []

    def trim(pad: int) -> int:
        trims.append(pad)
        return 1

    released = Released(trim)
    released.count(TRIM_BYTES - 1)
    released.give_back()
    assert trims == []
    released.count(1)
    released.give_back()
    released.give_back()
    assert trims == [0]


def test_a_system_that_cannot_is_left_alone() -> None:
    released = Released(None)
    released.count(TRIM_BYTES)
    released.give_back()
