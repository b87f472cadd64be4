"""Written files are each of one topic and day, sorted and whole; and a commit with missing rows is noticed."""

from __future__ import annotations

import random
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.errors import LakeError
from pyromq.spark.lake import writing
from pyromq.spark.lake.checking import check_ranges, gathered
from pyromq.spark.lake.model import DataFile, Span, Target
from pyromq.spark.lake.place import place_at
from pyromq.spark.lake.writing import TableWriter
from spark.support.lake_rows import DAY_MS, NOON_MS, SCHEMA, a_batch, a_row, some_rows


def a_writer(path: Path, *, hive: bool = True, **more) -> TableWriter:
    target = Target(str(path), "r1", "_pyromq/staging/r1" if hive else "data/r1", SCHEMA, hive, **more)
    return TableWriter(place_at(str(path)), target, "r1-0")


def staged(path: Path, file: DataFile) -> pq.ParquetFile:
    return pq.ParquetFile(path / "_pyromq/staging/r1" / file.path)


def test_each_topic_and_day_has_its_file(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    writer.write(a_batch(some_rows("orders", 0, 0, 3) + some_rows("%RETRY%g", 1, 0, 2)))
    writer.write(a_batch(some_rows("orders", 0, 3, 5, at_ms=NOON_MS + DAY_MS)))
    made = writer.close()
    assert [(file.topic, file.date, file.rows) for file in made] == [
        ("orders", "2026-01-31", 3),
        ("%RETRY%g", "2026-01-31", 2),
        ("orders", "2026-02-01", 2),
    ]
    assert made[1].path.startswith("topic=%25RETRY%25g/date=2026-01-31/r1-0-")
    assert made[2].queues == {"orders@a@0": Span(3, 4, 2)}
    assert made[2].first_ms == NOON_MS + DAY_MS + 3
    assert made[2].last_ms == NOON_MS + DAY_MS + 4
    assert all(file.size == (tmp_path / "_pyromq/staging/r1" / file.path).stat().st_size for file in made)


def test_files_have_all_columns_but_those_of_their_directory(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    rows = some_rows("orders", 0, 0, 3)
    writer.write(a_batch(rows))
    (made,) = writer.close()
    table = staged(tmp_path, made).read()
    assert table.schema.names == [name for name in SCHEMA.names if name not in ("topic", "date")]
    assert table["body"].to_pylist() == [row["body"] for row in rows]
    assert table["properties"].to_pylist() == [row["properties"] for row in rows]


def test_files_of_tables_with_a_log_have_topic_and_date(tmp_path: Path) -> None:
    writer = a_writer(tmp_path, hive=False)
    writer.write(a_batch(some_rows("orders", 0, 0, 3)))
    (made,) = writer.close()
    assert made.path == "data/r1/r1-0-0000.parquet"
    table = pq.ParquetFile(tmp_path / made.path).read()
    assert table.schema.equals(SCHEMA)
    assert set(table["date"].to_pylist()) == {date(2026, 1, 31)}


def test_rows_that_come_in_any_order_are_sorted_by_queue_and_offset(tmp_path: Path) -> None:
    rows = some_rows("orders", 1, 0, 50) + some_rows("orders", 0, 0, 50) + some_rows("orders", 0, 0, 9, broker="b")
    random.Random(7).shuffle(rows)
    writer = a_writer(tmp_path)
    writer.write(a_batch(rows))
    (made,) = writer.close()
    table = staged(tmp_path, made).read()
    keys = list(zip(*(table[name].to_pylist() for name in ("broker", "queue_id", "queue_offset")), strict=True))
    assert keys == sorted(keys)
    assert made.queues == {"orders@a@0": Span(0, 49, 50), "orders@a@1": Span(0, 49, 50), "orders@b@0": Span(0, 8, 9)}


def test_an_offset_that_comes_twice_is_refused(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    writer.write(a_batch(some_rows("orders", 0, 0, 3) + some_rows("orders", 0, 2, 4)))
    with pytest.raises(LakeError, match="offset 2 of queue 0 twice"):
        writer.close()


def test_the_same_offset_of_two_brokers_is_none_of_that(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    writer.write(a_batch(some_rows("orders", 0, 0, 3) + some_rows("orders", 0, 0, 3, broker="b")))
    assert sum(file.rows for file in writer.close()) == 6


def test_a_file_that_is_large_enough_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "ROW_GROUP_BYTES", 1)
    writer = a_writer(tmp_path, file_bytes=6000)
    for start in range(0, 40, 2):
        writer.write(
            a_batch([a_row("orders", 0, at, body=random.Random(at).randbytes(700)) for at in (start, start + 1)])
        )
    made = writer.close()
    assert len(made) > 2
    assert made[0].queues["orders@a@0"].first == 0
    assert sum(file.rows for file in made) == 40
    assert staged(tmp_path, made[0]).num_row_groups > 1


def test_many_topics_share_few_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "OPEN_FILES", 3)
    monkeypatch.setattr(writing, "WAITING_BYTES", 1)
    writer = a_writer(tmp_path)
    for start in (0, 2):
        writer.write(a_batch([row for number in range(8) for row in some_rows(f"t{number}", 0, start, start + 2)]))
    made = writer.close()
    assert {topic: span.rows for topic, span in gathered(made).items()} == {f"t{number}@a@0": 4 for number in range(8)}


def test_statistics_let_readers_skip(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    writer.write(a_batch(some_rows("orders", 0, 5, 9)))
    (made,) = writer.close()
    file = staged(tmp_path, made)
    columns = {file.metadata.row_group(0).column(at).path_in_schema: at for at in range(file.metadata.num_columns)}
    offsets = file.metadata.row_group(0).column(columns["queue_offset"])
    assert (offsets.statistics.min, offsets.statistics.max) == (5, 8)
    assert file.metadata.row_group(0).column(columns["body"]).statistics is None
    assert offsets.compression == "ZSTD"


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(-3, 3)), max_size=30))
def test_splitting_keeps_every_row_once(places) -> None:
    rows = [a_row(topic, queue, at, at_ms=NOON_MS + day * DAY_MS) for at, (topic, queue, day) in enumerate(places)]
    table = pa.Table.from_batches([a_batch(rows)])
    found = list(writing.split(table))
    assert sorted(at for _, part in found for at in part["queue_offset"].to_pylist()) == list(range(len(places)))
    for (topic, day), part in found:
        assert set(part["topic"].to_pylist()) == {topic}
        assert set(map(str, pc.cast(part["store_ts"], pa.date32()).to_pylist())) == {day}
    assert len({part for part, _ in found}) == len(found)


# --- counting --------------------------------------------------------------------------------------------------------


def a_file(**spans: tuple[int, int, int]) -> DataFile:
    return DataFile("x", "t", "2026-01-31", 0, 0, queues={queue: Span(*span) for queue, span in spans.items()})


def test_a_commit_with_every_offset_once_is_good() -> None:
    check_ranges({"q": (5, 9), "r": (0, 2)}, [a_file(q=(5, 6, 2), r=(0, 1, 2)), a_file(q=(7, 8, 2))], holes=False)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([a_file(q=(5, 7, 3))], "3 rows came for the 4 offsets from 5 to 8: some are missing"),
        ([], "0 rows came"),
        ([a_file(q=(5, 8, 4)), a_file(q=(6, 6, 1))], "some are there twice"),
        ([a_file(q=(4, 7, 4))], "offsets 4 to 7 came, asked for were 5 to 8"),
        ([a_file(q=(5, 8, 4), z=(0, 0, 1))], "rows of z came, and nobody asked"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_committed(files, said: str) -> None:
    with pytest.raises(LakeError, match=f"{said}.*nothing was committed"):
        check_ranges({"q": (5, 9)}, files, holes=False)


def test_a_filter_leaves_holes_but_doubles_nothing() -> None:
    check_ranges({"q": (5, 9)}, [a_file(q=(6, 8, 2))], holes=True)
    with pytest.raises(LakeError, match="twice"):
        check_ranges({"q": (5, 9)}, [a_file(q=(5, 8, 5))], holes=True)
