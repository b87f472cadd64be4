"""Small tables on their way to the disk, beside the loop: soon after a change, or every so often.

A disk that does not take them is tried again; nothing is lost in memory meanwhile, and one line in the log says so.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from pyromq.store.platform import what_to_do

log = logging.getLogger("pyromq.broker")

RETRY_SECONDS = 1.0


class Savable(Protocol):
    def save(self) -> bool:
        """Write what changed, if anything did. May be called from another thread. Raises OSError."""


class Saver:
    """Keeps tables saved."""

    def __init__(self, *tables: Savable, every_ms: int | None = None) -> None:
        self._tables = tables
        #: None: after each change that `changed` tells of.
        self._every_ms = every_ms
        self._changed = asyncio.Event()
        self._is_failing = False

    def changed(self) -> None:
        self._changed.set()

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

    async def save(self) -> bool:
        """Write what changed, now; False when the disk did not take it."""
        try:
            for table in self._tables:
                await asyncio.to_thread(table.save)
        except OSError as error:
            if not self._is_failing:
                log.error("settings or progress cannot be written, and are tried again: %s", what_to_do(error))
            self._is_failing = True
            return False
        if self._is_failing:
            log.info("settings and progress are written again")
        self._is_failing = False
        return True
