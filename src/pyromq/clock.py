"""The only reader of wall and monotonic time, so that tests and simulations can hand in their own."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970, as it goes into records."""

    def monotonic(self) -> float:
        """Seconds that only grow, suspended time included, for measuring and waiting. Not the event loop's clock."""


#: A clock that goes on while the machine is suspended: a broker that slept must not believe what it knew before. The
#: monotonic clock of macOS does; where there is neither, suspended time is not counted.
_COUNTS_SUSPENDED: int | None = getattr(time, "CLOCK_BOOTTIME", None)
if _COUNTS_SUSPENDED is None and sys.platform == "darwin":  # pragma: no cover - not Linux
    _COUNTS_SUSPENDED = time.CLOCK_MONOTONIC


class SystemClock:
    """The machine's own clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        if _COUNTS_SUSPENDED is None:  # pragma: no cover - not Linux
            return time.monotonic()
        return time.clock_gettime(_COUNTS_SUSPENDED)


class ManualClock:
    """A clock that moves only by its methods."""

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
    """Seconds since the machine started, suspended time included: it cannot be set."""
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
