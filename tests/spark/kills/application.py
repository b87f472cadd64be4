"""The Spark application that is killed: it copies a topic in several ways at once, until the file `finish` exists.

Run as a program of its own, with the task as JSON. Each way (a lane) is a streaming query with a checkpoint, so that
a restarted program continues where the last one was killed. When the file `finish` exists, it continues until
everything is copied and writes down the content of the tables as a reader finds it. It ends when the file `leave`
exists: until then brokers may check transactions with it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from pyromq.spark.jobs.archive.job import ArchivePlan, archive
from pyromq.spark.lake.opening import read_lake

CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "768m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # A killed worker costs a try; a killed executor costs its machine nothing.
    "spark.task.maxFailures": "8",
    "spark.sql.streaming.minBatchesToRetain": "200",
}
LOOK_SECONDS = 0.2
#: Brokers ask soon what became of the halves that a killed batch left.
PATIENCE = "5s"


def session(master: str) -> SparkSession:
    builder = SparkSession.builder.master(master).appName("pyromq-kills")
    for key, value in CONF.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def source(spark: SparkSession, task: dict[str, Any]) -> DataFrame:
    reader = (
        spark.readStream.format("pyromq").option("namesrv", task["name_servers"]).option("subscribe", task["topic"])
    )
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", task["batch_rows"])
    place = f.concat_ws(":", "queue_id", "queue_offset")
    return reader.load().select(place.alias("place"), f.col("body").cast("string").alias("text"))


def start(spark: SparkSession, task: dict[str, Any], lane: dict[str, str]) -> StreamingQuery:
    rows = source(spark, task)
    if lane["kind"] == "topic":
        writer = rows.select(f.concat_ws(" ", "place", "text").alias("body")).writeStream.format("pyromq")
        writer = writer.option("namesrv", task["name_servers"]).option("topic", lane["target"])
        writer = writer.option("mode", lane["mode"])
        if lane["mode"] == "transactional":
            writer = writer.option("transactionPatience", PATIENCE)
    else:
        writer = rows.writeStream.format("parquet").option("path", lane["target"])
    query = writer.queryName(lane["name"]).option("checkpointLocation", lane["checkpoint"]).start()
    while query.isActive and query.status["message"].startswith("Initializing"):
        query.awaitTermination(LOOK_SECONDS)  # one after the other: each starts a Python, and has ten seconds for it
    return query


class Archive(Thread):
    """The job that writes a lake until it is stopped; a lake is not written by a query."""

    def __init__(self, spark: SparkSession, task: dict[str, Any], lane: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self._spark, self._end = spark, Event()
        self._plan = ArchivePlan(
            namesrv=task["name_servers"], topics=(task["topic"],), path=lane["target"], follow=True, every_s=0.2
        )
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            archive(self._spark, self._plan, stop=self._end)
        except Exception as error:  # noqa: BLE001 - whatever it is, the main thread raises it
            self.failed = error

    def finish(self) -> None:
        """Everything that there is now is in the lake."""
        self._end.set()
        self.join()
        archive(self._spark, replace(self._plan, follow=False))


def found_in(spark: SparkSession, lane: dict[str, str]) -> list[str]:
    if lane["kind"] == "files" and Path(lane["target"]).exists():
        rows = spark.read.parquet(lane["target"])
    elif lane["kind"] == "lake":
        place = f.concat_ws(":", "queue_id", "queue_offset")
        rows = read_lake(spark, lane["target"]).select(place.alias("place"), f.col("body").cast("string").alias("text"))
    else:
        return []
    return sorted(row[0] for row in rows.select(f.concat_ws(" ", "place", "text")).collect())


def main(task: dict[str, Any]) -> None:
    spark = session(task["master"])
    archives = [Archive(spark, task, lane) for lane in task["lanes"] if lane["kind"] == "lake"]
    queries = [start(spark, task, lane) for lane in task["lanes"] if lane["kind"] != "lake"]
    for one in archives:
        one.start()
    print("started", flush=True)
    run_until(spark, Path(task["finish"]), archives)
    for query in queries:
        query.processAllAvailable()
    for one in archives:
        one.finish()
    found = {lane["name"]: found_in(spark, lane) for lane in task["lanes"]}
    written = Path(task["found"] + ".part")
    written.write_text(json.dumps(found), encoding="utf-8")
    written.rename(task["found"])
    run_until(spark, Path(task["leave"]), [])
    for query in queries:
        query.stop()
    spark.stop()
    print("finished", flush=True)


def run_until(spark: SparkSession, sign: Path, archives: list[Archive]) -> None:
    while not sign.exists():
        spark.streams.awaitAnyTermination(LOOK_SECONDS)  # raises what ended a query
        for one in archives:
            if one.failed is not None:
                raise one.failed


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
