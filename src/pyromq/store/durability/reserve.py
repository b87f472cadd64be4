"""Room on the disk that is kept for small files which must be written although the disk is full.

A start needs some (an abort mark, queue files, clamped tables), and so does the progress of groups: messages are
refused on a full disk, but consumers go on, and what they have consumed must not come again after the next restart.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pyromq.files.disk import Disk

log = logging.getLogger("pyromq.store")

#: An abort mark, some queue files, the tables of a broker.
RESERVE_BYTES = 16 << 20
#: A smaller rest is not worth keeping.
LEAST_BYTES = 64 << 10
FULL = (errno.ENOSPC, errno.EDQUOT)

Result = TypeVar("Result")


class Reserve:
    """A file whose blocks are taken, to be given up for a write that finds no room. Any thread may use it."""

    def __init__(self, disk: Disk, path: Path, size: int) -> None:
        self._disk = disk
        self._path = path
        self._size = size
        self._lock = threading.Lock()

    def take(self) -> None:
        """Take the room, or as much of it as there is."""
        size = self._size
        while True:
            try:
                self._disk.create_mapped(self._path, size, reserve=True, durable=False).close()
                return
            except OSError as error:
                size //= 2
                if error.errno not in FULL or size < LEAST_BYTES:
                    log.warning("no room could be set aside for small files on a full disk: %s", error)
                    return

    def give_up(self) -> None:
        """Raises OSError."""
        self._disk.remove(self._path)

    def write(self, write: Callable[[], Result]) -> Result:
        """Write a small file; if the disk is full, in the reserved room. The rest is taken again. Raises OSError."""
        try:
            return write()
        except OSError as error:
            if error.errno not in FULL:
                raise
        with self._lock:
            self.give_up()
            try:
                return write()
            finally:
                self.take()
