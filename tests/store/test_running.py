"""A store that runs on an event loop: its background work, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from pyromq.config import FlushConfig, StoreConfig
from pyromq.errors import StoreClosed, StoreFenced
from pyromq.store.message_store import InlineRunner, MessageStore, decode
from pyromq.store.queues.queue_reader import ReadStatus
from pyromq.testing import SimDisk
from pyromq.testing.sim.disk import SimMappedFile
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
            behind = store.marks.written.value - store.marks.indexed.value
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
    monkeypatch.setattr("pyromq.store.reader.HOT_BYTES", 0)

    async def tell() -> None:
        async with store_on(disk).running() as store:
            result = await store.read_soon("orders", 0, 0)
            assert len(result.records) == 32

    story(tell)
    assert fetching
    assert threading.main_thread() not in fetching


class HeldSync:
    """Hold the next sync of the log until it is released, and then let it fail if it should."""

    def __init__(self, disk: SimDisk, error: OSError | None = None) -> None:
        self.began = threading.Event()
        self.go_on = threading.Event()
        self._error = error
        self._disk = disk
        disk.on_operation = self._step

    def _step(self, step: str, path: Path) -> None:
        if step == "sync" and path.parent.name == "commitlog" and not self.began.is_set():
            if self._error is not None:
                self._disk.fail_next_sync(lambda failing: failing == path, self._error)
            self.began.set()
            assert self.go_on.wait(SECONDS)


def syncing_store(disk: SimDisk) -> MessageStore:
    return MessageStore(config(flush=FlushConfig(sync=True)), disk=disk, runner=InlineRunner())


def test_a_sync_that_fails_while_the_store_stops_is_not_forgotten() -> None:
    """The second attempt of a stop would report a success that is none."""
    disk = SimDisk()
    held = HeldSync(disk, OSError(errno.EIO, "Input/output error"))

    async def tell() -> None:
        waiting: asyncio.Task[None] | None = None
        with pytest.raises(StoreFenced):  # noqa: PT012
            async with syncing_store(disk).running() as store:
                (receipt,) = store.append(orders(1))
                waiting = asyncio.create_task(store.wait_synced(receipt))
                await asyncio.to_thread(held.began.wait, SECONDS)
                asyncio.get_running_loop().call_later(0.01, held.go_on.set)
        assert waiting is not None
        with pytest.raises(StoreFenced):
            await waiting
        assert disk.exists(config().root / "abort")

    story(tell)


def test_a_flush_while_another_is_under_way_disturbs_nobody() -> None:
    disk = SimDisk()
    held = HeldSync(disk)

    async def tell() -> None:
        async with syncing_store(disk).running() as store:
            store.append(orders(1))
            await asyncio.to_thread(held.began.wait, SECONDS)
            store.append(orders(1))
            threading.Timer(0.02, held.go_on.set).start()
            store.flush()  # waits for the sync that is under way
            (receipt,) = store.append(orders(1))
            await store.wait_synced(receipt)

    story(tell)


def test_a_part_that_stops_working_fences_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("a mistake of ours")

    async def tell() -> None:
        store = store_on(SimDisk())
        monkeypatch.setattr(store.flusher, "run", broken)
        with pytest.raises(StoreFenced, match="a mistake of ours"):  # noqa: PT012
            async with store.running():
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                store.append(orders(1))

    story(tell)


def test_a_start_that_is_cancelled_gives_the_directory_back() -> None:
    disk = SimDisk()
    began, go_on = threading.Event(), threading.Event()

    def hold(step: str, path: Path) -> None:
        if step == "create" and not began.is_set():
            began.set()
            assert go_on.wait(SECONDS)

    disk.on_operation = hold

    async def tell() -> None:
        async def own() -> None:
            async with store_on(disk).running():
                raise AssertionError("never reached")

        owner = asyncio.create_task(own())
        await asyncio.to_thread(began.wait, SECONDS)
        owner.cancel()
        asyncio.get_running_loop().call_later(0.01, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await owner
        store_on(disk).open()

    story(tell)


def test_whoever_still_waits_when_the_store_stops_is_told() -> None:
    async def tell() -> None:
        async with store_on(SimDisk()).running() as store:
            (receipt,) = store.append(orders(1))
            polling = asyncio.create_task(store.marks.dispatched.wait(receipt.end + 1))
            await asyncio.sleep(0)
        with pytest.raises(StoreClosed):
            await polling

    story(tell)


def test_waiting_where_nothing_runs_beside_syncs_by_itself() -> None:
    store = open_store()
    (receipt,) = store.append(orders(1))
    asyncio.run(asyncio.wait_for(store.wait_synced(receipt), SECONDS))
    assert store.marks.synced.value >= receipt.end
    store.close()


def test_every_refusal_of_a_fenced_store_is_an_error_of_its_own() -> None:
    store = open_store()
    store.fence(OSError("EIO"))
    refusals = []
    for _ in range(3):
        with pytest.raises(StoreFenced) as refusal:
            store.append(orders(1))
        refusals.append(refusal.value)
    assert len(set(map(id, refusals))) == 3
    store.close()


def test_a_sync_that_succeeds_after_another_failed_counts_for_nothing() -> None:
    disk = SimDisk()
    held = HeldSync(disk)

    async def tell() -> None:
        with pytest.raises(StoreFenced):  # noqa: PT012
            async with syncing_store(disk).running() as store:
                (receipt,) = store.append(orders(1))
                await asyncio.to_thread(held.began.wait, SECONDS)
                store.fence(OSError(errno.EIO, "Input/output error"))
                held.go_on.set()
                for _ in range(50):
                    await asyncio.sleep(0.001)
                assert store.marks.synced.value < receipt.end
                with pytest.raises(StoreFenced):
                    await store.wait_synced(receipt)

    story(tell)


def test_a_fenced_store_moves_its_recover_point_no_more() -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.append(orders(1))
    store.dispatch()
    store.flush()
    disk.fail_next_sync(lambda path: "consumequeue" in path.parts)
    before = store.points.current
    for _ in range(2):
        with pytest.raises(StoreFenced):
            store.save_recover_point()
    assert store.points.current == before
    store.close()


def test_stopping_while_a_recover_point_fails_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    began, go_on = threading.Event(), threading.Event()

    async def tell() -> None:
        settings = config(flush=FlushConfig(interval_ms=1, recover_point_interval_ms=1))
        store = MessageStore(settings, disk=disk, runner=InlineRunner())
        async with store.running():

            def no_room(point: object) -> None:
                began.set()
                go_on.wait(SECONDS)
                raise OSError(errno.ENOSPC, "No space left on device")

            monkeypatch.setattr(store.opening.point_file, "save", no_room)
            store.append(orders(1))
            await asyncio.to_thread(began.wait, SECONDS)
            asyncio.get_running_loop().call_later(0.01, go_on.set)

    story(tell)


def test_old_damage_behind_a_slice_of_the_index_does_not_fence_the_store() -> None:
    disk, keys = killed(300)
    second = [path for path in sorted(disk.files()) if path.parent.name == "commitlog"][1]
    damaged = bytearray(disk.files()[second])
    at = int.from_bytes(damaged[:4], "big")  # behind the first record of the second segment
    damaged[at + 4 : at + 8] = b"junk"
    disk.plant(second, bytes(damaged))
    for path in disk.files():
        if path.parent.name == "index":
            disk.remove(path)

    async def tell() -> None:
        async with store_on(disk).running() as store:
            await store.marks.indexed.wait(int(store.log.end))
            assert len(store.query("orders", keys[0])) == 1
            assert len(store.query("orders", keys[-1])) == 1

    story(tell)


class GatedSyncs:
    """A disk whose syncs of the log wait until they are let go."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self._may_go = threading.Event()
        self._may_go.set()
        self.disk.on_operation = self._operation

    def _operation(self, operation: str, path: Path) -> None:
        if operation == "sync" and path.parent.name == "commitlog" and threading.current_thread().name == "pyromq-sync":
            self._may_go.wait(SECONDS)

    def hold(self) -> None:
        self._may_go.clear()

    def let_go(self) -> None:
        self._may_go.set()


@pytest.mark.parametrize("how", ["append", "a topic is removed"])
def test_under_sync_flush_readers_see_a_message_when_its_sync_ends(how: str) -> None:
    gate = GatedSyncs()

    async def tell() -> None:
        settings = config(flush=FlushConfig(sync=True))
        async with MessageStore(settings, disk=gate.disk, runner=InlineRunner()).running() as store:
            store.append(orders(1))
            await store.marks.dispatched.wait(store.log.end)
            told: list[list[tuple[str, int]]] = []
            store.arrivals.listen(told.append)
            store.arrivals.watch("orders", 0)
            gate.hold()
            (receipt,) = store.append(orders(1))
            for _ in range(5):
                await asyncio.sleep(0)
                store.catch_up()
            assert store.max_offset("orders", 0) == receipt.queue_offset
            assert store.read("orders", 0, receipt.queue_offset).status is ReadStatus.AT_END
            assert store.given_out("orders", 0) == receipt.queue_offset + 1
            assert told == []
            gate.let_go()
            if how == "append":
                await store.marks.dispatched.wait(receipt.end)
                assert told == [[("orders", 0)]], "a long poll is answered"
                assert store.max_offset("orders", 0) == receipt.queue_offset + 1
            else:
                assert await store.remove_topic("orders")
                assert store.marks.synced.value >= receipt.end
                assert store.max_offset("orders", 0) == 0
                store.append(orders(1))
                await store.marks.dispatched.wait(store.log.end)
                assert store.max_offset("orders", 0) == 1, "no message of the removed topic comes back"

    story(tell)


def test_under_sync_flush_a_stop_puts_all_messages_into_their_queues() -> None:
    store = MessageStore(config(flush=FlushConfig(sync=True)), disk=SimDisk(), runner=InlineRunner())
    store.open()
    store.append(orders(3))
    store.close()
    again = MessageStore(config(flush=FlushConfig(sync=True)), disk=store.disk, runner=InlineRunner())
    assert again.open().scanned_from == again.log.end, "there is nothing left to dispatch"
    assert again.max_offset("orders", 0) == 3
    again.close()
