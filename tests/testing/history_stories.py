"""Small histories in which everything is well, for tests that break one thing of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyromq.model.queue import MessageQueue
from pyromq.testing.history.events import (
    Committed,
    Delivered,
    Event,
    Handled,
    Read,
    SendCalled,
    SendOk,
    Subscribed,
)

Q0 = MessageQueue("orders", "broker-a", 0)
Q1 = MessageQueue("orders", "broker-a", 1)
RETRIES = MessageQueue("%RETRY%billing", "broker-a", 0)


@dataclass
class Story:
    """Writes events with a clock that moves one second an event."""

    events: list[Event] = field(default_factory=list)

    @property
    def at(self) -> float:
        return float(len(self.events))

    def add(self, *events: Event) -> Story:
        self.events += events
        return self

    def send(self, op: int, queue: MessageQueue, offset: int, *, key: str = "", **more: object) -> Story:
        """Message `m<op>`, acknowledged."""
        self.add(SendCalled(self.at, "p", op, "orders", f"m{op}", key=key, sequence=op, **more))  # type: ignore[arg-type]
        return self.add(SendOk(self.at, op, queue, offset))

    def read(self, op: int, queue: MessageQueue, offset: int, client: str = "reader") -> Story:
        return self.add(Read(self.at, client, queue, offset, f"m{op}", position=100 * offset))

    def give(self, op: int, queue: MessageQueue, offset: int, *, attempt: int = 1, client: str = "c") -> Story:
        return self.add(Delivered(self.at, client, "billing", queue, offset, f"m{op}", attempt))

    def done(self, op: int, queue: MessageQueue, offset: int, *, again: bool = False, client: str = "c") -> Story:
        return self.add(Handled(self.at, client, "billing", queue, offset, f"m{op}", again))

    def handle(self, op: int, queue: MessageQueue, offset: int, *, attempt: int = 1, again: bool = False) -> Story:
        return self.give(op, queue, offset, attempt=attempt).done(op, queue, offset, again=again)

    def commit(self, queue: MessageQueue, offset: int) -> Story:
        return self.add(Committed(self.at, "c", "billing", queue, offset))

    def subscribe(self, **more: bool) -> Story:
        return self.add(Subscribed(self.at, "billing", "orders", **more))


def three_messages() -> Story:
    """m1 and m2 in queue 0, m3 in queue 1, acknowledged."""
    return Story().send(1, Q0, 0).send(2, Q0, 1).send(3, Q1, 0)


def three_read() -> Story:
    return three_messages().read(1, Q0, 0).read(2, Q0, 1).read(3, Q1, 0)


def three_consumed(**more: bool) -> Story:
    """By a group that was there from the beginning."""
    story = Story().subscribe(**more)
    story.add(*three_messages().events)
    story.handle(1, Q0, 0).handle(2, Q0, 1).handle(3, Q1, 0)
    return story.commit(Q0, 2).commit(Q1, 1)
