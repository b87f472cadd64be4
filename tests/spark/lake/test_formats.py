"""The promise of a lake, kept by all three formats: files and offsets in one commit, one winner, readable by others."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyromq.errors import ConfigError, LakeConflict, LakeError
from pyromq.spark.lake import runs
from pyromq.spark.lake.committing import commit
from pyromq.spark.lake.model import Lake
from pyromq.spark.lake.opening import FORMATS, open_lake
from spark.support.lake_rows import NOON_MS, added, change

QUEUE = "%RETRY%a|b@broker-a@0"


@pytest.fixture(params=FORMATS)
def format(request: pytest.FixtureRequest) -> str:
    return request.param


def append(lake: Lake, start: int, end: int, run: str = "r1", **more) -> None:
    head = lake.head()
    runs.begin(lake.place, run)
    files = added(lake, run, {QUEUE: (start, end)}, attempt=str(start))
    lake.commit(change(head, run, files, {QUEUE: end}, **more))


def offsets_in(lake: Lake) -> list[int]:
    tables = [pq.ParquetFile(where).read() for where in lake.locations().values()]
    return sorted(offset for table in tables for offset in table["queue_offset"].to_pylist())


def test_commits_add_up_with_their_offsets(tmp_path: Path, format: str) -> None:
    lake = open_lake(str(tmp_path / "lake"), format)
    assert lake.head().version == 0
    append(lake, 0, 5)
    append(lake, 5, 9)
    again = open_lake(str(tmp_path / "lake"), format)
    assert (again.head().version, again.head().offsets) == (2, {QUEUE: 9})
    assert offsets_in(again) == list(range(9))
    assert {(file.topic, file.date) for file in again.files()} == {("%RETRY%a|b", "2026-01-31")}
    assert sum(file.rows for file in again.files()) == 9


def test_a_commit_may_have_offsets_and_no_rows(tmp_path: Path, format: str) -> None:
    lake = open_lake(str(tmp_path), format)
    lake.commit(change(lake.head(), "r1", [], {QUEUE: 4}))
    assert lake.head().offsets == {QUEUE: 4}
    append(lake, 4, 6)
    assert offsets_in(lake) == [4, 5]


def test_the_schema_comes_back(tmp_path: Path, format: str) -> None:
    lake = open_lake(str(tmp_path), format)
    append(lake, 0, 2)
    schema = lake.head().schema
    assert schema is not None
    assert schema.names[:4] == ["topic", "broker", "queue_id", "queue_offset"]
    assert schema.names[-1] == "date"
    assert schema.field("store_ts").type == pa.timestamp("us", tz="UTC")


def test_of_two_that_commit_on_the_same_head_one_wins(tmp_path: Path, format: str) -> None:
    append(open_lake(str(tmp_path), format), 0, 3)
    one, other = open_lake(str(tmp_path), format), open_lake(str(tmp_path), format)
    ours = change(one.head(), "r2", added(one, "r2", {QUEUE: (3, 6)}), {QUEUE: 6})
    theirs = change(other.head(), "r3", added(other, "r3", {QUEUE: (3, 8)}), {QUEUE: 8})
    commit(one, ours)
    with pytest.raises(LakeConflict, match="somebody else made commit 2"):
        commit(other, theirs)
    assert offsets_in(other) == list(range(6))
    assert other.head().offsets == {QUEUE: 6}


def test_a_rewrite_replaces_files_and_moves_no_offset(tmp_path: Path, format: str) -> None:
    lake = open_lake(str(tmp_path), format)
    append(lake, 0, 3)
    append(lake, 3, 6)
    head, old = lake.head(), lake.files()
    made = added(lake, "r9", {QUEUE: (0, 6)})
    commit(lake, change(head, "r9", made, head.offsets, why="compact", removed=old))
    assert [file.path for file in lake.files()] == [file.path for file in made]
    assert offsets_in(lake) == list(range(6))
    assert (lake.head().version, lake.head().offsets) == (3, {QUEUE: 6})


def test_files_of_a_dead_run_go_and_committed_ones_stay(tmp_path: Path, format: str) -> None:
    lake = open_lake(str(tmp_path), format)
    append(lake, 0, 3, run="dead")
    added(lake, "dead", {QUEUE: (3, 6)}, attempt="late")
    here = runs.this_process()
    mark = tmp_path / runs.directory_of("dead") / "run.json"
    mark.write_text(json.dumps({"system": here.system, "pid": here.pid, "started": "another start"}))
    assert lake.clean(now_ms=int(mark.stat().st_mtime * 1000) + 10_000, safe_age_s=1e9, grace_s=0) >= 1
    assert offsets_in(lake) == [0, 1, 2]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1 + len(list(tmp_path.glob("_delta_log/*.parquet")))


def test_what_attempts_wrote_in_vain_goes_with_the_end_of_the_run(tmp_path: Path, format: str) -> None:
    lake = open_lake(str(tmp_path), format)
    runs.begin(lake.place, "r1")
    added(lake, "r1", {QUEUE: (0, 2)}, attempt="lost")
    files = added(lake, "r1", {QUEUE: (0, 3)}, attempt="counts")
    lake.commit(change(lake.head(), "r1", files, {QUEUE: 3}))
    lake.end("r1", {file.path for file in files})
    assert offsets_in(lake) == [0, 1, 2]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    assert not (tmp_path / runs.directory_of("r1")).exists()


def test_delta_is_read_by_delta(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    append(open_lake(str(tmp_path), "delta"), 0, 4)
    table = DeltaTable(str(tmp_path)).to_pyarrow_table()
    assert sorted(table["queue_offset"].to_pylist()) == [0, 1, 2, 3]
    assert set(table["topic"].to_pylist()) == {"%RETRY%a|b"}
    assert set(map(str, table["date"].to_pylist())) == {"2026-01-31"}
    few = DeltaTable(str(tmp_path)).to_pyarrow_table(filters=[("queue_offset", ">", 2)])
    assert few["body"].to_pylist() == [b"%RETRY%a|b/0/3"]


def test_other_peoples_delta_commits_do_not_disturb(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    lake = open_lake(str(tmp_path), "delta")
    append(lake, 0, 2)
    append(lake, 2, 4)
    head = lake.head()
    files = added(lake, "r5", {QUEUE: (4, 6)})
    DeltaTable(str(tmp_path)).optimize.compact()
    assert lake.head().offsets == {QUEUE: 4}
    commit(lake, change(head, "r5", files, {QUEUE: 6}))
    assert offsets_in(lake) == list(range(6))
    head, old = lake.head(), lake.files()
    made = added(lake, "r6", {QUEUE: (0, 6)})
    commit(lake, change(head, "r6", made, head.offsets, why="compact", removed=old))
    assert offsets_in(lake) == list(range(6)), "files of theirs can be rewritten, too"


def test_replaced_files_of_delta_go_after_the_grace_time_and_others_stay(tmp_path: Path) -> None:
    lake = open_lake(str(tmp_path), "delta")
    append(lake, 0, 3)
    head, old = lake.head(), lake.files()
    made = added(lake, "r9", {QUEUE: (0, 3)})
    running = added(lake, "running", {QUEUE: (3, 9)})
    commit(lake, change(head, "r9", made, head.offsets, why="compact", removed=old))
    lake.clean(now_ms=NOON_MS, safe_age_s=1e9, grace_s=1e9)
    assert (tmp_path / old[0].path).exists()
    lake.clean(now_ms=NOON_MS, safe_age_s=1e9, grace_s=0)
    assert not (tmp_path / old[0].path).exists()
    assert (tmp_path / running[0].path).exists(), "somebody is about to commit it"
    assert offsets_in(lake) == [0, 1, 2]


def test_iceberg_is_read_by_iceberg(tmp_path: Path) -> None:
    from pyiceberg.catalog import load_catalog

    append(open_lake(str(tmp_path), "iceberg"), 0, 4)
    catalog = load_catalog("pyromq", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path))
    table = catalog.load_table("pyromq.messages")
    assert sorted(table.scan().to_arrow()["queue_offset"].to_pylist()) == [0, 1, 2, 3]
    few = table.scan(row_filter="topic = '%RETRY%a|b' and queue_offset > 2").to_arrow()
    assert few["body"].to_pylist() == [b"%RETRY%a|b/0/3"]
    assert [field.name for field in table.spec().fields] == ["topic", "date"]


def test_an_iceberg_lake_elsewhere_needs_a_catalog() -> None:
    from pyarrow import fs

    from pyromq.spark.lake.iceberg_lake import IcebergLake
    from pyromq.spark.lake.place import ArrowPlace

    elsewhere = ArrowPlace(fs.LocalFileSystem(), "/x", "s3://bucket/x")
    with pytest.raises(ConfigError, match="name a catalog"):
        IcebergLake(elsewhere).head()


def test_an_iceberg_snapshot_that_was_expired_is_told(tmp_path: Path) -> None:
    from pyiceberg.catalog import load_catalog

    lake = open_lake(str(tmp_path), "iceberg")
    append(lake, 0, 2)
    catalog = load_catalog("pyromq", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path))
    table = catalog.load_table("pyromq.messages")
    with table.transaction() as transaction:
        transaction.set_properties({"pyromq.version": "2"})
    with pytest.raises(LakeError, match="was expired"):
        open_lake(str(tmp_path), "iceberg").head()


def test_unknown_formats_are_refused() -> None:
    with pytest.raises(ConfigError, match="one of parquet, delta, iceberg"):
        open_lake("/tmp/x", "orc")


def test_a_place_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be reached"):
        open_lake("nowhere://x")
