"""One step ahead of the writer, and patient with a full disk."""

from __future__ import annotations

import pytest

from pyromq.clock import ManualClock
from pyromq.errors import DiskFull
from pyromq.metrics import Telemetry
from pyromq.store.log.allocator import RETRY_SECONDS, Allocator
from pyromq.store.log.segmented_file import Segment, SegmentedFile
from pyromq.testing import SimDisk
from pyromq.testing.sim.disk import SimMappedFile
from store.support import ROOT, LaterRunner

SIZE = 64 * 1024
RUN = ROOT / "commitlog"


class WarmFile:
    """A mapped file that only notes what it was asked to warm."""

    def __init__(self) -> None:
        self.warmed: list[tuple[int, int]] = []

    def warm(self, start: int, end: int) -> None:
        self.warmed.append((start, end))


class World:
    def __init__(self, warm_bytes: int = 0) -> None:
        self.clock = ManualClock()
        self.disk = SimDisk(self.clock)
        self.runner = LaterRunner()
        self.telemetry = Telemetry()
        self.files = SegmentedFile(self.disk, RUN, SIZE)
        self.allocator = Allocator(self.files, self.runner, self.clock, self.telemetry, warm_bytes)
        self.first = self.allocator.take(0)
        self.files.add(self.first)

    @property
    def failures(self) -> int:
        return self.telemetry.counter("pyromq_store_segment_allocation_failures_total").value


def test_the_next_segment_is_made_once_half_of_the_current_one_is_used() -> None:
    world = World()
    world.allocator.look_ahead(world.first, SIZE // 2 - 1)
    assert not world.runner.waiting
    for offset in (SIZE // 2, SIZE // 2 + 1, SIZE - 1):
        world.allocator.look_ahead(world.first, offset)
    assert len(world.runner.waiting) == 1
    world.runner.run()
    assert len(world.disk.names(RUN)) == 2
    world.disk.full = True  # it is there: nothing more is needed
    assert world.allocator.take(SIZE).base == SIZE
    assert world.telemetry.histogram("pyromq_store_segment_allocation_seconds").count == 2


def test_a_full_disk_ahead_is_remembered_not_raised_and_tried_again_when_it_matters() -> None:
    world = World()
    world.disk.full = True
    world.allocator.look_ahead(world.first, SIZE)
    world.runner.run()
    assert world.failures == 1
    world.allocator.look_ahead(world.first, SIZE)
    assert not world.runner.waiting
    world.disk.full = False
    assert world.allocator.take(SIZE).base == SIZE


def test_a_full_disk_is_asked_once_a_second_and_no_more() -> None:
    world = World()
    world.disk.full = True
    with pytest.raises(DiskFull, match=r"no room for the next segment of 65536 bytes .*No space left on device"):
        world.allocator.take(SIZE)
    assert world.failures == 1
    world.disk.full = False
    with pytest.raises(DiskFull, match="sending goes on by itself"):
        world.allocator.take(SIZE)
    assert world.failures == 1
    world.clock.advance(RETRY_SECONDS)
    assert world.allocator.take(SIZE).base == SIZE


def test_pages_are_warmed_ahead_of_the_writer_in_steps() -> None:
    world = World(warm_bytes=8192)
    file = WarmFile()
    segment = Segment(world.disk, RUN / "x", 0, SIZE).adopt(file)  # type: ignore[arg-type]
    for offset in range(0, SIZE // 2, 512):
        world.allocator.look_ahead(segment, offset)
        world.runner.run()
        warmed_to = file.warmed[-1][1]
        assert min(offset + 4096, SIZE) <= warmed_to
    assert file.warmed[0] == (0, 8192)
    assert all(before[1] == after[0] for before, after in zip(file.warmed, file.warmed[1:], strict=False))
    assert len(file.warmed) <= 1 + SIZE // 2 // 4096


@pytest.mark.parametrize("warms", [True, False])
def test_the_next_segment_is_warmed_for_those_alone_who_write_through_its_mapping(
    warms: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(warm_bytes=8192)
    warmed: list[tuple[int, int]] = []
    monkeypatch.setattr(SimMappedFile, "warm", lambda _, start, end: warmed.append((start, end)))
    world.allocator.look_ahead(world.first, SIZE, warms=warms)
    world.runner.run()
    assert ((0, 8192) in warmed) == warms
    assert world.allocator.take(SIZE).base == SIZE


def test_warming_stops_at_the_end_of_the_segment() -> None:
    world = World(warm_bytes=8192)
    file = WarmFile()
    segment = Segment(world.disk, RUN / "x", SIZE, SIZE).adopt(file)  # type: ignore[arg-type]
    for offset in (SIZE - 5000, SIZE - 100, SIZE - 1):
        world.allocator.look_ahead(segment, offset)
    world.runner.run()
    assert file.warmed == [(SIZE - 5000, SIZE)]


def test_a_segment_that_was_made_ahead_and_is_not_needed_leaves_no_file() -> None:
    world = World()
    world.allocator.look_ahead(world.first, SIZE)
    world.runner.run()
    world.allocator.discard()
    assert len(world.disk.names(RUN)) == 1
    world.allocator.discard()


def test_discarding_what_could_not_be_made_is_fine() -> None:
    world = World()
    world.disk.full = True
    world.allocator.look_ahead(world.first, SIZE)
    world.runner.run()
    world.allocator.discard()
    assert len(world.disk.names(RUN)) == 1
