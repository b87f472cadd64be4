"""Positions of the log that only grow, and whoever waits for them.

    synced ≤ appended      everything below `synced` is on the disk
    readable ≤ appended    everything below `readable` may be shown to readers
    dispatched ≤ readable  everything below `dispatched` is in its consume queue
    indexed ≤ readable     everything below `indexed` is in the key index

Another mark may hold readers back (`show_only`): replicas copy everything that is in the log's files, and consumers see
what is acknowledged. Under sync flush they see no more than `synced`: a power cut takes unsynced messages, their queue
offsets are given to others, and a group that had read the lost ones would never see those.

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

    __slots__ = (
        "_followed", "_shown", "_shows_synced_only", "appended", "dispatched", "indexed", "readable", "shown_moved",
        "synced",
    )  # fmt: skip

    def __init__(self, *, shows_synced_only: bool = False) -> None:
        """`shows_synced_only`: acknowledged is what is synced, so that readers see no more than that."""
        self.appended = Watermark("appended")
        self.synced = Watermark("synced")
        self.readable = Watermark("readable")
        self.dispatched = Watermark("dispatched")
        self.indexed = Watermark("indexed")
        self._shown = self.readable
        self._shows_synced_only = shows_synced_only
        #: The marks that queues have followed beside their own.
        self._followed: list[Watermark] = []
        #: Called when there may be more to show.
        self.shown_moved: Callable[[], None] = lambda: None

    @property
    def shown(self) -> int:
        """Queues and index go no further."""
        shown = min(self._shown.value, self.readable.value)
        return min(shown, self.synced.value) if self._shows_synced_only else shown

    @property
    def undispatched(self) -> int:
        """Bytes that may be shown and are not in their queues yet."""
        return max(self.shown - self.dispatched.value, 0)

    def show_only(self, mark: Watermark) -> None:
        """From now on queues follow this mark, as far as the log is readable. What they have they keep."""
        self._shown = mark
        if mark not in self._followed:
            self._followed.append(mark)
            mark.listen(lambda _: self.shown_moved())

    def show_all(self) -> None:
        """Nobody holds readers back (any longer)."""
        if self._shown is not self.readable:
            self._shown = self.readable
            self.shown_moved()

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
