"""One thread that does blocking work for an event loop, a piece at a time.

A thread pool would do as well, and takes several times as long to hand a piece over and back: under sync flush that is
a good part of what a single send waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple


class _Piece(NamedTuple):
    work: Callable[[], None]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]


class WorkThread:
    """Start it once, close it at the end."""

    def __init__(self, name: str) -> None:
        self._pieces: SimpleQueue[_Piece | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None]) -> asyncio.Future[None]:
        """Have it done; the future says how it ended."""
        loop = asyncio.get_running_loop()
        piece = _Piece(work, loop, loop.create_future())
        self._pieces.put(piece)
        return piece.done

    def close(self) -> None:
        """Finish the submitted work, and end."""
        self._pieces.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            error: BaseException | None = None
            try:
                piece.work()
            except BaseException as problem:  # noqa: BLE001  it is raised in the awaiting task
                error = problem
            with contextlib.suppress(RuntimeError):  # the loop is closed, so no task awaits the outcome
                piece.loop.call_soon_threadsafe(_settle, piece.done, error)


def _settle(done: asyncio.Future[None], error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
