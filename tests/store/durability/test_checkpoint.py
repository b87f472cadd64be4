"""The durable state of a stop: the recover point, RocketMQ's checkpoint, the abort mark."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.store.durability.checkpoint import AbortMark, Checkpoint, CheckpointFile, RecoverPoint, RecoverPointFile
from pyromq.testing import CrashMode, PowerCut, SimDisk

PATH = Path("/store/recoverpoint")
POINTS = [RecoverPoint(log_start=n, synced=100 * n, queues_to=90 * n, index_to=n, timestamp_ms=n) for n in range(1, 6)]


def load(disk: SimDisk) -> RecoverPoint | None:
    return RecoverPointFile(disk, PATH).load()


def saved(*points: RecoverPoint) -> SimDisk:
    disk = SimDisk()
    file = RecoverPointFile(disk, PATH)
    for point in points:
        file.save(point)
    return disk


def test_there_is_none_in_a_store_that_rocketmq_wrote() -> None:
    assert load(SimDisk()) is None


def test_the_newest_counts() -> None:
    for count in range(1, len(POINTS) + 1):
        assert load(saved(*POINTS[:count])) == POINTS[count - 1]


@given(*(st.integers(0, 2**62) for _ in range(6)), st.booleans())
def test_every_field_comes_back(
    log_start: int, synced: int, queues_to: int, index_to: int, index_file: int, timestamp_ms: int, clean: bool
) -> None:
    point = RecoverPoint(log_start, synced, queues_to, index_to, index_file, timestamp_ms, clean)
    assert load(saved(point)) == point


def test_writing_goes_on_after_a_restart() -> None:
    disk = saved(*POINTS[:2])
    for point in POINTS[2:]:
        file = RecoverPointFile(disk, PATH)
        file.load()
        file.save(point)
        file.close()
        assert load(disk) == point


@given(st.integers(1, 5), st.data())
def test_a_torn_slot_leaves_the_other(count: int, data: st.DataObject) -> None:
    disk = saved(*POINTS[:count])
    content = bytearray(disk.read_bytes(PATH))
    newest = 512 * (count % 2)
    at = newest + data.draw(st.integers(0, 75))
    content[at] ^= data.draw(st.integers(1, 255))
    disk.plant(PATH, bytes(content))
    assert load(disk) == (POINTS[count - 2] if count > 1 else None)
    assert RecoverPointFile(disk, PATH).damaged_slots() == [newest]


@pytest.mark.parametrize("data", [b"", b"short", bytes(1024), b"\xff" * 1024, b"PYROMQ\0\1" * 128])
def test_rubbish_is_no_point_and_is_written_over(data: bytes) -> None:
    disk = SimDisk()
    disk.plant(PATH, data)
    file = RecoverPointFile(disk, PATH)
    assert file.load() is None
    file.save(POINTS[0])
    assert load(disk) == POINTS[0]


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_while_saving_leaves_the_last_or_the_next(seed: int) -> None:
    disk = saved(*POINTS[:3])
    file = RecoverPointFile(disk, PATH)
    file.load()

    def cut(step: str, path: Path) -> None:
        raise PowerCut

    disk.on_operation = cut
    with pytest.raises(PowerCut):
        file.save(POINTS[3])
    mode = random.Random(seed).choice(list(CrashMode))
    assert load(disk.crash(random.Random(seed), mode)) in (POINTS[2], POINTS[3])


def test_the_checkpoint_is_rocketmqs_page() -> None:
    disk, path = SimDisk(), Path("/store/durability/checkpoint")
    assert CheckpointFile(disk, path).load() == Checkpoint()
    file = CheckpointFile(disk, path)
    file.save(Checkpoint(0x18BCFE56800, 2, 3))
    data = disk.read_bytes(path)
    assert len(data) == 4096
    assert data[:24].hex() == "0000018bcfe5680000000000000000020000000000000003"
    assert not any(data[24:])
    assert CheckpointFile(disk, path).load() == Checkpoint(0x18BCFE56800, 2, 3)


def test_what_rocketmq_keeps_behind_the_times_stays() -> None:
    disk, path = SimDisk(), Path("/store/durability/checkpoint")
    disk.plant(path, bytes(24) + b"\7" * 16 + bytes(4056))
    file = CheckpointFile(disk, path)
    file.save(Checkpoint(1, 2, 3))
    file.close()
    assert disk.read_bytes(path)[24:40] == b"\7" * 16


@pytest.mark.parametrize("data", [b"", b"x" * 23])
def test_a_checkpoint_that_is_too_short_is_none(data: bytes) -> None:
    disk, path = SimDisk(), Path("/store/durability/checkpoint")
    disk.plant(path, data)
    assert CheckpointFile(disk, path).load() == Checkpoint()
    CheckpointFile(disk, path).save(Checkpoint(1, 2, 3))
    assert disk.size(path) == 4096


def test_the_abort_mark_holds_the_pid() -> None:
    disk, path = SimDisk(), Path("/store/abort")
    mark = AbortMark(disk, path)
    assert not mark.is_set()
    mark.set()
    assert mark.is_set()
    assert disk.read_bytes(path) == str(os.getpid()).encode()
    mark.clear()
    mark.clear()
    assert not mark.is_set()
