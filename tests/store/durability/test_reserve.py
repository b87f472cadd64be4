"""Room that is kept for small files: there when the disk is full, and kept again afterwards."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from pyromq.store.durability.reserve import LEAST_BYTES, Reserve
from pyromq.testing import SimDisk

PATH, SIZE = Path("/store/durability/reserve"), 1 << 20


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_dir(PATH.parent)
    return disk


def fill(disk: SimDisk) -> None:
    disk.capacity_bytes = disk.usage(PATH.parent).used


def write(disk: SimDisk, reserve: Reserve, size: int) -> None:
    reserve.write(lambda: disk.replace_bytes(PATH.with_name("table"), bytes(size)))


def test_small_files_are_written_again_and_again_on_a_full_disk(disk: SimDisk) -> None:
    reserve = Reserve(disk, PATH, SIZE)
    reserve.take()
    fill(disk)
    with pytest.raises(OSError, match="No space"):
        disk.replace_bytes(PATH.with_name("other"), bytes(10))
    for size in range(1000, 100_000, 5000):
        write(disk, reserve, size)
        assert len(disk.read_bytes(PATH.with_name("table"))) == size
        assert disk.exists(PATH), "the rest is kept for the next one"
    assert disk.usage(PATH.parent).used <= disk.capacity_bytes


def test_a_file_that_is_too_large_is_refused_and_the_room_stays_kept(disk: SimDisk) -> None:
    reserve = Reserve(disk, PATH, SIZE)
    reserve.take()
    fill(disk)
    with pytest.raises(OSError, match="No space"):
        write(disk, reserve, 2 * SIZE)
    assert disk.exists(PATH)
    write(disk, reserve, 1000)


def test_less_room_is_taken_where_there_is_less(disk: SimDisk) -> None:
    disk.capacity_bytes = disk.usage(PATH.parent).used + SIZE // 2
    Reserve(disk, PATH, SIZE).take()
    assert disk.exists(PATH)


def test_a_disk_without_any_room_is_said_once(disk: SimDisk, caplog: pytest.LogCaptureFixture) -> None:
    disk.capacity_bytes = disk.usage(PATH.parent).used + LEAST_BYTES - 4096
    Reserve(disk, PATH, SIZE).take()
    assert not disk.exists(PATH)
    assert len(caplog.messages) == 1


def test_other_errors_are_not_retried(disk: SimDisk) -> None:
    reserve = Reserve(disk, PATH, SIZE)
    reserve.take()
    tries = 0

    def fail() -> None:
        nonlocal tries
        tries += 1
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        reserve.write(fail)
    assert tries == 1
