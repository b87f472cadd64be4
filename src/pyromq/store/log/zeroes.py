"""Finding and making zeroes in mapped files, without touching pages that are zero already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyromq import accelerated

ACCELERATED = accelerated.load("records")

_BLOCK = bytes(64 * 1024)


def zero(buffer: memoryview, start: int, end: int) -> None:
    """Zero all nonzero bytes: pages that were never written stay without a block."""
    for at in range(start, end, len(_BLOCK)):
        stop = min(at + len(_BLOCK), end)
        if bytes(buffer[at:stop]) != _BLOCK[: stop - at]:
            buffer[at:stop] = _BLOCK[: stop - at]


def last_nonzero_readable(buffer: memoryview, start: int, end: int) -> int:
    """Offset behind the last byte in `[start, end)` that is not zero; `start` when all are."""
    while end > start:
        block = max(end - len(_BLOCK), start)
        kept = bytes(buffer[block:end]).rstrip(b"\0")
        if kept:
            return block + len(kept)
        end = block
    return start


if TYPE_CHECKING or ACCELERATED is None:
    last_nonzero = last_nonzero_readable
else:
    last_nonzero = ACCELERATED.last_nonzero
