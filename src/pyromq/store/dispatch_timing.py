"""The times at which queues follow the log: the loop's next turn for an awaited message, else after a short delay.

    readable moves    a batch was closed, or something was appended
    shown moves       copies were heard of, and readers may see more: far more often than there is something to show
    synced moves      under sync flush: readers see no more than that

A dispatch costs as much for one message as for fifty. So all requests of a turn share one dispatch; and while part of a
closed batch is invisible because it is not replicated yet, the dispatch waits for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pyromq.store.watermarks import Watermarks


class DispatchTiming:
    """Calls `dispatch` when it is time; without a loop never. A delayed call comes after `delay_s()`."""

    def __init__(self, marks: Watermarks, dispatch: Callable[[], None], delay_s: Callable[[], float]) -> None:
        self._marks = marks
        self._dispatch = dispatch
        self._delay_s = delay_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_due = False
        #: The delayed call, if there was no earlier request.
        self._delayed: asyncio.TimerHandle | None = None
        #: A long poll may wait for one of the messages that are not in their queues yet.
        self._may_be_awaited = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def stop(self) -> None:
        self._cancel_delayed()
        self._loop = None

    def came(self, *, may_be_awaited: bool) -> None:
        """Note that messages are in the log, and if a long poll may wait for one of them."""
        self._may_be_awaited |= may_be_awaited

    def watched(self) -> None:
        """Note a new long poll: a message that is in the log already may be for its queue."""
        self._may_be_awaited |= self._marks.dispatched.value < self._marks.written.value

    def written_moved(self) -> None:
        self.later(delayed=self._is_more_to_come)

    def synced_moved(self) -> None:
        """Under sync flush, also when a batch is closed. A long poll is answered at once, and all others wait for more
        messages: those of one sync are few."""
        if self._is_more_visible:
            self.later(delayed=not self._may_be_awaited)

    def visible_moved(self) -> None:
        if self._is_more_visible:
            self.later(delayed=self._is_more_to_come)

    @property
    def _is_more_visible(self) -> bool:
        return self._marks.visible > min(self._marks.dispatched.value, self._marks.indexed.value)

    @property
    def _is_more_to_come(self) -> bool:
        """Return True if part of a closed batch is still invisible and no long poll may wait for it."""
        return not self._may_be_awaited and self._marks.visible < self._marks.written.value

    def later(self, *, delayed: bool = False) -> None:
        """In the loop's next turn, or after `delay_s()` if `delayed`. A call that is due earlier stays."""
        if self._loop is None:
            return
        if not self._is_due and delayed:
            self._delayed = self._loop.call_later(self._delay_s(), self._now)
        elif not self._is_due or (self._delayed is not None and not delayed):
            self._cancel_delayed()
            self._loop.call_soon(self.if_due)
        self._is_due = True

    def batch_closed(self) -> None:
        """One that was long enough: at once, unless the rest of it is waited for."""
        if self._delayed is None:
            self.if_due()

    def if_due(self) -> None:
        if self._is_due:
            self._now()

    def _now(self) -> None:
        self._is_due = False
        self._cancel_delayed()
        if self._loop is not None:
            self._dispatch()

    def dispatched(self) -> None:
        """Queues have followed: to the end, or as far as readers may see."""
        self._may_be_awaited &= self._marks.dispatched.value < self._marks.written.value

    def _cancel_delayed(self) -> None:
        if self._delayed is not None:
            self._delayed.cancel()
            self._delayed = None
