"""Runners of short background work: allocating and removing files."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from pyromq.store.log.allocator import Result


class ThreadRunner:
    """Runs work on two threads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2, "pyromq-store")

    def submit(self, work: Callable[[], Result], /) -> Future[Result]:
        return self._threads.submit(work)

    def close(self) -> None:
        """Return when all work is done."""
        self._threads.shutdown(wait=True)


class InlineRunner:
    """Runs work at once, on the caller's thread: for tools, and for tests that repeat to the byte."""

    def submit(self, work: Callable[[], Result], /) -> Future[Result]:
        future: Future[Result] = Future()
        try:
            future.set_result(work())
        except OSError as error:
            future.set_exception(error)
        return future
