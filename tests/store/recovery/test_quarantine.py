"""A log that is put aside is whole there, however often that had to be tried."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from pyromq.clock import ManualClock
from pyromq.config import StoreConfig
from pyromq.files.disk import OsDisk
from pyromq.model.message import Draft
from pyromq.store.message_store import MessageStore
from pyromq.store.paths import StorePaths
from pyromq.store.recovery.quarantine import NOTE, put_log_aside


@pytest.mark.parametrize("name", [NOTE, "recoverpoint"])
def test_attempts_on_a_full_disk_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    config = StoreConfig(root=tmp_path, segment_bytes=1 << 16, max_body_bytes=1 << 14)
    with MessageStore(config) as store:
        store.append([Draft(b"orders", 0, b"a message")])
        end = store.log.end
    paths, write, is_full = StorePaths.of(config), OsDisk.replace_bytes, True

    def replace_bytes(disk: OsDisk, path: Path, data: bytes) -> Any:
        if is_full and path.name == name and path.is_relative_to(tmp_path / "aside"):
            path.parent.mkdir(parents=True, exist_ok=True)
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(disk, path, data)

    monkeypatch.setattr(OsDisk, "replace_bytes", replace_bytes)
    disk = OsDisk(paths.staging, {paths.commit_log: paths.log_staging})
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            put_log_aside(disk, paths, ManualClock(), end=end, why="a test")
        assert not list((tmp_path / "aside").iterdir())
    is_full = False
    place = put_log_aside(disk, paths, ManualClock(), end=end, why="a test")
    assert place == tmp_path / "aside" / f"{end:020d}-1"
    assert {"commitlog", "recoverpoint", NOTE} <= {path.name for path in place.iterdir()}
