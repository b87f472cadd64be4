"""An audit reports every damage as `verify` does, in the same words; and the faults of a backup.

Without Spark: the pieces are worked on here, one after the other. `test_audit_on_spark` is the real thing.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.backup.making import back_up
from pyromq.backup.target import LocalTarget
from pyromq.errors import ConfigError, StoreError
from pyromq.records import layout
from pyromq.records.checksum import crc32
from pyromq.spark.jobs.audit import job as audit_job
from pyromq.spark.jobs.audit.job import AuditPlan, AuditReport, audit
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.verify import verify
from pyromq.store.offline.verify_index import IndexCheck
from pyromq.store.offline.verify_report import Severity
from pyromq.store.queues.queue_cursor import ENTRY
from spark.support.here import stay_here
from store.small_store import MESSAGES, fill, flip, make_store, open_store, record_starts, segments, small_config


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("intact") / "store"
    make_store(root)
    return root


@pytest.fixture
def root(intact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact, tmp_path / "store"))


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    stay_here(monkeypatch, audit_job)


def check(path: Path, **options: Any) -> AuditReport:
    sizes = {"index_slots": 97, "index_entries": 250}
    return audit(None, AuditPlan(str(path), **sizes, **options))  # type: ignore[arg-type]


def both(root: Path) -> AuditReport:
    """The report of an audit, which says what `verify` says."""
    audited, verified = check(root), verify(root, config=small_config(root))
    assert sorted(map(str, audited.findings)) == sorted(map(str, verified.findings))
    assert (audited.errors, audited.notes) == (verified.errors, verified.notes)
    assert (audited.records, audited.queues, audited.files) == (verified.records, verified.queues, verified.segments)
    assert (audited.queue_entries, audited.index_entries) == (verified.queue_entries, verified.index_entries)
    assert (audited.log_start, audited.log_end, audited.live) == (verified.log_start, verified.log_end, verified.live)
    return audited


# --- a store -------------------------------------------------------------------------------------------------------


def test_an_intact_store_has_no_findings(root: Path) -> None:
    report = both(root)
    assert report.ok
    assert report.findings == ()
    assert report.records == MESSAGES
    assert report.index_entries == 3 * MESSAGES


@pytest.mark.parametrize("damaged", [False, True])
def test_only_an_index_that_differs_is_looked_at_entry_by_entry(
    root: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    looked: list[int] = []
    monkeypatch.setattr(IndexCheck, "take", lambda self, buffer, start, end: looked.append(start))
    if damaged:
        flip(min((root / "index").iterdir()), 40 + 4 * 97 + 20 * 5 + 6)
    report = check(root)
    assert bool(looked) == damaged
    assert damaged or (report.ok and report.index_entries == 3 * MESSAGES)


def test_an_index_file_that_is_missing_between_others_is_found(root: Path) -> None:
    """Each of the others is as it was written."""
    _, second, *_ = sorted((root / "index").iterdir())
    second.unlink()
    assert not both(root).ok


def test_a_flipped_byte_of_a_body_is_found_with_file_and_position(root: Path) -> None:
    path = segments(root)[1]
    at = record_starts(path)[5]
    flip(path, at + 100)
    report = both(root)
    assert not report.ok
    [found] = [each for each in report.findings if "commitlog" in str(each.file)]
    assert (found.file.name, found.position) == (path.name, int(path.name) + at)


def test_a_missing_segment_is_found(root: Path) -> None:
    segments(root)[1].unlink()
    assert not both(root).ok


def test_a_wrong_queue_entry_is_found(root: Path) -> None:
    queue = root / "consumequeue" / "orders" / "1" / f"{0:020d}"
    flip(queue, 7 * ENTRY.size + 3)
    [found] = both(root).findings
    assert "the entry of offset 7" in found.what


def test_a_missing_queue_entry_is_found(root: Path) -> None:
    queue = root / "consumequeue" / "orders" / "2" / f"{0:020d}"
    data = bytearray(queue.read_bytes())
    data[9 * ENTRY.size : 10 * ENTRY.size] = bytes(ENTRY.size)
    queue.write_bytes(data)
    [found] = both(root).findings
    assert "no entry for offset 9" in found.what


def rewrite_offset(path: Path, at: int, offset: int) -> None:
    """Give a record another queue offset, with a CRC that agrees."""
    data = bytearray(path.read_bytes())
    size = layout.BLANK.unpack_from(data, at)[0]
    data[at + layout.QUEUE_OFFSET_AT : at + layout.QUEUE_OFFSET_AT + 8] = offset.to_bytes(8, "big")
    covered = bytes(data[at : at + size - layout.CRC_PROPERTY_SIZE])
    digits = f"{crc32(covered, 0) & 0x7FFFFFFF:010d}"[::-1].encode()
    end = at + size - 1
    data[end - 10 : end] = digits
    path.write_bytes(data)


def test_a_doubled_offset_is_found(root: Path) -> None:
    path = segments(root)[2]
    at = next(at for at in record_starts(path) if layout.HEAD.unpack_from(path.read_bytes(), at)[5] > 60)
    rewrite_offset(path, at, 3)
    report = both(root)
    assert any("which an earlier record has" in each.what for each in report.findings)


def test_entries_that_are_nobodys_are_found_behind_the_last(root: Path) -> None:
    queue = max((root / "consumequeue" / "orders" / "0").iterdir())
    data = bytearray(queue.read_bytes())
    end = next(at for at in range(0, len(data), ENTRY.size) if not any(data[at : at + ENTRY.size]))
    data[end : end + ENTRY.size] = ENTRY.pack(123, 200, 0)
    queue.write_bytes(data)
    [found] = both(root).findings
    assert "nobody's" in found.what


def test_a_damaged_index_is_found_unless_nobody_wants_to_know(root: Path) -> None:
    flip(min((root / "index").iterdir()), 40 + 4 * 97 + 20 * 5 + 6)
    assert not both(root).ok
    assert check(root, index=False).ok


def test_a_store_that_was_killed_has_notes_and_no_errors(root: Path) -> None:
    store = open_store(root)
    fill(store, 40)
    store.flush()
    copy = Path(shutil.copytree(root, root.with_name("killed")))
    (copy / "lock").unlink()
    path = segments(copy)[-1]
    data = bytearray(path.read_bytes())
    end = store.log.end - int(path.name)
    data[end : end + 30] = b"x" * 30
    path.write_bytes(data)
    report = both(copy)
    assert report.ok
    assert report.notes
    store.close()


def test_a_store_in_use_is_looked_at(root: Path) -> None:
    store: MessageStore = open_store(root)
    report = both(root)
    assert report.live
    assert report.ok
    store.close()


def test_retention_has_removed_the_beginning(root: Path) -> None:
    segments(root)[0].unlink()
    both(root)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_whatever_is_flipped_both_say_the_same(intact: Path, tmp_path_factory: Any, data: st.DataObject) -> None:
    root = Path(shutil.copytree(intact, tmp_path_factory.mktemp("flipped") / "store"))
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.parent.name not in ("config", "store"))
    path = data.draw(st.sampled_from(files))
    source = random.Random(data.draw(st.integers(0, 1 << 30)))
    for _ in range(data.draw(st.integers(1, 4))):
        flip(path, source.randrange(path.stat().st_size), source.randrange(8))
    both(root)
    shutil.rmtree(root.parent)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store"):
        check(tmp_path)
    with pytest.raises(ConfigError, match="path"):
        AuditPlan("")


def test_findings_are_counted_beyond_those_that_are_kept(root: Path) -> None:
    queue = root / "consumequeue" / "orders" / "1" / f"{0:020d}"
    queue.write_bytes(bytes(queue.stat().st_size))
    report = check(root, max_findings=3)
    assert len(report.findings) == 3
    assert report.errors > 3
    assert "errors" in report.sentences()[0]


# --- a backup ------------------------------------------------------------------------------------------------------


@pytest.fixture
def backup(root: Path, tmp_path: Path) -> Path:
    back_up(root, LocalTarget(tmp_path / "backup"))
    store = open_store(root)
    fill(store, 40)
    store.close()
    back_up(root, LocalTarget(tmp_path / "backup"))
    return tmp_path / "backup"


def chunks(backup: Path) -> list[Path]:
    return sorted((backup / "log" / "0001").iterdir())


def test_an_intact_backup_has_no_findings(backup: Path) -> None:
    report = check(backup)
    assert (report.is_backup, report.ok, report.findings) == (True, True, ())
    assert report.records == MESSAGES + 40
    assert report.queues == 8
    assert report.queue_entries == report.records - MESSAGES // 30 - 40 // 30 - 1


def test_damage_in_a_backup_is_found_with_file_and_position(backup: Path) -> None:
    path = chunks(backup)[1]
    at = record_starts(path)[5]
    flip(path, at + 100)
    report = check(backup)
    [found] = report.findings
    assert found.severity is Severity.ERROR
    assert found.file == path
    assert found.position == int(path.name[:20]) + at


def test_a_missing_chunk_is_found(backup: Path) -> None:
    chunks(backup)[1].unlink()
    assert "missing" in check(backup).findings[0].what


def test_a_doubled_and_a_missing_offset_are_found_in_a_backup(root: Path, tmp_path: Path) -> None:
    path = segments(root)[2]
    at = next(at for at in record_starts(path) if layout.HEAD.unpack_from(path.read_bytes(), at)[5] > 60)
    rewrite_offset(path, at, 5)
    target = LocalTarget(tmp_path / "backup")
    back_up(root, target)
    found = check(tmp_path / "backup").findings
    assert {"which an earlier record has" in each.what for each in found} == {True, False}
    assert any("has no messages of the offsets 6 to" in each.what for each in found)
