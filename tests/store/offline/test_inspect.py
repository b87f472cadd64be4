"""`inspect` describes a store, and `detect` learns its settings from the lengths of its files."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from pyromq.config import StoreConfig
from pyromq.errors import CorruptStore, StoreError
from pyromq.model.message import Draft
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.inspect import StoreView, detect, inspect
from pyromq.testing import SimDisk
from store.small_store import MESSAGES, fill, make_store, open_store, small_config

ROOT = Path("/store")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("small") / "store"
    make_store(root)
    return root


def look(root: Path, **options: str) -> StoreView:
    return inspect(root, config=small_config(root), **options)  # type: ignore[arg-type]


def test_sizes_are_learned_from_the_files(root: Path) -> None:
    found = detect(root, index_slots=97, index_entries=250)
    assert (found.segment_bytes, found.queue_file_entries) == (32 * 1024, 50)
    assert (found.index_slots, found.index_entries) == (97, 250)


def test_the_index_tells_its_sizes_itself(root: Path) -> None:
    found = detect(root)
    assert (found.index_slots, found.index_entries) == (97, 250)


@pytest.mark.parametrize("seed", range(20))
def test_the_index_tells_any_sizes(tmp_path: Path, seed: int) -> None:
    """However full, whatever is in its last entry, and with several numbers of slots and entries of the same length."""
    rng = random.Random(seed)
    slots, entries = rng.randrange(1, 500), rng.randrange(2, 100)
    config = StoreConfig(root=tmp_path, segment_bytes=1 << 20, index_slots=slots, index_entries=entries)
    with MessageStore(config) as store:
        for number in range(rng.randrange(1, 300)):
            store.append([Draft(b"orders", 0, b"body", b"KEYS\x01k%d\x02" % (number % 50))])
        store.dispatch()
    found = detect(tmp_path)
    assert (found.index_slots, found.index_entries) == (slots, entries)


def test_an_index_of_unusual_length_that_does_not_tell_needs_a_word(root: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    for path in (copy / "index").iterdir():
        data = bytearray(path.read_bytes())
        data[39] ^= 3  # the number of entries
        path.write_bytes(data)
    with pytest.raises(StoreError, match="--index-slots"):
        detect(copy)
    for path in (copy / "index").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(StoreError, match="--index-slots"):
        detect(copy)


def test_sizes_that_were_said_count(root: Path) -> None:
    with pytest.raises(StoreError, match="98 slots"):
        detect(root, index_slots=98, index_entries=250)


def test_an_index_of_the_usual_length_needs_none(tmp_path: Path) -> None:
    with MessageStore(StoreConfig(root=tmp_path, segment_bytes=1 << 20)) as store:
        store.append([Draft(b"orders", 0, b"body", b"KEYS\x01a\x02")])
        store.dispatch()
    found = detect(tmp_path)
    assert (found.segment_bytes, found.index_slots) == (1 << 20, 5_000_000)
    assert inspect(tmp_path).index[0].entries == 1


def test_a_directory_that_is_no_store_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is no store"):
        detect(tmp_path)
    with pytest.raises(StoreError, match="no directory"):
        detect(tmp_path / "nothing")


def test_a_store_in_which_nothing_was_written_yet(tmp_path: Path) -> None:
    with MessageStore(StoreConfig(root=tmp_path)):
        pass
    view = inspect(tmp_path)
    assert (view.messages, view.log.end, view.topics, view.clean) == (0, 0, [], True)


def test_a_closed_store(root: Path) -> None:
    view = look(root)
    assert view.clean
    assert view.lock_holder is None
    assert view.recover_point is not None
    assert view.log.start == 0
    assert view.log.end == view.recover_point.synced
    assert len(view.log.segments) == len(list((root / "commitlog").iterdir()))
    assert [topic.name for topic in view.topics] == ["SCHEDULE_TOPIC_XXXX", "orders"]
    assert view.messages == MESSAGES - MESSAGES // 30
    assert sum(file.entries for file in view.index) == 3 * MESSAGES
    assert [file.file for file in view.config_files] == ["config/topics.json", "config/topics.json.bak"]
    assert view.log.last_message_ms == view.checkpoint.log_ms
    assert view.topics[1].last_message_ms == view.log.last_message_ms
    assert view.problems == []


def test_the_queues_are_what_the_store_itself_says(root: Path, tmp_path: Path) -> None:
    view = look(root)
    store = open_store(Path(shutil.copytree(root, tmp_path / "copy")))
    for topic in view.topics:
        for queue in topic.queues:
            assert queue.min_offset == store.min_offset(topic.name, queue.number)
            assert queue.max_offset == store.max_offset(topic.name, queue.number)
    store.close()


def test_one_topic(root: Path) -> None:
    view = look(root, topic="orders")
    assert [topic.name for topic in view.topics] == ["orders"]
    assert [queue.number for queue in view.topics[0].queues] == [0, 1, 2]
    with pytest.raises(StoreError, match="no topic strangers"):
        look(root, topic="strangers")


def test_nothing_is_written(root: Path) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}
    look(root)
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}
    assert after == before


def test_a_store_in_use_says_who_has_it_and_stays_locked() -> None:
    disk = SimDisk(pid=4711)
    store = open_store(ROOT, disk)
    fill(store, 50)
    view = inspect(ROOT, disk=disk, config=small_config(ROOT))
    assert view.lock_holder == 4711
    assert not view.clean
    assert view.log.end == store.log.end
    assert view.messages == 48
    store.close()
    assert inspect(ROOT, disk=disk, config=small_config(ROOT)).lock_holder is None


def test_a_killed_store_says_that_it_was_not_closed() -> None:
    disk = SimDisk()
    store = open_store(ROOT, disk)
    fill(store, 50)
    view = inspect(ROOT, disk=disk.kill(), config=small_config(ROOT))
    assert view.lock_holder is None
    assert not view.clean
    assert view.abort_pid is not None
    assert view.log.end == store.log.end


def test_the_real_lock_is_seen_and_survives_being_looked_at(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 5)
    assert look(tmp_path).lock_holder is not None
    assert look(tmp_path).lock_holder is not None
    store.close()
    assert look(tmp_path).lock_holder is None


def test_what_recovery_cut_off_is_shown(tmp_path: Path) -> None:
    make_store(tmp_path)
    with_tail = open_store(tmp_path)
    end = with_tail.log.end
    with_tail.close()
    last = max((tmp_path / "commitlog").iterdir())
    data = bytearray(last.read_bytes())
    data[end - int(last.name) : end - int(last.name) + 9] = b"\x7f" * 9
    last.write_bytes(data)
    (tmp_path / "abort").write_bytes(b"1")
    assert look(tmp_path).log.behind_the_end
    open_store(tmp_path).close()
    assert [(file.file, file.bytes) for file in look(tmp_path).cut_off] == [(f"cutoff/{end:020d}.bin", 9)]


def test_files_that_do_not_belong_are_named(root: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    (copy / "commitlog" / "notes.txt").write_text("mine")
    view = look(copy)
    assert [problem.path.name for problem in view.problems] == ["notes.txt"]
    assert view.messages == look(root).messages
    assert view.refusal is not None, "a start does not know what the file is"


def test_a_gap_would_be_refused(root: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    gone = sorted((copy / "commitlog").iterdir())[1]
    gone.unlink()
    view = look(copy)
    assert view.clean
    assert view.refusal is not None
    assert f"--truncate-at {int(gone.name)}" in view.refusal.way_out
    with pytest.raises(CorruptStore):
        open_store(copy)


def test_a_log_that_ends_too_early_would_be_refused(root: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    gone = max((copy / "commitlog").iterdir())
    gone.unlink()
    view = look(copy)
    assert [problem.position for problem in view.problems] == [int(gone.name)]
    assert view.refusal is not None
    assert f"--truncate-at {int(gone.name)}" in view.refusal.way_out
    with pytest.raises(CorruptStore):
        open_store(copy)


def test_what_a_start_puts_right_is_not_refused(root: Path, tmp_path: Path) -> None:
    """An empty file that was made last, a file of zeroes behind a gap, and a gap in a queue."""
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    last = int(max((copy / "commitlog").iterdir()).name)
    (copy / "commitlog" / f"{last + 3 * 32 * 1024:020d}").write_bytes(bytes(32 * 1024))
    (copy / "commitlog" / f"{last + 4 * 32 * 1024:020d}").touch()
    min((copy / "consumequeue" / "orders" / "0").iterdir()).unlink()
    (copy / "consumequeue" / "orders" / "1" / "notes").touch()
    view = look(copy)
    assert len(view.problems) == 3
    assert view.refusal is None
    open_store(copy).close()
    assert look(copy).problems == []
