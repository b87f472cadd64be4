"""Log lines about peers: who, and why. A flood of bad connections does not become a flood of lines.

Each host has a few lines per minute; further lines are counted, and their number is logged after the minute.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyromq.clock import Clock

log = logging.getLogger("pyromq.net")

LINES_PER_WINDOW = 10
WINDOW_SECONDS = 60.0
#: Hosts with lines of their own. Further hosts share the lines of `OTHERS`.
MAX_HOSTS = 1000
OTHERS = "other hosts"


@dataclass(slots=True)
class _Window:
    ends: float
    lines: int = 0
    left_out: int = 0


class Complaints:
    """The few lines per host."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    def say(self, host: str, line: str, level: int = logging.WARNING) -> None:
        window = self._window(host)
        if window.lines < LINES_PER_WINDOW:
            window.lines += 1
            log.log(level, "%s", line)
        else:
            window.left_out += 1

    def _window(self, host: str) -> _Window:
        self._forget(host)
        if host not in self._windows and len(self._windows) >= MAX_HOSTS:
            self.settle()
            if len(self._windows) >= MAX_HOSTS:
                host = OTHERS
        return self._windows.setdefault(host, _Window(self._clock.monotonic() + WINDOW_SECONDS))

    def settle(self) -> None:
        """Log the number of suppressed lines of every window that has ended."""
        for host in tuple(self._windows):
            self._forget(host)

    def _forget(self, host: str) -> None:
        window = self._windows.get(host)
        if window is None or self._clock.monotonic() < window.ends:
            return
        del self._windows[host]
        if window.left_out:
            log.warning("%d more lines about %s were left out in the last minute", window.left_out, host)
