"""What is known of a loop from inside one of its callbacks."""

from __future__ import annotations

import asyncio
import ctypes
import select
from collections.abc import Callable
from typing import cast

import pytest

from net.fakes import LOOPS
from pyromq.net.loop_state import UNKNOWN, LoopState, state_of


def is_wanted(state: LoopState) -> bool:
    """As the compiled intake asks."""
    if state.timeout:
        ask: Callable[[int], int] = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(state.timeout)
        return ask(state.argument) == 0
    return len(state.ready) > 0


def has_something_to_read(state: LoopState) -> bool:
    return bool(select.select([state.descriptor], [], [], 0)[0])


@pytest.mark.parametrize("name", LOOPS)
def test_callbacks_that_are_ready_are_seen_and_timers_are_not(name: str) -> None:
    seen: list[bool] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        state = state_of(loop)
        loop.call_later(0.001, lambda: None)
        done = asyncio.Event()

        def look() -> None:
            seen.append(is_wanted(state))
            loop.call_soon(lambda: None)
            seen.append(is_wanted(state))
            done.set()

        loop.call_later(0.02, look)
        await done.wait()

    with asyncio.Runner(loop_factory=LOOPS[name]) as runner:
        runner.run(story())
    assert seen == [False, True]


@pytest.mark.parametrize("name", LOOPS)
def test_what_another_thread_wants_is_seen(name: str) -> None:
    seen: list[bool] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        state, done = state_of(loop), asyncio.Event()

        def look() -> None:
            seen.append(has_something_to_read(state))
            loop.call_soon_threadsafe(done.set)
            seen.append(has_something_to_read(state))

        loop.call_later(0.01, look)
        await done.wait()

    with asyncio.Runner(loop_factory=LOOPS[name]) as runner:
        runner.run(story())
    assert seen == [False, True]


def test_of_another_loop_nothing_is_known() -> None:
    class Other:
        pass

    class Odd:
        _selector = None
        _ready = ()

    for loop in (Other(), Odd()):
        assert state_of(cast(asyncio.AbstractEventLoop, loop)) == UNKNOWN
