"""The only reader of wall and monotonic time, so that tests and simulations can hand in their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970, as it goes into records."""

    def monotonic(self) -> float:
        """Seconds that only grow, for measuring and waiting."""


class SystemClock:
    """The machine's own clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when it is told to."""

    __slots__ = ("_now_ms",)

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._now_ms / 1000

    def advance(self, seconds: float) -> None:
        self._now_ms += int(seconds * 1000)


#: CPU seconds of the calling thread: work, whatever else the machine does.
cpu_seconds = time.thread_time
