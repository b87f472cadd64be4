"""Group commit, intervals, and what happens when a disk does not confirm a write. Real asyncio, a disk in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from pyromq.clock import ManualClock
from pyromq.config import FlushConfig
from pyromq.errors import StoreFenced
from pyromq.store import reader
from pyromq.store.durability.sync_thread import MAX_FILES
from pyromq.store.message_store import InlineRunner, MessageStore
from pyromq.testing import SimDisk
from pyromq.testing.sim.disk import SimMappedFile
from store.support import ROOT, config, order, orders, read_all

HOUR_MS = 3_600_000
SECONDS = 20  # before a test that hangs gives up


class LogSyncs:
    """Counts syncs of the log, and can hold one up."""

    def __init__(self, disk: SimDisk) -> None:
        self.count = 0
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        disk.on_operation = self._step

    def _step(self, step: str, path: Path) -> None:
        if step == "sync" and path.parent == ROOT / "commitlog":
            self.count += 1
            self.began.set()
            assert self.go_on.wait(SECONDS)


class World:
    def __init__(self, **flush: Any) -> None:
        self.disk = SimDisk()
        settings: dict[str, Any] = {"interval_ms": HOUR_MS, "recover_point_interval_ms": HOUR_MS, **flush}
        self.store = MessageStore(
            config(segment_bytes=1 << 20, flush=FlushConfig(**settings)),
            disk=self.disk,
            clock=ManualClock(),
            runner=InlineRunner(),
        )
        self.syncs = LogSyncs(self.disk)

    async def send(self, body: str) -> None:
        """As a broker does it: append, and answer once the promise is true."""
        (receipt,) = self.store.append([order(body)])
        await self.store.wait_synced(receipt)


def story(tell: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def within_time() -> None:
        async with asyncio.timeout(SECONDS):
            await tell()

    asyncio.run(within_time())


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, SECONDS)


def test_sixty_four_senders_share_two_syncs() -> None:
    world = World(sync=True)

    async def tell() -> None:
        async with world.store.running():
            world.syncs.go_on.clear()
            first = asyncio.create_task(world.send("first"))
            await until(world.syncs.began)
            others = [asyncio.create_task(world.send(f"{number}")) for number in range(63)]
            await turns()
            assert not any(task.done() for task in (first, *others)), "nobody is answered before the disk is"
            world.syncs.go_on.set()
            await asyncio.gather(first, *others)
            assert world.syncs.count == 2
            assert world.store.marks.synced.value == world.store.log.end
            await turns()
            assert len(read_all(world.store)) == 64

    story(tell)


def test_behind_a_sync_nothing_is_looked_for_before_somebody_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one message in flight that would be most of the work."""
    world = World(sync=True)
    looks = 0
    look = world.store.flusher._pending

    def counted(max_segments: int | None = None) -> object:
        nonlocal looks
        looks += 1
        return look(max_segments)

    monkeypatch.setattr(world.store.flusher, "_pending", counted)

    async def tell() -> None:
        async with world.store.running():
            for number in range(10):
                await world.send(f"{number}")
                await turns()
            assert (world.syncs.count, looks) == (10, 10)

    story(tell)


def test_a_batch_over_several_segments_is_synced_oldest_first() -> None:
    world = World(sync=True)
    synced: list[str] = []

    def note(step: str, path: Path) -> None:
        if step == "sync" and path.parent.name == "commitlog":
            synced.append(path.name)

    world.disk.on_operation = note

    async def tell() -> None:
        async with world.store.running():
            receipts = world.store.append(orders(1000, KEYS="k" * 2000))
            await world.store.wait_synced(receipts[-1])
            segments = [segment.path.name for segment in world.store.log.files.segments]
            assert len(segments) > 2
            assert synced[: len(segments)] == segments

    story(tell)


def test_a_sync_that_fails_is_told_to_all_who_wait_and_all_who_come() -> None:
    world = World(sync=True)

    async def tell() -> None:
        async with world.store.running():
            world.disk.fail_next_sync(lambda path: path.parent == ROOT / "commitlog")
            answers = await asyncio.gather(*(world.send(f"{n}") for n in range(8)), return_exceptions=True)
            assert all(isinstance(answer, StoreFenced) for answer in answers)
            with pytest.raises(StoreFenced):
                await world.send("later")
            assert world.syncs.count == 1, "a second try could report a success that is none"

    with pytest.raises(StoreFenced):  # the end of the block tells it once more
        story(tell)
    assert world.disk.exists(ROOT / "abort")


def test_a_queue_that_cannot_be_synced_fences_too() -> None:
    world = World(recover_point_interval_ms=1)

    async def tell() -> None:
        async with world.store.running():
            world.disk.fail_next_sync(lambda path: "consumequeue" in path.parts)
            (receipt,) = world.store.append([order()])
            await turns()
            await world.store.wait_synced(receipt)
            with pytest.raises(StoreFenced):
                await world.store.marks.appended.wait(1 << 60)

    with pytest.raises(StoreFenced):
        story(tell)


def test_without_waiting_bytes_are_synced_within_the_interval() -> None:
    world = World(interval_ms=10)

    async def tell() -> None:
        async with world.store.running():
            (receipt,) = world.store.append([order()])
            await world.store.marks.synced.wait(receipt.end)  # without a wake-up of the flusher
            assert world.syncs.count == 1

    story(tell)


def test_a_burst_is_synced_before_the_interval() -> None:
    world = World(amount_bytes=10_000)

    async def tell() -> None:
        async with world.store.running():
            world.store.append([order()])
            await turns()
            assert world.syncs.count == 0
            receipts = world.store.append(orders(100))
            await world.store.marks.synced.wait(receipts[-1].end)
            assert world.syncs.count == 1

    story(tell)


def test_whoever_waits_wakes_the_flusher_also_without_sync() -> None:
    world = World()

    async def tell() -> None:
        async with world.store.running():
            await world.send("please")
            assert world.syncs.count == 1

    story(tell)


def test_recover_points_follow_the_amount() -> None:
    world = World(recover_point_bytes=5000, amount_bytes=1)

    async def tell() -> None:
        async with world.store.running():
            before, saved = world.store.points.current, threading.Event()
            receipts = world.store.append(orders(100))
            await world.store.wait_synced(receipts[-1])
            while world.store.points.current == before:
                await asyncio.to_thread(saved.wait, 0.01)
            assert world.store.points.current.synced == receipts[-1].end

    story(tell)


def test_messages_appear_in_their_queues_by_themselves() -> None:
    world = World()

    async def tell() -> None:
        async with world.store.running():
            receipts = world.store.append(orders(50))
            await world.store.marks.dispatched.wait(receipts[-1].end)
            assert read_all(world.store) == [b"%d" % number for number in range(50)]
            result = await world.store.read_soon("orders", 0, 10, max_messages=5)
            assert len(result.records) == 5

    story(tell)
    assert not world.disk.exists(ROOT / "abort"), "the end of the block is a clean stop"


def test_gathered_messages_are_committed_by_themselves() -> None:
    world = World()
    world.store = MessageStore(
        config(transient_pool=True, transient_commit_ms=5, flush=FlushConfig(interval_ms=HOUR_MS)),
        disk=world.disk,
        clock=ManualClock(),
        runner=InlineRunner(),
    )

    async def tell() -> None:
        async with world.store.running():
            receipts = world.store.append(orders(50))
            assert world.store.marks.written.value == 0
            await world.store.marks.dispatched.wait(receipts[-1].end)
            assert len(read_all(world.store)) == 50

    story(tell)


def test_what_has_left_memory_is_fetched_by_a_thread_first(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(reader, "HOT_BYTES", 0)
    fetched: list[tuple[bool, int]] = []
    plain = SimMappedFile.read_at

    def read_at(file: SimMappedFile, start: int, size: int) -> bytes:
        fetched.append((threading.current_thread() is threading.main_thread(), size))
        return plain(file, start, size)

    monkeypatch.setattr(SimMappedFile, "read_at", read_at)

    async def tell() -> None:
        async with world.store.running():
            receipts = world.store.append(orders(50))
            await world.store.marks.dispatched.wait(receipts[-1].end)
            await world.store.read_soon("orders", 0, 0, max_messages=5)
            assert fetched == [], "it is in memory"
            world.disk.cold = {segment.path for segment in world.store.log.files.segments}
            result = await world.store.read_soon("orders", 0, 10, max_messages=5)
            assert len(result.records) == 5
            assert fetched == [(False, sum(map(len, result.records)))]
            assert (await world.store.read_soon("nobody", 0, 0)).records == []

    story(tell)


@pytest.mark.parametrize("sync", [True, False])
def test_more_segments_than_one_sync_takes_are_synced_in_portions(tmp_path: Path, sync: bool) -> None:
    segments = 2 * MAX_FILES + 10
    settings = config(
        root=tmp_path / "store",
        segment_bytes=4096,
        flush=FlushConfig(sync=sync, interval_ms=HOUR_MS, amount_bytes=1 << 30, recover_point_interval_ms=HOUR_MS),
    )
    sent = [order(bytes(2500)) for _ in range(segments)]

    async def tell() -> None:
        async with MessageStore(settings).running() as store:
            receipts = store.append(sent)
            assert len(store.log.files.segments) > 2 * MAX_FILES
            await store.wait_synced(receipts[-1])
            assert store.marks.synced.value == store.log.end
        assert len(read_all_again()) == segments

    def read_all_again() -> list[bytes]:
        with MessageStore(settings) as store:
            return read_all(store)

    story(tell)


def test_a_portion_never_claims_more_than_its_segments() -> None:
    world = World(sync=True)
    store = world.store
    store.open()
    store.append([order(bytes(700_000)) for _ in range(5)])
    portion = store.flusher._pending(2)
    assert portion.target == portion.segments[-1].end < store.log.end
    assert len(portion.segments) == 2
    assert portion.timestamp_ms <= store.log.last_timestamp_ms
    whole = store.flusher._pending()
    assert whole.target == store.log.end
    assert len(whole.segments) == len(store.log.files.segments)
    store.close()
