"""`SimDisk`: synced bytes survive any crash, and no other bytes appear than a real disk could hold."""

from __future__ import annotations

import errno
import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.clock import ManualClock
from pyromq.files.disk import Disk, Locked, MappedFile, OsDisk
from pyromq.testing import CrashMode, PowerCut, SimDisk
from pyromq.testing.sim.file import MAX_VERSIONS, PAGE, SECTOR

ROOT = Path("/store")
LOG = ROOT / "commitlog" / "00000000000000000000"
CONFIG = ROOT / "config" / "topics.json"
DRAFT = ROOT / "config" / "topics.json.tmp"


def create(disk: SimDisk, path: Path = LOG, size: int = 16 * SECTOR) -> MappedFile:
    return disk.create_mapped(path, size, reserve=True)


def fill(mapped: MappedFile, sector: int, byte: int) -> None:
    mapped.buffer[sector * SECTOR : (sector + 1) * SECTOR] = bytes([byte]) * SECTOR


def sectors(content: bytes) -> list[bytes]:
    return [content[start : start + SECTOR] for start in range(0, len(content), SECTOR)]


def letters(disk: SimDisk, path: Path = LOG) -> list[int]:
    """A file of which every sector repeats one byte, as these bytes."""
    content = disk.read_bytes(path)
    assert all(len(set(sector)) == 1 for sector in sectors(content)), "a sector is torn"
    return [sector[0] for sector in sectors(content)]


def crashes(disk: SimDisk, count: int = 300, mode: CrashMode | None = None) -> list[SimDisk]:
    return [disk.crash(random.Random(seed), mode) for seed in range(count)]


def cut_at(step: str, nth: int = 1) -> Callable[[str, Path], None]:
    countdown = itertools.count(1)

    def hook(operation: str, path: Path) -> None:
        if operation == step and next(countdown) == nth:
            raise PowerCut

    return hook


def test_it_is_a_disk() -> None:
    disk: Disk = SimDisk()
    assert disk.names(ROOT) == []


# -- sectors -------------------------------------------------------------------------------------


def test_a_synced_byte_survives_every_crash() -> None:
    disk = SimDisk()
    log = create(disk)
    log.buffer[:5] = b"hello"
    log.sync()
    assert {after.read_bytes(LOG)[:5] for after in crashes(disk)} == {b"hello"}


def test_an_unsynced_sector_comes_back_old_new_or_as_it_was_in_between() -> None:
    disk = SimDisk()
    log = create(disk)
    for byte in b"abc":
        fill(log, 3, byte)
        disk.mark()
    assert {letters(after)[3] for after in crashes(disk)} == {0, *b"abc"}


def test_what_was_not_marked_in_between_is_not_known() -> None:
    disk = SimDisk()
    log = create(disk)
    fill(log, 3, ord("a"))
    fill(log, 3, ord("b"))
    assert {letters(after)[3] for after in crashes(disk)} == {0, ord("b")}


def test_sectors_are_lost_each_on_its_own() -> None:
    disk = SimDisk()
    log = create(disk, size=3 * SECTOR)
    for sector in range(3):
        fill(log, sector, 1)
    seen = {tuple(letters(after)) for after in crashes(disk)}
    assert seen == set(itertools.product((0, 1), repeat=3))


def test_only_what_changed_since_the_sync_is_in_doubt() -> None:
    disk = SimDisk()
    log = create(disk, size=2 * SECTOR)
    fill(log, 0, 1)
    disk.mark()
    log.sync()
    fill(log, 1, 2)
    assert {tuple(letters(after)) for after in crashes(disk)} == {(1, 0), (1, 2)}


def test_the_disk_after_a_crash_is_durable_and_the_old_one_untouched() -> None:
    disk = SimDisk()
    log = create(disk)
    fill(log, 0, 1)
    after = disk.crash(random.Random(1), CrashMode.ALL_LOST)
    assert letters(disk)[0] == 1
    assert letters(after)[0] == 0
    assert {again.files()[LOG] for again in crashes(after, 20)} == {after.files()[LOG]}


def test_a_sector_keeps_a_limited_number_of_versions() -> None:
    disk = SimDisk()
    log = create(disk)
    for number in range(MAX_VERSIONS + 10):
        fill(log, 0, number + 1)
        disk.mark()
    seen = {letters(after)[0] for after in crashes(disk, 2000)}
    assert seen <= {0, *range(11, MAX_VERSIONS + 11)}


def test_a_file_that_ends_within_a_sector() -> None:
    disk = SimDisk()
    index = create(disk, size=SECTOR + 40)
    index.buffer[SECTOR:] = b"x" * 40
    assert {after.read_bytes(LOG)[SECTOR:] for after in crashes(disk)} == {bytes(40), b"x" * 40}
    assert {after.size(LOG) for after in crashes(disk)} == {SECTOR + 40}


# -- modes ---------------------------------------------------------------------------------------


@pytest.fixture
def appended() -> SimDisk:
    """Eight sectors, written one after the other."""
    disk = SimDisk()
    log = create(disk, size=8 * SECTOR)
    for sector in range(8):
        fill(log, sector, sector + 1)
        disk.mark()
    return disk


WRITTEN = list(range(1, 9))


def test_prefix_keeps_all_up_to_a_moment(appended: SimDisk) -> None:
    seen = {tuple(letters(after)) for after in crashes(appended, mode=CrashMode.PREFIX)}
    assert seen == {tuple(WRITTEN[:kept] + [0] * (8 - kept)) for kept in range(9)}


def test_prefix_goes_by_time_across_files() -> None:
    disk = SimDisk()
    first, second = create(disk, ROOT / "a", SECTOR), create(disk, ROOT / "b", SECTOR)
    fill(second, 0, 1)
    disk.mark()
    fill(first, 0, 1)
    seen = {
        (letters(after, ROOT / "a")[0], letters(after, ROOT / "b")[0]) for after in crashes(disk, mode=CrashMode.PREFIX)
    }
    assert seen == {(0, 0), (0, 1), (1, 1)}


def test_suffix_keeps_all_after_a_moment(appended: SimDisk) -> None:
    seen = {tuple(letters(after)) for after in crashes(appended, mode=CrashMode.SUFFIX)}
    assert seen == {tuple([0] * lost + WRITTEN[lost:]) for lost in range(9)}


def test_single_lost_and_single_kept(appended: SimDisk) -> None:
    for after in crashes(appended, mode=CrashMode.SINGLE_LOST):
        assert letters(after).count(0) == 1
    for after in crashes(appended, mode=CrashMode.SINGLE_KEPT):
        assert letters(after).count(0) == 7


def test_all_lost_and_all_kept(appended: SimDisk) -> None:
    assert letters(appended.crash(random.Random(0), CrashMode.ALL_LOST)) == [0] * 8
    assert letters(appended.crash(random.Random(0), CrashMode.ALL_KEPT)) == WRITTEN


def test_by_file_keeps_whole_files() -> None:
    disk = SimDisk()
    for name in "ab":
        mapped = create(disk, ROOT / name, 2 * SECTOR)
        fill(mapped, 0, 1)
        fill(mapped, 1, 1)
    seen = {
        (*letters(after, ROOT / "a"), *letters(after, ROOT / "b")) for after in crashes(disk, mode=CrashMode.BY_FILE)
    }
    assert seen == {(0, 0, 0, 0), (1, 1, 0, 0), (0, 0, 1, 1), (1, 1, 1, 1)}


def test_every_mode_is_drawn_and_stands_a_disk_without_doubts(appended: SimDisk) -> None:
    assert {appended.choose_crash(random.Random(seed)).mode for seed in range(300)} == set(CrashMode)
    appended.sync_all()
    for mode in CrashMode:
        assert letters(appended.crash(random.Random(0), mode)) == WRITTEN


def test_a_choice_is_made_first_and_shown_after(appended: SimDisk) -> None:
    choice = appended.choose_crash(random.Random(5), CrashMode.SINGLE_KEPT)
    assert appended.after(choice).files() == appended.after(choice).files()
    words = appended.describe(choice).splitlines()
    assert words[0] == "crash: single-kept"
    assert sum("version 1 of 1" in line for line in words) == 1
    assert f"{LOG} sector 0: " in words[1]


def test_a_choice_does_not_fit_a_disk_that_went_on(appended: SimDisk) -> None:
    choice = appended.choose_crash(random.Random(5))
    appended.sync_all()
    with pytest.raises(ValueError, match="zip"):
        appended.after(choice)


# -- process kills and copies --------------------------------------------------------------------


def test_a_kill_keeps_everything_but_a_power_cut_may_take_it_still() -> None:
    disk = SimDisk()
    log = create(disk)
    disk.lock(ROOT / "lock")
    fill(log, 0, 1)
    killed = disk.kill()
    assert letters(killed)[0] == 1
    killed.lock(ROOT / "lock")
    assert {letters(after)[0] for after in crashes(killed)} == {0, 1}


def test_a_copy_goes_its_own_way() -> None:
    disk = SimDisk(capacity_bytes=1 << 20)
    log = create(disk)
    fill(log, 0, 1)
    disk.remove(LOG)
    twin = disk.copy()
    create(twin, ROOT / "other")
    assert disk.files() == {}
    assert set(twin.files()) == {ROOT / "other"}
    assert twin.capacity_bytes == 1 << 20
    assert {after.exists(LOG) for after in crashes(twin)} == {True, False}


# -- names ---------------------------------------------------------------------------------------


def test_a_created_file_is_there_and_zero_after_any_crash() -> None:
    disk = SimDisk()
    create(disk)
    for after in crashes(disk, 50):
        assert letters(after) == [0] * 16


def test_names_are_those_directly_in_a_directory() -> None:
    disk = SimDisk()
    create(disk, ROOT / "consumequeue" / "orders" / "0" / "000")
    create(disk, ROOT / "consumequeue-old")
    disk.replace_bytes(ROOT / "checkpoint", b"x")
    assert disk.names(ROOT) == ["checkpoint", "consumequeue", "consumequeue-old"]
    assert disk.names(ROOT / "consumequeue") == ["orders"]
    assert disk.names(Path("/")) == ["store"]
    assert disk.names(ROOT / "nothing") == []


def test_relative_paths_work_as_well() -> None:
    disk = SimDisk()
    create(disk, Path("store/log"))
    assert disk.names(Path()) == ["store"]
    assert disk.names(Path("store")) == ["log"]


def test_a_removed_file_may_come_back_until_its_directory_is_synced() -> None:
    disk = SimDisk()
    log = create(disk)
    fill(log, 0, 1)
    log.sync()
    disk.remove(LOG)
    assert not disk.exists(LOG)
    back = [after for after in crashes(disk) if after.exists(LOG)]
    assert 0 < len(back) < 300
    assert {letters(after)[0] for after in back} == {1}
    create(disk, LOG.with_name("next"))
    assert not any(after.exists(LOG) for after in crashes(disk))


def test_sync_in_another_directory_does_not_settle_a_removal() -> None:
    disk = SimDisk()
    create(disk)
    disk.remove(LOG)
    disk.replace_bytes(CONFIG, b"{}")
    assert any(after.exists(LOG) for after in crashes(disk))
    disk.sync_all()
    assert not any(after.exists(LOG) for after in crashes(disk))


def test_a_removed_tree_may_come_back_in_part() -> None:
    disk = SimDisk()
    queue = ROOT / "consumequeue" / "orders"
    create(disk, queue / "0" / "a")
    create(disk, queue / "0" / "b")
    disk.remove_tree(queue)
    assert disk.names(ROOT / "consumequeue") == []
    seen = {tuple(after.names(queue / "0")) for after in crashes(disk)}
    assert seen == {(), ("a",), ("b",), ("a", "b")}
    assert any(after.exists(queue) and not after.exists(queue / "0") for after in crashes(disk))
    for after in crashes(disk):
        if after.names(queue / "0"):
            assert after.exists(queue / "0"), "a file came back without its directory"


def test_nothing_comes_back_into_a_directory_made_anew() -> None:
    disk = SimDisk()
    queue = ROOT / "consumequeue" / "orders"
    create(disk, queue / "a")
    disk.remove_tree(queue)
    disk.make_dir(queue)
    assert {tuple(after.names(queue)) for after in crashes(disk)} == {()}


def test_removing_what_is_not_there_is_fine() -> None:
    disk = SimDisk()
    disk.remove(LOG)
    disk.remove_tree(ROOT)
    disk.make_dir(ROOT)
    with pytest.raises(IsADirectoryError):
        disk.remove(ROOT)


def test_views_outlive_the_file() -> None:
    disk = SimDisk()
    log = create(disk)
    view = log.buffer[:4]
    disk.remove(LOG)
    log.close()
    view[:] = b"late"
    assert bytes(view) == b"late"
    with pytest.raises(ValueError, match="closed"):
        log.sync()


# -- replace -------------------------------------------------------------------------------------


def test_a_replaced_file_is_new_after_any_crash() -> None:
    disk = SimDisk()
    disk.replace_bytes(CONFIG, b"old" * 1000)
    disk.replace_bytes(CONFIG, b"new" * 1000)
    for after in crashes(disk, 50):
        assert after.files() == {CONFIG: b"new" * 1000}


@pytest.mark.parametrize("step", ["replace:write", "replace:rename", "replace:sync_dir"])
def test_a_replace_cut_short_leaves_the_old_or_the_new(step: str) -> None:
    old, new = b"old" * 1000, b"new" * 1000
    disk = SimDisk()
    disk.replace_bytes(CONFIG, old)
    disk.on_operation = cut_at(step)
    with pytest.raises(PowerCut):
        disk.replace_bytes(CONFIG, new)
    results = crashes(disk)
    assert {after.read_bytes(CONFIG) for after in results} == ({old, new} if "sync" in step else {old})
    drafts = {after.files().get(DRAFT) for after in results}
    assert {None, b"", new} <= drafts
    assert (len(drafts) > 3) == (step == "replace:write")  # only then are its sectors in doubt
    for after in results:
        assert after.read_bytes(CONFIG) == old or not after.exists(DRAFT)


def test_a_replace_that_fails_leaves_the_old_and_no_draft() -> None:
    disk = SimDisk()
    disk.replace_bytes(CONFIG, b"old")
    disk.fail_next_sync(lambda path: path == CONFIG)
    with pytest.raises(OSError, match="Input/output"):
        disk.replace_bytes(CONFIG, b"new")
    assert disk.files() == {CONFIG: b"old"}
    disk.replace_bytes(CONFIG, b"new")
    assert disk.files() == {CONFIG: b"new"}


def test_an_empty_file_cannot_be_mapped() -> None:
    disk = SimDisk()
    disk.replace_bytes(CONFIG, b"")
    assert disk.read_bytes(CONFIG) == b""
    with pytest.raises(ValueError, match="empty"):
        disk.open_mapped(CONFIG)


# -- faults to order -----------------------------------------------------------------------------


def test_a_failed_sync_makes_nothing_durable_and_the_next_one_does_not_mend_it() -> None:
    disk = SimDisk()
    log = create(disk, size=2 * PAGE)
    fill(log, 0, 1)
    disk.fail_next_sync()
    with pytest.raises(OSError, match="Input/output"):
        log.sync()
    fill(log, PAGE // SECTOR, 2)
    log.sync()
    seen = {(letters(after)[0], letters(after)[PAGE // SECTOR]) for after in crashes(disk)}
    assert seen == {(0, 2), (1, 2)}


def test_a_page_written_again_after_a_failed_sync_is_synced_by_the_next() -> None:
    disk = SimDisk()
    log = create(disk, size=PAGE)
    fill(log, 0, 1)
    disk.fail_next_sync(lambda path: path == LOG, OSError(errno.EDQUOT, "quota"))
    with pytest.raises(OSError, match="quota"):
        log.sync()
    fill(log, 1, 2)
    log.sync()
    assert {tuple(letters(after)[:2]) for after in crashes(disk)} == {(1, 2)}


def test_the_failure_waits_for_its_file() -> None:
    disk = SimDisk()
    log, other = create(disk), create(disk, ROOT / "other")
    disk.fail_next_sync(lambda path: path.name == "other")
    log.sync()
    with pytest.raises(OSError, match="Input/output"):
        other.sync()
    other.sync()


@pytest.mark.parametrize("fill_up", ["full", "capacity"])
def test_a_full_disk_refuses_and_leaves_nothing(fill_up: str) -> None:
    disk = SimDisk(capacity_bytes=4 * PAGE)
    disk.replace_bytes(CONFIG, b"old")
    sparse = disk.create_mapped(LOG, 4 * PAGE, reserve=False)
    before = disk.files()
    if fill_up == "full":
        disk.full = True
    else:
        disk.capacity_bytes = PAGE
    assert disk.usage(ROOT).share == 1.0
    refused: list[Callable[[], object]] = [
        lambda: create(disk, ROOT / "new" / "file", PAGE),
        lambda: disk.replace_bytes(CONFIG, b"new"),
        lambda: sparse.reserve(0, 1),
    ]
    for operation in refused:
        with pytest.raises(OSError, match="No space") as caught:
            operation()
        assert caught.value.errno == errno.ENOSPC
    assert disk.files() == before
    assert not disk.exists(ROOT / "new")
    assert all(after.files() == before for after in crashes(disk, 50))


def test_room_is_taken_by_the_page_once_and_given_back() -> None:
    disk = SimDisk(capacity_bytes=10 * PAGE)
    log = disk.create_mapped(LOG, 4 * PAGE, reserve=False)
    assert disk.usage(ROOT).used == 0
    log.reserve(100, PAGE + 1)
    log.reserve(0, 2 * PAGE)
    assert disk.usage(ROOT).used == 2 * PAGE
    log.reserve(0, 100 * PAGE)
    assert disk.usage(ROOT).used == 4 * PAGE
    disk.full = True
    log.reserve(0, 4 * PAGE)  # it has its blocks
    disk.full = False
    disk.remove(LOG)
    assert disk.usage(ROOT).used == 0


def test_a_power_cut_stops_the_disk_whatever_the_program_does_on_its_way_out() -> None:
    disk = SimDisk()
    log = create(disk)
    fill(log, 0, 1)
    disk.on_operation = cut_at("sync")
    with pytest.raises(PowerCut):
        log.sync()
    fill(log, 0, 9)
    fill(log, 1, 9)
    leaving: list[Callable[[], object]] = [
        log.sync,
        disk.sync_all,
        lambda: log.write_at(0, memoryview(b"x")),
        lambda: disk.remove(LOG),
        lambda: disk.remove_tree(ROOT),
        lambda: disk.replace_bytes(CONFIG, b"clean shutdown"),
        lambda: disk.open_mapped(LOG),
        lambda: create(disk, ROOT / "late"),
    ]
    for operation in leaving:
        with pytest.raises(PowerCut):
            operation()
    assert {tuple(letters(after)[:2]) for after in crashes(disk)} == {(0, 0), (1, 0)}
    assert letters(disk.kill())[:2] == [1, 0]


def test_a_power_cut_while_creating_leaves_nothing() -> None:
    disk = SimDisk()
    disk.on_operation = cut_at("create")
    with pytest.raises(PowerCut):
        create(disk)
    assert not any(after.exists(LOG) for after in crashes(disk, 50))


def test_the_hook_sees_every_step() -> None:
    disk = SimDisk()
    steps: list[str] = []
    disk.on_operation = lambda operation, path: steps.append(f"{operation} {path.name}")
    log = create(disk, ROOT / "log")
    log.reserve(0, 1)
    log.sync()
    disk.replace_bytes(ROOT / "config", b"{}")
    disk.remove(ROOT / "config")
    disk.remove_tree(ROOT)
    assert steps == [
        "create log",
        "reserve log",
        "sync log",
        "replace:write config",
        "replace:rename config",
        "replace:sync_dir config",
        "remove config",
        "remove log",
    ]


def test_bits_flip_on_the_disk_and_in_memory() -> None:
    disk = SimDisk()
    log = create(disk)
    view = log.buffer
    fill(log, 1, 0xFF)
    positions = disk.flip_bits(LOG, random.Random(3), 4, start=SECTOR, end=SECTOR + 2)
    assert all(SECTOR <= position < SECTOR + 2 for position in positions)
    live = disk.read_bytes(LOG)
    assert bytes(view) == live
    assert sum(byte.bit_count() for byte in live) == SECTOR * 8 - 4
    lost = disk.crash(random.Random(0), CrashMode.ALL_LOST)
    assert sum(byte.bit_count() for byte in lost.read_bytes(LOG)) == 4
    assert disk.crash(random.Random(0), CrashMode.ALL_KEPT).read_bytes(LOG) == live


def test_a_planted_file_has_always_been_there() -> None:
    disk = SimDisk()
    create(disk)
    disk.plant(LOG, b"cut short")
    assert {after.read_bytes(LOG) for after in crashes(disk, 50)} == {b"cut short"}


# -- the rest of the port ------------------------------------------------------------------------


def test_a_lock_is_held_by_one() -> None:
    disk = SimDisk(pid=42)
    held = disk.lock(ROOT / "lock")
    with pytest.raises(Locked) as caught:
        disk.lock(ROOT / "lock")
    assert caught.value.pid == 42
    held.release()
    disk.lock(ROOT / "lock").release()
    assert disk.read_bytes(ROOT / "lock") == b"lock"
    assert {after.files().get(ROOT / "lock") for after in crashes(disk)} == {None, b"", bytes(4), b"lock"}


def test_the_clock_says_when_a_file_was_modified() -> None:
    clock = ManualClock(1000)
    disk = SimDisk(clock)
    log = create(disk)
    clock.advance(1)
    log.sync()
    disk.mark()
    assert disk.modified_ms(LOG) == 1000
    fill(log, 0, 1)
    disk.mark()
    assert disk.modified_ms(LOG) == 2000
    clock.advance(1)
    fill(log, 0, 2)
    log.sync()
    assert disk.modified_ms(LOG) == 3000
    assert disk.crash(random.Random(0)).modified_ms(LOG) == 3000


def test_reading_and_writing_through_the_cache() -> None:
    disk = SimDisk()
    log = create(disk)
    log.write_at(10, memoryview(b"hello"))
    assert log.read_at(10, 5) == b"hello"
    with pytest.raises(OSError, match="ends before"):
        log.read_at(log.size - 1, 2)
    with pytest.raises(AssertionError, match="fixed length"):
        log.write_at(log.size, memoryview(b"x"))
    reader = disk.open_mapped(LOG, writable=False)
    assert reader.buffer.readonly
    assert bytes(reader.buffer[10:15]) == b"hello"
    with pytest.raises(OSError, match="Bad file"):
        reader.write_at(0, memoryview(b"x"))


def test_files_can_pretend_to_be_cold() -> None:
    disk = SimDisk()
    log = create(disk)
    log.warm(0, 10)
    assert log.is_resident(0, 10)
    disk.cold.add(LOG)
    assert not log.is_resident(0, 10)


def test_what_is_missing_is_said_like_the_system_says_it() -> None:
    disk = SimDisk()
    for operation in (disk.open_mapped, disk.read_bytes, disk.size, disk.modified_ms):
        with pytest.raises(FileNotFoundError):
            operation(LOG)


def answers(disk: Disk, root: Path) -> list[object]:
    """The calls and results of a short life of a disk, in order."""
    log, config, queue = root / "log" / "000", root / "config", root / "queues" / "orders"

    def failure(operation: Callable[[], object]) -> object:
        try:
            return operation()
        except (OSError, ValueError, Locked) as error:
            return type(error)

    mapped = disk.create_mapped(log, 2 * PAGE, reserve=True)
    mapped.buffer[10:15] = b"hello"
    mapped.write_at(15, memoryview(b" world"))
    mapped.sync()
    mapped.reserve(0, 4 * PAGE)
    said: list[object] = [disk.read_bytes(log), mapped.read_at(10, 11), mapped.size, disk.size(log)]
    disk.replace_bytes(config, b"one")
    disk.replace_bytes(config, b"two")
    disk.create_mapped(queue / "0" / "000", PAGE, reserve=False)
    said += [disk.read_bytes(config), disk.names(root), disk.names(queue), disk.names(root / "none")]
    disk.replace_bytes(root / "empty", b"")
    said += [
        failure(lambda: disk.open_mapped(root / "empty")),
        disk.open_mapped(log, writable=False).buffer.readonly,
    ]
    held = disk.lock(root / "lock")
    said += [failure(lambda: disk.lock(root / "lock")), disk.read_bytes(root / "lock")]
    held.release()
    disk.lock(root / "lock").release()
    missing = root / "missing"
    said += [failure(lambda: disk.open_mapped(missing)), failure(lambda: disk.read_bytes(missing))]
    said += [failure(lambda: disk.size(missing)), failure(lambda: disk.remove(root / "log"))]
    said += [failure(lambda: mapped.read_at(2 * PAGE, 1)), disk.exists(queue), disk.exists(missing)]
    disk.remove_tree(config)  # a file is no tree
    disk.remove_tree(root / "queues")
    disk.remove(log)
    mapped.close()
    return [
        *said,
        bytes(mapped.buffer[10:21]),
        failure(mapped.sync),
        disk.names(root),
        disk.names(root / "log"),
    ]


def test_it_answers_like_the_real_disk(tmp_path: Path) -> None:
    real = answers(OsDisk(tmp_path / "staging"), tmp_path / "store")
    assert answers(SimDisk(), ROOT) == real


def test_marks_and_syncs_from_two_threads_do_not_make_synced_bytes_stale() -> None:
    disk = SimDisk()
    log = create(disk)
    done = threading.Event()

    def mark_all_the_time() -> None:
        while not done.is_set():
            disk.mark()

    marker = threading.Thread(target=mark_all_the_time)
    marker.start()
    try:
        for number in range(500):
            fill(log, number % 16, number % 251)
            log.sync()
            content = bytes(log.buffer)
            assert disk.crash(random.Random(number)).read_bytes(LOG) == content
    finally:
        done.set()
        marker.join()


def test_a_disk_goes_to_a_directory_and_back(tmp_path: Path) -> None:
    disk = SimDisk()
    fill(create(disk), 0, 7)
    disk.replace_bytes(CONFIG, b"{}")
    disk.make_dir(ROOT / "empty")
    disk.export(tmp_path)
    loaded = SimDisk.load(tmp_path)
    assert loaded.files() == disk.files()
    assert loaded.exists(ROOT / "empty")
    assert {after.files()[CONFIG] for after in crashes(loaded, 20)} == {b"{}"}


# -- for any story -------------------------------------------------------------------------------

PATHS = [ROOT / "a", ROOT / "b"]
SIZE = 12 * SECTOR


@dataclass
class Model:
    """The possible contents of the disk, kept plainly: for each sector all its contents since its last sync."""

    live: bytes = bytes(SIZE)
    allowed: list[set[bytes]] = field(default_factory=lambda: [{bytes(SECTOR)} for _ in range(SIZE // SECTOR)])

    def note(self, live: bytes) -> None:
        self.live = live
        for allowed, sector in zip(self.allowed, sectors(live), strict=True):
            allowed.add(sector)

    def sync(self, live: bytes) -> None:
        self.live = live
        self.allowed = [{sector} for sector in sectors(live)]


writes = st.tuples(
    st.just("write"), st.integers(0, 1), st.integers(0, SIZE - 1), st.binary(min_size=1, max_size=3 * SECTOR)
)
steps = st.one_of(
    writes,
    writes,
    st.tuples(st.just("sync"), st.integers(0, 1)),
    st.tuples(st.just("replace"), st.integers(0, 99)),
)


def play(disk: SimDisk, story: list[tuple]) -> list[Model]:
    files = [create(disk, path, SIZE) for path in PATHS]
    models = [Model(), Model()]
    for step in story:
        match step:
            case "write", which, start, data:
                files[which].buffer[start : start + len(data)] = data[: SIZE - start]
            case "sync", which:
                files[which].sync()
                models[which].sync(bytes(files[which].buffer))
            case "replace", number:
                disk.replace_bytes(CONFIG, b"%d" % number * 700)
        disk.mark()
        for model, file in zip(models, files, strict=True):
            model.note(bytes(file.buffer))
    return models


@given(st.lists(steps, max_size=20), st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_after_any_story_each_sector_is_what_it_was_at_some_mark_since_its_sync(story: list[tuple], seed: int) -> None:
    disk = SimDisk()
    models = play(disk, story)
    config = disk.files().get(CONFIG)
    rng = random.Random(seed)
    for after in (disk.crash(rng) for _ in range(10)):
        for path, model in zip(PATHS, models, strict=True):
            for allowed, sector in zip(model.allowed, sectors(after.read_bytes(path)), strict=True):
                assert sector in allowed
        assert after.files().get(CONFIG) == config
    killed = disk.kill()
    assert [killed.read_bytes(path) for path in PATHS] == [model.live for model in models]


@given(st.lists(steps, max_size=20), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_the_same_seed_gives_the_same_disk(story: list[tuple], seed: int) -> None:
    disks = [SimDisk(), SimDisk()]
    for disk in disks:
        play(disk, story)
    first, second = (disk.crash(random.Random(seed)) for disk in disks)
    assert first.files() == second.files()
    assert disks[0].copy().crash(random.Random(seed)).files() == first.files()


def replace_until_cut(disk: SimDisk, contents: list[bytes]) -> tuple[bytes, bytes]:
    """The last content that was confirmed, and the one that was not."""
    for current, wanted in itertools.pairwise(contents):
        try:
            disk.replace_bytes(CONFIG, wanted)
        except PowerCut:
            return current, wanted
    raise AssertionError("the power was not cut")


@given(st.lists(st.binary(max_size=2000), min_size=2, max_size=4), st.data())
@settings(max_examples=100, deadline=None)
def test_a_crash_anywhere_in_replaces_leaves_one_of_the_two_next_to_it(
    contents: list[bytes], data: st.DataObject
) -> None:
    disk = SimDisk()
    disk.replace_bytes(CONFIG, contents[0])
    step = data.draw(st.sampled_from(["replace:write", "replace:rename", "replace:sync_dir"]))
    disk.on_operation = cut_at(step, data.draw(st.integers(1, len(contents) - 1)))
    current, wanted = replace_until_cut(disk, contents)
    after = disk.crash(random.Random(data.draw(st.integers(0, 2**32))))
    assert after.read_bytes(CONFIG) in (current, wanted)
    assert disk.kill().read_bytes(CONFIG) == (wanted if step == "replace:sync_dir" else current)


# -- moving a directory --------------------------------------------------------------------------------


def test_a_directory_that_was_moved_comes_back_by_a_crash_until_its_name_is_synced() -> None:
    disk, rng = SimDisk(), random.Random(1)
    old, new = ROOT / "topic" / "0" / "file", ROOT / "staging" / "moved"
    disk.create_mapped(old, 512, reserve=True).buffer[0] = 1
    disk.sync_all()
    disk.move_tree(ROOT / "topic", new)
    assert disk.names(ROOT) == ["staging"]
    assert disk.read_bytes(new / "0" / "file")[0] == 1
    assert {disk.crash(rng).exists(old) for _ in range(50)} == {True, False}
    fresh = disk.create_mapped(old, 512, reserve=True, durable=False)
    fresh.buffer[0] = 2
    disk.sync_name(ROOT / "topic")
    found = {after.read_bytes(old)[0] for after in (disk.crash(rng) for _ in range(50)) if after.exists(old)}
    assert found <= {0, 2}
    fresh.sync()
    assert disk.crash(rng).read_bytes(old)[0] == 2
    with pytest.raises(FileNotFoundError):
        disk.move_tree(ROOT / "nowhere", new)


def test_the_name_of_a_directory_that_was_not_moved_is_synced_with_its_parent() -> None:
    disk, rng = SimDisk(), random.Random(1)
    file = ROOT / "topic" / "file"
    disk.create_mapped(file, 512, reserve=True, durable=False)
    disk.sync_name(file)
    assert all(disk.crash(rng).exists(file) for _ in range(20))
