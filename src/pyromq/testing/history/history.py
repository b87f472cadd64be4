"""Everything that clients saw of brokers in one run, written down as it happens and held against the promises later.

    history = History()
    op = history.send_called("producer-1", "orders", "m-17")
    ...                                              # send it
    history.send_ok(op, queue, offset)               # or send_failed, or send_unknown
    check(history).raise_if_bad()

It may be written to from several threads. `save` and `load` keep it as JSON lines, one event each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

import orjson

from pyromq.clock import Clock, SystemClock
from pyromq.errors import CorruptFile
from pyromq.model.queue import MessageQueue
from pyromq.testing.history.events import (
    Committed,
    DeadLettered,
    Decided,
    Delivered,
    Event,
    Fault,
    Handled,
    QueueEnd,
    Read,
    Reset,
    SendCalled,
    SendFailed,
    SendOk,
    SendUnknown,
    Subscribed,
    from_json,
    to_json,
)


class History:
    """Events in the order in which they were written down."""

    def __init__(self, events: Iterable[Event] = (), *, clock: Clock | None = None) -> None:
        self.events: list[Event] = list(events)
        self._clock: Clock = clock or SystemClock()
        self._ops = count(1 + max((event.op for event in self.events if isinstance(event, SendCalled)), default=0))

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def now(self) -> float:
        """The clock of this history, for `due`."""
        return self._clock.monotonic()

    def add(self, event: Event) -> None:
        """One that is already made."""
        self.events.append(event)

    # --- sending -----------------------------------------------------------------------------------------------------

    def send_called(
        self,
        client: str,
        topic: str,
        message_id: str,
        *,
        digest: str = "",
        key: str = "",
        sequence: int = -1,
        due: float | None = None,
        transaction: bool = False,
        queue: MessageQueue | None = None,
    ) -> int:
        """Record a send before it. Returns the number for its outcome."""
        op = next(self._ops)
        self.add(SendCalled(self.now(), client, op, topic, message_id, digest, key, sequence, due, transaction, queue))
        return op

    def send_ok(self, op: int, queue: MessageQueue, offset: int) -> None:
        self.add(SendOk(self.now(), op, queue, offset))

    def send_failed(self, op: int, why: str = "") -> None:
        self.add(SendFailed(self.now(), op, why))

    def send_unknown(self, op: int, why: str = "") -> None:
        self.add(SendUnknown(self.now(), op, why))

    def decided(self, op: int, *, commit: bool) -> None:
        """Record the end of a half message before it is sent to the broker."""
        self.add(Decided(self.now(), op, commit))

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(
        self,
        client: str,
        queue: MessageQueue,
        offset: int,
        message_id: str,
        *,
        digest: str = "",
        position: int = -1,
        stored_at: float | None = None,
    ) -> None:
        self.add(Read(self.now(), client, queue, offset, message_id, digest, position, stored_at))

    def queue_end(self, asked_at: float, client: str, queue: MessageQueue, end: int) -> None:
        """Record a broker's answer; `asked_at` is the time before the request (`now()`)."""
        self.add(QueueEnd(asked_at, client, queue, end))

    # --- consuming ---------------------------------------------------------------------------------------------------

    def subscribed(self, group: str, topic: str, *, ordered: bool = False, from_first: bool = True) -> None:
        self.add(Subscribed(self.now(), group, topic, ordered, from_first))

    def delivered(
        self,
        client: str,
        group: str,
        queue: MessageQueue,
        offset: int,
        message_id: str,
        *,
        attempt: int = 1,
        digest: str = "",
    ) -> None:
        """First thing in a handler."""
        self.add(Delivered(self.now(), client, group, queue, offset, message_id, attempt, digest))

    def handled(
        self, client: str, group: str, queue: MessageQueue, offset: int, message_id: str, *, again: bool = False
    ) -> None:
        """Last thing in a handler."""
        self.add(Handled(self.now(), client, group, queue, offset, message_id, again))

    def dead_lettered(self, group: str, message_id: str) -> None:
        self.add(DeadLettered(self.now(), group, message_id))

    def committed(self, client: str, group: str, queue: MessageQueue, offset: int) -> None:
        self.add(Committed(self.now(), client, group, queue, offset))

    def reset(self, group: str, queue: MessageQueue, offset: int) -> None:
        self.add(Reset(self.now(), group, queue, offset))

    def fault(self, what: str, *, forgets_progress: bool = False) -> None:
        self.add(Fault(self.now(), what, forgets_progress))

    # --- files -------------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            file.writelines(orjson.dumps(to_json(event), option=orjson.OPT_APPEND_NEWLINE) for event in self.events)

    @classmethod
    def load(cls, path: Path) -> History:
        """Raises CorruptFile, which names the line."""
        return cls(_events_in(path))


def _events_in(path: Path) -> Iterator[Event]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield from_json(orjson.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise CorruptFile(f"{path}, line {number}, is no event of a history ({error})") from None
