"""A thread that syncs files for an event loop, in compiled code that needs no interpreter lock.

Handing a sync to Python code on another thread makes that thread and the loop take the lock from each other, several
times for each sync: a large part of what a single send waits for. Here the loop writes to one event descriptor and
watches another. Where there is no compiled kernel, `work_thread` does the same at its own pace.
"""

from __future__ import annotations

import asyncio
import os
import select
from array import array
from collections.abc import Callable, Sequence
from threading import Thread

from pyromq import accelerated

ACCELERATED = accelerated.load("sync")

#: Receives the error of a sync that has ended; None if it succeeded.
OnEnd = Callable[[OSError | None], None]

#: Files of one sync. The flusher syncs more of them in portions.
MAX_FILES = 62
_ONE = (1).to_bytes(8, "little")
_IS_THERE = ACCELERATED is not None and hasattr(os, "eventfd")


class SyncThread:
    """One sync at a time. Made on the loop that it works for."""

    def __init__(self) -> None:
        assert ACCELERATED is not None
        self._loop = asyncio.get_running_loop()
        self._requests = os.eventfd(0, os.EFD_CLOEXEC)
        self._answers = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._shared = array("i", [0] * (2 + MAX_FILES))
        self._done: asyncio.Future[None] | None = None
        self._on_end: OnEnd = lambda error: None
        arguments = (self._requests, self._answers, self._shared)
        self._thread = Thread(target=ACCELERATED.sync_loop, args=arguments, name="pyromq-sync", daemon=True)
        self._thread.start()
        self._loop.add_reader(self._answers, self._answered)

    @staticmethod
    def is_possible() -> bool:
        return _IS_THERE

    def sync(self, files: Sequence[int], on_end: OnEnd) -> asyncio.Future[None]:
        """Have these descriptors synced, in this order; the future ends with OSError when one could not be. Before it,
        `on_end` is called with the same, or None."""
        assert self._done is None, "one sync at a time"
        assert 0 < len(files) <= MAX_FILES
        self._shared[0] = len(files)
        self._shared[2 : 2 + len(files)] = array("i", files)
        self._done, self._on_end = self._loop.create_future(), on_end
        os.write(self._requests, _ONE)
        return self._done

    @property
    def is_idle(self) -> bool:
        return self._done is None

    def finish(self) -> OSError | None:
        """Block until the running sync ends, because the loop's own thread is about to sync; return the error of that
        sync, if it failed."""
        if self._done is None:
            return None
        waiting = select.poll()
        waiting.register(self._answers, select.POLLIN)
        waiting.poll()
        self._answered()
        error = self._shared[1]
        return OSError(error, os.strerror(error)) if error else None

    def _answered(self) -> None:
        try:
            os.read(self._answers, 8)
        except BlockingIOError:
            return
        done, self._done = self._done, None
        if done is None or done.done():
            return
        number = self._shared[1]
        error = OSError(number, os.strerror(number)) if number else None
        outcome: Exception | None = error
        try:
            self._on_end(error)
        except Exception as problem:  # noqa: BLE001  the waiting caller raises it
            outcome = problem
        finally:  # also after an interrupt: the waiting caller gets an outcome
            if outcome is None:
                done.set_result(None)
            else:
                done.set_exception(outcome)

    def close(self) -> None:
        self.finish()
        self._loop.remove_reader(self._answers)
        self._shared[0] = -1
        os.write(self._requests, _ONE)
        self._thread.join()
        os.close(self._requests)
        os.close(self._answers)
