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
from pyromq.files import disk as disk_module
from pyromq.files import platform
from pyromq.files.disk import MappedFile, NotTried, OsDisk
from pyromq.store.message_store import MessageStore
from pyromq.store.queues.new_queue import RESERVED_FILES
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
    monkeypatch.setattr("pyromq.store.durability.recover_points.RETRY_SECONDS", 0.01)
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
            while store.points.current.queues_to < store.marks.appended.value:  # noqa: ASYNC110  it has no event
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


# --- queues keep no file open ----------------------------------------------------------------------------------------


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not list open files")
def test_queues_keep_no_file_open(tmp_path: Path) -> None:
    settings = config(root=tmp_path)
    with MessageStore(settings) as store:
        store.append([order("first")])
        store.dispatch()
        before = open_descriptors()
        store.append([order(f"q{queue}", queue=queue) for queue in range(1, 200)])
        store.dispatch()
        store.flush()
        store.save_recover_point()
        assert open_descriptors() <= before + 3
        assert [len(store.read("orders", queue, 0).records) for queue in (0, 7, 199)] == [1, 1, 1]
    with MessageStore(settings) as store:
        before = open_descriptors()
        assert [len(store.read("orders", queue, 0).records) for queue in range(200)] == [1] * 200
        assert open_descriptors() <= before + 3


@pytest.fixture
def released(tmp_path: Path) -> Iterator[MappedFile]:
    disk = OsDisk(tmp_path / "staging")
    file = disk.create_mapped(tmp_path / "queue/00", 8192, reserve=False, durable=False)
    file.let_descriptor_go()
    file.keep_pages_small()
    yield file
    file.close()


def test_a_file_without_descriptor_is_written_synced_and_read(released: MappedFile) -> None:
    released.buffer[:5] = b"hello"
    released.reserve(0, 4096)
    released.write_at(4096, memoryview(b"there"))
    released.sync()
    assert released.path.read_bytes()[:5] == b"hello"
    assert released.read_at(4096, 5) == b"there"
    assert released.data_end(0) == 8192
    assert released.sync_descriptor() == -1


def test_a_view_outlives_its_file(released: MappedFile) -> None:
    view = released.buffer[:5]
    view[:] = b"hello"
    released.path.unlink()
    released.sync()  # nothing of it is left to sync
    released.close()
    assert bytes(view) == b"hello"


def test_a_file_that_was_replaced_is_left_alone(released: MappedFile) -> None:
    released.path.rename(released.path.with_name("old"))
    released.path.write_bytes(bytes(8192))
    released.sync()
    with pytest.raises(FileNotFoundError):
        released.reserve(0, 4096)


def test_a_sync_without_a_free_descriptor_is_tried_again(released: MappedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        with pytest.raises(NotTried):
            released.sync()
    released.sync()


def test_a_file_opened_for_reading_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 4096)
    file = OsDisk(tmp_path / "staging").open_mapped(tmp_path / "file", writable=False)
    file.let_descriptor_go()
    assert file.buffer.readonly
    assert bytes(file.buffer[:3]) == b"xxx"
