"""Tables never speak of what the log does not have: clamped at every start, on the disk, before anything is served."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from broker.support.fakes import Parts
from pyromq.broker.broker import Broker
from pyromq.broker.failover.metadata_sync import Taken, TakenProgress
from pyromq.broker.failover.role import Leading
from pyromq.broker.failover.role_change import Change
from pyromq.broker.state.clamping import GroupOffsets, LogEnds, clamp_tables
from pyromq.clock import ManualClock
from pyromq.config import BrokerConfig, FlushConfig, StoreConfig
from pyromq.files.disk import OsDisk
from pyromq.model.message import Draft
from pyromq.replication.progress_merge import Place
from pyromq.store.message_store import MessageStore
from pyromq.store.paths import StorePaths
from pyromq.store.recovery.quarantine import put_log_aside
from pyromq.store.tables.offset_files import ConsumerOffsets
from pyromq.testing import SimDisk


def lost_tail(parts: Parts) -> None:
    """A queue with ten messages, and groups that are further."""
    parts.store.append([Draft(b"orders", 0, b"x") for _ in range(10)])
    parts.store.dispatch()
    for topic, queue, offset in (("orders", 0, 12), ("orders", 1, 4), ("other", 0, 5)):
        parts.offsets.reset("g", topic, queue, offset)
    parts.offsets.reset("near", "orders", 0, 9)
    parts.offsets.save()


def reloaded(parts: Parts, disk: SimDisk) -> ConsumerOffsets:
    offsets = ConsumerOffsets(disk, parts.store.paths.config, parts.clock)
    offsets.load()
    return offsets


@pytest.mark.parametrize("is_damaged", [False, True], ids=["the file", "its previous copy"])
def test_no_group_is_beyond_its_queue_after_a_start_and_a_kill(is_damaged: bool) -> None:
    parts = Parts()
    lost_tail(parts)
    clamp_tables(LogEnds.of(parts.store), [GroupOffsets(parts.offsets)])
    disk = parts.disk.kill()
    if is_damaged:
        disk.replace_bytes(parts.store.paths.config / ConsumerOffsets.FILE, b"{")
    after = reloaded(parts, disk)
    assert after.offset_of("g", "orders", 0) == 10
    assert after.offset_of("g", "orders", 1) == 0, "a queue without a message ends at 0"
    assert after.offset_of("g", "other", 0) == 0
    assert after.offset_of("near", "orders", 0) == 9
    parts.close()


def test_messages_that_are_only_hidden_are_counted_as_there() -> None:
    parts = Parts()
    parts.store.append([Draft(b"orders", 0, b"x") for _ in range(10)])
    assert parts.store.max_offset("orders", 0) == 0, "not dispatched yet"
    parts.offsets.reset("g", "orders", 0, 10)
    clamp_tables(LogEnds.of(parts.store), [GroupOffsets(parts.offsets)])
    assert parts.offsets.offset_of("g", "orders", 0) == 10
    parts.close()


def test_a_slave_does_not_take_a_clamped_offset_for_news_from_consumers() -> None:
    disk, ends = SimDisk(ManualClock()), LogEnds(100, lambda topic, queue: 7)
    TakenProgress(disk, Path("/config")).save(Taken({Place("orders", "g", 0): 12, Place("orders", "g", 1): 3}, 5))
    clamp_tables(ends, [TakenProgress(disk, Path("/config"))])
    after = TakenProgress(disk.kill(), Path("/config")).load()
    assert after == Taken({Place("orders", "g", 0): 7, Place("orders", "g", 1): 3}, 5)


# --- a whole broker --------------------------------------------------------------------------------------------------


def config_of(root: Path, **changes: object) -> BrokerConfig:
    store = StoreConfig(
        root=root, segment_bytes=1 << 16, max_body_bytes=1 << 14, prefault_bytes=0, flush=FlushConfig(sync=False)
    )
    given = BrokerConfig(name="one", listen_port=0, vip_channel=False, store=store)
    return replace(given, **changes)  # type: ignore[arg-type]


def write_store(config: BrokerConfig, messages: int, offset: int) -> list[int]:
    """A store that was closed cleanly, and a group somewhere in it; where each message begins."""
    with MessageStore(config.store) as store:
        receipts = store.append([Draft(b"orders", 0, b"x") for _ in range(messages)])
        offsets = ConsumerOffsets(store.disk, store.paths.config, store.clock)
        offsets.load()
        offsets.reset("g", "orders", 0, offset)
        offsets.save()
    return [receipt.position for receipt in receipts]


def saved_offset(root: Path) -> int:
    document = json.loads((root / "config" / ConsumerOffsets.FILE).read_bytes())
    return int(document["offsetTable"]["orders@g"]["0"])


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"])
@pytest.mark.parametrize("how", ["a plain start", "a truncation", "a log that begins anew"])
def test_every_start_writes_clamped_offsets_before_it_serves(tmp_path: Path, role: str, how: str) -> None:
    config = config_of(tmp_path, role=role, broker_id=int(role == "SLAVE"))
    positions = write_store(config, 10, offset=10 if how == "a truncation" else 12)
    after, end = None, 10
    if how == "a truncation":
        after, end = Change(why="a test", cut_at=positions[6]), 6
    elif how == "a log that begins anew":
        paths = StorePaths.of(config.store)
        put_log_aside(OsDisk(paths.staging), paths, ManualClock(), end=positions[-1], why="a test")
        end = 0

    async def story() -> None:
        broker = Broker(config, after=after)
        async with broker.running():
            assert saved_offset(tmp_path) == end, "on the disk: a kill now does not bring the old one back"
            assert broker.parts is not None
            assert broker.parts.progress.offset_of("g", "orders", 0) == end

    asyncio.run(story())
    assert saved_offset(tmp_path) == end


def test_offsets_are_clamped_before_a_new_epoch_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path)
    write_store(config, 10, offset=12)
    seen: list[int] = []
    begin: Callable[[Leading, int, int], None] = Leading.begin

    def watched(leading: Leading, start: int, end: int) -> None:
        seen.append(saved_offset(tmp_path))
        begin(leading, start, end)

    monkeypatch.setattr(Leading, "begin", watched)

    async def story() -> None:
        async with Broker(config).running():
            pass

    asyncio.run(story())
    assert seen == [10]


def test_a_start_on_a_full_disk_clamps_in_the_room_that_is_kept_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path)
    write_store(config, 10, offset=12)
    write, reserve = OsDisk.replace_bytes, tmp_path / "reserve"

    def replace_bytes(disk: OsDisk, path: Path, data: bytes) -> None:
        if path.name.startswith(ConsumerOffsets.FILE) and reserve.exists():
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(disk, path, data)

    monkeypatch.setattr(OsDisk, "replace_bytes", replace_bytes)

    async def story() -> None:
        async with Broker(config).running():
            assert reserve.exists(), "the rest is kept again"
            assert saved_offset(tmp_path) == 10

    asyncio.run(story())
