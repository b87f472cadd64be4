"""Sends that wait for each other a moment, so that one request carries many.

Messages gather by topic (and queue, where they must go to a certain one). A batch leaves when it is full, or at the end
of the loop's turn as long as few batches are under way, or when one of those is answered: a lone message does not wait,
and under load batches grow as large as the answers are slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from pyromq.client.sending.parcel import BatchEntry
from pyromq.errors import ConfigError

Waiter = TypeVar("Waiter")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """The size of batches, and the linger time of messages.

    Producer("localhost:9876", group="clicks", auto_batch=BatchOptions(linger_s=0.005))
    """

    #: A batch is sent at this many messages or bytes. With more, producer and broker wait for each other.
    max_messages: int = 320
    max_bytes: int = 512 << 10
    #: The linger time of a message, unless the batch is full before; 0: until the end of the loop's turn.
    linger_s: float = 0.0
    #: Batches of one topic that may be under way; more messages gather until one is answered.
    in_flight: int = 3
    #: Bytes that may gather in all. A send waits when there are more.
    max_waiting_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        for name in ("max_messages", "max_bytes", "in_flight", "max_waiting_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} of the batch options must be at least 1", name)
        if self.linger_s < 0:
            raise ConfigError("linger_s of the batch options cannot be negative", "linger_s")


@dataclass(slots=True)
class Gathered(Generic[Waiter]):
    """A batch that leaves now."""

    entries: list[BatchEntry]
    message_ids: list[str]
    waiters: list[Waiter]
    size: int
    #: The time of the first message.
    since: float


class Gathering(Generic[Waiter]):
    """The waiting messages of one topic and queue. Pure: the caller sends and keeps the time."""

    __slots__ = (
        "_entries", "_ids", "_max_bytes", "_max_in_flight", "_max_messages", "_size", "_waiters", "in_flight", "since",
    )  # fmt: skip

    def __init__(self, options: BatchOptions) -> None:
        self._max_messages = options.max_messages
        self._max_bytes = options.max_bytes
        self._max_in_flight = options.in_flight
        self._entries: list[BatchEntry] = []
        self._ids: list[str] = []
        self._waiters: list[Waiter] = []
        self._size = 0
        self.in_flight = 0
        #: The time of the first waiting message, 0 if there is none; the caller passes it.
        self.since = 0.0

    def __len__(self) -> int:
        return len(self._ids)

    def fits(self, size: int) -> bool:
        """Return whether one more of this size fits."""
        return self._size + size <= self._max_bytes or not self._ids

    def add(self, entry: BatchEntry, size: int, message_id: str, waiter: Waiter) -> bool:
        """Join those that wait. True when the batch is full now."""
        self._entries.append(entry)
        self._ids.append(message_id)
        self._waiters.append(waiter)
        self._size += size
        return self._size >= self._max_bytes or len(self._ids) >= self._max_messages

    def may_leave(self) -> bool:
        """Return whether the batch should be sent as soon as no other message joins."""
        return bool(self._ids) and self.in_flight < self._max_in_flight

    def take(self) -> Gathered[Waiter]:
        """All that wait; they are under way now, until `in_flight` is counted down."""
        taken = Gathered(self._entries, self._ids, self._waiters, self._size, self.since)
        self._entries, self._ids, self._waiters, self._size, self.since = [], [], [], 0, 0.0
        self.in_flight += 1
        return taken
