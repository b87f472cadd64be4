"""Notices a store directory that was removed, renamed or replaced under its broker.

Mapped files stay writable after their names are gone, and every sync of them succeeds: without this check a broker goes
on acknowledging messages that no start will find. A removed lock file is the same case, because another process may
hold a new one.

One check is a handful of `stat` calls (about 10 µs), made each second by the store's task and once more at its close.
"""

from __future__ import annotations

from pathlib import Path

from pyromq.errors import StoreGone
from pyromq.files.disk import Disk, Identity
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.paths import StorePaths

#: A running store checks its directory every this many seconds.
CHECK_SECONDS = 1.0


class Presence:
    """The identities (device and inode) of the directories and locks that a store opened."""

    def __init__(self, disk: Disk, paths: StorePaths, commit_log: CommitLog) -> None:
        self._disk = disk
        self._paths = paths
        self._log = commit_log
        self._opened: dict[Path, Identity] = {}

    def note(self) -> None:
        """Remember the files that have the store's names now, except those known already. The locks are held."""
        paths = self._paths
        for path in (paths.root, paths.lock, paths.commit_log, paths.log_lock):
            identity = self._disk.identity(path)
            if identity is not None:
                self._opened.setdefault(path, identity)

    def check(self) -> None:
        """Raise StoreGone if a name stands for another file than the one that was opened, or for none."""
        for path, opened in self._opened.items():
            self._compare(path, opened)
        segments = self._log.files.segments
        if segments and segments[-1].is_mapped:
            self._compare(segments[-1].path, segments[-1].file.identity)

    def _compare(self, path: Path, opened: Identity) -> None:
        try:
            found = self._disk.identity(path)
        except OSError:
            return  # it cannot be looked at now (permissions, a stalled mount): that is no proof of a loss
        if found != opened:
            raise StoreGone(path, "removed or renamed" if found is None else "replaced by another one")
