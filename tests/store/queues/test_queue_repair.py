"""Queues and index files that are damaged, missing or not of this store: every message stays readable, in order."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyromq.clock import ManualClock
from pyromq.errors import CorruptQueue, QueueRebuilding
from pyromq.records.java_hash import java_hash
from pyromq.store.durability.checkpoint import RecoverPointFile
from pyromq.store.message_store import InlineRunner, MessageStore
from pyromq.store.queues.queue_cursor import ENTRY
from pyromq.store.retention import Decision
from pyromq.testing import SimDisk
from store.support import ROOT, bodies, config, open_store, order, read_all

MESSAGES = 3000
FILE_ENTRIES = 500
SECONDS = 60


def settings(root: Path, **changes: Any) -> Any:
    sizes = {"segment_bytes": 1 << 16, "queue_file_entries": FILE_ENTRIES, "index_slots": 100, "index_entries": 700}
    return config(root=root, **{**sizes, **changes})


def fill(root: Path, **changes: Any) -> None:
    """A store that was stopped cleanly: 3,000 messages in one queue, some in others, all with a key."""
    with MessageStore(settings(root, **changes), runner=InlineRunner()) as store:
        for number in range(MESSAGES):
            store.append([order(f"{number}", TAGS=f"t{number % 3}", KEYS=f"k{number}")])
            if number % 10 == 0:
                store.append([order(f"other {number}", queue=1)])
        store.dispatch()


def queue_files(root: Path, number: int = 0) -> list[Path]:
    return sorted((root / "consumequeue" / "orders" / str(number)).iterdir())


def swap(one: Path, other: Path) -> None:
    spare = one.with_name("spare")
    one.rename(spare)
    other.rename(one)
    spare.rename(other)


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def first_file_removed(root: Path) -> None:
    queue_files(root)[0].unlink()


def first_two_files_removed(root: Path) -> None:
    for path in queue_files(root)[:2]:
        path.unlink()


def middle_file_removed(root: Path) -> None:
    queue_files(root)[2].unlink()


def last_file_removed(root: Path) -> None:
    queue_files(root)[-1].unlink()


def two_files_swapped(root: Path) -> None:
    swap(*queue_files(root)[1:3])


def first_and_last_swapped(root: Path) -> None:
    files = queue_files(root)
    swap(files[0], files[-1])


def file_of_another_queue(root: Path) -> None:
    shutil.copy(queue_files(root, 1)[0], queue_files(root)[2])


def last_file_of_another_queue(root: Path) -> None:
    shutil.copy(queue_files(root, 1)[0], queue_files(root)[-1])


def queue_removed(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "orders" / "0")


def topic_removed(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "orders")


def all_queues_removed(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


def foreign_file(root: Path) -> None:
    queue_files(root)[0].with_name("notes.txt").write_text("not of a queue", encoding="utf-8")


def empty_file_in_the_middle(root: Path) -> None:
    queue_files(root)[1].write_bytes(b"")


def empty_last_file(root: Path) -> None:
    queue_files(root)[-1].write_bytes(b"")


def shortened_first_file(root: Path) -> None:
    path = queue_files(root)[0]
    path.write_bytes(path.read_bytes()[:1000])


def shortened_last_file(root: Path) -> None:
    path = queue_files(root)[-1]
    path.write_bytes(path.read_bytes()[:1000])


def longer_file(root: Path) -> None:
    path = queue_files(root)[1]
    path.write_bytes(path.read_bytes() + bytes(100))


def file_of_zeroes(root: Path) -> None:
    path = queue_files(root)[1]
    path.write_bytes(bytes(FILE_ENTRIES * ENTRY.size))


def last_file_of_zeroes(root: Path) -> None:
    path = queue_files(root)[-1]
    path.write_bytes(bytes(FILE_ENTRIES * ENTRY.size))


def file_more_than_the_log_has(root: Path) -> None:
    """Entries behind the last one, which point to records of this queue."""
    files = queue_files(root)
    last = files[-1]
    shutil.copy(files[0], last.with_name(f"{MESSAGES * ENTRY.size:020d}"))


def flipped_position(root: Path) -> None:
    flip(queue_files(root)[1], 100 * ENTRY.size + 7, 3)


def flipped_position_far_away(root: Path) -> None:
    flip(queue_files(root)[1], 100 * ENTRY.size, 6)


def flipped_size(root: Path) -> None:
    flip(queue_files(root)[1], 100 * ENTRY.size + 11)


def flipped_sign_of_size(root: Path) -> None:
    flip(queue_files(root)[1], 100 * ENTRY.size + 8, 7)


def flipped_tag_hash(root: Path) -> None:
    flip(queue_files(root)[1], 100 * ENTRY.size + 19)


def flipped_first_entry(root: Path) -> None:
    flip(queue_files(root)[0], 7, 3)


def flipped_last_entry(root: Path) -> None:
    flip(queue_files(root)[-1], (FILE_ENTRIES - 1) * ENTRY.size + 7, 3)


def two_entries_exchanged(root: Path) -> None:
    path = queue_files(root)[1]
    data = bytearray(path.read_bytes())
    data[0:20], data[20:40] = data[20:40], data[0:20]
    path.write_bytes(data)


def random_bytes(root: Path) -> None:
    queue_files(root)[1].write_bytes(random.Random(1).randbytes(FILE_ENTRIES * ENTRY.size))


DAMAGES: list[Callable[[Path], None]] = [
    first_file_removed, first_two_files_removed, middle_file_removed, last_file_removed, two_files_swapped,
    first_and_last_swapped, file_of_another_queue, last_file_of_another_queue, queue_removed, topic_removed,
    all_queues_removed, foreign_file, empty_file_in_the_middle, empty_last_file, shortened_first_file,
    shortened_last_file, longer_file, file_of_zeroes, last_file_of_zeroes, file_more_than_the_log_has, flipped_position,
    flipped_position_far_away, flipped_size, flipped_sign_of_size, flipped_tag_hash, flipped_first_entry,
    flipped_last_entry, two_entries_exchanged, random_bytes,
]  # fmt: skip
ALL = [f"{number}".encode() for number in range(MESSAGES)]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("filled") / "store"
    fill(root)
    return root


@pytest.fixture
def root(filled: Path, tmp_path: Path) -> Path:
    shutil.copytree(filled, tmp_path / "store")
    return tmp_path / "store"


def check(store: MessageStore) -> None:
    """Every message, in order, also for a reader that wants one tag; and the next one gets the next offset."""
    assert read_all(store) == ALL
    assert len(read_all(store, queue=1)) == MESSAGES // 10
    offset, tagged = 0, 0
    while offset < MESSAGES:
        result = store.read("orders", 0, offset, tags=["t1"])
        tagged += len(result.records)
        offset = result.next_offset
    assert tagged == MESSAGES // 3
    (receipt,) = store.append([order("next")])
    assert receipt.queue_offset == MESSAGES
    store.dispatch()
    assert bodies(store.read("orders", 0, MESSAGES)) == [b"next"]
    assert bodies(store.query("orders", "k1234")) == [b"1234"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_message_is_read_in_order(root: Path, damage: Callable[[Path], None]) -> None:
    damage(root)
    with MessageStore(settings(root), runner=InlineRunner()) as store:
        check(store)
    with MessageStore(settings(root), runner=InlineRunner()) as store:
        assert store.repair.passes == 0
        assert read_all(store) == [*ALL, b"next"]
        assert store.repair.passes == 0, "what was mended is on the disk"


@pytest.mark.parametrize("damage", DAMAGES)
def test_after_a_crash_too(root: Path, damage: Callable[[Path], None]) -> None:
    (root / "abort").write_bytes(b"1")
    damage(root)
    with MessageStore(settings(root), runner=InlineRunner()) as store:
        check(store)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_running_store_mends_its_queues_while_it_serves(root: Path, damage: Callable[[Path], None]) -> None:
    damage(root)

    async def tell() -> None:
        async with asyncio.timeout(SECONDS), MessageStore(settings(root)).running() as store:
            found: list[bytes] = []
            offset = 0
            while offset < MESSAGES:
                result = await store.read_soon("orders", 0, offset)
                assert result.next_offset > offset
                found += bodies(result)
                offset = result.next_offset
            assert found == ALL
            check(store)

    asyncio.run(tell())


def read_tagged(store: MessageStore, tag: str) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while offset < MESSAGES:
        result = store.read("orders", 0, offset, tags=[tag])
        assert result.next_offset > offset
        found += bodies(result)
        offset = result.next_offset
    return found


@pytest.mark.parametrize("tag", ["t0", "t1", "t2"])
@pytest.mark.parametrize("bit", range(8))
def test_a_reader_of_one_tag_passes_over_no_message(root: Path, tag: str, bit: int) -> None:
    for number in range(3):
        flip(queue_files(root)[1], (100 + 50 * number) * ENTRY.size + 19, bit)
    with MessageStore(settings(root), runner=InlineRunner()) as store:
        wanted = [b"%d" % number for number in range(MESSAGES) if f"t{number % 3}" == tag]
        assert read_tagged(store, tag) == wanted
        assert store.repair.passes == 1
        store.repair._last_pass = None
        assert read_tagged(store, tag) == wanted
        assert store.repair.passes == 1


def test_a_damaged_record_of_another_tag_stops_no_reader(root: Path) -> None:
    with MessageStore(settings(root), runner=InlineRunner()) as store:
        queue = store.queues.of_topic(b"orders")[0]
        entry = queue.entry(700)  # of the tag t1
        assert entry is not None
        segment = store.log.files.find(entry.position)
        assert segment is not None
        place = (segment.path, entry.position - segment.base + 86)
    flip(*place)
    with MessageStore(settings(root), runner=InlineRunner()) as store:
        assert len(read_tagged(store, "t0")) == MESSAGES // 3


def test_readers_that_do_not_wait_are_told_to_try_again(root: Path) -> None:
    first_file_removed(root)

    async def tell() -> None:
        async with asyncio.timeout(SECONDS), MessageStore(settings(root)).running() as store:
            with pytest.raises(QueueRebuilding, match="orders/0"):
                store.read("orders", 0, 0)
            assert store.min_offset("orders", 0) == 0, "nobody is told that messages are gone"
            assert len(store.read("orders", 1, 0).records) == 32, "others serve on"
            await store.read_soon("orders", 0, 0)
            assert read_all(store) == ALL
            assert store.repair.passes == 1

    asyncio.run(tell())


def test_the_check_after_a_start_finds_swapped_files_before_a_reader_does(root: Path) -> None:
    two_files_swapped(root)

    async def tell() -> None:
        async with asyncio.timeout(SECONDS), MessageStore(settings(root)).running() as store:
            await store.repair._passed.wait()
            assert store.repair.is_checked
            assert read_all(store) == ALL

    asyncio.run(tell())


def test_a_healthy_store_needs_no_pass(root: Path) -> None:
    async def tell() -> None:
        async with asyncio.timeout(SECONDS), MessageStore(settings(root)).running() as store:
            with ThreadPoolExecutor(1) as executor:
                await store.repair._check_files(executor)
            assert read_all(store) == ALL
            assert store.repair.passes == 0

    asyncio.run(tell())


def test_a_repair_that_was_cut_short_is_made_up_for(root: Path) -> None:
    first_file_removed(root)
    store = MessageStore(settings(root), runner=InlineRunner())
    store.open()
    store.close()  # without a read, so nothing was repaired
    with MessageStore(settings(root), runner=InlineRunner()) as store:
        assert store.repair.passes == 0
        assert read_all(store) == ALL
        assert store.repair.passes == 1


@pytest.mark.parametrize("damage", [first_file_removed, two_files_swapped, flipped_position, middle_file_removed])
def test_with_a_log_that_has_lost_its_beginning(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """The first offsets come from the log, not from what the queue has."""
    root = tmp_path / "store"
    clock = ManualClock()
    store = MessageStore(settings(root), clock=clock, runner=InlineRunner())
    store.open()
    store.append([order(f"{number}", TAGS="t") for number in range(1200)])
    store.dispatch()
    clock.advance(1)
    first = store.log.files.segments[1].base
    store.append([order(f"{number}", TAGS="t") for number in range(1200, MESSAGES)])
    store.dispatch()
    store.flush()
    plan = store.points.plan_log_start(first)
    store.points.carry_out(plan)
    store.cleaner._remove(first, Decision(1, 0, refuse_appends=False))
    expected = read_all(store)
    least = store.min_offset("orders", 0)
    assert least > 0
    store.close()
    damage(root)
    with MessageStore(settings(root), clock=clock, runner=InlineRunner()) as store:
        if store.queues.of_topic(b"orders")[0].is_suspect:
            store.repair.run_now()
        store.repair.check_now()
        assert read_all(store) == expected
        assert store.min_offset("orders", 0) == least


def test_a_topic_that_was_made_again_keeps_its_own_messages(root: Path) -> None:
    async def tell() -> None:
        async with asyncio.timeout(SECONDS), MessageStore(settings(root)).running() as store:
            await store.remove_topic("orders")
            store.append([order(f"new {number}") for number in range(700)])
            store.dispatch()

    asyncio.run(tell())
    flipped_first_entry(root)
    with MessageStore(settings(root), runner=InlineRunner()) as store:
        expected = [f"new {number}".encode() for number in range(700)]
        assert read_all(store) == expected
        store.repair.run_now()
        assert read_all(store) == expected
        assert store.min_offset("orders", 0) == 0
        assert store.queues.get(b"orders", 1) is None


def test_a_pass_changes_nothing_in_a_healthy_store() -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.append([order(f"{number}", queue=number % 4, TAGS="a") for number in range(500)])
    store.dispatch()
    before = disk.files()
    store.repair.run_now()
    assert disk.files() == before
    store.close()


def test_damage_that_a_pass_does_not_mend_is_an_error_and_not_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    disk = SimDisk(clock)
    store = open_store(disk, clock)
    store.append([order(f"{number}") for number in range(10)])
    store.dispatch()
    store.close()
    store = open_store(disk, clock)
    queue = store.queues.of_topic(b"orders")[0]
    monkeypatch.setattr(store.repair, "_finish", lambda mender: setattr(queue, "is_suspect", False))
    monkeypatch.setattr(store.repair, "_last_pass", clock.monotonic())
    queue.overwrite(3, ENTRY.pack(1, 2, 3))
    with pytest.raises(CorruptQueue):
        store.read("orders", 0, 3)
    clock.advance(61)
    monkeypatch.undo()
    assert bodies(store.read("orders", 0, 3))[0] == b"3"
    store.close()


def test_the_record_of_a_damaged_entry_is_found_by_its_id(root: Path) -> None:
    flipped_position(root)
    with MessageStore(settings(root), runner=InlineRunner()) as store:
        queue = store.queues.of_topic(b"orders")[0]
        entry = queue.entry(FILE_ENTRIES + 99)
        assert entry is not None
        assert bodies([store.message_at(entry.end)]) == [f"{FILE_ENTRIES + 100}".encode()]


# --- the key index ---------------------------------------------------------------------------------------------------


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def first_index_removed(root: Path) -> None:
    index_files(root)[0].unlink()


def middle_index_removed(root: Path) -> None:
    index_files(root)[1].unlink()


def last_index_removed(root: Path) -> None:
    index_files(root)[-1].unlink()


def index_swapped(root: Path) -> None:
    swap(*index_files(root)[:2])


def index_shortened(root: Path) -> None:
    path = index_files(root)[1]
    path.write_bytes(path.read_bytes()[:500])


def index_emptied(root: Path) -> None:
    path = index_files(root)[1]
    path.write_bytes(bytes(path.stat().st_size))


def index_copied(root: Path) -> None:
    files = index_files(root)
    shutil.copy(files[0], files[2])


def all_index_removed(root: Path) -> None:
    shutil.rmtree(root / "index")


@pytest.mark.parametrize(
    "damage",
    [
        first_index_removed, middle_index_removed, last_index_removed, index_swapped, index_shortened, index_emptied,
        index_copied, all_index_removed,
    ],
)  # fmt: skip
@pytest.mark.parametrize("crashed", [False, True])
def test_every_key_is_found(root: Path, damage: Callable[[Path], None], crashed: bool) -> None:
    assert len(index_files(root)) > 3
    if crashed:
        (root / "abort").write_bytes(b"1")
    damage(root)
    with MessageStore(settings(root), runner=InlineRunner()) as store:
        store.dispatch()
        missing = [n for n in range(MESSAGES) if bodies(store.query("orders", f"k{n}")) != [f"{n}".encode()]]
        assert missing == []


# --- recover points --------------------------------------------------------------------------------------------------


def test_the_recover_point_of_the_first_version_is_read() -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.append([order("one")])
    store.close()
    point = RecoverPointFile(disk, ROOT / "recoverpoint").load()
    assert point is not None
    assert point.start_digest == 0
    assert java_hash("t") == 116
