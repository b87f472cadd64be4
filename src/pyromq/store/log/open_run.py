"""The run of the log that is open: a loop writes messages to it one by one, in turns of the event loop.

    open          with the first message; the loop then writes as many as it likes
    begin_turn    time has gone on
    end_turn      what was written is in the log, or somebody sees to it that it gets to the disk; the run stays open
    close         when it has lingered for a moment, or when somebody needs to know: marks move, and queues follow

A loop that is compiled may settle what it wrote by itself, in the middle of a turn: it writes it to the log's file, and
under sync flush waits for the disk. What it did is taken over here, at the end of the turn or when the run is closed.
A sync of its own that failed fences the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pyromq.clock import Clock
from pyromq.errors import StoreFenced
from pyromq.store.durability.flusher import Flusher
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.queues.queue_table import QueueTable
from pyromq.store.watermarks import Watermarks

if TYPE_CHECKING:
    from pyromq.store._kernel import LogRun

#: A run stays open, if nobody asks, until about so many messages are in it; under sync flush, which ends runs, queues
#: follow so much later. To close one and to open the next costs as much for one message as for fifty.
WORTH_MESSAGES = 500
#: But at least and at most so long.
LINGER_SECONDS = 0.002
MOST_LINGER_SECONDS = 0.02


class Grew(Protocol):
    """Told when a run is closed."""

    def __call__(self, messages: int, *, may_be_awaited: bool) -> None: ...


class OpenRun:
    """At most one at a time."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        marks: Watermarks,
        flusher: Flusher,
        clock: Clock,
        fence: Callable[[BaseException], StoreFenced],
        grew: Grew,
        end: Callable[[], None],
        *,
        syncs: bool,
    ) -> None:
        """`end` closes the run when it has lingered. `syncs`: what the disk has is acknowledged."""
        self._log = log
        self._queues = queues
        self._marks = marks
        self._flusher = flusher
        self._clock = clock
        self._fence = fence
        self._grew = grew
        self._end = end
        self._syncs = syncs
        self._run: LogRun | None = None
        #: It acknowledges what this store alone has.
        self._settles = False
        #: When the last one was opened, how many messages it had, and how long the next one lingers.
        self._opened_at = clock.monotonic()
        self._last_count = 0
        self.linger_s = LINGER_SECONDS
        #: Somebody will call `end_turn`.
        self._is_in_turn = False
        self._close_is_due = False

    def open(self, run: LogRun, loop: asyncio.AbstractEventLoop | None, *, lingers: bool, settles: bool) -> bool:
        """False when there is no segment yet. One that does not linger ends with the loop's turn."""
        assert self._run is None, "one run at a time"
        if not self._log.open_run(run, self._queues.cursors, self._clock.now_ms()):
            return False
        self._run, self._settles = run, settles
        self._choose_linger(MOST_LINGER_SECONDS if lingers else 0.0)
        if loop is not None and not self._close_is_due:
            self._close_is_due = True
            if lingers:
                loop.call_later(self.linger_s, self._close_due, self._end)
            else:
                loop.call_soon(self._close_due, self.close)
        self._let_settle(run)
        if self._syncs and not self._is_in_turn:
            self._flusher.wake()  # it closes the run when it comes to it
        return True

    def _choose_linger(self, most_s: float) -> None:
        now = self._clock.monotonic()
        seconds, self._opened_at = now - self._opened_at, now
        wanted_s = seconds * WORTH_MESSAGES / max(self._last_count, 1)
        self.linger_s = max(min(wanted_s, most_s), LINGER_SECONDS)

    def begin_turn(self) -> None:
        self._is_in_turn = True
        if self._run is not None:
            self._log.renew_run(self._run, self._clock.now_ms())
            if self._syncs:
                self._let_settle(self._run)

    def _let_settle(self, run: LogRun) -> None:
        """Or not, in this turn: while a thread syncs, or while the disk is slow."""
        if not self._settles:
            return
        if not self._syncs or self._flusher.may_sync_here(run.base + run.offset):
            self._log.let_settle(run, syncs=self._syncs)
        else:
            run.settle_no_more()

    def end_turn(self) -> bool:
        """False when somebody waits for one of the messages, so that the run is to be closed. Raises StoreFenced."""
        self._is_in_turn = False
        run = self._run
        if run is None:
            return True
        if run.is_awaited or run.failure:
            return False
        if self._syncs:
            self._take_synced(run)
            if self._log.written_to > self._marks.synced.value:
                self._flusher.wake()
            return True
        try:
            self._log.commit_run(run)
        except OSError as error:
            self._run = None  # what failed is not tried again
            self._log.drop_run(run)
            raise self._fence(error) from error
        self._marks.appended.advance(self._log.end)
        return True

    def _take_synced(self, run: LogRun) -> None:
        """The loop has brought some of what it wrote to the disk by itself."""
        if run.synced_to > self._marks.synced.value:
            self._log.take_settled(run)
            self._marks.appended.advance(self._log.end)
            self._marks.written.advance(run.synced_to)
            self._flusher.synced_here(run.synced_to, run.sync_count, run.sync_seconds)

    def _close_due(self, close: Callable[[], None]) -> None:
        self._close_is_due = False
        with contextlib.suppress(StoreFenced):  # whoever waits has been told
            close()

    def close(self) -> None:
        """Take over what the loop wrote. Nothing happens when none is open. Raises StoreFenced."""
        run, self._run = self._run, None
        if run is None:
            return
        self._last_count = run.count
        try:
            self._log.close_run(run)
        except OSError as error:  # what cannot be written cannot be taken back either: queues count on it
            raise self._fence(error) from error
        self._take_synced(run)
        if run.failure:
            raise self._fence(OSError(run.failure, os.strerror(run.failure)))
        self._grew(run.count, may_be_awaited=run.is_awaited)
