"""Positions of the log that only grow, and whoever waits for them.

    synced ≤ appended      everything below `synced` is on the disk
    readable ≤ appended    everything below `readable` may be shown to readers
    dispatched ≤ readable  everything below `dispatched` is in its consume queue
    indexed ≤ readable     everything below `indexed` is in the key index

After an append nobody passes objects around: a component moves its mark, another waits for it.
Not thread-safe: marks move on the thread that owns the store.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count


class Watermark:
    """One such position."""

    __slots__ = ("_cancelled", "_error", "_listeners", "_order", "_waiters", "name", "value")

    def __init__(self, name: str, value: int = 0) -> None:
        self.name = name
        self.value = value
        self._error: Callable[[], BaseException] | None = None
        self._listeners: list[Callable[[int], None]] = []
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()
        self._cancelled = 0

    def advance(self, position: int) -> None:
        """Move forward, and wake those whose position is reached: one call for all of them."""
        assert position >= self.value, f"{self.name} would go back from {self.value} to {position}"
        if position == self.value:
            return
        self.value = position
        for listener in self._listeners:
            listener(position)
        while self._waiters and self._waiters[0][0] <= position:
            future = heapq.heappop(self._waiters)[2]
            if not future.done():
                future.set_result(None)

    def fail(self, error: Callable[[], BaseException]) -> None:
        """Tell everyone who waits, now and later, that the mark will not move again: each by an error of its own."""
        self._error = error
        waiters, self._waiters = self._waiters, []
        for _, _, future in waiters:
            if not future.done():
                future.set_exception(error())

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    def check(self) -> None:
        """Raise what `fail` was given."""
        if self._error is not None:
            raise self._error()

    def reset(self, position: int) -> None:
        """Recovery decides where a mark begins."""
        assert not self._waiters
        self.value = position

    def listen(self, listener: Callable[[int], None]) -> None:
        """Be told of every move. The listener must return quickly."""
        self._listeners.append(listener)

    async def wait(self, position: int) -> None:
        """Return once the mark has reached the position; raise what `fail` was given."""
        if self.value >= position:
            return
        if self._error is not None:
            raise self._error()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (position, next(self._order), future))
        try:
            await future
        except asyncio.CancelledError:
            self._forget_cancelled()
            raise

    def _forget_cancelled(self) -> None:
        """Waiters that gave up are dropped once they are the most: a mark that rests must not gather them."""
        self._cancelled += 1
        if self._cancelled * 2 > len(self._waiters):
            self._waiters = [waiter for waiter in self._waiters if not waiter[2].done()]
            heapq.heapify(self._waiters)
            self._cancelled = 0


class Watermarks:
    """The marks of one store."""

    __slots__ = ("appended", "dispatched", "indexed", "readable", "synced")

    def __init__(self) -> None:
        self.appended = Watermark("appended")
        self.synced = Watermark("synced")
        self.readable = Watermark("readable")
        self.dispatched = Watermark("dispatched")
        self.indexed = Watermark("indexed")

    def check(self) -> None:
        """The order that always holds."""
        assert self.synced.value <= self.appended.value
        assert self.dispatched.value <= self.readable.value <= self.appended.value
        assert self.indexed.value <= self.readable.value

    def all(self) -> tuple[Watermark, ...]:
        return (self.appended, self.synced, self.readable, self.dispatched, self.indexed)

    def fail(self, error: Callable[[], BaseException]) -> None:
        for mark in self.all():
            mark.fail(error)
