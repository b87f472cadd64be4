"""Progress of a job. The command line draws it; a program may pass its own function."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called on the driver at intervals. `total` is None while it is unknown."""

    def __call__(self, what: str, done: int, total: int | None) -> None: ...


def silent(what: str, done: int, total: int | None) -> None:
    """Ignore the progress."""
