"""A rebuild makes what a recovery makes: the same queues byte by byte, an index that `verify` accepts.

Without Spark: the pieces are worked on here. `test_backup_on_spark` has the real thing.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.errors import ConfigError, CorruptLog, StoreLocked
from pyromq.files.disk import OsDisk
from pyromq.model.message import Draft
from pyromq.records.properties import encode_properties
from pyromq.spark.jobs.rebuild import job as rebuild_job
from pyromq.spark.jobs.rebuild.index import plan_files, survey
from pyromq.spark.jobs.rebuild.job import RebuildPlan, RebuildReport, rebuild
from pyromq.spark.jobs.rebuild.queues import LogPart
from pyromq.store.key_index import ENTRY, HEADER
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.readable_log import readable_log
from pyromq.store.offline.verify import verify
from spark.support.here import FakeSpark, stay_here
from store.small_store import MESSAGES, fill, make_store, open_store, small_config

SIZES = {"queue_file_entries": 50, "index_slots": 97, "index_entries": 250}


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    stay_here(monkeypatch, rebuild_job)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("intact") / "store"
    make_store(root)
    return root


@pytest.fixture
def root(intact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact, tmp_path / "store"))


def run(root: Path, **options: Any) -> RebuildReport:
    return rebuild(FakeSpark(), RebuildPlan(str(root), **{**SIZES, **options}))  # type: ignore[arg-type]


def queue_files(root: Path) -> dict[str, bytes]:
    files = [path for path in (root / "consumequeue").rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def index_content(root: Path) -> list[bytes]:
    """Files in order, as far as they are used."""
    found = []
    for path in sorted((root / "index").iterdir(), key=lambda path: int(path.name)):
        data = path.read_bytes()
        found.append(data[: HEADER.size + 4 * 97 + ENTRY.size * HEADER.unpack_from(data)[5]])
    return found


def recovered(root: Path) -> Path:
    """Return a copy whose queues and index our recovery rebuilt."""
    copy = Path(shutil.copytree(root, root.with_name(f"{root.name}-recovered")))
    store = MessageStore(small_config(copy))
    store.open(rebuild=True)
    store.close()
    return copy


def same_as_recovered(root: Path, **options: Any) -> RebuildReport:
    expected = recovered(root)
    report = run(root, **options)
    assert queue_files(root) == queue_files(expected)
    assert index_content(root) == index_content(expected)
    checked = verify(root, config=small_config(root))
    assert checked.findings == []
    return report


def test_an_intact_store_is_made_again_as_it_was(root: Path) -> None:
    before = queue_files(root), index_content(root)
    report = same_as_recovered(root)
    assert (queue_files(root), index_content(root)) == before
    assert (report.records, report.queues, report.keys) == (MESSAGES, 8, 3 * MESSAGES)
    assert not (root / "staging").exists() or not list((root / "staging").iterdir())


def test_what_was_lost_is_back_and_the_store_starts_clean(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    run(root)
    assert verify(root, config=small_config(root)).findings == []
    store = open_store(root)
    assert store.report.clean
    assert store.report.scanned_from == store.report.log_end
    assert store.report.index_from == store.report.log_end
    assert len(store.read("orders", 0, 0).records) > 0
    store.close()


def test_damaged_queues_are_made_again(root: Path) -> None:
    for path in (root / "consumequeue" / "orders" / "1").iterdir():
        path.write_bytes(b"\x13" * path.stat().st_size)
    (root / "consumequeue" / "orders" / "0" / "nonsense").write_bytes(b"x")
    run(root)
    assert verify(root, config=small_config(root)).findings == []


def test_retention_has_removed_the_beginning_of_the_log(root: Path) -> None:
    """Offsets that were given out are not given out again; a queue whose messages are all gone stays where it was."""
    min((root / "commitlog").iterdir()).unlink()
    same_as_recovered(root)


def test_a_topic_that_was_removed_and_made_again(root: Path) -> None:
    store = open_store(root)
    asyncio.run(store.remove_topic("orders"))
    fill(store, 25)
    store.close()
    expected = recovered(root)
    run(root)
    assert queue_files(root) == queue_files(expected)


def test_a_store_that_was_killed_keeps_its_mark(root: Path) -> None:
    store = open_store(root)
    fill(store, 40)
    store.flush()
    copy = Path(shutil.copytree(root, root.with_name("killed")))
    store.close()
    (copy / "lock").unlink()
    run(copy)
    assert (copy / "abort").exists()
    assert verify(copy, config=small_config(copy)).ok
    again = open_store(copy)
    assert again.log.end == store.log.end
    again.close()


def test_a_store_in_use_is_refused(root: Path) -> None:
    store = open_store(root)
    with pytest.raises(StoreLocked):
        run(root)
    store.close()


def test_damage_in_the_log_is_refused_and_nothing_changes(root: Path) -> None:
    path = sorted((root / "commitlog").iterdir())[1]
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    before = queue_files(root), index_content(root)
    with pytest.raises(CorruptLog) as damage:
        run(root)
    assert damage.value.file == path
    assert (queue_files(root), index_content(root)) == before


def no_room(task: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "index")


def test_a_disk_that_fills_is_told_and_gets_its_room_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = queue_files(root)
    monkeypatch.setattr(rebuild_job, "write_index", no_room)
    with pytest.raises(OSError, match="No space left on device: 'index'"):
        run(root)
    assert queue_files(root) == before
    assert not list((root / "staging").iterdir())
    monkeypatch.undo()
    stay_here(monkeypatch, rebuild_job)
    same_as_recovered(root)


def test_without_the_index_it_stays_as_it_is(root: Path) -> None:
    before = index_content(root)
    report = run(root, index=False)
    assert report.index_files == 0
    assert index_content(root) == before
    assert verify(root, config=small_config(root)).findings == []


def test_a_rebuild_needs_a_store() -> None:
    with pytest.raises(ConfigError, match="store"):
        RebuildPlan("")


def test_a_record_with_more_keys_than_a_file_holds(root: Path) -> None:
    store = open_store(root)
    keys = encode_properties({"KEYS": " ".join(f"k{number}" for number in range(600))})
    store.append([Draft(b"orders", 0, b"many", keys)])
    fill(store, 30)
    store.close()
    same_as_recovered(root)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=12), st.integers(31, 60))
def test_index_files_begin_where_a_recovery_begins_them(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], entries: int
) -> None:
    root = tmp_path_factory.mktemp("keys") / "store"
    config = small_config(root)
    config = type(config)(root=root, segment_bytes=16384, queue_file_entries=50, index_slots=7, index_entries=entries)
    with MessageStore(config) as store:
        for batch in batches:
            names = [" ".join(f"k{number}" for number in range(each)) for each in batch]
            properties = [encode_properties({"KEYS": each} if each else {}) for each in names]
            store.append([Draft(b"t", 0, b"x" * 100, each) for each in properties])
        store.dispatch()
        assert store.index is not None
        # A file that is full is followed by one that may stay empty.
        made = [file.cursor.begin_position for file in store.index.files if file.cursor.count > 1]
    log = readable_log(root)
    surveys = [survey(config, LogPart(each, min(each.end, log.end))) for each in log.segments]
    starts = plan_files(config, surveys)[1:-1]
    assert starts == made[1:]
    shutil.rmtree(root.parent)


def test_a_rebuild_that_is_stopped_anywhere_costs_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each of its moves: the next start has the same queues, and the same keys are found."""
    expected, moved, real = queue_files(root), 0, OsDisk.move_tree
    limit = 0

    def move(self: OsDisk, path: Path, place: Path) -> None:
        nonlocal moved
        if moved == limit:
            raise KeyboardInterrupt
        moved += 1
        real(self, path, place)

    monkeypatch.setattr(OsDisk, "move_tree", move)
    while True:
        copy, moved = Path(shutil.copytree(root, tmp_path / f"stopped-{limit}")), 0
        try:
            run(copy)
            break
        except KeyboardInterrupt:
            open_store(copy).close()
            assert queue_files(copy) == expected
            assert verify(copy, config=small_config(copy)).findings == []
        limit += 1
    assert limit > 10
