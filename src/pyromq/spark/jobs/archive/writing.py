"""The tasks of an archive: decode bodies if the plan says so, write files, and describe them.

Bad rows go to a second lake. It is committed before the main lake and has its own offsets, so a run that died between
the two commits finds its bad rows there: they are counted and not written again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pyromq.spark.jobs.archive.decoding import Decoder, decoded
from pyromq.spark.lake.compaction import attempt_name
from pyromq.spark.lake.model import DataFile, Target
from pyromq.spark.lake.place import place_at, told
from pyromq.spark.lake.writing import TableWriter, spans, split

RESULT = "file STRING, kind STRING"
GOOD, BAD, KNOWN = "good", "bad", "known"


@dataclass(frozen=True, slots=True)
class SideTable:
    """The lake of bad rows, and the offsets it already has."""

    decoder: Decoder
    target: Target
    #: By queue: everything below is there.
    reached: Mapping[str, int]


@dataclass(slots=True)
class Written:
    """The files of one commit."""

    good: list[DataFile] = field(default_factory=list)
    bad: list[DataFile] = field(default_factory=list)
    #: Only counts: bad rows that an earlier run committed.
    known: list[DataFile] = field(default_factory=list)

    @property
    def all(self) -> list[DataFile]:
        return self.good + self.bad + self.known


def write(rows: DataFrame, target: Target, side: SideTable | None) -> Written:
    """Run it: nothing passes the driver but descriptions."""
    written = Written()
    lists = {GOOD: written.good, BAD: written.bad, KNOWN: written.known}
    for row in rows.mapInArrow(_task(target, side), RESULT).collect():
        lists[row.kind].append(DataFile.of_json(json.loads(row.file)))
    return written


def _task(target: Target, side: SideTable | None) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        name = attempt_name(target.run)
        writer = TableWriter(place_at(target.uri), target, name)
        with told(target.uri):
            if side is None:
                for batch in batches:
                    writer.write(batch)
                found = {GOOD: writer.close()}
            else:
                found = _with_side(batches, writer, side, name)
        yield _described(found)

    return task


def _with_side(
    batches: Iterator[pa.RecordBatch], writer: TableWriter, side: SideTable, name: str
) -> dict[str, list[DataFile]]:
    beside = TableWriter(place_at(side.target.uri), side.target, name)
    known: list[DataFile] = []
    for batch in batches:
        good, bad = sorted_out(batch, side.decoder)
        new, old = _unless_known(bad, side.reached)
        writer.write(good)
        beside.write(new)
        known += _counted(old)
    return {GOOD: writer.close(), BAD: beside.close(), KNOWN: known}


def sorted_out(batch: pa.RecordBatch, decoder: Decoder) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Good rows with their `value`, and bad ones with the `reason`."""
    values, reasons = decoded(batch.column("body").to_pylist(), decoder)
    reason = pa.array(reasons, pa.string())
    is_good = pc.is_null(reason)
    good = batch.append_column("value", values).filter(is_good)
    return good, batch.append_column("reason", reason).filter(pc.invert(is_good))


def _unless_known(bad: pa.RecordBatch, reached: Mapping[str, int]) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    queues = zip(*(bad.column(name).to_pylist() for name in ("topic", "broker", "queue_id")), strict=True)
    limits = np.array([reached.get(f"{topic}@{broker}@{queue}", 0) for topic, broker, queue in queues], dtype=np.int64)
    is_new = pa.array(bad.column("queue_offset").to_numpy() >= limits)
    return bad.filter(is_new), bad.filter(pc.invert(is_new))


def _counted(rows: pa.RecordBatch) -> list[DataFile]:
    return [
        DataFile("", topic, day, part.num_rows, 0, queues=spans(topic, part))
        for (topic, day), part in split(pa.Table.from_batches([rows]))
    ]


def _described(files: Mapping[str, Sequence[DataFile]]) -> pa.RecordBatch:
    found = [(json.dumps(file.as_json()), kind) for kind, some in files.items() for file in some]
    return pa.RecordBatch.from_pydict(
        {
            "file": pa.array([form for form, _ in found], pa.string()),
            "kind": pa.array([kind for _, kind in found], pa.string()),
        }
    )
