"""Calls that differ between systems, and what happens where they are missing."""

from __future__ import annotations

import errno
import mmap
import os
import resource
from pathlib import Path

import pytest

from pyromq.files import platform


def sparse(path: Path, size: int) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, size)
    return fd


def unsupported(*_: object) -> None:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


@pytest.mark.parametrize("supported", [True, False])
def test_room_is_taken_and_bytes_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supported: bool) -> None:
    if not supported:
        monkeypatch.setattr(os, "posix_fallocate", unsupported)
    fd = sparse(tmp_path / "file", 0)
    try:
        os.pwrite(fd, b"abc", 0)
        platform.allocate(fd, 0, 3 << 20)
        assert os.fstat(fd).st_size == 3 << 20
        assert os.fstat(fd).st_blocks * 512 >= 3 << 20
        assert os.pread(fd, 5, 0) == b"abc\0\0"
    finally:
        os.close(fd)


def test_room_is_taken_within_a_file_that_has_its_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queue and index files get their length first and their room later."""
    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    fd = sparse(tmp_path / "file", 1 << 20)
    try:
        os.pwrite(fd, b"here", 5000)
        platform.allocate(fd, 5002, 200_000)
        assert os.fstat(fd).st_size == 1 << 20
        assert 194_000 <= os.fstat(fd).st_blocks * 512 < 500_000
        assert os.pread(fd, 6, 4999) == b"\0here\0"
    finally:
        os.close(fd)


def test_a_full_disk_is_not_a_missing_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    fd = sparse(tmp_path / "file", 0)
    try:
        with pytest.raises(OSError, match="No space left"):
            platform.allocate(fd, 0, 4096)
    finally:
        os.close(fd)


@pytest.mark.parametrize("has_libc", [True, False])
def test_hints_may_be_missing(monkeypatch: pytest.MonkeyPatch, has_libc: bool) -> None:
    if not has_libc:
        monkeypatch.setattr(platform, "_libc", None)
    memory = mmap.mmap(-1, 16 * platform.PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = b"x" * len(memory)
    address = platform.address_of(memory)
    platform.warm(address, 100, len(memory))
    assert bytes(memory[:3]) == b"xxx", "warming changes nothing"
    assert platform.is_resident(address, 0, len(memory))
    assert platform.is_resident(address, 5, 5)
    platform.release_pages(address, 100, 3 * platform.PAGE + 50)
    assert memory[platform.PAGE - 1] == memory[3 * platform.PAGE] == ord("x"), "only whole pages go"
    assert memory[platform.PAGE] == (0 if has_libc else ord("x"))
    assert platform.lock_in_memory(address, 0, platform.PAGE) in (True, False)


def test_pages_that_were_never_touched_are_not_there() -> None:
    if platform._libc is None:
        pytest.skip("the system cannot say")
    memory = mmap.mmap(-1, 4 * platform.PAGE)
    assert not platform.is_resident(platform.address_of(memory), 0, len(memory))


def test_the_open_file_limit_is_raised_as_far_as_it_goes() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    platform.raise_open_file_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    assert soft <= hard


def test_bytes_are_synced(tmp_path: Path) -> None:
    fd = sparse(tmp_path / "file", 10)
    platform.sync_data(fd)
    os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        platform.sync_data(fd)
