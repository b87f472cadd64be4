"""Two logs compared, without Spark: where they differ first, what does not count, who is behind. And odds and ends."""

from __future__ import annotations

import errno
import pickle
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.backup.making import back_up
from pyromq.backup.target import LocalTarget
from pyromq.errors import BackupError, ConfigError, CorruptLog, StoreLocked
from pyromq.records import layout
from pyromq.spark.jobs.audit import compare as audit_compare
from pyromq.spark.jobs.audit.compare import ComparePlan, CompareReport, compare, first_difference, segment_ranges
from pyromq.spark.jobs.audit.reconcile import ReconcilePlan, format_of
from pyromq.spark.jobs.backup.job import BackupPlan
from pyromq.spark.jobs.backup.restore import RestorePlan
from pyromq.spark.jobs.spread import Guarded, Trouble, results_of
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.readable_log import readable_log
from spark.support.here import stay_here
from store.small_store import fill, make_store, open_store, small_config


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    stay_here(monkeypatch, audit_compare)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    make_store(tmp_path / "master")
    return tmp_path / "master", Path(shutil.copytree(tmp_path / "master", tmp_path / "replica"))


def run(left: Path, right: Path) -> CompareReport:
    return compare(None, ComparePlan(str(left), str(right)))  # type: ignore[arg-type]


def test_a_master_and_its_replica_are_the_same(pair: tuple[Path, Path]) -> None:
    report = run(*pair)
    assert report.same
    assert (report.start, report.end) == (0, readable_log(pair[0]).end)
    assert len(report.stretches) == 3
    assert "are the same" in report.sentences()[0]


def test_a_replica_that_is_behind_is_no_difference(pair: tuple[Path, Path]) -> None:
    store = open_store(pair[0])
    fill(store, 20)
    store.close()
    report = run(*pair)
    assert report.same
    assert report.end == report.right_end < report.left_end
    assert f"{pair[1]} is {report.left_end - report.right_end} bytes behind {pair[0]}" in report.sentences()[-1]
    assert f"{pair[1]} is" in run(pair[1], pair[0]).sentences()[-1]


def test_logs_without_a_common_part_are_not_said_to_be_the_same(pair: tuple[Path, Path], tmp_path: Path) -> None:
    open_store(tmp_path / "new").close()
    report = run(pair[0], tmp_path / "new")
    assert "nothing was compared" in report.sentences()[0]
    assert f"{tmp_path / 'new'} is {report.left_end} bytes behind" in report.sentences()[-1]


def test_the_first_record_that_differs_is_named(pair: tuple[Path, Path]) -> None:
    path = sorted((pair[1] / "commitlog").iterdir())[1]
    data = bytearray(path.read_bytes())
    second = layout.BLANK.unpack_from(data, 0)[0]
    data[second + 90] ^= 1
    data[second + 900] ^= 1
    path.write_bytes(data)
    report = run(*pair)
    [found] = report.differences
    assert found.differs_at == int(path.name) + second
    assert f"at {int(path.name) + second + 90}" in found.what
    assert "differ in 1 of 3 segments" in report.sentences()[0]


def test_the_room_behind_a_blank_is_nobodys(pair: tuple[Path, Path], tmp_path: Path) -> None:
    path = min((pair[1] / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[-1] = 7
    path.write_bytes(data)
    assert run(*pair).same
    back_up(pair[0], LocalTarget(tmp_path / "backup"))
    assert run(pair[1], tmp_path / "backup").same
    assert run(tmp_path / "backup", pair[1]).same


def test_a_backup_of_several_steps_is_compared(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for _ in range(3):
        back_up(pair[0], LocalTarget(tmp_path / "backup"))
        store = open_store(pair[0])
        fill(store, 15)
        store.close()
    assert run(pair[0], tmp_path / "backup").same


def test_segments_of_another_length_are_another_log(pair: tuple[Path, Path], tmp_path: Path) -> None:
    config = small_config(tmp_path / "other")
    with MessageStore(type(config)(root=config.root, segment_bytes=65536)) as store:
        fill(store, 5)
    with pytest.raises(BackupError, match="not the same log"):
        run(pair[0], tmp_path / "other")


@given(st.binary(max_size=100), st.integers(0, 100), st.integers(1, 255))
def test_the_first_difference(data: bytes, at: int, change: int) -> None:
    at = min(at, len(data) - 1)
    if at >= 0:
        other = bytearray(data)
        other[at] ^= change
        other[at + 1 :] = reversed(other[at + 1 :])
        assert first_difference(data, bytes(other)) == at


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 64))
def test_ranges_cover_and_do_not_cross_segments(start: int, size: int, segment: int) -> None:
    ranges = segment_ranges(start, start + size, segment)
    assert [at for low, high in ranges for at in range(low, high)] == list(range(start, start + size))
    assert all(low // segment == (high - 1) // segment for low, high in ranges)


def _fail(kind: str) -> int:
    if kind == "locked":
        raise StoreLocked(Path("store"), 7)
    if kind == "corrupt":
        raise CorruptLog(Path("file"), 12, "no record", "restore it")
    return len(kind)


@pytest.mark.parametrize("kind", ["locked", "corrupt"])
def test_errors_with_fields_survive_the_way_between_processes(kind: str) -> None:
    trouble = pickle.loads(pickle.dumps(Guarded(_fail)(kind)))
    assert isinstance(trouble, Trouble)
    revived = trouble.revived()
    assert isinstance(revived, StoreLocked if kind == "locked" else CorruptLog)
    assert str(revived) in ("file: no record at position 12; restore it", str(StoreLocked(Path("store"), 7)))
    assert getattr(revived, "pid" if kind == "locked" else "position") == (7 if kind == "locked" else 12)
    assert Guarded(_fail)("fine") == 4


def test_what_a_file_system_says_for_long_is_told_and_the_rest_is_tried_again() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "backup/log")
    trouble = pickle.loads(pickle.dumps(Guarded(_raise)(full)))
    assert isinstance(trouble, Trouble)
    with pytest.raises(OSError, match="No space left on device: 'backup/log'"):
        results_of([trouble])
    with pytest.raises(PermissionError, match="'secret'"):
        results_of([Guarded(_raise)(PermissionError(errno.EACCES, "Permission denied", "secret"))])
    with pytest.raises(OSError, match="Connection reset"):  # not caught: Spark's to decide
        Guarded(_raise)(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))


def _raise(error: OSError) -> None:
    raise error


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (lambda: ComparePlan("", "b"), "left"),
        (lambda: BackupPlan("", "b"), "store"),
        (lambda: BackupPlan("a", ""), "target"),
        (lambda: RestorePlan("a", ""), "directory"),
        (lambda: RestorePlan("a", "b", until_ms=1, until_position=2), "until_ms"),
        (lambda: ReconcilePlan("a", ""), "consumed"),
        (lambda: format_of("a.xyz", None, "sent_format"), "sent_format"),
        (lambda: format_of("a", "xls", "sent_format"), "sent_format"),
    ],
)
def test_plans_refuse_what_cannot_be_and_name_the_setting(make: object, setting: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make()  # type: ignore[operator]
    assert refused.value.setting == setting


def test_the_form_of_a_table_follows_from_its_name() -> None:
    assert format_of("s3://b/x.PARQUET", None, "s") == "parquet"
    assert format_of("x.jsonl", None, "s") == "json"
    assert format_of("x", "csv", "s") == "csv"
