"""A run of bytes in files of equal length."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.errors import CorruptStore
from pyromq.store.log.segmented_file import SegmentedFile
from pyromq.testing import SimDisk

RUN = Path("/store/run")
SIZE = 4096


def name(base: int) -> str:
    return f"{base:020d}"


def run_of(*bases: int, disk: SimDisk | None = None, writable: bool = True) -> SegmentedFile:
    disk = disk or SimDisk()
    for base in bases:
        disk.plant(RUN / name(base), bytes([base // SIZE]) * SIZE)
    files = SegmentedFile(disk, RUN, SIZE, writable=writable)
    files.load()
    return files


def test_an_empty_directory_is_an_empty_run() -> None:
    files = run_of()
    assert (files.start, files.end, files.find(0), files.map(0)) == (0, 0, None, False)


def test_files_are_found_by_position() -> None:
    files = run_of(SIZE, 2 * SIZE, 3 * SIZE)
    assert (files.start, files.end) == (SIZE, 4 * SIZE)
    for position, base in [(SIZE, SIZE), (2 * SIZE - 1, SIZE), (2 * SIZE, 2 * SIZE), (4 * SIZE - 1, 3 * SIZE)]:
        segment = files.find(position)
        assert segment is not None
        assert segment.base == base
    assert files.find(SIZE - 1) is None
    assert files.find(4 * SIZE) is None


def test_a_file_is_mapped_when_it_is_first_looked_at() -> None:
    files = run_of(0, SIZE)
    assert [segment.is_mapped for segment in files.segments] == [False, False]
    assert files.map(SIZE + 5) is True
    assert files.map(SIZE + 5) is False
    assert [segment.is_mapped for segment in files.segments] == [False, True]
    assert files.buffers[0] is None
    assert files.buffers[1] == b"\1" * SIZE


def test_a_gap_is_named() -> None:
    with pytest.raises(CorruptStore, match=f"no file holds the bytes from {SIZE} to {2 * SIZE}"):
        run_of(0, 2 * SIZE)


@pytest.mark.parametrize("stray", ["notes.txt", "1", "0000000000000000409x", "٠" * 20])
def test_a_name_that_is_no_position_is_named(stray: str) -> None:
    disk = SimDisk()
    disk.plant(RUN / stray, bytes(SIZE))
    with pytest.raises(CorruptStore, match="not a position of 20 digits"):
        run_of(disk=disk)


@pytest.mark.parametrize(("base", "size"), [(0, SIZE - 1), (0, 2 * SIZE), (17, SIZE)])
def test_another_length_than_configured_is_named(base: int, size: int) -> None:
    disk = SimDisk()
    disk.plant(RUN / name(base), bytes(size))
    with pytest.raises(CorruptStore, match="the configuration says 4096"):
        run_of(disk=disk)


def test_a_last_file_without_length_was_never_written() -> None:
    disk = SimDisk()
    disk.plant(RUN / name(SIZE), b"")
    files = run_of(0, disk=disk)
    assert [segment.base for segment in files.segments] == [0]
    assert disk.names(RUN) == [name(0)]


def test_a_reader_leaves_even_an_empty_file_alone() -> None:
    disk = SimDisk()
    disk.plant(RUN / name(SIZE), b"")
    with pytest.raises(CorruptStore):
        run_of(0, disk=disk, writable=False)
    assert disk.names(RUN) == [name(0), name(SIZE)]


def test_a_new_file_joins_the_run_only_when_it_is_added() -> None:
    files = run_of(0)
    segment = files.create(SIZE, reserve=True)
    assert files.end == SIZE
    files.add(segment)
    assert files.end == 2 * SIZE
    assert files.find(SIZE) is segment
    with pytest.raises(AssertionError):
        files.add(files.create(5 * SIZE, reserve=True))


def test_removed_files_are_gone_and_their_readers_are_not() -> None:
    files = run_of(0, SIZE, 2 * SIZE)
    view = files.segments[0].buffer[:10]
    files.remove_first()
    assert files.disk.names(RUN) == [name(SIZE), name(2 * SIZE)]
    assert view == bytes(10)
    assert files.remove_from(2 * SIZE) == 1
    assert files.remove_from(SIZE + 1) == 0
    assert (files.start, files.end, len(files.buffers)) == (SIZE, 2 * SIZE, 1)


def test_forgetting_leaves_the_file_to_the_caller() -> None:
    files = run_of(0, SIZE)
    assert files.forget_first().base == 0
    assert files.start == SIZE
    assert files.disk.exists(RUN / name(0))
