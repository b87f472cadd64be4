"""Small file systems in memory, for tests of full disks; a test is skipped where none can be mounted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def tmpfs(directory: Path, *, mib: int) -> Iterator[Path]:
    """Mount a tmpfs of this size for the rest of a test: `yield from` it in a fixture."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(directory)]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if tried.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {tried.stderr.strip()}")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=False)
