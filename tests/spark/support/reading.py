"""Topics read through Spark, in few words: tables and streams of numbered messages (see `filling`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

#: For whatever Spark does here, on a machine that is busy.
PATIENCE_S = 120


def table(spark: SparkSession, name_servers: str, topic: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("pyromq").option("namesrv", name_servers)
    return (reader if topic is None else reader.option("subscribe", topic)).options(**options).load()


def numbers(frame: DataFrame) -> list[int]:
    """The numbers in the bodies, in order; one that is there twice is there twice."""
    return sorted(int(row.body) for row in frame.select("body").collect())


class Stream:
    """A query that keeps what it reads in files, one directory for all its lives."""

    def __init__(self, spark: SparkSession, name_servers: str, directory: Path, **options: str) -> None:
        self.spark = spark
        self.checkpoint = directory / "checkpoint"
        self.output = directory / "output"
        self.options = {"namesrv": name_servers, **options}

    def start(self, **trigger: Any) -> StreamingQuery:
        frame = self.spark.readStream.format("pyromq").options(**self.options).load()
        writer = frame.writeStream.format("parquet").option("path", str(self.output))
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger).start()

    def run(self) -> list[int]:
        """Read what there is now, and stop. The numbers of rows of each batch."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(PATIENCE_S), "the query does not end"
        return [progress.numInputRows for progress in query.recentProgress]

    @contextmanager
    def running(self) -> Iterator[StreamingQuery]:
        query = self.start(processingTime="0 seconds")
        try:
            yield query
        finally:
            query.stop()

    def found(self) -> list[int]:
        return numbers(self.spark.read.parquet(str(self.output)))


def await_numbers(stream: Stream, query: StreamingQuery, count: int) -> list[int]:
    """Process until this many messages have arrived."""
    for _ in range(PATIENCE_S):
        query.processAllAvailable()
        found = stream.found()
        if len(found) >= count:
            return found
    raise AssertionError(f"there are {len(found)} messages and not {count}")
