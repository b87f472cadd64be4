"""Write a lake's files on executors: rows arrive as Arrow batches and go to the file of their topic and day.

Only what describes the files returns to the driver. Rows are gathered into row groups, each sorted by queue and offset;
from a source that reads queue by queue the whole file is. A file is complete and synced before it is
reported. Every attempt of every task has its own names, so a repeated or speculative attempt is harmless: Spark
returns the names of the attempts that count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyromq.errors import LakeError
from pyromq.spark.lake import names
from pyromq.spark.lake.model import DATE, DataFile, Span, Target
from pyromq.spark.lake.place import Place

#: A row group, in memory: large enough to compress and to be read in one go, small enough to hold several of them.
ROW_GROUP_BYTES = 32 << 20
#: All rows that wait for their row group to fill, over all files of a task.
WAITING_BYTES = 96 << 20
#: Files that a task keeps open. A log with thousands of topics in it closes one to open another.
OPEN_FILES = 64
#: Few different values: a dictionary makes them small. Bodies, ids and keys have none.
_DICTIONARY = ("topic", DATE, "broker", "queue_id", "tags", "born_host", "sys_flag", "flag", "reconsume_times")
#: Large or without an order: minimum and maximum say nothing.
_WITHOUT_STATISTICS = ("body", "properties", "value")
QUEUE_ORDER = [("broker", "ascending"), ("queue_id", "ascending"), ("queue_offset", "ascending")]

_FIRST_DAY, _LAST_DAY = pa.scalar(date.min, pa.date32()), pa.scalar(date.max, pa.date32())

Part = tuple[str, str]


@dataclass(slots=True)
class _OpenFile:
    name: str
    stream: Any
    writer: pq.ParquetWriter
    rows: int = 0
    first_ms: int = 1 << 62
    last_ms: int = 0
    queues: dict[str, Span] = field(default_factory=dict)


@dataclass(slots=True)
class _Waiting:
    """Rows of one topic and day that are no row group yet."""

    batches: list[pa.Table] = field(default_factory=list)
    size: int = 0


class TableWriter:
    """Writes batches into files. `name` begins the names of all of them and belongs to one attempt of one task."""

    def __init__(self, place: Place, target: Target, name: str) -> None:
        self._place = place
        self._target = target
        self._name = name
        self._schema = _file_schema(target)
        self._open: dict[Part, _OpenFile] = {}
        self._waiting: dict[Part, _Waiting] = {}
        self._made: list[DataFile] = []
        self._count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows of any topics and days, without `date`."""
        for part, rows in split(pa.Table.from_batches([batch])):
            self.add(part, rows)

    def add(self, part: Part, rows: pa.Table) -> None:
        """Rows that are known to be of one topic and day."""
        waiting = self._waiting.setdefault(part, _Waiting())
        waiting.batches.append(rows)
        waiting.size += rows.nbytes
        if waiting.size >= ROW_GROUP_BYTES:
            self._flush(part)
        while sum(one.size for one in self._waiting.values()) > WAITING_BYTES:
            self._flush(max(self._waiting, key=lambda one: self._waiting[one].size))

    def close(self) -> list[DataFile]:
        """Finish every file and return their descriptions."""
        for part in list(self._waiting):
            self._flush(part)
        for part in list(self._open):
            self._finish(part)
        return self._made

    def _flush(self, part: Part) -> None:
        rows = in_queue_order(pa.concat_tables(self._waiting.pop(part).batches))
        file = self._open.get(part) or self._begin(part)
        _note(file, part[0], rows)
        file.writer.write_table(self._as_in_file(part, rows), row_group_size=max(1, rows.num_rows))
        if file.stream.tell() >= self._target.file_bytes:
            self._finish(part)

    def _as_in_file(self, part: Part, rows: pa.Table) -> pa.Table:
        constant = {"topic": pa.scalar(part[0]), DATE: pc.cast(pa.scalar(part[1]), pa.date32())}
        columns = [
            pa.repeat(constant[one.name], rows.num_rows) if one.name in constant else rows[one.name].cast(one.type)
            for one in self._schema
        ]
        return pa.table(columns, schema=self._schema)

    def _begin(self, part: Part) -> _OpenFile:
        if len(self._open) >= OPEN_FILES:
            self._finish(next(iter(self._open)))
        file_name = f"{self._name}-{self._count:04}.parquet"
        self._count += 1
        path = f"{names.directory_of(*part)}/{file_name}" if self._target.hive else file_name
        stream = self._place.output(f"{self._target.directory}/{path}")
        self._open[part] = _OpenFile(path, stream, _parquet_writer(stream, self._schema))
        return self._open[part]

    def _finish(self, part: Part) -> None:
        file = self._open.pop(part)
        file.writer.close()
        size = file.stream.tell()
        file.stream.close()
        staged = f"{self._target.directory}/{file.name}"
        self._place.sync(staged)
        self._made.append(
            DataFile(
                file.name if self._target.hive else staged, *part, file.rows, size, self._target.run,
                file.first_ms, file.last_ms, file.queues,
            )
        )  # fmt: skip


def _file_schema(target: Target) -> pa.Schema:
    if not target.hive:
        return target.schema
    return pa.schema([one for one in target.schema if one.name not in ("topic", DATE)])


def _parquet_writer(stream: Any, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        stream, schema, compression="zstd",
        use_dictionary=[name for name in schema.names if name in _DICTIONARY],
        write_statistics=[name for name in schema.names if name not in _WITHOUT_STATISTICS],
    )  # fmt: skip


def split(rows: pa.Table) -> Iterator[tuple[Part, pa.Table]]:
    """The rows by topic and day of store, in their order."""
    days = _days(rows["store_ts"].cast(pa.timestamp("us", "UTC")))
    keys = pa.table({"topic": rows["topic"], "day": days})
    parts = keys.group_by(["topic", "day"], use_threads=False).aggregate([])
    for topic, day in zip(parts["topic"].to_pylist(), parts["day"].to_pylist(), strict=True):
        if parts.num_rows == 1:
            yield (topic, day.isoformat()), rows
        else:
            mine = pc.and_(pc.equal(rows["topic"], topic), pc.equal(days, pa.scalar(day)))
            yield (topic, day.isoformat()), rows.filter(mine)


def _days(moments: pa.ChunkedArray) -> pa.ChunkedArray:
    """Those of a clock that was far off belong to the first or the last day that a date can be."""
    days = pc.cast(moments, pa.date32())
    return pc.min_element_wise(pc.max_element_wise(days, _FIRST_DAY), _LAST_DAY)


def in_queue_order(rows: pa.Table) -> pa.Table:
    """Sorted by queue and offset. Raises LakeError when an offset of a queue is there twice."""
    if not _is_one_queue(rows) or not _grows(rows["queue_offset"]):
        rows = rows.sort_by(QUEUE_ORDER)
        _check_no_repeats(rows)
    return rows


def _is_one_queue(rows: pa.Table) -> bool:
    return len(pc.unique(rows["queue_id"])) == 1 and len(pc.unique(rows["broker"])) == 1


def _grows(offsets: pa.ChunkedArray) -> bool:
    return bool((np.diff(offsets.to_numpy()) > 0).all())


def _check_no_repeats(rows: pa.Table) -> None:
    same = (np.diff(rows["queue_offset"].to_numpy()) == 0) & (np.diff(rows["queue_id"].to_numpy()) == 0)
    for index in np.flatnonzero(same):
        at = int(index)
        if rows["broker"][at] == rows["broker"][at + 1]:
            raise LakeError(f"the source has offset {rows['queue_offset'][at]} of queue {rows['queue_id'][at]} twice")


def _note(file: _OpenFile, topic: str, rows: pa.Table) -> None:
    file.rows += rows.num_rows
    times = pc.min_max(rows["store_ts"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()))
    file.first_ms = min(file.first_ms, times["min"].as_py() // 1000)
    file.last_ms = max(file.last_ms, -(-times["max"].as_py() // 1000))
    for queue, span in spans(topic, rows).items():
        known = file.queues.get(queue, span._replace(rows=0))
        file.queues[queue] = Span(min(known.first, span.first), max(known.last, span.last), known.rows + span.rows)


def spans(topic: str, rows: pa.Table) -> dict[str, Span]:
    """Return the offsets of each queue in a table of one topic."""
    found = rows.group_by(["broker", "queue_id"], use_threads=False).aggregate(
        [("queue_offset", "min"), ("queue_offset", "max"), ("queue_offset", "count")]
    )
    columns = ("broker", "queue_id", "queue_offset_min", "queue_offset_max", "queue_offset_count")
    rows_of = zip(*(found[name].to_pylist() for name in columns), strict=True)
    return {f"{topic}@{broker}@{queue}": Span(low, high, count) for broker, queue, low, high, count in rows_of}
