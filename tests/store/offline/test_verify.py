"""`verify` finds nothing in an intact store, and every flipped bit in a damaged one."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.clock import ManualClock
from pyromq.config import StoreConfig
from pyromq.errors import StoreError
from pyromq.model.message import Draft
from pyromq.records import layout
from pyromq.store import key_index
from pyromq.store.durability.checkpoint import RecoverPointFile
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.verify import Finding, Severity, VerifyReport, bytes_and_messages_from, verify
from pyromq.store.queues.queue_cursor import ENTRY
from pyromq.testing import SimDisk
from small_disks import tmpfs
from store.small_store import MESSAGES, fill, flip, make_store, open_store, record_starts, segments, small_config

ROOT = Path("/store")


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("intact") / "store"
    make_store(root)
    return root


@pytest.fixture
def root(intact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact, tmp_path / "store"))


def check(root: Path, **options: int) -> VerifyReport:
    return verify(root, config=small_config(root), **options)  # type: ignore[arg-type]


def files(root: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}


def only(report: VerifyReport) -> Finding:
    assert len(report.findings) == 1, report.findings
    return report.findings[0]


def test_an_intact_store_has_no_findings(root: Path) -> None:
    report = check(root)
    assert report.findings == []
    assert report.ok
    assert report.records == MESSAGES
    assert report.queues == 8
    assert report.queue_entries == MESSAGES - MESSAGES // 30
    assert report.index_entries == 3 * MESSAGES
    assert report.index_files > 2
    assert report.segments > 2


def test_the_python_forms_find_the_same(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyromq.store.key_index import ReadableIndexCursor, index_keys_readable
    from pyromq.store.offline import derive_queues, verify_index
    from pyromq.store.queues.queue_cursor import ReadableQueueCursor, dispatch_readable

    monkeypatch.setattr(verify_index, "IndexCursor", ReadableIndexCursor)
    monkeypatch.setattr(verify_index, "index_keys", index_keys_readable)
    monkeypatch.setattr(derive_queues, "QueueCursor", ReadableQueueCursor)
    monkeypatch.setattr(derive_queues, "dispatch", dispatch_readable)
    report = check(root)
    assert report.findings == []
    assert report.index_entries == 3 * MESSAGES


def test_nothing_is_written(root: Path) -> None:
    before = files(root)
    check(root)
    assert files(root) == before


def test_nothing_is_written_to_a_damaged_store_either(root: Path) -> None:
    flip(segments(root)[1], 300)
    flip(root / "recoverpoint", 20)
    (root / "index" / "20200101000000000").write_bytes(b"short")
    before = files(root)
    assert check(root).findings
    assert files(root) == before


def test_progress_is_told_and_ends_at_the_total(root: Path) -> None:
    told: list[tuple[int, int]] = []
    verify(root, config=small_config(root), progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] == 2 * sum(path.stat().st_size for path in segments(root))


# --- the log ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("byte", "word"),
    [(1, "size"), (5, "magic"), (9, "CRC"), (13, "CRC"), (33, "position"), (90, "CRC")],
)
def test_a_flipped_bit_in_a_record_is_found_and_the_records_behind_it_are_checked_too(
    root: Path, byte: int, word: str
) -> None:
    damaged = segments(root)[1]
    start = record_starts(damaged)[5]
    flip(damaged, start + byte)
    report = check(root)
    found = only(report)
    assert (found.file, found.severity) == (damaged.relative_to(root), Severity.ERROR)
    assert found.position == int(damaged.name) + start
    assert word in found.what
    assert report.records == MESSAGES - 1


def test_the_first_and_the_last_record_of_a_segment_may_be_the_damaged_one(root: Path) -> None:
    damaged = segments(root)[1]
    starts = record_starts(damaged)
    flip(damaged, starts[0] + 2)
    flip(damaged, starts[-1] + 2)
    report = check(root)
    assert [each.position - int(damaged.name) for each in report.findings] == [starts[0], starts[-1]]


def test_a_damaged_blank_is_found(root: Path) -> None:
    damaged = segments(root)[0]
    starts = record_starts(damaged)
    data = damaged.read_bytes()
    blank = starts[-1] + layout.BLANK.unpack_from(data, starts[-1])[0]
    flip(damaged, blank + 3)
    found = only(check(root))
    assert (found.file, found.position) == (damaged.relative_to(root), blank)
    assert "blank" in found.what


def test_zeroes_in_the_middle_are_damage(root: Path) -> None:
    damaged = segments(root)[1]
    starts = record_starts(damaged)
    data = bytearray(damaged.read_bytes())
    data[starts[3] : starts[6]] = bytes(starts[6] - starts[3])
    damaged.write_bytes(data)
    report = check(root)
    found = only(report)
    assert found.position == int(damaged.name) + starts[3]
    assert "zeroes" in found.what
    assert report.records == MESSAGES - 3


def test_a_missing_segment_is_named(root: Path) -> None:
    gone = segments(root)[1]
    gone.unlink()
    found = only(check(root))
    assert found.severity is Severity.ERROR
    assert found.position == int(gone.name)
    assert "no file holds" in found.what


def test_a_shortened_segment_is_named(root: Path) -> None:
    short = segments(root)[1]
    short.write_bytes(short.read_bytes()[:-4096])
    report = check(root)
    assert short.relative_to(root) in {each.file for each in report.findings if each.severity is Severity.ERROR}


def test_a_log_that_ends_too_early_is_damaged(root: Path) -> None:
    last = segments(root)[-1]
    last.write_bytes(bytes(last.stat().st_size))
    report = check(root)
    assert not report.ok
    assert report.findings[0].file == last.relative_to(root)


def test_a_torn_tail_behind_the_synced_mark_is_a_note() -> None:
    disk = SimDisk()
    store = open_store(ROOT, disk)
    fill(store, 100)
    store.flush()
    end = store.log.end
    segment = store.log.files.find(end)
    assert segment is not None
    at = end - segment.base
    segment.buffer[at : at + 40] = b"\x7f" * 40
    killed = disk.kill()
    report = verify(ROOT, disk=killed, config=small_config(ROOT))
    notes = [each for each in report.findings if each.file == segment.path.relative_to(ROOT)]
    assert report.ok
    assert [each.position for each in notes] == [end]
    assert "torn tail" in notes[0].what
    recovered = open_store(ROOT, killed)
    recovered.close()
    assert verify(ROOT, disk=killed, config=small_config(ROOT)).findings == []


@pytest.mark.parametrize("seed", range(30))
def test_what_a_power_cut_leaves_is_never_taken_for_damage(seed: int) -> None:
    rng = random.Random(seed)
    disk, clock = SimDisk(), ManualClock()
    for _ in range(3):
        store = open_store(ROOT, disk, clock)
        for _ in range(rng.randrange(1, 5)):
            fill(store, rng.randrange(60))
            rng.choice([store.flush, store.dispatch, store.points.save, lambda: None])()
            disk.mark()
        disk = disk.crash(rng)
        try:
            report = verify(ROOT, disk=disk, config=small_config(ROOT))
        except StoreError:
            return  # the crash came before there was anything
        assert report.ok, report.findings
        open_store(ROOT, disk, clock).close()
        assert verify(ROOT, disk=disk, config=small_config(ROOT)).findings == []


# --- queues ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("byte", [3, 10, 19])
def test_a_flipped_bit_in_a_queue_entry_is_found(root: Path, byte: int) -> None:
    damaged = root / "consumequeue" / "orders" / "1" / f"{50 * ENTRY.size:020d}"
    flip(damaged, 7 * ENTRY.size + byte)
    found = only(check(root))
    assert (found.file, found.position) == (damaged.relative_to(root), 57 * ENTRY.size)
    assert "offset 57" in found.what


def test_a_flipped_bit_in_a_due_time_is_found(root: Path) -> None:
    damaged = root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "0" / f"{0:020d}"
    flip(damaged, 2 * ENTRY.size + 18)
    found = only(check(root))
    assert (found.file, found.position) == (damaged.relative_to(root), 2 * ENTRY.size)


def test_an_entry_behind_the_last_is_found(root: Path) -> None:
    damaged = max((root / "consumequeue" / "orders" / "2").iterdir())
    flip(damaged, damaged.stat().st_size - 1)
    assert only(check(root)).file == damaged.relative_to(root)


def test_a_lost_queue_is_found_and_its_messages_are_known_to_be_there(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "orders" / "0")
    report = check(root)
    assert report.records == MESSAGES
    assert {each.file.parent for each in report.findings} == {Path("consumequeue/orders/0")}
    assert all("no entry" in each.what for each in report.findings)


def test_a_queue_that_the_log_knows_nothing_of_is_found(root: Path) -> None:
    stray = root / "consumequeue" / "strangers" / "0"
    shutil.copytree(root / "consumequeue" / "orders" / "0", stray)
    report = check(root)
    assert {each.file.parent for each in report.findings} == {stray.relative_to(root)}


def test_a_queue_whose_first_messages_are_gone_is_fine(root: Path) -> None:
    """Retention removed the oldest segment; the queue's file still has entries of it."""
    first, second, *_ = segments(root)
    store = open_store(root)
    store.points.carry_out(store.points.plan_log_start(int(second.name)))
    store.close()
    first.unlink(missing_ok=True)
    report = check(root)
    assert report.findings == []
    assert report.log_start == int(second.name)


# --- the key index ---------------------------------------------------------------------------------------------------


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


@pytest.mark.parametrize("field", range(6))
def test_a_flipped_bit_in_an_index_header_is_found(root: Path, field: int) -> None:
    damaged = index_files(root)[1]
    flip(damaged, (7, 15, 23, 31, 35, 39)[field], bit=1)
    report = check(root)
    assert not report.ok
    assert {each.file for each in report.findings} == {damaged.relative_to(root)}
    assert min(each.position for each in report.findings) < key_index.HEADER.size


def test_a_flipped_bit_in_a_slot_is_found(root: Path) -> None:
    damaged = index_files(root)[0]
    flip(damaged, key_index.HEADER.size + 4 * 10 + 3)
    found = only(check(root))
    assert (found.file, found.position) == (damaged.relative_to(root), key_index.HEADER.size + 40)


@pytest.mark.parametrize("byte", [2, 11, 15, 19])
def test_a_flipped_bit_in_an_index_entry_is_found(root: Path, byte: int) -> None:
    damaged = index_files(root)[0]
    at = key_index.HEADER.size + 4 * 97 + 100 * key_index.ENTRY.size
    flip(damaged, at + byte)
    report = check(root)
    assert {each.file for each in report.findings} == {damaged.relative_to(root)}
    assert at in {each.position for each in report.findings}


def test_a_missing_index_file_is_found(root: Path) -> None:
    index_files(root)[-1].unlink()
    assert not check(root).ok


# --- room ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory, where looking at a hole of a file takes room."""
    yield from tmpfs(tmp_path / "mount", mib=24)


def used_bytes(directory: Path) -> int:
    figures = os.statvfs(directory)
    return figures.f_frsize * (figures.f_blocks - figures.f_bfree)


@pytest.mark.parametrize("damaged", [False, True], ids=["intact", "damaged"])
@pytest.mark.parametrize("foreign", [False, True], ids=["ours", "sparse log"])
def test_looking_takes_no_room(small_disk: Path, damaged: bool, foreign: bool) -> None:
    """Files of queues and index are mostly holes; on a full tmpfs a look into one would be a SIGBUS."""
    root = small_disk / "store"
    config = StoreConfig(root=root, segment_bytes=1 << 20, index_slots=1000, index_entries=1_000_000, prefault_bytes=0)
    with MessageStore(config) as store:
        for number in range(600):
            store.append([Draft(b"orders", number % 60, b"body", b"KEYS\x01k%d\x02" % number)])
        end = store.log.end
    log = root / "commitlog" / f"{0:020d}"
    if foreign:
        data = log.read_bytes()[:end]
        log.write_bytes(data)
        os.truncate(log, 1 << 20)
        following = root / "commitlog" / f"{1 << 20:020d}"
        following.touch()
        os.truncate(following, 1 << 20)  # made ahead, never written
        (root / "recoverpoint").unlink()
    if damaged:
        queue = root / "consumequeue" / "orders" / "7" / f"{0:020d}"
        for path, at in ((log, 100), (queue, 3), (index_files(root)[0], 39)):
            with path.open("r+b") as file:
                file.seek(at)
                file.write(b"\x7f")
    free = os.statvfs(small_disk).f_bfree * os.statvfs(small_disk).f_frsize
    (small_disk / "ballast").write_bytes(bytes(free - 8192))
    before = used_bytes(small_disk)
    for command in ("inspect", "verify"):
        options = ["--index-slots=1000", "--index-entries=1000000", "--json"]
        looked = [sys.executable, "-m", "pyromq", "store", command, str(root), *options]
        done = subprocess.run(looked, capture_output=True, text=True, check=False)
        assert done.returncode in ((0, 1) if damaged else (0,)), (done.returncode, done.stderr, done.stdout)
        assert done.stdout, done.stderr
        assert used_bytes(small_disk) == before, command


# --- the rest --------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_in_a_table_or_its_copy_is_found(root: Path) -> None:
    for name in ("topics.json", "topics.json.bak"):
        path = root / "config" / name
        good = path.read_bytes()
        flip(path, good.index(b"orders"))
        assert only(check(root)).file == Path("config") / name
        path.write_bytes(good)


def test_a_damaged_recover_point_is_found(root: Path) -> None:
    flip(root / "recoverpoint", 532)  # the older copy: the one of the start, not of the stop
    found = only(check(root))
    assert (found.file, found.position, found.severity) == (Path("recoverpoint"), 512, Severity.NOTE)
    flip(root / "recoverpoint", 20)
    report = check(root)
    assert [each.position for each in report.findings if each.file == Path("recoverpoint")] == [0, 512]
    assert not report.ok


@pytest.mark.parametrize("seed", range(4))
def test_any_flipped_bit_is_found(root: Path, seed: int) -> None:
    """In records, queues and the index, at a random place, in a random file."""
    rng = random.Random(seed)
    paths = [*segments(root), *(root / "consumequeue").rglob("0000*"), *index_files(root)]
    for _ in range(50):
        path = rng.choice(paths)
        good = path.read_bytes()
        byte = rng.randrange(len(good))
        if path.parent.name == "commitlog":
            starts = record_starts(path)
            byte = rng.randrange(starts[-1])
        elif path.parent.name == "index" and 0 <= byte - key_index.HEADER.size - 4 * 97 < key_index.ENTRY.size:
            continue  # entry 0 is never used
        flip(path, byte, rng.randrange(8))
        report = check(root)
        assert path.relative_to(root) in {each.file for each in report.findings}, (path, byte)
        path.write_bytes(good)
    assert check(root).findings == []


def test_findings_are_bounded_and_counted(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "orders")
    report = check(root, max_findings=5)
    assert len(report.findings) == 5
    assert report.errors > 200


def test_a_store_in_use_is_fine(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 100)
    report = check(tmp_path)
    assert report.live
    assert report.findings == []
    assert report.records == 100
    fill(store, 20)
    assert check(tmp_path).findings == []
    store.close()
    assert RecoverPointFile(store.disk, store.paths.recover_point).load() is not None
    assert check(tmp_path).findings == []


def test_how_much_a_cut_would_give_up(root: Path) -> None:
    first, second, *_ = segments(root)
    position = int(second.name) + record_starts(second)[4]
    amount, messages = bytes_and_messages_from(small_config(root), position)
    assert amount == check(root).log_end - position
    assert messages == MESSAGES - len(record_starts(first)) - 4
    flip(second, record_starts(second)[9] + 50)
    assert bytes_and_messages_from(small_config(root), position) == (amount, messages - 1)
