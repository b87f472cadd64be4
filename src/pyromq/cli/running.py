"""Running something that takes a while in the foreground, on a fast event loop, until it is done or interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")

#: Exit code after Ctrl-C, as shells expect it.
INTERRUPTED = 130


def as_called() -> str:
    """This program as a shell finds it: it may be in an environment that is on no path."""
    called = Path(sys.argv[0])
    return "pyromq" if called.name != "pyromq" or shutil.which("pyromq") else str(called)


class Interrupted(Exception):
    """Ctrl-C or SIGTERM came before it was done. Everything was put away."""


def run_interruptible(
    work: Callable[[], Coroutine[Any, Any, Result]], ends_by_itself: Callable[[], bool] = lambda: False
) -> Result:
    """Its result. Raises Interrupted when a signal came first, after the work has cleaned up behind itself.

    `ends_by_itself` is called at the first signal: True says that the work knows, and only the next one interrupts it.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_watched(work, ends_by_itself))


async def _watched(work: Callable[[], Coroutine[Any, Any, Result]], ends_by_itself: Callable[[], bool]) -> Result:
    loop = asyncio.get_running_loop()
    task = loop.create_task(work())
    signals: list[bool] = []

    def interrupt() -> None:
        signals.append(True)
        if len(signals) > 1 or not ends_by_itself():
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    try:
        return await task
    except asyncio.CancelledError:
        if signals:
            raise Interrupted from None
        raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine in the background of the block. Its error is raised at the end of the block."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed."""
    if find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
