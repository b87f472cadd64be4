"""A broker that has to change continues without help, even if it cannot change at once."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.support.leading_scene import Scene, told, until
from pyromq.broker import supervisor
from pyromq.files.disk import OsDisk


class FullDisk:
    """No room for files whose path has a word in it, until there is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_meant: Callable[[Path], bool]) -> None:
        self.is_full = True
        self.refused: list[Path] = []
        write = OsDisk.replace_bytes

        def replace_bytes(disk: OsDisk, path: Path, data: bytes) -> Any:
            if self.is_full and is_meant(path):
                self.refused.append(path)
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            return write(disk, path, data)

        monkeypatch.setattr(OsDisk, "replace_bytes", replace_bytes)
        monkeypatch.setattr(supervisor, "ROOM_SECONDS", 0.02)


async def part_logs(scene: Scene) -> None:
    """`b` is away, and has what its master loses."""
    both_have = (f"same-{number:03d}" for number in range(20))
    await scene.part_logs(both_have, (f"next-{number:03d}" for number in range(5)))


@pytest.mark.parametrize("suffix", [".json", ".bin"], ids=["the note of a cut", "the bytes that are cut"])
def test_a_slave_whose_disk_is_full_when_its_log_is_to_be_cut_waits_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, suffix: str
) -> None:
    async def story(scene: Scene) -> None:
        await part_logs(scene)
        disk = FullDisk(monkeypatch, lambda path: path.parent == tmp_path / "b" / "cutoff" and path.suffix == suffix)
        await scene.start("b")
        await until(lambda: len(disk.refused) >= 3)
        disk.is_full = False
        await scene.follows("b", "a")
        assert scene.bodies("b") == scene.bodies("a")

    with caplog.at_level(logging.ERROR):
        told(tmp_path, story, "ASYNC_MASTER")
    assert len([line for line in caplog.messages if "as soon as there is room" in line]) == 1


def test_one_that_waits_for_room_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        await part_logs(scene)
        disk = FullDisk(monkeypatch, lambda path: path.parent == tmp_path / "b" / "cutoff")
        await scene.start("b")
        await until(lambda: disk.refused)
        async with asyncio.timeout(10):
            await scene.stop("b")

    told(tmp_path, story, "ASYNC_MASTER")
