"""A store that runs on an event loop: what goes on beside it, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from pyromq.config import FlushConfig, StoreConfig
from pyromq.errors import StoreClosed
from pyromq.store.message_store import InlineRunner, MessageStore, decode
from pyromq.store.queue_reader import ReadStatus
from pyromq.testing import SimDisk
from pyromq.testing.sim_disk import SimMappedFile
from store.support import config, open_store, orders

SECONDS = 20  # before a test that hangs gives up


def story(tell: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(tell(), SECONDS))


def killed(count: int) -> tuple[SimDisk, list[str]]:
    """A disk that a killed store left, and the keys of its messages."""
    disk = SimDisk()
    store = open_store(disk)
    keys = [f"key-{number}" for number in range(count)]
    for key in keys:
        store.append(orders(1, KEYS=key))
    store.flush()
    store.dispatch()
    store.save_recover_point()
    return disk.kill(), keys


def store_on(disk: SimDisk) -> MessageStore:
    return MessageStore(config(), disk=disk, runner=InlineRunner())


def test_the_key_index_catches_up_after_a_crash_while_messages_come_in() -> None:
    disk, keys = killed(300)

    async def tell() -> None:
        async with store_on(disk).running() as store:
            behind = store.marks.readable.value - store.marks.indexed.value
            assert behind > 0
            store.append(orders(5, KEYS="new"))
            await store.marks.indexed.wait(int(store.log.end))
            assert all(len(store.query("orders", key)) == 1 for key in keys)
            assert len(store.query("orders", "new")) == 5

    story(tell)


def test_a_damaged_record_keeps_only_its_segment_out_of_the_index(caplog: pytest.LogCaptureFixture) -> None:
    disk, keys = killed(300)
    first = next(path for path in sorted(disk.files()) if path.parent.name == "commitlog")
    damaged = bytearray(disk.files()[first])
    damaged[4:8] = b"junk"  # the magic number of the very first record
    disk.plant(first, bytes(damaged))
    for path in disk.files():
        if path.parent.name == "index":
            disk.remove(path)

    async def tell() -> None:
        async with store_on(disk).running() as store:
            with caplog.at_level(logging.ERROR):
                await store.marks.indexed.wait(int(store.log.end))
            assert "are not indexed" in caplog.text
            assert len(store.query("orders", keys[-1])) == 1

    story(tell)


def test_messages_are_in_their_queue_in_the_next_turn_of_the_loop() -> None:
    async def tell() -> None:
        async with store_on(SimDisk()).running() as store:
            (receipt,) = store.append(orders(1))
            await store.marks.dispatched.wait(receipt.end)
            assert store.read("orders", 0, 0).status is ReadStatus.FOUND

    story(tell)


def test_an_error_in_the_block_still_stops_the_store_cleanly() -> None:
    disk = SimDisk()

    async def tell() -> None:
        with contextlib.suppress(ZeroDivisionError):
            async with store_on(disk).running() as store:
                store.append(orders(3))
                raise ZeroDivisionError
        assert store_on(disk).open().clean

    story(tell)


def test_a_cancelled_owner_stops_the_store_cleanly() -> None:
    disk = SimDisk()
    opened = asyncio.Event()

    async def own() -> None:
        async with store_on(disk).running() as store:
            store.append(orders(3))
            opened.set()
            await asyncio.Event().wait()

    async def tell() -> None:
        owner = asyncio.create_task(own())
        await opened.wait()
        owner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner
        assert store_on(disk).open().clean

    story(tell)


def test_one_loop_after_another(tmp_path: Path) -> None:
    settings = StoreConfig(root=tmp_path, segment_bytes=1 << 20, index_slots=100, index_entries=1000)

    async def send() -> None:
        async with MessageStore(settings).running() as store:
            (receipt,) = store.append(orders(1))
            await store.wait_synced(receipt)

    for _ in range(3):
        asyncio.run(send())
    with MessageStore(settings) as store:
        assert [decode(view).queue_offset for view in store.read("orders", 0, 0).records] == [0, 1, 2]


def test_stopping_never_hangs_however_it_meets_a_sync(tmp_path: Path) -> None:
    """Before Python 3.12 `asyncio.wait_for` could swallow the cancellation that stops the flusher."""

    async def send(round_number: int) -> None:
        flush = FlushConfig(sync=True, interval_ms=1, recover_point_interval_ms=1)
        settings = StoreConfig(
            root=tmp_path / str(round_number), segment_bytes=1 << 20, index_enabled=False, flush=flush
        )
        async with MessageStore(settings).running() as store:
            for _ in range(round_number):
                store.append(orders(1))
                await asyncio.sleep(0)

    for round_number in range(25):
        asyncio.run(asyncio.wait_for(send(round_number), SECONDS))


def test_a_store_is_opened_once() -> None:
    store = open_store()
    store.close()
    with pytest.raises(StoreClosed, match="make a new MessageStore"):
        store.open()


def test_the_transient_pool_commits_by_itself() -> None:
    async def tell() -> None:
        settings = config(transient_pool=True, transient_commit_ms=1)
        async with MessageStore(settings, disk=SimDisk(), runner=InlineRunner()).running() as store:
            (receipt,) = store.append(orders(1))
            await store.marks.dispatched.wait(receipt.end)
            assert store.read("orders", 0, 0).status is ReadStatus.FOUND

    story(tell)


def test_cold_data_is_fetched_by_a_thread_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.append(orders(40))
    store.close()
    disk.cold.update(path for path in disk.files() if path.parent.name == "commitlog")
    fetching: list[threading.Thread] = []
    original = SimMappedFile.read_at

    def read_at(file: SimMappedFile, start: int, size: int) -> bytes:
        fetching.append(threading.current_thread())
        return original(file, start, size)

    monkeypatch.setattr(SimMappedFile, "read_at", read_at)
    monkeypatch.setattr("pyromq.store.message_store.HOT_BYTES", 0)

    async def tell() -> None:
        async with store_on(disk).running() as store:
            result = await store.read_soon("orders", 0, 0)
            assert len(result.records) == 32

    story(tell)
    assert fetching
    assert threading.main_thread() not in fetching
