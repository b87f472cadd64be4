"""The sources of an archive: topics of a cluster, or commit-log files. Both return the end offset of each queue."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pyromq.model.queue import MessageQueue
from pyromq.spark.source.discovery import Survey
from pyromq.spark.source.options import Start, Where, batch_options
from pyromq.spark.source.queue_json import parse_queue_name, queue_name

Ranges = Mapping[str, tuple[int, int]]
#: A commit with more rows than this is read by at least as many tasks as there are cores.
WORTH_ALL_CORES = 100_000


class ArchiveSource(Protocol):
    def bounds(self) -> dict[str, tuple[int, int]]:
        """Of each queue that is wanted, its first offset and the one behind its last that is confirmed."""

    def begins(self, queues: Collection[str], since_ms: int) -> dict[str, int]:
        """Of each of these queues, the first message that was stored then or later."""

    def rows(self, spark: SparkSession, ranges: Ranges, columns: Sequence[str]) -> DataFrame:
        """Exactly these offsets, with these columns."""


class TopicSource:
    """Topics of a cluster: `format("pyromq")` with a start and an end for every queue."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """The options of the format, without offsets. Raises ConfigError."""
        self._options = dict(options)
        self._survey = Survey(batch_options(options))

    def bounds(self) -> dict[str, tuple[int, int]]:
        found = self._survey.bounds(self._survey.queues())
        return {queue_name(queue): (bounds.first, bounds.end) for queue, bounds in found.items()}

    def begins(self, queues: Collection[str], since_ms: int) -> dict[str, int]:
        where = Where(start=Start.TIME, timestamp_ms=since_ms)
        places = self._survey.places(where, [parse_queue_name(queue) for queue in queues])
        return {queue_name(queue): offset for queue, offset in places.items()}

    def rows(self, spark: SparkSession, ranges: Ranges, columns: Sequence[str]) -> DataFrame:
        options = {
            name: value for name, value in self._options.items() if name not in ("subscribe", "subscribePattern")
        }
        options["assign"] = json.dumps(sorted(ranges))
        options["startingOffsets"] = json.dumps({queue: start for queue, (start, _) in ranges.items()})
        options["endingOffsets"] = json.dumps({queue: end for queue, (_, end) in ranges.items()})
        options["columns"] = ",".join(columns)
        if sum(end - start for start, end in ranges.values()) >= WORTH_ALL_CORES:
            options.setdefault("minPartitions", str(spark.sparkContext.defaultParallelism))
        return spark.read.format("pyromq").options(**options).load()


class SegmentsSource:
    """Files of a commit log: `format("pyromq-segments")`. How far queues reach is found by reading all offsets once."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str], topics: Collection[str], pattern: str | None):
        self._spark = spark
        self._options = {**options, "topics": ",".join(topics)} if topics else dict(options)
        self._pattern = pattern

    def _load(self, spark: SparkSession, columns: Sequence[str]) -> DataFrame:
        rows = spark.read.format("pyromq-segments").options(**self._options).option("columns", ",".join(columns)).load()
        return rows if self._pattern is None else rows.where(F.col("topic").rlike(f"^(?:{self._pattern})$"))

    def bounds(self) -> dict[str, tuple[int, int]]:
        found = self._lowest("queue_offset >= 0", more=F.max("queue_offset"))
        return {queue: (low, last + 1) for queue, (low, last) in found.items()}

    def begins(self, queues: Collection[str], since_ms: int) -> dict[str, int]:
        found = self._lowest(f"store_ts >= timestamp_millis({since_ms})", more=F.min("queue_offset"))
        ends = self.bounds()
        return {queue: found[queue][0] if queue in found else ends[queue][1] for queue in queues}

    def _lowest(self, condition: str, *, more: Column) -> dict[str, tuple[int, int]]:
        columns = ("topic", "broker", "queue_id", "queue_offset", "store_ts")
        rows = self._load(self._spark, columns).where(condition).groupBy("topic", "broker", "queue_id")
        found = rows.agg(F.min("queue_offset").alias("low"), more.alias("last")).collect()
        return {queue_name(MessageQueue(row.topic, row.broker, row.queue_id)): (row.low, row.last) for row in found}

    def rows(self, spark: SparkSession, ranges: Ranges, columns: Sequence[str]) -> DataFrame:
        limits = spark.createDataFrame(
            [(*parse_queue_name(queue), start, end) for queue, (start, end) in sorted(ranges.items())],
            "topic STRING, broker STRING, queue_id INT, first BIGINT, behind BIGINT",
        )
        rows = self._load(spark, columns).join(F.broadcast(limits), ["topic", "broker", "queue_id"])
        return rows.where("queue_offset >= first AND queue_offset < behind").select(*columns)
