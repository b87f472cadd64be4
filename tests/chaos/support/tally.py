"""A history that knows at any moment what is still owed, so that a test can wait until nothing is."""

from __future__ import annotations

from collections import defaultdict

from pyromq.model.queue import MessageQueue
from pyromq.testing import History
from pyromq.testing.history.events import Decided, Event, Handled, SendCalled, SendOk, Subscribed


class Tally(History):
    """Counts as it is written."""

    def __init__(self) -> None:
        super().__init__()
        self._called: dict[int, SendCalled] = {}
        self._acked: dict[int, tuple[MessageQueue, int]] = {}
        self._committed: set[int] = set()
        self._owed: defaultdict[str, set[str]] = defaultdict(set)
        self._handled: defaultdict[str, set[str]] = defaultdict(set)
        self._topics: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, event: Event) -> None:
        super().add(event)
        match event:
            case SendCalled():
                self._called[event.op] = event
            case SendOk():
                self._acked[event.op] = (event.queue, event.offset)
                self._now_owed(event.op)
            case Decided() if event.commit:
                self._committed.add(event.op)
                self._now_owed(event.op)
            case Handled() if not event.again:
                self._handled[event.group].add(event.message_id)
            case Subscribed():
                self._topics[event.group].add(event.topic)

    def _now_owed(self, op: int) -> None:
        called = self._called[op]
        if op in self._acked and (not called.transaction or op in self._committed):
            self._owed[called.topic].add(called.message_id)

    @property
    def acked(self) -> int:
        return len(self._acked)

    def acked_places(self) -> dict[str, tuple[MessageQueue, int]]:
        """Where acknowledged messages are, by name."""
        return {self._called[op].message_id: place for op, place in self._acked.items()}

    def unacked_names(self) -> set[str]:
        return {called.message_id for op, called in self._called.items() if op not in self._acked}

    def name_of(self, op: int) -> str:
        return self._called[op].message_id

    def missing(self) -> dict[str, int]:
        """How many messages each group has not handled yet; nothing when all have caught up."""
        return {group: len(names) for group, names in self.missing_names().items() if names}

    def missing_names(self) -> dict[str, set[str]]:
        """Which messages each group has not handled yet."""
        return {
            group: {name for topic in topics for name in self._owed[topic] - self._handled[group]}
            for group, topics in self._topics.items()
        }

    def in_time(self) -> list[Event]:
        """What several processes wrote down, in the order in which it happened."""
        return sorted(self.events, key=lambda event: event.at)
