"""How a job says how far it is. The command line draws it; a program may listen or not."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called on the driver, now and then. `total` is None while nobody knows it."""

    def __call__(self, what: str, done: int, total: int | None) -> None: ...


def silent(what: str, done: int, total: int | None) -> None:
    """Nobody listens."""
