"""The base of the blocking client: an event loop in a thread, and a way to wait for it.

All blocking clients of a process share one such thread. It begins with the first and ends with the process; it runs
nothing but the client. After a fork the child gets a new one: what the parent had opened stays the parent's.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any, Generic, Self, TypeVar

from pyromq.errors import ClientError

log = logging.getLogger("pyromq.client")

T = TypeVar("T")
Behind = TypeVar("Behind")
Async = TypeVar("Async", bound=AbstractAsyncContextManager[Any, Any])

#: The exit of the process waits this long for clients that were not closed.
END_SECONDS = 2.0
#: A waiting thread wakes at this interval.
WAKE_SECONDS = 0.2


class Portal:
    """A running event loop in a thread, and the way into it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = _new_loop()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="pyromq", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Until `stop`: a handler that calls `sys.exit()` does not end the thread of all clients."""
        while not self._is_ending:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                log.warning("something within the client raised %r; the client goes on", error)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and wait for what it returns or raises."""
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientError(
                "a blocking client was used within the client's own thread, which would wait for itself: use the async "
                "one there"
            )
        if self._is_ending and not self._thread.is_alive():  # a client is closed during the exit
            return self._loop.run_until_complete(work)
        tasks: list[asyncio.Task[Any]] = []
        done: Future[T] = asyncio.run_coroutine_threadsafe(_noted(work, tasks), self._loop)
        try:
            return _result(done)
        except BaseException:
            if not done.done():  # above all Ctrl-C: cancel the abandoned work and let it end properly
                asyncio.run_coroutine_threadsafe(_ended(tasks), self._loop).result()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call a plain function in the loop's thread."""

        async def called() -> T:
            return function()

        return self.wait(called())

    def stop(self) -> None:
        if self.pid == os.getpid() and self._thread.is_alive():
            self._is_ending = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(END_SECONDS)


def _result(done: Future[T]) -> T:
    """Signals that another thread took reach the main thread when it runs: so it does, now and then."""
    while not done.done():
        with suppress(TimeoutError):
            done.exception(WAKE_SECONDS)
    return done.result()


async def _noted(work: Coroutine[Any, Any, T], tasks: list[asyncio.Task[Any]]) -> T:
    """Tells which task does it."""
    task = asyncio.current_task()
    assert task is not None
    tasks.append(task)
    return await work


async def _ended(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel, and wait for what that sets going: a consumer tells its progress."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


_shared: Portal | None = None
_starting = threading.Lock()


def shared_portal() -> Portal:
    """The one of this process."""
    global _shared
    with _starting:
        if _shared is None or _shared.pid != os.getpid():
            _shared = Portal()
            atexit.register(_shared.stop)
        return _shared


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class BlockingPart(Generic[Behind]):
    """Something whose methods return when the work is done."""

    def __init__(self, behind: Behind) -> None:
        self._behind = behind

    def _wait(self, work: Awaitable[T]) -> T:
        return shared_portal().wait(_as_coroutine(work))

    def _run(self, work: Awaitable[None]) -> None:
        """Wait for an endless call until Ctrl-C, or SIGTERM if the main thread runs it."""
        is_main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGTERM, signal.default_int_handler) if is_main else None
        try:
            self._wait(work)
        except KeyboardInterrupt:
            log.info("told to end")
        finally:
            if is_main:
                signal.signal(signal.SIGTERM, before)

    def _call(self, function: Callable[[], T]) -> T:
        return shared_portal().call(function)

    def _each(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items of an async iterator, one after the other."""
        while True:
            try:
                item = self._wait(anext(items))
            except StopAsyncIteration:
                return
            yield item

    @contextmanager
    def _within(self, block: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """The block of an async context manager, for a `with` that is not async."""
        value = self._wait(block.__aenter__())
        try:
            yield value
        except BaseException as error:
            if not self._wait(block.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self._wait(block.__aexit__(None, None, None))


class Blocking(BlockingPart[Async]):
    """A client. `with` starts it and stops it."""

    def __enter__(self) -> Self:
        self._wait(self._behind.__aenter__())
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._wait(self._behind.__aexit__(kind, error, trace))


async def _as_coroutine(work: Awaitable[T]) -> T:
    return await work
