"""Which files are rewritten, and in what order their rows come."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pyromq.spark.lake.compaction import plan_rewrites, sorted_rows
from pyromq.spark.lake.model import DataFile, Target
from pyromq.spark.lake.place import place_at
from pyromq.spark.lake.writing import TableWriter
from spark.support.lake_rows import SCHEMA, a_batch, some_rows

MIB = 1 << 20


def a_file(number: int, size: int, topic: str = "t", day: str = "2026-01-31") -> DataFile:
    return DataFile(f"{topic}/{day}/{number}", topic, day, 1, size, first_ms=number)


def test_few_small_files_are_left_alone() -> None:
    assert plan_rewrites([a_file(number, MIB) for number in range(7)]) == []


def test_many_small_files_of_a_day_become_one() -> None:
    files = [a_file(number, MIB) for number in range(9)]
    (rewrite,) = plan_rewrites(files)
    assert (rewrite.topic, rewrite.date) == ("t", "2026-01-31")
    assert list(rewrite.files) == files


def test_large_files_are_never_touched_again() -> None:
    files = [a_file(number, 128 * MIB) for number in range(20)]
    assert plan_rewrites(files) == []


def test_topics_and_days_are_not_mixed() -> None:
    files = [
        a_file(number, MIB, topic, day) for number in range(8) for topic in "ab" for day in ("2026-01-31", "2026-02-01")
    ]
    rewrites = plan_rewrites(files)
    assert len(rewrites) == 4
    for rewrite in rewrites:
        assert {(file.topic, file.date) for file in rewrite.files} == {(rewrite.topic, rewrite.date)}


@given(st.lists(st.integers(1, 300 * MIB), max_size=60))
def test_every_file_is_in_one_rewrite_at_most_and_none_gets_too_large(sizes) -> None:
    files = [a_file(number, size) for number, size in enumerate(sizes)]
    rewrites = plan_rewrites(files)
    taken = [file.path for rewrite in rewrites for file in rewrite.files]
    assert len(set(taken)) == len(taken)
    for rewrite in rewrites:
        assert len(rewrite.files) > 1
        assert sum(file.size for file in rewrite.files) <= 192 * MIB
        assert all(file.size < 128 * MIB for file in rewrite.files)


def test_rows_come_in_the_order_of_queues_also_when_they_do_not_fit_into_memory(tmp_path: Path) -> None:
    place = place_at(str(tmp_path))
    rows = [row for queue in range(3) for broker in "ab" for row in some_rows("t", queue, 0, 20, broker=broker)]
    random.Random(1).shuffle(rows)
    paths = []
    for number in range(4):
        target = Target(str(tmp_path), "r", "data/r", SCHEMA, hive=False)
        writer = TableWriter(place, target, f"f{number}")
        writer.write(a_batch(rows[number::4]))
        paths += [file.path for file in writer.close()]
    for memory in (1, 1 << 30):
        tables = list(sorted_rows(place, paths, memory))
        keys = [
            key
            for table in tables
            for key in zip(*(table[name].to_pylist() for name in ("broker", "queue_id", "queue_offset")), strict=True)
        ]
        assert keys == sorted((row["broker"], row["queue_id"], row["queue_offset"]) for row in rows)
        assert len(tables) == (6 if memory == 1 else 1)
