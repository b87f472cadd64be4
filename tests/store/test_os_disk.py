"""The real disk keeps the promises that the port makes."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import pytest

from pyromq.files import platform
from pyromq.files.disk import Locked, OsDisk, Usage


@pytest.fixture
def disk(tmp_path: Path) -> OsDisk:
    return OsDisk(tmp_path / "staging")


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir()) if Path("/proc/self/fd").exists() else 0


def test_a_new_file_has_zeroes_a_length_and_its_room(disk: OsDisk, tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    file = disk.create_mapped(path, 100_000, reserve=True)
    assert (disk.size(path), file.size, disk.read_bytes(path)) == (100_000, 100_000, bytes(100_000))
    assert path.stat().st_blocks * 512 >= 100_000
    assert disk.names(tmp_path / "staging") == []
    file.close()


def test_room_can_be_taken_later(disk: OsDisk, tmp_path: Path) -> None:
    file = disk.create_mapped(tmp_path / "file", 1 << 20, reserve=False)
    assert (tmp_path / "file").stat().st_blocks == 0
    file.reserve(0, 1 << 30)
    assert (tmp_path / "file").stat().st_blocks * 512 >= 1 << 20
    assert disk.size(tmp_path / "file") == 1 << 20
    file.close()


def test_written_through_either_door_read_through_both(disk: OsDisk, tmp_path: Path) -> None:
    file = disk.create_mapped(tmp_path / "file", 8192, reserve=True)
    file.buffer[:5] = b"hello"
    file.write_at(4096, memoryview(b"world"))
    file.warm(0, 8192)
    file.sync()
    assert (file.read_at(0, 5), bytes(file.buffer[4096:4101])) == (b"hello", b"world")
    assert file.is_resident(0, 8192)
    with pytest.raises(OSError, match="ends before position 8192"):
        file.read_at(8000, 1000)
    file.close()
    file.close()
    again = disk.open_mapped(tmp_path / "file", writable=False)
    assert bytes(again.buffer[:5]) == b"hello"
    with pytest.raises(TypeError):
        again.buffer[0] = 1
    again.close()


def test_a_view_outlives_the_file(disk: OsDisk, tmp_path: Path) -> None:
    file = disk.create_mapped(tmp_path / "file", 4096, reserve=True)
    file.buffer[:3] = b"abc"
    view = file.buffer[:3]
    disk.remove(tmp_path / "file")
    file.close()
    del file
    gc.collect()
    assert bytes(view) == b"abc"


def test_a_file_that_could_not_be_made_leaves_nothing(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, start: int, end: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(platform, "allocate", full)
    before = open_files()
    with pytest.raises(OSError, match="No space left"):
        disk.create_mapped(tmp_path / "file", 4096, reserve=True)
    assert not disk.exists(tmp_path / "file")
    assert disk.names(tmp_path / "staging") == []
    assert open_files() == before


def test_a_file_that_cannot_be_mapped_is_closed_once(
    disk: OsDisk, tmp_path: Path, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing it a second time would close whatever was opened in between."""
    (tmp_path / "empty").touch()
    closed: list[int] = []
    real_close = os.close
    monkeypatch.setattr(os, "close", lambda fd: (closed.append(fd), real_close(fd))[1])
    with pytest.raises(ValueError, match="empty"):
        disk.open_mapped(tmp_path / "empty")
    gc.collect()
    assert len(closed) == 1


def test_replacing_is_all_or_nothing(disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "table.json"
    disk.replace_bytes(path, b"one")
    disk.replace_bytes(path, b"two")
    assert disk.read_bytes(path) == b"two"

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output"):
        disk.replace_bytes(path, b"three")
    assert disk.read_bytes(path) == b"two"
    assert disk.names(path.parent) == ["table.json"]


def test_names_are_sorted_and_what_is_missing_is_empty(disk: OsDisk, tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        disk.replace_bytes(tmp_path / "dir" / name, b"")
    assert disk.names(tmp_path / "dir") == ["a", "b", "c"]
    assert disk.names(tmp_path / "nowhere") == []
    assert disk.names(tmp_path / "dir" / "a") == []
    disk.remove(tmp_path / "dir" / "b")
    disk.remove(tmp_path / "dir" / "b")
    disk.remove_tree(tmp_path / "dir")
    disk.remove_tree(tmp_path / "dir")
    assert not disk.exists(tmp_path / "dir")


def test_times_and_usage(disk: OsDisk, tmp_path: Path) -> None:
    disk.replace_bytes(tmp_path / "file", b"x")
    os.utime(tmp_path / "file", (5, 5))
    assert disk.modified_ms(tmp_path / "file") == 5000
    usage = disk.usage(tmp_path)
    assert 0 < usage.used <= usage.total
    assert 0 < usage.share <= 1
    assert Usage(0, 0).share == 1.0


def test_a_lock_is_held_once(disk: OsDisk, tmp_path: Path) -> None:
    path = tmp_path / "root" / "lock"
    assert disk.lock_holder(path) is None
    lock = disk.lock(path)
    assert path.read_bytes() == b"lock"
    (tmp_path / "alias").symlink_to(tmp_path / "root")
    for name in (path, tmp_path / "alias" / "lock", tmp_path / "root" / ".." / "root" / "lock"):
        with pytest.raises(Locked) as refused:
            disk.lock(name)
        assert refused.value.pid == os.getpid() == disk.lock_holder(name)
    lock.release()
    lock.release()
    assert disk.lock_holder(path) is None
    disk.lock(path).release()


def test_a_moved_directory_makes_way_at_once_for_one_of_its_name(disk: OsDisk, tmp_path: Path) -> None:
    old = disk.create_mapped(tmp_path / "topic" / "0" / "file", 4096, reserve=False, durable=False)
    old.buffer[0] = 1
    disk.move_tree(tmp_path / "topic", tmp_path / "aside" / "1")
    disk.sync_name(tmp_path / "topic")  # that it is gone
    new = disk.create_mapped(tmp_path / "topic" / "0" / "file", 4096, reserve=False, durable=False)
    disk.remove_tree(tmp_path / "aside" / "1")
    new.sync()
    assert disk.read_bytes(tmp_path / "topic" / "0" / "file") == bytes(4096)
    assert old.buffer[0] == 1  # for readers that still have it
    with pytest.raises(FileNotFoundError):
        disk.move_tree(tmp_path / "nowhere", tmp_path / "aside" / "2")
    assert disk.files_left() > 0
    old.close()
    new.close()
