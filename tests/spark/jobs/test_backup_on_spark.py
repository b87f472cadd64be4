"""Backup, check, restore, audit, compare, rebuild and reconcile on a real Spark: one store's life."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pyromq.backup.making import back_up
from pyromq.backup.target import LocalTarget
from pyromq.errors import CorruptBackup, CorruptLog
from pyromq.spark.jobs.audit.compare import ComparePlan, compare
from pyromq.spark.jobs.audit.job import AuditPlan, audit
from pyromq.spark.jobs.audit.reconcile import ReconcilePlan, reconcile
from pyromq.spark.jobs.backup.job import BackupPlan, backup
from pyromq.spark.jobs.backup.restore import RestorePlan, check, restore
from pyromq.spark.jobs.rebuild.job import RebuildPlan, rebuild
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.verify import verify
from store.small_store import MESSAGES, fill, make_store, open_store, small_config

pytestmark = pytest.mark.spark

SIZES: dict[str, int] = {"index_slots": 97, "index_entries": 250}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_store(tmp_path / "store")
    return tmp_path / "store"


def queue_files(root: Path) -> dict[str, bytes]:
    files = [path for path in (root / "consumequeue").rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def test_a_store_is_saved_step_by_step_checked_and_restored(spark: Any, root: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "backup")
    told: list[tuple[str, int, int | None]] = []
    first = backup(spark, BackupPlan(str(root), place, name="a"), lambda *told_of: told.append(told_of))
    assert first.records == MESSAGES
    assert told[-1] == ("segments saved", 3, 3)
    store = open_store(root)
    fill(store, 60)
    store.close()
    back_up(root, LocalTarget(Path(place)))  # without Spark: it is the same backup
    assert check(spark, place).ok
    report = restore(spark, RestorePlan(place, str(tmp_path / "restored")))
    assert report.records == MESSAGES + 60

    compared = compare(spark, ComparePlan(str(root), str(tmp_path / "restored")))
    assert compared.same
    assert compare(spark, ComparePlan(str(root), place)).same
    assert compared.table(spark).where("left_sha256 = right_sha256").count() == len(compared.stretches)

    with MessageStore(small_config(tmp_path / "restored")):
        pass
    assert audit(spark, AuditPlan(str(tmp_path / "restored"), **SIZES)).findings == ()
    assert audit(spark, AuditPlan(place)).ok
    assert queue_files(tmp_path / "restored") == queue_files(root)


def test_errors_of_the_executors_are_ours(spark: Any, root: Path, tmp_path: Path) -> None:
    place = tmp_path / "backup"
    backup(spark, BackupPlan(str(root), str(place)))
    path = sorted((root / "commitlog").iterdir())[1]
    data = bytearray(path.read_bytes())
    data[400] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptLog) as damage:
        backup(spark, BackupPlan(str(root), str(tmp_path / "another")))
    assert damage.value.file == path
    report = audit(spark, AuditPlan(str(root), **SIZES))
    assert not report.ok
    assert report.table(spark).where("severity = 'error'").count() == report.errors
    chunk = min((place / "log" / "0001").iterdir())
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(CorruptBackup):
        restore(spark, RestorePlan(str(place), str(tmp_path / "restored")))
    assert len(check(spark, str(place)).findings) == 1


def test_queues_and_index_are_made_anew(spark: Any, root: Path) -> None:
    before = queue_files(root)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    report = rebuild(spark, RebuildPlan(str(root), queue_file_entries=50, **SIZES))
    assert (report.records, report.queues) == (MESSAGES, 8)
    assert queue_files(root) == before
    assert verify(root, config=small_config(root)).findings == []


def test_what_was_sent_is_held_against_what_was_consumed(spark: Any, root: Path, tmp_path: Path) -> None:
    (tmp_path / "consumed.txt").write_text("\n".join(["a", "b", "b", "x"]))
    (tmp_path / "sent.csv").write_text("id\na\nb\nc\nd\nd\n")
    sent, consumed = str(tmp_path / "sent.csv"), str(tmp_path / "consumed.txt")
    found = reconcile(spark, ReconcilePlan(sent, consumed, sent_id="id"))
    assert sorted(map(tuple, found.missing.collect())) == [("c", 1), ("d", 2)]
    assert list(map(tuple, found.extra.collect())) == [("x", 1)]
    assert list(map(tuple, found.duplicated.collect())) == [("b", 1, 2)]
    assert found.counts == {"sent": 5, "consumed": 4, "missing": 2, "extra": 1, "duplicated": 1}
    assert not found.ok

    stored = reconcile(spark, ReconcilePlan(str(root), consumed, sent_topic="orders"))
    assert stored.counts["sent"] == stored.counts["missing"] == 260
