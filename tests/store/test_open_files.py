"""A process that may open no more files: queues that are there go on, and nothing that only has to wait is an error."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.config import FlushConfig
from pyromq.errors import DiskFull, StoreFenced, TooManyFiles
from pyromq.store import disk as disk_module
from pyromq.store import platform
from pyromq.store.disk import NotTried, OsDisk
from pyromq.store.message_store import RESERVED_FILES, MessageStore
from pyromq.testing import SimDisk
from store.support import config, open_store, order, orders, read_all


@pytest.fixture
def no_directories(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Directories cannot be opened until the list, which notes the attempts, is given up by the test."""
    tried: list[Path] = []
    real = os.open

    def refuse(path: Path, flags: int, *rest: int) -> int:
        if Path(path).is_dir():
            tried.append(Path(path))
            raise OSError(errno.EMFILE, "too many open files", str(path))
        return real(path, flags, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(disk_module.os, "open", refuse)
        yield tried


def test_a_name_that_could_not_be_synced_is_synced_by_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk(tmp_path / "staging")
    file = disk.create_mapped(tmp_path / "queues" / "0" / "first", 4096, reserve=False, durable=False)
    synced: list[Path] = []
    is_refused = True

    def sync(path: Path) -> None:
        if is_refused:
            raise NotTried(errno.EMFILE, "too many open files", str(path))
        synced.append(path)

    monkeypatch.setattr(disk_module, "_sync_directory", sync)
    with pytest.raises(NotTried):
        file.sync()
    is_refused = False
    file.sync()
    assert tmp_path / "queues" / "0" in synced
    file.close()


def test_a_directory_that_cannot_be_opened_is_no_failed_sync(tmp_path: Path, no_directories: list[Path]) -> None:
    with pytest.raises(NotTried):
        disk_module._sync_directory(tmp_path)
    assert no_directories == [tmp_path]


def test_a_recover_point_waits_for_open_files_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pyromq.store.recover_points.RETRY_SECONDS", 0.01)
    attempts, real = [0], disk_module._sync_directory

    def sync(path: Path) -> None:
        is_queue = "consumequeue" in path.parts
        attempts[0] += is_queue
        if is_queue and attempts[0] <= 4:
            raise NotTried(errno.EMFILE, "too many open files", str(path))
        real(path)

    async def tell() -> None:
        flush = FlushConfig(recover_point_interval_ms=10)
        async with asyncio.timeout(20), MessageStore(config(root=tmp_path, flush=flush)).running() as store:
            monkeypatch.setattr(disk_module, "_sync_directory", sync)
            store.append(orders(3))
            store.flush()
            while store.points.current.queues_to < store.marks.appended.value:  # noqa: ASYNC110  nobody tells of it
                await asyncio.sleep(0.01)
            assert len(store.append(orders(1))) == 1

    with caplog.at_level(logging.WARNING):
        asyncio.run(tell())
    assert attempts[0] > 4
    lines = [line.message for line in caplog.records if "recover point could not be written" in line.message]
    assert len(lines) == 1
    assert "ulimit -n" in lines[0]


def test_a_sync_that_fails_still_fences() -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.append(orders(1))
    store.flush()
    disk.fail_next_sync(lambda path: "consumequeue" in path.parts)
    store.dispatch()
    with pytest.raises(StoreFenced, match="the disk did not confirm a write"):
        store.save_recover_point()


def test_new_queues_are_refused_before_the_last_files_are_open() -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.append([order("a")])
    disk.open_files_left = RESERVED_FILES - 1
    with pytest.raises(TooManyFiles, match="the queue orders/1 cannot be made: it needs open files") as refused:
        store.append([order("b"), order("c", queue=1)])
    assert isinstance(refused.value, DiskFull)
    assert len(refused.value.receipts) == 1
    store.append([order("d") for _ in range(120)])  # queues that are there go on, into new files too
    store.dispatch()
    assert len(read_all(store)) == 122
    disk.open_files_left = RESERVED_FILES
    assert store.append([order("c", queue=1)])[0].queue_offset == 0


def test_the_system_tells_how_many_files_are_left() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    before = platform.open_files_left()
    assert 0 < before <= max(limit, 1 << 30)
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
    try:
        assert platform.open_files_left() <= before - 1
    finally:
        for each in opened:
            os.close(each)


def test_none_are_left_when_none_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "open", refuse)
    assert platform.open_files_left() == 0


@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        (OSError(errno.EIO, "input/output error"), "the disk did not confirm a write .*: check the disk, then restart"),
        (OSError(errno.EMFILE, "too many files"), "the system refused what the store needs .*: raise the limit"),
        (AssertionError("queue a/0"), r"wrong in its own work \(AssertionError: queue a/0\).* and restart"),
    ],
)
def test_a_fenced_store_says_what_happened(cause: BaseException, sentence: str) -> None:
    with pytest.raises(StoreFenced, match=sentence):
        raise StoreFenced(cause)
