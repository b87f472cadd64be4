"""The processes of a Spark application, found from outside by their parents, and killed with `kill -9`.

the driver's Python ── its JVM ─┬─ pyspark.daemon ── Python workers       (with a local master)
                                └─ the runner of each streaming source
a cluster's worker ── an executor's JVM ── pyspark.daemon ── Python workers
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

GONE_SECONDS = 60.0


class Process(NamedTuple):
    pid: int
    parent: int
    words: str

    @property
    def is_executor(self) -> bool:
        return "CoarseGrainedExecutorBackend" in self.words

    @property
    def is_java(self) -> bool:
        return Path(self.words.split(" ", 1)[0]).name == "java"

    @property
    def is_daemon(self) -> bool:
        """Forks Python workers, and is one itself by its name."""
        return "pyspark.daemon" in self.words


def all_processes() -> dict[int, Process]:
    found: dict[int, Process] = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended since the listing
                words = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                state, parent = (directory / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    found[int(directory.name)] = Process(int(directory.name), int(parent), words)
    return found


def descendants(roots: Iterable[int]) -> list[Process]:
    """Children, their children …, in no particular order."""
    everybody = all_processes()
    found: list[Process] = []
    waiting = list(roots)
    while waiting:
        parent = waiting.pop()
        children = [one for one in everybody.values() if one.parent == parent]
        found += children
        waiting += [one.pid for one in children]
    return found


def python_workers(below: Iterable[Process]) -> list[Process]:
    """Those that tasks run in: children of a daemon."""
    daemons = {one.pid for one in below if one.is_daemon}
    return [one for one in below if one.is_daemon and one.parent in daemons]


def kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)


def wait_until_gone(processes: Iterable[Process]) -> list[Process]:
    """Those that are still there after a minute; the others have ended."""
    return [one for one in processes if not _ends(one.pid)]


def _ends(pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], GONE_SECONDS)[0])
    finally:
        os.close(descriptor)
