"""The append batch: messages that a writer appends one by one, brought into the log with one write.

    closed      no writer; the log ends where its mark says
    open        a writer appends to memory; some of its messages are not in the log's files
    committed   everything that the writer appended is in the log's files, and may be acknowledged; the writer continues

`open` starts a batch, the end of each turn of the event loop commits it, and `close` hands its messages to the queues:
after at most 20 ms, or as soon as another method of the store needs the log as it is. Under sync flush the end of a
turn wakes the flusher, which closes the batch before it syncs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from pyromq.clock import Clock
from pyromq.errors import StoreFenced
from pyromq.store.durability.flusher import Flusher
from pyromq.store.log.commit_log import BatchWriter, CommitLog
from pyromq.store.queues.queue_table import QueueTable
from pyromq.store.watermarks import Watermarks

#: A batch stays open, unless the store needs the log, until it has about this many messages: to close one and to open
#: the next costs as much for one message as for fifty.
TARGET_MESSAGES = 500
#: But at least, and at most, for this time.
MIN_OPEN_SECONDS = 0.002
MAX_OPEN_SECONDS = 0.02


class BatchState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    COMMITTED = "committed"


class Grew(Protocol):
    """Called when a batch is closed."""

    def __call__(self, messages: int, *, may_be_awaited: bool) -> None: ...


class AppendBatch:
    """The store's one batch; it is opened and closed again and again."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        marks: Watermarks,
        flusher: Flusher,
        clock: Clock,
        fence: Callable[[BaseException], StoreFenced],
        grew: Grew,
        is_writable: Callable[[], bool],
        close_soon: Callable[[], None],
        *,
        is_sync: bool,
    ) -> None:
        """`close_soon` is called when a batch was open for long enough. `is_sync`: sync flush."""
        self._log = log
        self._queues = queues
        self._marks = marks
        self._flusher = flusher
        self._clock = clock
        self._fence = fence
        self._grew = grew
        self._is_writable = is_writable
        self._close_soon = close_soon
        self._is_sync = is_sync
        self._writer: BatchWriter | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened_at = clock.monotonic()
        self._last_count = 0
        #: The time this batch stays open, in seconds.
        self.open_s = MIN_OPEN_SECONDS
        self._is_in_turn = False
        self._close_is_scheduled = False

    @property
    def state(self) -> BatchState:
        if self._writer is None:
            return BatchState.CLOSED
        return BatchState.COMMITTED if self._log.written_to == self._log.end else BatchState.OPEN

    def runs_on(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Set the loop that closes a batch in time; without one only the store's methods close it."""
        self._loop = loop

    def open(self, writer: BatchWriter, *, spans_turns: bool = False) -> bool:
        """Let a writer append; False if only `MessageStore.append` can say why not.

        With `spans_turns` the caller calls `begin_turn` and `end_turn` in every turn of the loop, and the batch stays
        open from one to the next; else it is closed in the loop's next turn.
        """
        assert self._writer is None, "one batch at a time"
        if not self._is_writable() or not self._log.begin_batch(writer, self._queues.cursors, self._clock.now_ms()):
            return False
        self._writer = writer
        self._choose_duration(MAX_OPEN_SECONDS if spans_turns else 0.0)
        if self._loop is not None and not self._close_is_scheduled:
            self._close_is_scheduled = True
            if spans_turns:
                self._loop.call_later(self.open_s, self._close_scheduled)
            else:
                self._loop.call_soon(self._close_scheduled)
        if self._is_sync and not self._is_in_turn:
            self._flusher.wake()  # it closes the batch before it syncs
        return True

    def _choose_duration(self, most_s: float) -> None:
        now = self._clock.monotonic()
        seconds, self._opened_at = now - self._opened_at, now
        wanted_s = seconds * TARGET_MESSAGES / max(self._last_count, 1)
        self.open_s = max(min(wanted_s, most_s), MIN_OPEN_SECONDS)

    def _close_scheduled(self) -> None:
        self._close_is_scheduled = False
        with contextlib.suppress(StoreFenced):  # the marks have failed, and with them every waiter
            self._close_soon()

    def begin_turn(self) -> None:
        """A turn of the loop begins: the messages that follow get its time."""
        self._is_in_turn = True
        if self._writer is not None:
            self._log.renew_batch(self._writer, self._clock.now_ms())

    def end_turn(self) -> bool:
        """Commit, or wake the flusher under sync flush. False if a long poll waits for one of the messages, so that the
        batch is to be closed. Raises StoreFenced."""
        self._is_in_turn = False
        writer = self._writer
        if writer is None:
            return True
        if writer.is_awaited:
            return False
        if self._is_sync:
            if self._log.written_to > self._marks.synced.value:
                self._flusher.wake()
            return True
        try:
            self._log.commit_batch(writer)
        except OSError as error:
            self._writer = None  # a write that failed is not repeated
            self._log.drop_batch(writer)
            raise self._fence(error) from error
        self._marks.appended.advance(self._log.end)
        return True

    def close(self) -> None:
        """Commit, and hand the messages to the queues. Only the store's gate calls this. Raises StoreFenced."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        self._last_count = writer.count
        try:
            self._log.end_batch(writer)
        except OSError as error:  # the messages have their queue offsets, which cannot be given back
            raise self._fence(error) from error
        self._grew(writer.count, may_be_awaited=writer.is_awaited)
