"""Memory that was freed goes back to the system.

The C library keeps freed memory for the next use, and large blocks too once it has seen some: after many slow readers
were cut off a process would stay as large as they made it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

#: Bytes that were let go before memory is given back: less is not worth the walk through the heap.
TRIM_BYTES = 32 << 20


def _find_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim


_trim = _find_trim()


class Released:
    """Counts bytes that were let go, and gives memory back when they were many."""

    def __init__(self, trim: Callable[[int], int] | None = _trim) -> None:
        self._trim = trim
        self._bytes = 0

    def count(self, size: int) -> None:
        self._bytes += size

    def give_back(self) -> None:
        """Call this now and then."""
        if self._bytes >= TRIM_BYTES:
            self._bytes = 0
            if self._trim is not None:
                self._trim(0)
