"""The limits that the other `spark_*` benchmarks stand beside: what Spark does with rows that a Python source makes up,
and what pulls of several sizes bring.

Rows are of 1 KB with eight columns, a map among them, in four partitions. They go to `noop` as Arrow batches of several
sizes and as tuples, to Parquet, and to a Python writer that only counts. Pulls are those of one queue over one
connection, decoded, without Spark. `PYROMQ_BENCH_SCALE=0.1` is quick.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from common import SCALE, show, thousands, work_directory
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyromq import testing
from pyromq.model.queue import MessageQueue
from pyromq.spark.connecting import Cluster
from pyromq.spark.decode.columns import NAMES
from pyromq.spark.session import spark_session
from pyromq.spark.source.offsets import Span
from pyromq.spark.source.options import Pulling
from pyromq.spark.source.remote import read_span
from pyromq.sync import Message, Producer

ROWS = max(int(400_000 * SCALE), 4000)
PARTITIONS = 4
BODY = bytes(1000)
COLUMNS = (
    "topic STRING, queue_id INT, queue_offset BIGINT, tags STRING, keys STRING, properties MAP<STRING,STRING>, "
    "body BINARY, store_ts TIMESTAMP"
)
TYPES = pa.schema([
    ("topic", pa.string()), ("queue_id", pa.int32()), ("queue_offset", pa.int64()), ("tags", pa.string()),
    ("keys", pa.string()), ("properties", pa.map_(pa.string(), pa.string())), ("body", pa.binary()),
    ("store_ts", pa.timestamp("us", tz="UTC")),
])  # fmt: skip
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PULLED = max(int(200_000 * SCALE), 2000)


def a_row(number: int) -> tuple[object, ...]:
    return ("made", 0, number, "tagA", f"order-{number}", {"TAGS": "tagA", "KEYS": f"order-{number}"}, BODY, NOW)


class MadeReader(DataSourceReader):
    def __init__(self, batch: int) -> None:
        self._batch = batch

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        count = ROWS // PARTITIONS
        if not self._batch:
            return (a_row(number) for number in range(count))
        columns = list(zip(*map(a_row, range(self._batch)), strict=True))
        arrays = [pa.array(column, kind) for column, kind in zip(columns, TYPES.types, strict=True)]
        made = pa.record_batch(arrays, TYPES)
        return (made.slice(0, min(self._batch, count - at)) for at in range(0, count, self._batch))


class CountingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            assert batch.num_rows
        return WriterCommitMessage()


class Made(DataSource):
    """Option `batch`: rows in an Arrow batch; 0 for tuples."""

    @classmethod
    def name(cls) -> str:
        return "made"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        return MadeReader(int(self.options["batch"]))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return CountingWriter()


def rate(count: int, work: Callable[[], object], times: int = 3) -> float:
    """The best of some runs."""
    best = 0.0
    for _ in range(times):
        started = time.perf_counter()
        work()
        best = max(best, count / (time.perf_counter() - started))
    return best


def made_rows(spark: Any, directory: Path) -> Iterator[tuple[str, str]]:
    spark.dataSource.register(Made)

    def table(batch: int) -> Any:
        return spark.read.format("made").option("batch", str(batch)).load()

    def to_noop(batch: int) -> Callable[[], None]:
        return lambda: table(batch).write.format("noop").mode("overwrite").save()

    to_noop(1000)()  # the first use of a source takes seconds
    for batch in (500, 1000, 2000, 5000, 10000):
        yield f"Arrow batches of {batch} → noop", thousands(rate(ROWS, to_noop(batch)))
    yield "tuples → noop", thousands(rate(ROWS, to_noop(0), times=1))
    parquet = str(directory / "parquet")
    to_parquet = table(2000).write.option("compression", "zstd").mode("overwrite")
    yield "Arrow batches of 2000 → Parquet (zstd)", thousands(rate(ROWS, lambda: to_parquet.parquet(parquet)))
    counting = table(2000).write.format("made").option("batch", "0").mode("append")
    yield "Arrow batches of 2000 → a Python writer that counts", thousands(rate(ROWS, counting.save))


def pulls(name_servers: str) -> Iterator[tuple[str, str]]:
    queue = MessageQueue("pulled", "broker-a", 0)
    with Producer(name_servers, group="filling") as producer:
        for first in range(0, PULLED, 500):
            count = min(500, PULLED - first)
            producer.send_batch([Message("pulled", BODY, tags="tagA", keys="order-1")] * count, queue=queue)
    for kib in (37, 256, 1024, 2048, 4096):
        pulling = replace(Pulling(cluster=Cluster(name_servers)), pull_bytes=kib << 10)

        def read(pulling: Pulling = pulling) -> None:
            assert sum(one.num_rows for one in read_span(pulling, Span(queue, 0, PULLED), NAMES)) == PULLED

        yield f"pulls of {kib} KiB, decoded, no Spark", thousands(rate(PULLED, read))


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with testing.broker(topics={"pulled": 1}, process=True) as mq:
        rows = list(pulls(mq.name_servers))
    with (
        work_directory() as directory,
        spark_session(master="local[2]", name="spark-limits", conf={"spark.driver.memory": "2g"}) as spark,
    ):
        spark.sparkContext.setLogLevel("ERROR")
        rows += made_rows(spark, directory)
    show(f"{ROWS} rows and {PULLED} messages of {len(BODY)} bytes", rows, ("what", "rows/s, two cores"))


if __name__ == "__main__":
    main()
