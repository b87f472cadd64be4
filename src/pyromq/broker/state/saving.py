"""Saves small tables to the disk in the background: soon after a change, or at an interval.

If the disk refuses them, the save is repeated; memory keeps every change, and one line in the log reports it.

An answer that depends on a change waits for `saved` first: all that wait share one save.

Progress of groups is acknowledged before it is saved. It is written on a full disk, too, in the room that the store
keeps for that; while even that fails, `check` refuses it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from pyromq.errors import NotNow
from pyromq.files.platform import what_to_do

log = logging.getLogger("pyromq.broker")

RETRY_SECONDS = 1.0


class Savable(Protocol):
    def save(self) -> bool:
        """Write what changed, if anything did. May be called from another thread. Raises OSError."""


def _nothing() -> None:
    pass


def _write(write: Callable[[], bool]) -> bool:
    return write()


class Saver:
    """Keeps tables saved."""

    def __init__(
        self,
        *tables: Savable,
        every_ms: int | None = None,
        write: Callable[[Callable[[], bool]], bool] = _write,
    ) -> None:
        """`write` saves one table, and may have room for it on a full disk."""
        self._tables = tables
        self._write = write
        #: None: after each change that `changed` tells of.
        self._every_ms = every_ms
        #: The number of changes, and the number of changes on the disk.
        self._changes = 0
        self._saved_changes = 0
        self._changed = asyncio.Event()
        self._saving = asyncio.Lock()
        self._trouble: str | None = None
        #: Called before the tables are written; what it returns is called once they are on the disk.
        self.on_save: Callable[[], Callable[[], None]] = lambda: _nothing

    def changed(self) -> None:
        self._changes += 1
        self._changed.set()

    @property
    def is_saved(self) -> bool:
        """Return whether every change is on the disk."""
        return self._saved_changes == self._changes

    async def run(self) -> None:
        while True:
            if self._every_ms is None:
                await self._changed.wait()
                self._changed.clear()
            else:
                await asyncio.sleep(self._every_ms / 1000)
            if not await self.save():
                await asyncio.sleep(RETRY_SECONDS)
                self._changed.set()

    async def saved(self) -> None:
        """Return once every change up to now is on the disk. Raises NotNow when the disk does not take it."""
        changes = self._changes
        async with self._saving:
            if self._saved_changes < changes and not await self._save():
                raise NotNow(f"settings cannot be written now, and are tried again: {self._trouble}")

    def check(self) -> None:
        """Raise NotNow while the disk does not take the tables: a change would be lost by a restart."""
        if self._trouble is not None:
            raise NotNow(f"progress cannot be written now, and is not kept: {self._trouble}; try again later")

    async def save(self) -> bool:
        """Write what changed, now; False when the disk did not take it."""
        async with self._saving:
            return await self._save()

    async def _save(self) -> bool:
        changes, done = self._changes, self.on_save()
        try:
            for table in self._tables:
                await asyncio.to_thread(self._write, table.save)
        except OSError as error:
            self._failed(what_to_do(error))
            return False
        if self._trouble is not None:
            log.info("settings and progress are written again")
        self._trouble = None
        self._saved_changes = changes
        done()
        return True

    def _failed(self, why: str) -> None:
        if self._trouble is None:
            log.error("settings or progress cannot be written, and are tried again: %s", why)
        self._trouble = why
