"""The only reader of wall and monotonic time, so that tests and simulations can hand in their own."""

from __future__ import annotations

import os
import time
from pathlib import Path
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

    __slots__ = ("_jumped_ms", "_now_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._jumped_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return (self._now_ms - self._jumped_ms) / 1000

    def advance(self, seconds: float) -> None:
        self._now_ms += int(seconds * 1000)

    def jump(self, seconds: float) -> None:
        """Set the wall clock ahead, or back, while no time passes."""
        self._now_ms += int(seconds * 1000)
        self._jumped_ms += int(seconds * 1000)


#: CPU seconds of the calling thread: work, whatever else the machine does.
cpu_seconds = time.thread_time


def uptime() -> float:
    """Seconds since the machine started, suspended time included: a clock that nobody can set."""
    try:
        return float(Path("/proc/uptime").read_bytes().split()[0])
    except (OSError, ValueError, IndexError):  # pragma: no cover - not Linux
        return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def boot_id() -> str:
    """The name of this run of the machine: with another one, uptimes cannot be compared."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # pragma: no cover - not Linux
        return f"process {os.getpid()} {time.time_ns()}"
