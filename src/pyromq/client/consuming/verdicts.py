"""Exceptions with which a handler controls redelivery; any other exception means the default redelivery."""

from __future__ import annotations


class RetryLater(Exception):
    """Deliver it again after the delay of this level: 1 is one second, 2 five, 3 ten, 5 a minute; 0 as usual."""

    def __init__(self, delay_level: int = 0, reason: str = "") -> None:
        super().__init__(reason or "the handler asks for another delivery")
        self.delay_level = max(delay_level, 0)


class DeadLetter(Exception):
    """Never deliver it again: it goes to the group's dead letters at once."""
