"""The paths in a store directory: RocketMQ's names, and our own."""

from __future__ import annotations

from pathlib import Path

from pyromq.config import StoreConfig


class StorePaths:
    """Paths under one root, and those of its log, which may be in a directory of its own."""

    __slots__ = ("commit_log", "log_is_apart", "root")

    def __init__(self, root: Path, commit_log: Path | None = None) -> None:
        config = StoreConfig(root=root, commit_log=commit_log)
        self.root = root
        self.commit_log = config.log_directory
        #: The log is not where one looks for it first.
        self.log_is_apart = config.log_is_apart

    @classmethod
    def of(cls, config: StoreConfig) -> StorePaths:
        return cls(config.root, config.commit_log)

    @property
    def log_pointer(self) -> Path:
        """Ours: a text file that says where the log is, while it is apart."""
        return self.root / "logdirectory"

    @property
    def _beside_segments(self) -> Path:
        """Ours, in the log's directory. A directory: RocketMQ takes every file there for a segment."""
        return self.commit_log / "pyromq"

    @property
    def log_lock(self) -> Path:
        """Ours: also locked by a process that uses a log outside the store directory."""
        return self._beside_segments / "lock"

    @property
    def log_staging(self) -> Path:
        """Ours: segments that are being made, where `staging` is on another file system than the log."""
        return self._beside_segments / "staging"

    def shown(self, path: Path) -> Path:
        """Return the name of a file for people: relative to the root if it is inside."""
        return path.relative_to(self.root) if path.is_relative_to(self.root) else path

    @property
    def queues(self) -> Path:
        return self.root / "consumequeue"

    @property
    def index(self) -> Path:
        return self.root / "index"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def abort(self) -> Path:
        return self.root / "abort"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def recover_point(self) -> Path:
        """Ours."""
        return self.root / "recoverpoint"

    @property
    def trusted_clock(self) -> Path:
        """Ours: the last time that retention believed."""
        return self.root / "trustedclock"

    @property
    def reserve(self) -> Path:
        """Ours: room that a start on a full disk can use."""
        return self.root / "reserve"

    @property
    def staging(self) -> Path:
        """Ours: files that are being made."""
        return self.root / "staging"

    @property
    def cut_off(self) -> Path:
        """Ours: bytes that recovery cut from the end of the log, kept for people to look at."""
        return self.root / "cutoff"

    @property
    def quarantine(self) -> Path:
        """Ours: directories in the place of files that are derived from the log, and the other way round."""
        return self.root / "quarantine"
