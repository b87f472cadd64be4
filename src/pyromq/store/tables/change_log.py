"""Which keys of a table changed since a token was given out, for readers that copy a large table often.

A token is good for one table in one process: `<random>:<number of changes>`. No input or output.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

#: Remembered keys; above it the memory is emptied, and the holder of an old token gets the whole table.
MOST_KEYS = 200_000


class ChangeLog(Generic[Key]):
    """Remembers the last change of each key, oldest first."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._life = os.urandom(8).hex()
        self._number = 0
        self._changed_at: dict[Key, int] = {}

    @property
    def token(self) -> str:
        """Stands for the table as it is now."""
        return f"{self._life}:{self._number}"

    def note(self, key: Key) -> None:
        """The value of a key changed, or was removed."""
        self._number += 1
        self._changed_at.pop(key, None)
        self._changed_at[key] = self._number
        if len(self._changed_at) > MOST_KEYS:
            self._begin()

    def since(self, token: str | None) -> list[Key] | None:
        """Return the keys that changed after a token was given out; `None` if that is unknown."""
        life, _, number = (token or "").partition(":")
        if life != self._life or not (number.isascii() and number.isdigit()):
            return None
        found: list[Key] = []
        for key, at in reversed(self._changed_at.items()):
            if at <= int(number):
                break
            found.append(key)
        return found
