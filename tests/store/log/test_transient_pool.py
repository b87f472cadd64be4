"""Records gathered in anonymous memory: in the file once committed, and out of memory soon after."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from pyromq.errors import DiskFull
from pyromq.files import platform
from pyromq.files.disk import OsDisk
from pyromq.store.log.segmented_file import Segment, SegmentedFile
from pyromq.store.log.transient_pool import TransientPool
from store.support import open_store, order, read_all

MIB = 1 << 20


def segment_of(tmp_path: Path, size: int, base: int = 0) -> Segment:
    files = SegmentedFile(OsDisk(tmp_path / "staging"), tmp_path / "log", size)
    return files.create(base, reserve=True)


def test_bytes_are_in_the_file_when_they_are_committed_and_not_before(tmp_path: Path) -> None:
    pool, segment = TransientPool(), segment_of(tmp_path, 64 * 1024)
    buffer = pool.attach(segment, 100)
    buffer[100:105] = b"hello"
    assert pool.committed == 100
    assert bytes(segment.buffer[100:105]) == bytes(5)
    assert pool.commit(103) == 103
    assert bytes(segment.buffer[100:105]) == b"hel\0\0"
    assert pool.commit(105) == pool.commit(105) == 105
    assert segment.path.read_bytes()[100:105] == b"hello"


def test_a_commit_goes_on_in_the_next_segment(tmp_path: Path) -> None:
    pool = TransientPool()
    first, second = segment_of(tmp_path, 8192), segment_of(tmp_path, 8192, 8192)
    pool.attach(first, 0)[:8192] = b"a" * 8192
    pool.attach(second, 0)[:10] = b"b" * 10
    assert pool.commit(8192 + 10) == 8192 + 10
    assert first.path.read_bytes() == b"a" * 8192
    assert second.path.read_bytes()[:11] == b"b" * 10 + b"\0"


def test_a_commit_that_ends_with_its_segment_is_followed_by_one_in_the_next(tmp_path: Path) -> None:
    """A copy may end with a segment, and the next one begins only when more comes."""
    pool = TransientPool()
    first, second = segment_of(tmp_path, 8192), segment_of(tmp_path, 8192, 8192)
    pool.attach(first, 0)[:8192] = b"a" * 8192
    assert pool.commit(8192) == 8192
    pool.attach(second, 0)[:10] = b"b" * 10
    assert pool.commit(8192 + 10) == 8192 + 10
    assert (first.path.read_bytes(), second.path.read_bytes()[:10]) == (b"a" * 8192, b"b" * 10)


def test_memory_behind_the_committed_position_is_given_back(tmp_path: Path) -> None:
    """Pages of anonymous memory that were given back read as zeroes."""
    if platform._libc is None:
        pytest.skip("the system cannot give memory back")
    pool, segment = TransientPool(), segment_of(tmp_path, 16 * MIB)
    buffer = pool.attach(segment, 0)
    for at in range(0, 12 * MIB, MIB):
        buffer[at : at + MIB] = b"x" * MIB
        pool.commit(at + MIB)
    assert buffer[0] == 0
    assert segment.buffer[0] == ord("x")
    assert bytes(segment.buffer[: 12 * MIB]) == b"x" * 12 * MIB


def test_no_memory_for_the_next_segment_refuses_and_overwrites_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(transient_pool=True)
    real = TransientPool.attach
    denied = [True]

    def attach(pool: TransientPool, segment: Segment, offset: int) -> memoryview:
        if segment.base and denied:
            denied.pop()
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return real(pool, segment, offset)

    monkeypatch.setattr(TransientPool, "attach", attach)
    bodies = [b"%d" % number for number in range(400)]
    done: list[bytes] = []
    for body in bodies:
        try:
            store.append([order(body)])
        except DiskFull:
            store.append([order(body)])
        done.append(body)
    store.flush()
    store.dispatch()
    assert not denied
    assert read_all(store) == done
    store.close()
