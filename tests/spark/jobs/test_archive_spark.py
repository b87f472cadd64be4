"""Archives with real Spark: bit by bit, exactly once, in every format, and whatever is cut short."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyromq.errors import ConfigError, LakeConflict, LakeError, Unreachable
from pyromq.spark.jobs.archive.job import ArchivePlan, ArchiveReport, archive
from pyromq.spark.lake import compaction, runs
from pyromq.spark.lake.opening import FORMATS, open_lake, read_lake
from pyromq.spark.lake.parquet_lake import ParquetLake
from pyromq.spark.lake.place import place_at
from spark.support.lake_rows import NOON_MS, FragilePlace, PulledPlug, a_batch, some_rows

pytestmark = pytest.mark.spark


class Topics:
    """Queues that grow, without a broker."""

    def __init__(self, **lengths: int) -> None:
        self.lengths = {f"{name}@a@{queue}": length for name, length in lengths.items() for queue in range(2)}
        self.bodies: Mapping[int, bytes] = {}
        self.missing: set[int] = set()

    def grow(self, count: int) -> None:
        self.lengths = {queue: length + count for queue, length in self.lengths.items()}

    def bounds(self) -> dict[str, tuple[int, int]]:
        return {queue: (0, length) for queue, length in self.lengths.items()}

    def begins(self, queues: Collection[str], since_ms: int) -> dict[str, int]:
        return {queue: min(max(since_ms - NOON_MS, 0), self.lengths[queue]) for queue in queues}

    def rows(self, spark: Any, ranges: Mapping[str, tuple[int, int]], columns: Sequence[str]) -> Any:
        found = []
        for queue, (start, end) in ranges.items():
            topic, _, number = queue.split("@")
            found += [
                row for row in some_rows(topic, int(number), start, end) if row["queue_offset"] not in self.missing
            ]
        for row in found:
            row["body"] = self.bodies.get(row["queue_offset"], row["body"])
        return spark.createDataFrame(pa.Table.from_batches([a_batch(found)]).select(list(columns))).repartition(2)

    def everything(self) -> list[tuple[str, int, int]]:
        return sorted(
            (queue.split("@")[0], int(queue.split("@")[2]), at)
            for queue, length in self.lengths.items()
            for at in range(length)
        )


def a_plan(path: Path, **more: Any) -> ArchivePlan:
    return ArchivePlan(**{"path": str(path), "namesrv": "localhost:1", "topics": ("orders",), "compact": False, **more})


def run(spark: Any, path: Path, source: Topics, **more: Any) -> ArchiveReport:
    lake, stop, progress = more.pop("lake", None), more.pop("stop", None), more.pop("progress", lambda *_: None)
    return archive(spark, a_plan(path, **more), progress, source=source, lake=lake, stop=stop)


def keys(frame: Any) -> list[tuple[str, int, int]]:
    return sorted((row.topic, row.queue_id, row.queue_offset) for row in frame.collect())


@pytest.mark.parametrize("format", FORMATS)
def test_each_run_goes_on_where_the_last_one_ended(spark, tmp_path: Path, format: str) -> None:
    source = Topics(orders=5, other=3)
    first = run(spark, tmp_path, source, format=format)
    assert (first.commits, first.rows, first.version) == (1, 16, 1)
    nothing = run(spark, tmp_path, source, format=format)
    assert (nothing.commits, nothing.rows, nothing.version) == (0, 0, 1)
    source.grow(4)
    second = run(spark, tmp_path, source, format=format, max_offsets_per_commit=9)
    assert (second.commits, second.rows, second.version) == (2, 16, 3)
    assert second.offsets == source.lengths
    rows = read_lake(spark, str(tmp_path), format)
    assert keys(rows) == source.everything()
    assert rows.columns[0] == "topic"
    one = rows.where("topic = 'other' AND queue_id = 1 AND queue_offset = 6").collect()[0]
    assert bytes(one.body) == b"other/1/6"
    assert one.properties == {"UNIQ_KEY": "uniq-6", "color": "red"}
    assert str(one.date) == "2026-01-31"
    assert one.store_ts.timestamp() * 1000 == NOON_MS + 6
    assert list((tmp_path / runs.STAGING).glob("*")) == []


def test_others_read_what_was_archived(spark, tmp_path: Path) -> None:
    from deltalake import DeltaTable
    from pyiceberg.catalog import load_catalog

    source = Topics(orders=5, **{"%RETRY%g": 2})
    for format in FORMATS:
        run(spark, tmp_path / format, source, format=format)
    plain = spark.read.parquet(str(tmp_path / "parquet"))
    assert keys(plain) == source.everything()
    assert plain.schema["date"].dataType.simpleString() == "date"
    assert pq.read_table(tmp_path / "parquet").num_rows == 14
    assert DeltaTable(str(tmp_path / "delta")).to_pyarrow_table().num_rows == 14
    home = tmp_path / "iceberg"
    catalog = load_catalog("pyromq", type="sql", uri=f"sqlite:///{home}/catalog.db", warehouse=str(home))
    assert catalog.load_table("pyromq.messages").scan(row_filter="topic = 'orders'").to_arrow().num_rows == 10


def test_topics_that_look_like_numbers_stay_text(spark, tmp_path: Path) -> None:
    source = Topics(**{"0017": 2})
    run(spark, tmp_path, source)
    assert keys(read_lake(spark, str(tmp_path))) == source.everything()


# --- cut short -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_step_nothing_is_lost_or_doubled(spark, tmp_path: Path, after: bool) -> None:
    cuts = 0
    while True:
        path = tmp_path / str(cuts)
        source = Topics(orders=3)
        run(spark, path, source)
        source.grow(2)
        try:
            run(spark, path, source, lake=ParquetLake(FragilePlace(place_at(str(path)), cuts, after=after)))
        except PulledPlug:
            cuts += 1
            assert len(keys(read_lake(spark, str(path)))) in (6, 10)
        else:
            break
        source.grow(1)
        run(spark, path, source)
        assert keys(read_lake(spark, str(path))) == source.everything()
        assert keys(spark.read.parquet(str(path))) == source.everything()
    assert cuts >= 5, "mark, commit, files, published, end"


class CutLake:
    """Dies before or after the commit of its table."""

    def __init__(self, lake: Any, *, after: bool) -> None:
        self._lake = lake
        self._after = after
        self.place = lake.place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lake, name)

    def commit(self, change: Any) -> Any:
        if self._after:
            self._lake.commit(change)
        raise PulledPlug


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_killed_around_the_commit_of_a_table_format(spark, tmp_path: Path, format: str, after: bool) -> None:
    source = Topics(orders=3)
    run(spark, tmp_path, source, format=format)
    source.grow(2)
    with pytest.raises(PulledPlug):
        run(spark, tmp_path, source, format=format, lake=CutLake(open_lake(str(tmp_path), format), after=after))
    source.grow(1)
    report = run(spark, tmp_path, source, format=format)
    assert report.rows == (2 if after else 6)
    assert keys(read_lake(spark, str(tmp_path), format)) == source.everything()


class Overtaken(CutLake):
    """A lake to which another job archives the same range while this one writes."""

    def __init__(self, lake: Any, other: Any) -> None:
        super().__init__(lake, after=False)
        self._other = other

    def commit(self, change: Any) -> Any:
        self._other()
        return self._lake.commit(change)


@pytest.mark.parametrize("format", FORMATS)
def test_of_two_archives_at_once_the_second_is_refused(spark, tmp_path: Path, format: str) -> None:
    source = Topics(orders=3)
    lake = Overtaken(open_lake(str(tmp_path), format), lambda: run(spark, tmp_path, source, format=format))
    with pytest.raises(LakeConflict, match="somebody else made commit 1"):
        run(spark, tmp_path, source, format=format, lake=lake)
    assert keys(read_lake(spark, str(tmp_path), format)) == source.everything()


def test_rows_that_do_not_come_are_found_before_the_commit(spark, tmp_path: Path) -> None:
    source = Topics(orders=5)
    source.missing = {3}
    with pytest.raises(LakeError, match="orders@a@0: 4 rows came for the 5 offsets"):
        run(spark, tmp_path, source)
    assert open_lake(str(tmp_path)).head().version == 0
    assert run(spark, tmp_path, source, tags="A").rows == 8, "with a filter there are holes"


# --- bad rows --------------------------------------------------------------------------------------------------------


def json_source() -> Topics:
    source = Topics(orders=5)
    source.bodies = {at: json.dumps({"id": at}).encode() for at in range(100)} | {
        2: b"{",
        4: b'{"id": "x"}',
        7: b"\xff",
    }
    return source


DECODED = {"decode": "json", "schema": "id BIGINT, note STRING"}


@pytest.mark.parametrize("format", FORMATS)
def test_bad_rows_go_to_a_table_beside_with_the_reason(spark, tmp_path: Path, format: str) -> None:
    source = json_source()
    report = run(spark, tmp_path, source, format=format, **DECODED)
    assert (report.rows, report.bad_rows) == (6, 4)
    source.grow(3)
    report = run(spark, tmp_path, source, format=format, **DECODED)
    assert (report.rows, report.bad_rows) == (4, 2)
    rows = read_lake(spark, str(tmp_path), format)
    assert sorted(row.value.id for row in rows.where("queue_id = 0").collect()) == [0, 1, 3, 5, 6]
    bad = read_lake(spark, str(tmp_path / "_bad"))
    assert sorted((row.queue_id, row.queue_offset) for row in bad.collect()) == [
        (q, at) for q in (0, 1) for at in (2, 4, 7)
    ]
    one = bad.where("queue_offset = 4").collect()[0]
    assert (bytes(one.body), one.reason) == (b'{"id": "x"}', "value.id is 'x', not a whole number of 64 bits")
    assert spark.read.parquet(str(tmp_path / "_bad")).count() == 6


def test_a_run_that_died_between_the_two_tables_writes_bad_rows_once(spark, tmp_path: Path) -> None:
    source = json_source()
    with pytest.raises(PulledPlug):
        run(spark, tmp_path, source, lake=CutLake(open_lake(str(tmp_path)), after=False), **DECODED)
    assert read_lake(spark, str(tmp_path / "_bad")).count() == 4
    source.grow(3)
    report = run(spark, tmp_path, source, **DECODED)
    assert (report.rows, report.bad_rows) == (10, 2)
    assert read_lake(spark, str(tmp_path / "_bad")).count() == 6


def test_avro_is_decoded_by_a_schema_file(spark, tmp_path: Path) -> None:
    schema = tmp_path / "order.avsc"
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
    schema.write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))
    source = Topics(orders=3)
    source.bodies = {0: b"\x02\x04hi", 1: b"\x04\x00", 2: b"\x04\x00\x00"}
    report = run(spark, tmp_path / "lake", source, decode="avro", schema=str(schema), columns=("tags",))
    assert (report.rows, report.bad_rows) == (4, 2)
    rows = read_lake(spark, str(tmp_path / "lake"))
    assert "body" not in rows.columns
    assert {(row.value.id, row.value.name) for row in rows.collect()} == {(1, "hi"), (2, "")}


def test_schemas_that_cannot_be_read_are_refused(spark, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no list of columns"):
        run(spark, tmp_path, Topics(orders=1), decode="json", schema="id WHAT IS THIS")
    with pytest.raises(ConfigError, match="cannot be read"):
        run(spark, tmp_path, Topics(orders=1), decode="avro", schema=str(tmp_path / "nowhere.avsc"))


def test_a_lake_of_another_shape_is_refused(spark, tmp_path: Path) -> None:
    run(spark, tmp_path, Topics(orders=1))
    with pytest.raises(ConfigError, match="ask for the same ones"):
        run(spark, tmp_path, Topics(orders=2), columns=("tags",))


@pytest.mark.parametrize("format", FORMATS)
def test_bodies_of_another_schema_are_refused(spark, tmp_path: Path, format: str) -> None:
    """Files of both in one table could not be read any more."""
    source = Topics(orders=2)
    source.bodies = dict.fromkeys(range(9), b'{"id": 1, "small": 2}')
    same = {"format": format, "decode": "json", "schema": "id BIGINT, small SMALLINT"}
    run(spark, tmp_path, source, **same)
    source.grow(1)
    with pytest.raises(ConfigError, match=r"value struct<id:bigint,small:int>.*value struct<id:string>"):
        run(spark, tmp_path, source, **{**same, "schema": "id STRING"})
    assert run(spark, tmp_path, source, **same).rows == 2
    assert {row.value.id for row in read_lake(spark, str(tmp_path), format).collect()} == {1}


@pytest.mark.parametrize("format", FORMATS)
def test_a_lake_of_another_format_is_refused(spark, tmp_path: Path, format: str) -> None:
    run(spark, tmp_path, Topics(orders=1), format=format)
    for other in FORMATS:
        if other != format:
            with pytest.raises(ConfigError, match=f"is of the format {format}"):
                run(spark, tmp_path, Topics(orders=1), format=other)


def test_what_the_disk_says_is_a_sentence_and_nothing_is_left_behind(spark, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(LakeError, match="cannot be read or written: Not a directory"):
        run(spark, tmp_path / "file" / "lake", Topics(orders=1))
    source = Topics(orders=3)
    run(spark, tmp_path / "lake", source)
    source.grow(1)
    source.missing = {3}
    with pytest.raises(LakeError, match="some are missing"):
        run(spark, tmp_path / "lake", source)
    assert list((tmp_path / "lake/_pyromq/staging").rglob("*.parquet")) == []


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("at_ms", [-(10**14), 10**15])
def test_a_clock_that_is_far_off_does_not_stop_an_archive(spark, tmp_path: Path, format: str, at_ms: int) -> None:
    class FarOff(Topics):
        def rows(self, spark: Any, ranges: Mapping[str, tuple[int, int]], columns: Sequence[str]) -> Any:
            batch = a_batch(some_rows("orders", 0, *ranges["orders@a@0"], at_ms=at_ms))
            return spark.createDataFrame(pa.Table.from_batches([batch]).select(list(columns)))

    source = FarOff()
    source.lengths = {"orders@a@0": 3}
    if format == "iceberg":
        with pytest.raises(LakeError, match="a time that no calendar has"):
            run(spark, tmp_path, source, format=format)
        return
    assert run(spark, tmp_path, source, format=format).rows == 3
    found = read_lake(spark, str(tmp_path), format).selectExpr("queue_offset", "cast(date as string) as day").collect()
    assert sorted((row.queue_offset, row.day) for row in found) == [
        (offset, "0001-01-01" if at_ms < 0 else "9999-12-31") for offset in range(3)
    ]


# --- over time -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_many_small_files_become_one(spark, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MIN_FILES", 8)
    source = Topics(orders=10)
    run(spark, tmp_path, source, format=format, max_offsets_per_commit=4)
    assert len(open_lake(str(tmp_path), format).files()) >= 8
    source.grow(1)
    report = run(spark, tmp_path, source, format=format, compact=True, grace_s=0)
    assert report.compacted >= 8
    (file,) = open_lake(str(tmp_path), format).files()
    where = open_lake(str(tmp_path), format).locations()[file.path]
    table = pq.ParquetFile(where).read()
    order = list(zip(table["queue_id"].to_pylist(), table["queue_offset"].to_pylist(), strict=True))
    assert order == sorted(order)
    assert keys(read_lake(spark, str(tmp_path), format)) == source.everything()
    if format == "parquet":
        assert keys(spark.read.parquet(str(tmp_path))) == source.everything()
        assert list((tmp_path / "_pyromq/trash").rglob("*.parquet")) == [], "no grace"


def test_queues_that_are_new_begin_at_a_time(spark, tmp_path: Path) -> None:
    source = Topics(orders=9)
    run(spark, tmp_path, source, from_=str(NOON_MS + 6))
    source.grow(1)
    run(spark, tmp_path, source, from_=str(NOON_MS + 6))
    assert [key[2] for key in keys(read_lake(spark, str(tmp_path))) if key[1] == 0] == [6, 7, 8, 9]


def test_one_that_follows_goes_on_until_it_is_stopped(spark, tmp_path: Path) -> None:
    source, stop, told = Topics(orders=2), threading.Event(), []

    def progress(what: str, done: int, total: int | None) -> None:
        told.append((what, done, total))
        if len(told) == 3:
            stop.set()
        source.grow(1)

    report = run(spark, tmp_path, source, follow=True, every_s=0.01, stop=stop, progress=progress)
    assert report.commits == 3
    assert told == [("messages archived", 4, 4), ("messages archived", 6, 6), ("messages archived", 8, 8)]
    assert read_lake(spark, str(tmp_path)).count() == 8


def test_one_that_follows_waits_for_a_broker_that_is_away(spark, tmp_path: Path, caplog) -> None:
    """It waits when it asks for queues' ends and when a task reads. A broker that never answered is an error."""
    source, stop = Topics(orders=2), threading.Event()
    answers = iter([Unreachable("nobody answers at a:1"), None, None])

    class Moody(Topics):
        def bounds(self) -> dict[str, tuple[int, int]]:
            if (error := next(answers, None)) is not None:
                raise error
            return source.bounds()

        def rows(self, spark: Any, ranges: Mapping[str, tuple[int, int]], columns: Sequence[str]) -> Any:
            rows = source.rows(spark, ranges, columns)
            return rows.mapInArrow(away, rows.schema) if next(tasks) else rows

    def away(batches: Any) -> Any:
        from pyromq.errors import CallTimeout

        raise CallTimeout("no answer from a:1 within 10 s")

    def progress(what: str, done: int, total: int | None) -> None:
        source.grow(1)
        if done > 4:
            stop.set()

    tasks = iter([False, True, True, False])
    with pytest.raises(Unreachable):
        run(spark, tmp_path, Moody(), follow=True, every_s=0.01, stop=stop)
    report = run(spark, tmp_path, Moody(), follow=True, every_s=0.01, stop=stop, progress=progress)
    assert (report.commits, report.rows) == (2, 6)
    assert keys(read_lake(spark, str(tmp_path))) == [("orders", queue, at) for queue in range(2) for at in range(3)]
    assert caplog.text.count("it is tried again in 0.01 s") == 2


def test_there_is_nothing_to_read_before_the_first_commit(spark, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="nothing was committed"):
        read_lake(spark, str(tmp_path))
