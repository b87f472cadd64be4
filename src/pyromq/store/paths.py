"""Where everything is in a store directory: RocketMQ's names, and ours beside them."""

from __future__ import annotations

from pathlib import Path


class StorePaths:
    """Paths under one root."""

    __slots__ = ("root",)

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def commit_log(self) -> Path:
        return self.root / "commitlog"

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
