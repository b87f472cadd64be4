"""Numbers that must not be mixed up have types of their own."""

from __future__ import annotations

from typing import NamedTuple, NewType

#: Position of a byte in the whole commit log, counted from its very beginning (RocketMQ: physical offset).
LogPosition = NewType("LogPosition", int)

#: The place of a message in its queue: 0, 1, 2 … without gaps (RocketMQ: queue offset, cq offset).
QueueOffset = NewType("QueueOffset", int)


class QueueId(NamedTuple):
    """One queue of one topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"
