"""Reads regular files that users name on the command line, in the environment or in settings."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class NotAFile(OSError):
    """The path is a FIFO, a device or a socket: reading it could block or never end."""


def read_plain_file(path: Path, limit: int) -> bytes:
    """Return at most `limit + 1` bytes of a regular file. Raises NotAFile, OSError, ValueError.

    It is opened without waiting, because a FIFO has no writer as a rule.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotAFile(f"{path} is not a regular file but a directory, FIFO, device or socket")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limit + 1)
    finally:
        os.close(descriptor)
