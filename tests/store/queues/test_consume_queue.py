"""One queue: entries in files, rolled, cut, and begun in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.model.ids import QueueId
from pyromq.store.queues.consume_queue import BLANK_SIZE, RESERVE_BYTES, ConsumeQueue, QueueEntry
from pyromq.testing import SimDisk

DIRECTORY = Path("/store/consumequeue/orders/3")
FILE_ENTRIES = 10


def new_queue(disk: SimDisk | None = None, file_entries: int = FILE_ENTRIES) -> ConsumeQueue:
    queue = ConsumeQueue(disk or SimDisk(), DIRECTORY, QueueId("orders", 3), file_entries)
    queue.load()
    return queue


def put(queue: ConsumeQueue, count: int, *, size: int = 100) -> None:
    """Entries whose position tells their offset."""
    for _ in range(count):
        if queue.cursor.next_dispatch >= queue.cursor.limit:
            queue.make_room()
        queue.cursor.put(queue.max_offset * size + 1, size, queue.max_offset)


def positions(queue: ConsumeQueue) -> list[int]:
    return [entry.position for offset in range(queue.max_offset) if (entry := queue.entry(offset)) is not None]


def test_an_entry_is_twenty_bytes_of_rocketmqs() -> None:
    queue = new_queue()
    queue.make_room()
    queue.cursor.put(0x123456789A, 0x1F4, -2)
    data = queue.files.disk.read_bytes(DIRECTORY / "00000000000000000000")
    assert data[:20].hex() == "000000123456789a000001f4fffffffffffffffe"
    assert len(data) == 20 * FILE_ENTRIES
    assert queue.entry(0) == QueueEntry(0x123456789A, 0x1F4, -2)


def test_a_full_file_is_followed_by_the_next() -> None:
    queue = new_queue()
    put(queue, 25)
    assert queue.files.disk.names(DIRECTORY) == [f"{base:020d}" for base in (0, 200, 400)]
    assert positions(queue) == [offset * 100 + 1 for offset in range(25)]
    assert queue.entry(25) == QueueEntry(0, 0, 0)
    assert queue.entry(30) is None
    assert queue.entry(-1) is None


def test_writing_without_room_is_our_own_mistake() -> None:
    queue = new_queue()
    with pytest.raises(AssertionError):
        queue.cursor.put(1, 1, 1)


def test_room_is_taken_in_steps_and_a_full_disk_changes_nothing() -> None:
    disk = SimDisk()
    queue = new_queue(disk, file_entries=20_000)
    queue.make_room()
    assert queue.cursor.limit == RESERVE_BYTES // 20
    put(queue, queue.cursor.limit)
    disk.full = True
    with pytest.raises(OSError, match="No space"):
        queue.make_room()
    disk.full = False
    put(queue, 1)
    assert queue.max_offset == RESERVE_BYTES // 20 + 1


def test_a_queue_may_begin_in_the_middle_of_a_file() -> None:
    queue = new_queue()
    queue.start_at(27)
    put(queue, 5)
    assert queue.files.disk.names(DIRECTORY) == [f"{400:020d}", f"{600:020d}"]
    assert [queue.entry(offset) for offset in range(20, 27)] == [QueueEntry(0, BLANK_SIZE, 0)] * 7
    assert all(entry is not None and entry.is_blank for entry in map(queue.entry, range(20, 27)))
    assert (queue.min_offset, queue.max_offset) == (27, 32)


@given(st.integers(0, 35), st.integers(0, 35))
def test_a_cut_leaves_zeroes_and_writing_goes_on_there(written: int, cut: int) -> None:
    cut = min(written, cut)
    queue, expected = new_queue(), new_queue()
    put(queue, written)
    put(expected, cut)
    queue.cut(cut)
    assert queue.max_offset == queue.cursor.next_append == cut
    for path, data in expected.files.disk.files().items():  # type: ignore[attr-defined]
        assert queue.files.disk.read_bytes(path) == data
    put(queue, 12)
    put(expected, 12)
    assert queue.files.disk.files() == expected.files.disk.files()  # type: ignore[attr-defined]


@given(st.integers(0, 45), st.integers(0, 45))
def test_the_end_is_found_again(written: int, good: int) -> None:
    disk = SimDisk()
    put(new_queue(disk), written)
    queue = new_queue(disk)
    end = queue.find_end(lambda offset, entry: entry.size > 0 and offset < good)
    assert end == min(written, good)


def test_blanks_at_the_beginning_count_as_good() -> None:
    disk = SimDisk()
    queue = new_queue(disk)
    queue.start_at(27)
    put(queue, 2)
    assert new_queue(disk).find_end(lambda offset, entry: entry.size > 0) == 29


@given(st.integers(1, 45), st.integers(0, 5000))
def test_retention_moves_the_oldest_offset(written: int, log_start: int) -> None:
    queue = new_queue()
    put(queue, written)
    queue.drop_before(log_start)
    expected = next((offset for offset in range(written) if offset * 100 + 1 >= log_start), written)
    assert queue.min_offset == expected
    kept = queue.files.start // 20
    assert kept <= queue.min_offset
    assert kept + FILE_ENTRIES > min(queue.min_offset, written - 1), "files below the oldest offset are gone"


def test_blanks_in_the_middle_do_not_hide_what_is_before_them() -> None:
    queue = new_queue(file_entries=100)
    put(queue, 3)
    for _ in range(50):
        queue.cursor.put(0, BLANK_SIZE, 0)
    put(queue, 3)
    queue.drop_before(0)
    assert queue.min_offset == 0
    queue.drop_before(102)
    assert queue.min_offset == 2
    queue.drop_before(300)
    assert queue.min_offset == 53


def test_of_a_run_with_a_gap_the_last_files_are_kept() -> None:
    disk = SimDisk()
    put(new_queue(disk), 25)
    disk.remove(DIRECTORY / f"{200:020d}")
    queue = new_queue(disk)
    assert disk.names(DIRECTORY) == [f"{400:020d}"]
    assert queue.has_lost_front
    assert not queue.is_damaged


def test_a_run_whose_last_file_is_wrong_is_thrown_away_to_be_built_again() -> None:
    disk = SimDisk()
    put(new_queue(disk), 25)
    disk.remove(DIRECTORY / f"{200:020d}")
    disk.plant(DIRECTORY / f"{400:020d}", bytes(100))
    queue = new_queue(disk)
    assert disk.names(DIRECTORY) == []
    assert queue.max_offset == 0
    assert queue.is_damaged


def test_only_files_with_something_new_are_synced() -> None:
    disk = SimDisk()
    synced: list[str] = []
    queue = new_queue(disk)
    put(queue, 25)
    disk.on_operation = lambda step, path: synced.append(path.name) if step == "sync" else None
    queue.sync(25)
    assert len(synced) == 3
    put(queue, 1)
    queue.sync(26)
    assert synced[3:] == [f"{400:020d}"]
    queue.sync(26)
    assert len(synced) == 4
