"""Rate-limited log: a limited number of lines of each kind per ten seconds.

Suppressed lines are counted, and the next line of that kind has the number. Fatal errors are never suppressed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyromq.clock import Clock, SystemClock

LINES_PER_WINDOW = 200
WINDOW_SECONDS = 10.0
#: Kinds are our own sentences, of which there are a few hundred; a library might make up more.
MAX_KINDS = 2000


@dataclass(slots=True)
class _Window:
    ends: float
    lines: int = 0
    left_out: int = 0


class NoFloods(logging.Filter):
    """Goes to a handler. A kind is a sentence before its values are put in."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock or SystemClock()
        self._windows: dict[tuple[str, str], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.CRITICAL:
            return True
        window, left_out = self._window((record.name, str(record.msg)))
        if window.lines >= LINES_PER_WINDOW:
            window.left_out += 1
            return False
        window.lines += 1
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} lines like this were left out before)", ()
        return True

    def _window(self, kind: tuple[str, str]) -> tuple[_Window, int]:
        """The window that counts now, and how many were left out in the one before."""
        now = self._clock.monotonic()
        window = self._windows.get(kind)
        if window is not None and now < window.ends:
            return window, 0
        left_out = 0 if window is None else window.left_out
        if len(self._windows) >= MAX_KINDS:
            self._windows.clear()
        window = self._windows[kind] = _Window(now + WINDOW_SECONDS)
        return window, left_out
