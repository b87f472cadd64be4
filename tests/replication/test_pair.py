"""Two stores and a real connection: the second becomes the first, byte for byte, whatever comes between."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from late import in_time
from pyromq.clock import SystemClock
from pyromq.replication import primary as primary_module
from pyromq.replication import replica as replica_module
from pyromq.replication import send_log
from pyromq.replication.frames import PushReader, push_head
from pyromq.replication.stream import Span, StreamTimes
from pyromq.store.message_store import MessageStore
from pyromq.store.recovery.quarantine import put_log_aside
from pyromq.store.store_log import StoreLog
from replication.pairs import SEGMENT, config, following, leading, log_of, send, two_stores


def test_the_copy_is_the_log_byte_for_byte_and_has_queues_of_its_own(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_stores(tmp_path) as (one, other, pair):
            send(one, 500)
            async with following(other, pair.address):
                send(one, 500, 500)
                await pair.level()
                send(one, 10, 1000)
                await pair.level()
            assert log_of(other) == log_of(one)
            other.dispatch()
            for queue in range(4):
                assert other.read("orders", queue, 0, max_messages=2000, max_bytes=1 << 24).records == (
                    one.read("orders", queue, 0, max_messages=2000, max_bytes=1 << 24).records
                )

    asyncio.run(story())


@pytest.mark.parametrize("window_bytes", [None, 3_000, 1 << 20])
@pytest.mark.parametrize(("batch_bytes", "newest"), [(1_000, 0), (200_000, 0), (200_000, 1 << 20)])
def test_any_pace_gives_the_same_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window_bytes: int | None, batch_bytes: int, newest: int
) -> None:
    """Large frames go from the file by the kernel, unless they are of the newest bytes; small ones with their head."""
    monkeypatch.setattr(send_log, "NEWEST_BYTES", newest)

    async def story() -> None:
        large = {"segment_bytes": 1 << 20}
        async with (
            MessageStore(config(tmp_path / "a", **large)).running() as one,
            MessageStore(config(tmp_path / "b", **large)).running() as other,
            leading(one, batch_bytes=batch_bytes) as pair,
        ):
            send(one, 300, size=1200)
            send(one, 3, size=120_000)
            async with following(other, pair.address, window_bytes=window_bytes):
                send(one, 1200, 300, size=1200)
                await pair.level()
            assert log_of(other) == log_of(one)

    asyncio.run(story())


def test_what_is_new_leaves_in_the_turn_in_which_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(primary_module, "APART_SECONDS", 0.0)

    async def story() -> None:
        async with two_stores(tmp_path) as (one, other, pair), following(other, pair.address):
            send(one, 10)
            await pair.level()
            await asyncio.sleep(0)
            for start in range(10, 40, 10):
                send(one, 10, start)
                one.catch_up()
                (follower,) = pair.primary.followers.by_name.values()
                assert follower.sent == one.log.end, "without waiting for a task"
            await pair.level()
            assert log_of(other) == log_of(one)

    asyncio.run(story())


@pytest.mark.parametrize("takes", [0, 1, 11, 12, 13, 700])
def test_what_a_socket_does_not_take_at_once_follows_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes: int
) -> None:
    """Each frame that leaves at once is cut, in its head or behind it."""
    monkeypatch.setattr(primary_module, "APART_SECONDS", 0.0)
    cut = 0

    def send_some(self: Any, span: Span) -> int:
        nonlocal cut
        cut += 1
        with self._log.log_bytes(span.position, span.length) as data:
            frame = push_head(*span) + bytes(data)
        return int(self._connection.send(frame[:takes])) if takes else 0

    monkeypatch.setattr(send_log.LogSender, "send_now", send_some)

    async def story() -> None:
        large = {"segment_bytes": 64 << 20}
        async with MessageStore(config(tmp_path / "a", **large)).running() as one, leading(one) as pair:
            reader, writer = await asyncio.open_connection("127.0.0.1", pair.primary.port)
            writer.write(bytes(8))
            await pair.followers.until(lambda followers: len(followers) == 1)
            pushes, copied = PushReader(), bytearray()
            for start in range(0, 200, 10):
                send(one, 10, start, size=1200 + start)
                one.catch_up()
                async with asyncio.timeout(20):
                    while len(copied) < one.log.end:
                        for push in pushes.feed(await reader.read(1 << 20)):
                            assert push.position == len(copied)
                            copied += push.data
            assert bytes(copied) == log_of(one)
            assert cut >= 10
            writer.close()

    asyncio.run(story())


def test_messages_that_are_written_one_right_behind_the_other_leave_together(tmp_path: Path) -> None:
    async def story() -> None:
        async with MessageStore(config(tmp_path / "a", segment_bytes=1 << 20)).running() as one, leading(one) as pair:
            reader, writer = await asyncio.open_connection("127.0.0.1", pair.primary.port)
            writer.write(bytes(8))
            await pair.followers.until(lambda followers: len(followers) == 1)
            for number in range(200):
                send(one, 1, number)
            pushes, frames, copied = PushReader(), 0, 0
            async with asyncio.timeout(20):
                while copied < one.log.end:
                    for push in pushes.feed(await reader.read(1 << 20)):
                        frames, copied = frames + 1, push.end
            assert frames <= 20, "the first may take so long, by making queues, that each leaves by itself"
            writer.close()

    asyncio.run(story())


def test_whoever_writes_is_not_told_of_a_replica_that_is_gone(tmp_path: Path) -> None:
    async def story() -> None:
        async with MessageStore(config(tmp_path / "a")).running() as one, leading(one) as pair:
            for start in range(0, 100, 10):
                _, writer = await asyncio.open_connection("127.0.0.1", pair.primary.port)
                writer.write(bytes(8))
                await pair.followers.until(lambda followers: len(followers) == 1)
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                await asyncio.sleep(0)
                for number in range(start, start + 10):
                    send(one, 1, number)
                    one.catch_up()
                await pair.followers.until(lambda followers: len(followers) == 0)

    asyncio.run(story())


def test_what_nobody_waits_for_gathers_and_the_first_of_it_leaves_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_stores(tmp_path, gather_s=0.5) as (one, other, pair), following(other, pair.address):
            await pair.followers.until(len)
            began = asyncio.get_running_loop().time()
            send(one, 1)
            await pair.level()
            in_time(asyncio.get_running_loop().time() - began, 0.5)
            reports = pair.followers.count
            for number in range(20):
                send(one, 1, 1 + number)
                await asyncio.sleep(0)
            await pair.level()
            assert asyncio.get_running_loop().time() - began > 0.5
            assert pair.followers.count - reports < 20, "they came together"
            assert log_of(other) == log_of(one)

    asyncio.run(story())


def test_it_gathers_on_however_often_something_is_written_and_looked_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(primary_module, "TICK_SECONDS", 0.001)

    async def story() -> None:
        async with two_stores(tmp_path, gather_s=60.0) as (one, other, pair), following(other, pair.address):
            await pair.followers.until(len)
            send(one, 1)
            await pair.level()
            reports, ends_at = pair.followers.count, asyncio.get_running_loop().time() + 0.1
            number = 1
            while asyncio.get_running_loop().time() < ends_at:
                send(one, 1, number)
                number += 1
                await asyncio.sleep(0)
            assert pair.followers.count == reports, "nothing of it has left"

    asyncio.run(story())


def test_a_copy_that_was_away_goes_on_where_it_was(tmp_path: Path) -> None:
    async def story() -> None:
        async with MessageStore(config(tmp_path / "a")).running() as one, leading(one) as pair:
            send(one, 700)
            for start in (700, 1400):
                async with MessageStore(config(tmp_path / "b", sync=True)).running() as other:
                    async with following(other, pair.address):
                        await pair.level()
                    assert log_of(other) == log_of(one)
                send(one, 700, start)

    asyncio.run(story())


def test_a_primary_that_restarts_is_found_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with MessageStore(config(tmp_path / "b")).running() as other:
            async with MessageStore(config(tmp_path / "a")).running() as one, leading(one) as pair:
                send(one, 100)
                port = pair.primary.port
                context = following(other, pair.address)
                copy = await context.__aenter__()
                await pair.level()
            await copy.problem()
            async with MessageStore(config(tmp_path / "a")).running() as one, leading(one, port=port) as pair:
                send(one, 100, 100)
                await pair.level()
                assert log_of(other) == log_of(one)
            await context.__aexit__(None, None, None)

    asyncio.run(story())


@pytest.mark.parametrize("ends_with_segment", [False, True])
def test_a_copy_that_leads_goes_on_behind_the_last_message(tmp_path: Path, ends_with_segment: bool) -> None:
    async def story() -> None:
        async with MessageStore(config(tmp_path / "b")).running() as other:
            async with MessageStore(config(tmp_path / "a")).running() as one, leading(one) as pair:
                send(one, 100)
                if ends_with_segment:
                    one.append([])
                    one.log._roll()
                    one._grew(1)
                    assert one.log.end == SEGMENT
                async with following(other, pair.address):
                    await pair.level()
            other.lead()
            send(other, 100, 100)
            other.dispatch()
            got = [other.read("orders", queue, 0, max_messages=500).next_offset for queue in range(4)]
            assert got == [50] * 4

    asyncio.run(story())


def test_a_copy_with_a_transient_pool_is_written_once_and_as_it_came(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            MessageStore(config(tmp_path / "a")).running() as one,
            MessageStore(config(tmp_path / "b", transient_pool=True, transient_commit_ms=20)).running() as other,
            leading(one) as pair,
        ):
            send(one, 900)
            async with following(other, pair.address):
                await pair.level()
                other.commit_gathered()
                assert log_of(other) == log_of(one)

    asyncio.run(story())


# --- where a copy begins ---------------------------------------------------------------------------------------------


def forget_oldest(store: MessageStore) -> None:
    """Remove old segments, as retention does."""
    store.dispatch()
    store.flush()
    plan = store.points.plan_log_start(store.log.files.segments[0].end)
    store.points.carry_out(plan)
    store.disk.remove(store.log.files.forget_first().path)
    for queue in store.queues:
        queue.drop_before(plan.point.log_start)


def test_a_copy_that_was_left_behind_says_so_is_put_aside_and_begins_anew(tmp_path: Path) -> None:
    async def story() -> None:
        async with MessageStore(config(tmp_path / "a")).running() as one, leading(one) as pair:
            send(one, 100)
            async with MessageStore(config(tmp_path / "b")).running() as other:
                async with following(other, pair.address):
                    await pair.level()
                old, old_end = log_of(other), other.log.end
                send(one, 900, 100)
                forget_oldest(one)
                async with following(other, pair.address, told=None) as copy:
                    state = await copy.problem()
                assert state.left_behind_at == SEGMENT
                assert "put aside" in (state.problem or "")
                assert log_of(other) == old, "nothing was appended, and nothing lost"
            place = put_log_aside(other.disk, other.paths, SystemClock(), end=old_end, why="left behind")
            assert place is not None
            assert (place / "commitlog" / ("0" * 20)).read_bytes().startswith(old)
            assert "left behind" in (place / "why.json").read_text()
            async with MessageStore(config(tmp_path / "b")).running() as anew:
                async with following(anew, pair.address):
                    await pair.level()
                assert anew.log.start == SEGMENT
                assert log_of(anew) == log_of(one)
            with MessageStore(config(tmp_path / "b")) as again:
                assert (again.log.start, again.log.end) == (SEGMENT, one.log.end)
                assert again.read("orders", 0, again.queues.get(b"orders", 0).min_offset).records  # type: ignore[union-attr]

    asyncio.run(story())


def test_a_longer_copy_is_told_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_stores(tmp_path) as (one, other, pair):
            send(one, 10)
            send(other, 20)
            async with following(other, pair.address, told=None) as copy:
                state = await copy.problem()
            assert f"ends at {one.log.end}" in (state.problem or "")

    asyncio.run(story())


# --- what goes wrong on the way --------------------------------------------------------------------------------------


def test_damage_stops_the_copy_names_the_place_and_is_not_tried_in_a_hurry(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_stores(tmp_path) as (one, other, pair):
            send(one, 100)
            size = one.log.end // 100
            one.log.files.segments[0].buffer[50 * size + 100] ^= 1
            async with following(other, pair.address) as copy:
                state = await copy.problem()
                assert f"position {50 * size}" in (state.problem or "")
                assert str(tmp_path / "b" / "commitlog") in (state.problem or "")
                assert other.log.end == 50 * size
                seen = copy.states.count
                await asyncio.sleep(2 * replica_module.FIRST_RETRY_SECONDS)
                assert copy.states.count == seen, "it is left alone for a while"

    asyncio.run(story())


def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_stores(tmp_path) as (one, other, pair):
            send(one, 100)
            other.cleaner.refusal = "the disk is full"
            async with following(other, pair.address) as copy:
                assert (await copy.problem()).problem == "the disk is full"
                other.cleaner.refusal = None
                await pair.level()

    asyncio.run(story())


class ColdLog(StoreLog):
    """Nothing is in memory."""

    def __init__(self, store: MessageStore) -> None:
        super().__init__(store)
        self.fetched_by: set[str] = set()

    def is_warm(self, position: int, length: int) -> bool:
        return False

    def fetch(self, position: int, length: int) -> None:
        self.fetched_by.add(threading.current_thread().name)
        super().fetch(position, length)


def test_cold_bytes_are_fetched_by_another_thread(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            MessageStore(config(tmp_path / "a")).running() as one,
            MessageStore(config(tmp_path / "b")).running() as other,
        ):
            send(one, 900)
            log = ColdLog(one)
            async with leading(one, log) as pair, following(other, pair.address):
                await pair.level()
            assert log_of(other) == log_of(one)
            assert log.fetched_by
            assert threading.current_thread().name not in log.fetched_by

    asyncio.run(story())


def test_another_primary_is_followed_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_stores(tmp_path) as (one, other, pair):
            send(one, 10)
            async with following(other, None) as copy:
                copy.replica.follow("127.0.0.1:1")
                await copy.problem()
                copy.replica.follow(pair.address)
                await pair.level()

    asyncio.run(story())


def test_a_replica_that_stops_reading_is_missed(tmp_path: Path) -> None:
    """Its connection is full, so that nothing can be sent to it: silence is noticed all the same."""

    async def story() -> None:
        times = StreamTimes(heartbeat=100, housekeeping=600, hello=600)
        large = {"segment_bytes": 64 << 20}
        async with MessageStore(config(tmp_path / "a", **large)).running() as one, leading(one, times=times) as pair:
            send(one, 200, size=120_000)
            _, writer = await asyncio.open_connection("127.0.0.1", pair.primary.port, limit=1000)
            writer.write(bytes(8))
            await pair.followers.until(lambda followers: len(followers) == 1)
            await pair.followers.until(lambda followers: len(followers) == 0)
            writer.close()

    asyncio.run(story())
