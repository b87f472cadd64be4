"""What is known of the newest records from when they were written, so that they need not be read again.

A help for the dispatcher, nothing more: whatever is not here it reads from the log, where everything is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyromq.records.plain import PlainRecord

#: More are kept only where nobody takes them: then they are of no use.
MAX_STRETCHES = 64


class Stretch(NamedTuple):
    """Records that lie one behind the other in one segment: positions `[start, end)`."""

    start: int
    end: int
    records: Sequence[PlainRecord]


class FreshRecords:
    """Stretches by where they begin."""

    def __init__(self) -> None:
        self._stretches: dict[int, Stretch] = {}

    def add(self, stretch: Stretch) -> None:
        if len(self._stretches) >= MAX_STRETCHES:
            self._stretches.clear()
        self._stretches[stretch.start] = stretch

    def find(self, start: int, limit: int) -> Stretch | None:
        """The stretch that begins here and ends before the limit."""
        stretch = self._stretches.get(start)
        return stretch if stretch is not None and stretch.end <= limit else None

    def forget(self, start: int) -> None:
        self._stretches.pop(start, None)

    def __len__(self) -> int:
        return len(self._stretches)
