"""Marks only grow, wake each waiter once, and tell all of them when they cannot grow any more."""

from __future__ import annotations

import asyncio

import pytest

from pyromq.errors import StoreFenced
from pyromq.store.watermarks import Watermark, Watermarks


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_mark_never_goes_back() -> None:
    mark = Watermark("synced", 10)
    mark.advance(10)
    with pytest.raises(AssertionError, match="synced would go back from 10 to 9"):
        mark.advance(9)


def test_listeners_hear_of_every_move_but_not_of_none() -> None:
    heard: list[int] = []
    mark = Watermark("readable")
    mark.listen(heard.append)
    for position in (5, 5, 9):
        mark.advance(position)
    assert heard == [5, 9]


def test_waiters_are_woken_when_their_position_is_reached_and_not_before() -> None:
    async def story() -> list[int]:
        mark, woken = Watermark("synced"), []

        async def wait(position: int) -> None:
            await mark.wait(position)
            woken.append(position)

        async with asyncio.TaskGroup() as tasks:
            for position in (30, 10, 20, 10):
                tasks.create_task(wait(position))
            await settle()
            mark.advance(9)
            await settle()
            assert woken == []
            mark.advance(20)
            await settle()
            assert woken == [10, 10, 20]
            mark.advance(100)
        await mark.wait(100)  # reached already: returns at once
        return woken

    assert asyncio.run(story()) == [10, 10, 20, 30]


def test_a_failure_reaches_those_who_wait_and_those_who_come_later() -> None:
    async def story() -> None:
        mark = Watermark("synced", 5)
        waiter = asyncio.create_task(mark.wait(6))
        await settle()
        mark.fail(lambda: StoreFenced(OSError("EIO")))
        for attempt in (waiter, mark.wait(7)):
            with pytest.raises(StoreFenced):
                await attempt
        await mark.wait(5)  # a reached position stays reached

    asyncio.run(story())


def test_a_waiter_that_gave_up_disturbs_nobody() -> None:
    async def story() -> None:
        mark = Watermark("synced")
        gone, stays = asyncio.create_task(mark.wait(10)), asyncio.create_task(mark.wait(10))
        await settle()
        gone.cancel()
        await settle()
        mark.advance(10)
        await stays
        with pytest.raises(asyncio.CancelledError):
            await gone

    asyncio.run(story())


def test_waiters_that_gave_up_do_not_gather() -> None:
    """A mark that rests for days is asked again every second."""

    async def story() -> None:
        mark = Watermark("dispatched")
        stays = asyncio.create_task(mark.wait(5))
        for _ in range(1000):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(mark.wait(10), 0.000_001)
        assert len(mark._waiters) < 10
        mark.advance(10)
        await stays

    asyncio.run(story())


def test_the_order_of_the_marks_is_checked() -> None:
    marks = Watermarks()
    marks.check()
    marks.appended.advance(10)
    marks.written.advance(8)
    marks.dispatched.advance(8)
    marks.check()
    marks.synced.advance(11)
    with pytest.raises(AssertionError):
        marks.check()


def test_what_is_shown_follows_a_mark_of_somebody_else() -> None:
    marks, promised, moves = Watermarks(), Watermark("promised", 3), []
    marks.visible_moved = lambda: moves.append(marks.visible)
    for mark in (marks.appended, marks.written):
        mark.advance(10)
    assert marks.visible == 10
    marks.limit_visible(promised)
    assert (marks.visible, marks.undispatched) == (3, 3)
    promised.advance(20)
    assert (marks.visible, moves) == (10, [10])
    marks.limit_visible(Watermark("another", 5))
    assert marks.visible == 5
    marks.lift_visible_limit()
    assert marks.visible == 10


def test_recovery_sets_a_mark_anywhere() -> None:
    mark = Watermark("indexed", 100)
    mark.reset(50)
    assert mark.value == 50
