"""Watermarks of the log: positions that only grow, and the coroutines that wait for them.

    appended                  the end of the log
    synced     <= appended    everything below it is on this disk
    written    <= appended    everything below it is in the log's files: behind `appended` only with the transient pool
    visible    <= written     everything below it may be read by consumers
    dispatched <= visible     everything below it is in its consume queue
    indexed    <= visible     everything below it is in the key index

`visible` follows `written`. Under sync flush it also stays at or below `synced`: a power cut removes unsynced messages,
their queue offsets are assigned again, and a group that had read the lost messages would skip the new ones. A broker
that waits for replicas limits it further (`limit_visible`), to the messages that are acknowledged.

After an append components share no objects: one advances its mark, another waits for it or listens to it.
Not thread-safe: marks move on the thread that owns the store.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from typing import NamedTuple


class Watermark:
    """One position that only grows."""

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
        """Move forward, call the listeners, and resume the coroutines whose position is reached."""
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
        """Raise `error()` in every coroutine that waits, now and later: the mark will not move again."""
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
        """Set the first value: recovery decides it."""
        assert not self._waiters
        self.value = position

    def listen(self, listener: Callable[[int], None]) -> None:
        """Call `listener` with every new value. It must return quickly."""
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
        """Drop cancelled waiters once they are the majority: a mark that rests must not accumulate them."""
        self._cancelled += 1
        if self._cancelled * 2 > len(self._waiters):
            self._waiters = [waiter for waiter in self._waiters if not waiter[2].done()]
            heapq.heapify(self._waiters)
            self._cancelled = 0


class Positions(NamedTuple):
    """The watermarks at one moment, and where the log starts and ends."""

    #: The oldest position that is still in the log.
    log_start: int
    #: The position of the next record. An open append batch may have moved `appended` beyond it.
    log_end: int
    appended: int
    synced: int
    written: int
    visible: int
    dispatched: int
    indexed: int
    #: Everything below is in the log's files, for replicas: `written` with the transient pool, else `appended`.
    replicable: int


class Watermarks:
    """The marks of one store."""

    __slots__ = (
        "_limit", "_limits", "_visible_is_synced", "appended", "dispatched", "indexed", "synced", "visible_moved",
        "written",
    )  # fmt: skip

    def __init__(self, *, visible_is_synced: bool = False) -> None:
        """`visible_is_synced`: only synced messages are acknowledged, so consumers read no others."""
        self.appended = Watermark("appended")
        self.synced = Watermark("synced")
        self.written = Watermark("written")
        self.dispatched = Watermark("dispatched")
        self.indexed = Watermark("indexed")
        #: The mark that `visible` must not pass; `written` if there is no limit.
        self._limit = self.written
        #: The limits that are listened to already.
        self._limits: list[Watermark] = []
        self._visible_is_synced = visible_is_synced
        #: Called when `visible` may have moved.
        self.visible_moved: Callable[[], None] = lambda: None

    @property
    def visible(self) -> int:
        """Everything below may be read by consumers: queues and index go no further."""
        visible = min(self._limit.value, self.written.value)
        return min(visible, self.synced.value) if self._visible_is_synced else visible

    @property
    def undispatched(self) -> int:
        """Visible bytes that are not in their queues yet."""
        return max(self.visible - self.dispatched.value, 0)

    def limit_visible(self, mark: Watermark) -> None:
        """Keep `visible` at or below this mark from now on. Queue entries beyond it stay."""
        self._limit = mark
        if mark not in self._limits:
            self._limits.append(mark)
            mark.listen(lambda _: self.visible_moved())

    def lift_visible_limit(self) -> None:
        """Let `visible` follow `written` again."""
        if self._limit is not self.written:
            self._limit = self.written
            self.visible_moved()

    def check(self) -> None:
        """Assert the order that always holds."""
        assert self.synced.value <= self.appended.value
        assert self.dispatched.value <= self.written.value <= self.appended.value
        assert self.indexed.value <= self.written.value

    def all(self) -> tuple[Watermark, ...]:
        return (self.appended, self.synced, self.written, self.dispatched, self.indexed)

    def fail(self, error: Callable[[], BaseException]) -> None:
        for mark in self.all():
            mark.fail(error)
