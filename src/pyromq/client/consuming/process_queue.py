"""The fetched messages of one queue that are not handled yet, and the committable offset. Pure.

Messages come in runs, one for each fetch. Workers take them from `Run.todo`, one by one or many
at a time, and finish them in any order. Nothing is allocated for a message: a run has a byte for each, and its first
zero is the lowest unhandled one. The committable offset is that of this message, or the start of the next
fetch when all are handled. It only grows, except after a seek.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from pyromq.client.received import ReceivedMessage
from pyromq.model.queue import MessageQueue

#: The distance by which handling may run ahead of one slow message: all that is handled beyond it is handled again when
#: the process dies before that message is done.
MAX_SPAN = 20_000


@dataclass(slots=True)
class Allowance:
    """The buffer limits of all queues of a consumer; each has an equal part, and at least one fetch."""

    messages: int
    bytes: int
    queues: int = 1

    @property
    def messages_each(self) -> int:
        return self.messages // max(self.queues, 1)

    @property
    def bytes_each(self) -> int:
        return self.bytes // max(self.queues, 1)


class Run:
    """The messages of one fetch, in the order of their offsets."""

    __slots__ = (
        "bytes", "done", "is_void", "last_offset", "left", "messages", "next_offset", "owner", "todo", "withdrawn",
    )  # fmt: skip

    def __init__(self, owner: ProcessQueue, messages: Sequence[ReceivedMessage], next_offset: int, size: int) -> None:
        self.owner = owner
        self.messages = messages
        #: The start of the next fetch.
        self.next_offset = next_offset
        self.last_offset = messages[-1].queue_offset
        self.bytes = size
        #: Not taken by anybody yet, each with its index. All who handle messages share it.
        self.todo: Iterator[tuple[int, ReceivedMessage]] = enumerate(messages)
        #: For each message 1 when it was handled.
        self.done = bytearray(len(messages))
        self.left = len(messages)
        #: Messages not taken when the run was closed.
        self.withdrawn = 0
        #: Its result no longer counts: a seek moved the queue's offset.
        self.is_void = False

    def finish(self, index: int) -> None:
        """A message was handled: it may count as consumed."""
        assert not self.done[index], "a message is finished once"
        self.done[index] = 1
        self.left -= 1
        if not self.left:
            self.settle()

    def finish_many(self, first: int, count: int) -> None:
        """The same for several that were taken one behind the other."""
        self.done[first : first + count] = b"\1" * count
        self.left -= count
        if not self.left:
            self.settle()

    def settle(self) -> None:
        """All are handled: they are let go, also while something before them takes long."""
        self.messages, self.todo = (), iter(())
        self.owner.settle()

    def again(self, index: int) -> None:
        """A message that was taken could not be handled: hand it out once more, before the others."""
        self.todo = chain([(index, self.messages[index])], self.todo)

    def withdraw(self) -> None:
        """Close the run. An iteration over `todo` ends."""
        self.withdrawn += sum(1 for _ in self.todo)

    def lowest(self) -> int:
        """The offset of the first that is not handled; there must be one."""
        return self.messages[self.done.find(0)].queue_offset


class ProcessQueue:
    """One queue that this consumer owns."""

    __slots__ = ("_allowance", "_handled_to", "_runs", "handled", "is_dropped", "next_offset", "on_settled", "queue")

    def __init__(
        self, queue: MessageQueue, offset: int, allowance: Allowance, on_settled: Callable[[], None] = lambda: None
    ) -> None:
        self.queue = queue
        #: The start of the next fetch.
        self.next_offset = offset
        #: The queue was given up: results of its messages no longer count.
        self.is_dropped = False
        #: Called when a whole run is handled: there may be room again.
        self.on_settled = on_settled
        #: Messages of runs that are forgotten.
        self.handled = 0
        self._allowance = allowance
        self._runs: deque[Run] = deque()
        #: All below this offset are handled.
        self._handled_to = offset

    def add(self, messages: Sequence[ReceivedMessage], next_offset: int, size: int) -> Run | None:
        """Take in what a fetch brought; None when nothing of it is for this consumer. It moves on in any case."""
        assert next_offset >= self.next_offset, "a fetch goes forward"
        self.next_offset = next_offset
        if not messages:
            return None
        run = Run(self, messages, next_offset, size)
        self._runs.append(run)
        return run

    def settle(self) -> None:
        """Forget runs that are handled, as far as nothing before them is open."""
        runs = self._runs
        while runs and not runs[0].left:
            run = runs.popleft()
            self.handled += len(run.done)
            self._handled_to = run.next_offset
        self.on_settled()

    @property
    def committable(self) -> int:
        """The lowest offset that is not handled; the place of the next fetch when all are."""
        if not self._runs:
            return self.next_offset
        return max(self._handled_to, self._runs[0].lowest())

    # --- back-pressure -----------------------------------------------------------------------------------------------

    @property
    def buffered_messages(self) -> int:
        return sum(run.left for run in self._runs)

    @property
    def buffered_bytes(self) -> int:
        """Of runs that are not handled: their messages share the bytes of one answer."""
        return sum(run.bytes for run in self._runs if run.left)

    @property
    def has_room(self) -> bool:
        """Return whether the next fetch may be sent."""
        messages = self.buffered_messages
        if not messages:
            return True
        allowance = self._allowance
        return (
            messages < allowance.messages_each
            and self.buffered_bytes < allowance.bytes_each
            and self.next_offset - self.committable < MAX_SPAN
        )

    @property
    def in_hand(self) -> int:
        """Messages that were taken and are not finished; known once no more are handed out."""
        return sum(run.left - run.withdrawn for run in self._runs)

    def bounds(self) -> tuple[int, int] | None:
        """Return the lowest and highest unhandled offset; None if there is none."""
        return (self._runs[0].lowest(), self._runs[-1].last_offset) if self._runs else None

    # --- the end, or another beginning -------------------------------------------------------------------------------

    def withdraw(self) -> None:
        """Start no more handlers. Running ones still count."""
        for run in self._runs:
            run.withdraw()

    def drop(self) -> None:
        """It is not ours any more: `committable` stays what it is now, whatever is finished later."""
        committable = self.committable
        self.is_dropped = True
        self.seek(committable)

    def seek(self, offset: int) -> None:
        """Continue at another offset. Fetched messages are dropped; running handlers end and do not count."""
        for run in self._runs:
            run.withdraw()
            run.is_void = True
        self._runs.clear()
        self.next_offset = self._handled_to = offset
