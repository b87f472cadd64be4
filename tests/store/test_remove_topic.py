"""A topic is removed during sends: earlier messages go, later ones stay, crash or not."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from pyromq.errors import DiskFull
from pyromq.store.message_store import InlineRunner, MessageStore
from pyromq.testing import SimDisk
from store.support import ROOT, config, open_store, order, orders, read_all

SECONDS = 20


def story(tell: Callable[[], Coroutine[None, None, None]]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(SECONDS):
            await tell()

    asyncio.run(in_time())


def store_on(disk: SimDisk) -> MessageStore:
    return MessageStore(config(), disk=disk, runner=InlineRunner())


def on_real_disk(root: Path) -> MessageStore:
    return MessageStore(config(root=root))


async def queues_are_gone(store: MessageStore) -> None:
    while store.queues.topics():  # noqa: ASYNC110  there is no event for it
        await asyncio.sleep(0)


def test_an_entry_that_is_not_in_its_queue_yet_goes_with_its_topic(tmp_path: Path) -> None:
    async def tell() -> None:
        async with on_real_disk(tmp_path).running() as store:
            store.append(orders(3))
            store.append([order("late")])  # the queues follow in the next turn
            assert await store.remove_topic("orders")
            assert store.append([order("new")])[0].queue_offset == 0
            store.dispatch()
            assert read_all(store) == [b"new"]

    story(tell)


def test_a_topic_that_is_made_again_meanwhile_keeps_its_files(tmp_path: Path) -> None:
    async def tell() -> None:
        async with on_real_disk(tmp_path).running() as store:
            store.append(orders(120))
            removal = asyncio.create_task(store.remove_topic("orders"))
            await queues_are_gone(store)
            store.append([order("new")])  # the removal is still at work
            assert not removal.done()
            await removal
            store.append([order("newer")])
            store.flush()
            async with store.points.lock:
                store.points.save()  # syncs the name of each file
        assert list((tmp_path / "staging").iterdir()) == []

    story(tell)
    with MessageStore(config(root=tmp_path)) as store:
        assert read_all(store) == [b"new", b"newer"]


def test_sends_go_on_into_the_old_topic_until_its_queues_are_taken() -> None:
    async def tell() -> None:
        async with store_on(SimDisk()).running() as store:
            store.append(orders(5))
            is_gone = False

            def agreed() -> bool:
                nonlocal is_gone
                assert store.max_offset("orders", 0) == 7
                is_gone = True
                return True

            async with store.points.lock:  # a recover point is being written
                removal = asyncio.create_task(store.remove_topic("orders", agreed))
                await asyncio.sleep(0)
                assert [receipt.queue_offset for receipt in store.append(orders(2))] == [5, 6]
                assert not is_gone
            await removal
            assert store.append([order("new")])[0].queue_offset == 0

    story(tell)


def test_nothing_happens_to_a_topic_that_is_wanted_by_then() -> None:
    store = open_store()
    store.append(orders(2))
    assert not asyncio.run(store.remove_topic("orders", lambda: False))
    assert read_all(store) == [b"0", b"1"]


def test_whoever_waits_for_a_queue_is_told_of_the_new_topic() -> None:
    store = open_store()
    told: list[tuple[str, int]] = []
    store.arrivals.listen(told.extend)
    store.append(orders(1))
    store.dispatch()
    store.arrivals.watch("orders", 0)
    asyncio.run(store.remove_topic("orders"))
    store.append(orders(1))
    store.dispatch()
    assert told == [("orders", 0)]


def test_a_removal_covers_messages_that_were_not_synced_before_it() -> None:
    disk = SimDisk()

    async def tell() -> SimDisk:
        async with store_on(disk).running() as store:
            store.append([order("a"), order("b", topic="other")])
            store.flush()
            store.append(orders(5))
            await store.remove_topic("orders")
            return disk.kill()

    assert open_store(asyncio.run(tell())).queues.topics() == ["other"]


@pytest.mark.parametrize("seed", range(30))
def test_new_messages_of_the_name_survive_a_crash_at_any_moment(seed: int) -> None:
    """Before the removal is acknowledged the old ones may come back, but never in place of the new ones."""
    rng = random.Random(seed)
    disk = SimDisk()
    left: list[SimDisk] = []

    async def tell() -> None:
        store = store_on(disk)
        async with store.running():
            store.append(orders(rng.choice([1, 60, 140])))
            store.flush()
            if rng.random() < 0.5:
                async with store.points.lock:
                    store.dispatch()
                    store.points.save()
            removal = asyncio.create_task(store.remove_topic("orders"))
            await queues_are_gone(store)
            for number in range(rng.choice([1, 70])):
                store.append([order(f"new {number}")])
            store.flush()
            for _ in range(rng.randrange(30)):
                await asyncio.sleep(0)
            if rng.random() < 0.3:
                await removal
            left.append(disk.kill() if rng.random() < 0.3 else disk.crash(rng))
            expected.extend(read_all_dispatched(store))

    expected: list[bytes] = []
    story(tell)
    for _ in range(2):  # and a second start finds what the first left
        store = open_store(left[-1])
        assert read_all(store) == expected
        left.append(left[-1].kill())


def read_all_dispatched(store: MessageStore) -> list[bytes]:
    store.dispatch()
    return read_all(store)


@pytest.mark.parametrize("new", [3, 120])
def test_queues_that_are_built_anew_show_the_new_topic_only(new: int) -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.append(orders(60))
    asyncio.run(store.remove_topic("orders"))
    store.append(orders(new))
    store.dispatch()
    store.flush()
    store.save_recover_point()
    damaged = disk.kill()
    queue = ROOT / "consumequeue" / "orders" / "0"
    damaged.remove(queue / damaged.names(queue)[-1])
    assert len(read_all(open_store(damaged))) == new


def test_old_offsets_behind_the_new_end_do_not_come_back() -> None:
    """The log begins in the middle of the removed topic: its records fit behind the end of the new one."""
    disk = SimDisk()
    store = open_store(disk)
    for _ in range(5):
        store.append([order(b"x" * 3000) for _ in range(5)])
    asyncio.run(store.remove_topic("orders"))
    store.append([order("new"), order("newer"), order("other", topic="other")])
    store.dispatch()
    store.flush()
    store.save_recover_point()
    store.points.carry_out(store.points.plan_log_start(store.log.files.segments[2].base))
    crashed = disk.kill()
    crashed.remove(ROOT / "consumequeue" / "other" / "0" / "00000000000000000000")  # so all is built again
    store = open_store(crashed)
    assert read_all(store) == [b"new", b"newer"]
    assert store.max_offset("orders", 0) == 2


def test_a_removal_that_cannot_be_noted_says_so_and_is_made_good_later(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.append(orders(3))
    refusal = OSError(errno.EMFILE, "too many open files")

    def refuse(_: object) -> None:
        raise refusal

    with monkeypatch.context() as patched:
        patched.setattr(store.opening.point_file, "save", refuse)
        with pytest.raises(DiskFull, match=r"a crash may still bring the topic orders back: .*ulimit"):
            asyncio.run(store.remove_topic("orders"))
    assert store.queues.topics() == []
    store.save_recover_point()
    assert open_store(disk.kill()).queues.topics() == []
