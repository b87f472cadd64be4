"""Many small files of a topic and a day become few: which ones (pure), and how executors rewrite them.

Every commit adds at least one file for each task, so a lake that is fed every minute has thousands of them a day, and
readers pay for each. A rewrite changes no row: its files have the rows of those they replace, sorted by queue and
offset, and that is counted before the commit. Files that are large enough are never touched, so every row is rewritten
a few times at most.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import SparkSession

from pyromq.errors import LakeConflict, LakeError
from pyromq.spark.lake.committing import commit
from pyromq.spark.lake.model import DATE, Change, DataFile, Lake, Target
from pyromq.spark.lake.place import Place, place_at, told
from pyromq.spark.lake.writing import TableWriter, in_queue_order

#: The target size of a file: large enough that opening it is cheap in proportion, small enough for one task.
TARGET_BYTES = 192 << 20
#: Smaller files are worth a rewrite. With the target it gives files of 128 to 256 MiB.
SMALL_BYTES = 128 << 20
#: Fewer small files than this are left until there are more.
MIN_FILES = 8
#: Rows of a rewrite that are held in memory together, unpacked; more are taken queue by queue.
MEMORY_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files of one topic and day that become one."""

    topic: str
    date: str
    files: Sequence[DataFile]


def plan_rewrites(
    files: Iterable[DataFile],
    *,
    min_files: int = MIN_FILES,
    small_bytes: int = SMALL_BYTES,
    target_bytes: int = TARGET_BYTES,
) -> list[Rewrite]:
    """Return the rewrites that are due. Every file is in at most one rewrite, and a rewrite has at least two files."""
    small: dict[tuple[str, str], list[DataFile]] = {}
    for file in files:
        if file.size < small_bytes:
            small.setdefault((file.topic, file.date), []).append(file)
    rewrites = []
    for (topic, date), candidates in sorted(small.items()):
        if len(candidates) >= min_files:
            bins = _bins(sorted(candidates, key=_in_order), target_bytes)
            rewrites += [Rewrite(topic, date, chosen) for chosen in bins if len(chosen) > 1]
    return rewrites


def _in_order(file: DataFile) -> tuple[Any, ...]:
    """Sort neighbours of a queue together; unknown offsets do not affect the result."""
    return (sorted((queue, span.first) for queue, span in file.queues.items())[:1], file.first_ms, file.path)


def _bins(files: Sequence[DataFile], target_bytes: int) -> Iterator[list[DataFile]]:
    chosen: list[DataFile] = []
    for file in files:
        if chosen and sum(one.size for one in chosen) + file.size > target_bytes:
            yield chosen
            chosen = []
        chosen.append(file)
    if chosen:
        yield chosen


def compact(
    spark: SparkSession, lake: Lake, rewrites: Sequence[Rewrite], *, run: str, at_ms: int
) -> list[DataFile] | None:
    """Rewrite and commit. Returns the new files; None if another writer committed first and nothing changed."""
    head, where = lake.head(), lake.locations()
    assert head.schema is not None, "there are files, so there is a schema"
    made = _rewritten(spark, lake.target(run, head.schema), rewrites, where)
    _check_same_rows(rewrites, made)
    removed = [file for rewrite in rewrites for file in rewrite.files]
    try:
        commit(lake, Change(head, run, "compact", at_ms, head.offsets, head.schema, made, removed))
    except LakeConflict:
        return None
    return made


def _check_same_rows(rewrites: Sequence[Rewrite], made: Sequence[DataFile]) -> None:
    before: dict[tuple[str, str], int] = {}
    for rewrite in rewrites:
        key = (rewrite.topic, rewrite.date)
        before[key] = before.get(key, 0) + sum(file.rows for file in rewrite.files)
    after: dict[tuple[str, str], int] = {}
    for file in made:
        after[file.topic, file.date] = after.get((file.topic, file.date), 0) + file.rows
    if before != after:
        raise LakeError(f"a rewrite would change rows: {before} before, {after} after; nothing was committed")


def _rewritten(
    spark: SparkSession, target: Target, rewrites: Sequence[Rewrite], where: Mapping[str, str]
) -> list[DataFile]:
    """One task for each rewrite."""
    root = target.uri + "/"
    sources = [[where[file.path].removeprefix(root) for file in rewrite.files] for rewrite in rewrites]
    parts = [(rewrite.topic, rewrite.date) for rewrite in rewrites]

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        place = place_at(target.uri)
        writer = TableWriter(place, target, attempt_name(target.run))
        with told(target.uri):
            for number in numbers:
                for rows in sorted_rows(place, sources[number]):
                    writer.add(parts[number], rows)
            made = writer.close()
        yield described(made)

    found = spark.range(0, len(rewrites), 1, len(rewrites)).mapInArrow(task, "file STRING").collect()
    return [DataFile.of_json(json.loads(row.file)) for row in found]


def sorted_rows(place: Place, paths: Sequence[str], memory_bytes: int = MEMORY_BYTES) -> Iterator[pa.Table]:
    """All rows of some files in the order of queue and offset: at once, or queue by queue when they are many."""
    files = [pq.ParquetFile(place.input(path)) for path in paths]
    size = sum(one.metadata.row_group(number).total_byte_size for one in files for number in range(one.num_row_groups))
    if size <= memory_bytes:
        yield in_queue_order(_together([file.read() for file in files]))
        return
    keys = _together([file.read(["broker", "queue_id"]) for file in files])
    queues = (
        keys.group_by(["broker", "queue_id"])
        .aggregate([])
        .sort_by([("broker", "ascending"), ("queue_id", "ascending")])
    )
    for queue in queues.to_pylist():
        yield in_queue_order(_together([_of_queue(file, queue) for file in files]))


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    """Of which topic and day they are is known. Files that another program rewrote may have other types of text."""
    without = [table.drop_columns([name for name in ("topic", DATE) if name in table.schema.names]) for table in tables]
    return pa.concat_tables(without, promote_options="permissive")


def _of_queue(file: pq.ParquetFile, queue: Mapping[str, Any]) -> pa.Table:
    """Yield batch by batch, so that at most one row group is in memory."""
    wanted = (pc.field("broker") == queue["broker"]) & (pc.field("queue_id") == queue["queue_id"])
    groups = [file.read_row_group(number).filter(wanted) for number in range(file.num_row_groups)]
    return pa.concat_tables(groups) if groups else file.read()


def attempt_name(run: str) -> str:
    """Begins the names of the files that this attempt of a task writes: no other attempt has it."""
    context = TaskContext.get()
    attempt = context.taskAttemptId() if context else 0
    return f"{run}-{attempt:08}"


def described(files: Sequence[DataFile]) -> pa.RecordBatch:
    """The result for the driver."""
    return pa.RecordBatch.from_pydict({"file": pa.array([json.dumps(file.as_json()) for file in files], pa.string())})
