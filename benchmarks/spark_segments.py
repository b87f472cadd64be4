"""Commit-log files through Spark's `pyromq-segments`, `local[2]`: to nowhere, to Parquet, to a count by tag.

Goals: 200 k messages of 1 KB a second and core to `noop`, 90 k to Parquet. Beside it what was measured with a slower
decoder, of 8 columns. Limit: the same batches made and thrown away on one core, without Spark.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from common import SCALE, drafts, share, show, work_directory
from pyspark.sql import DataFrame, SparkSession

from pyromq.config import MIB, StoreConfig
from pyromq.spark.decode.columns import NAMES
from pyromq.spark.segments.data_source import plan
from pyromq.spark.segments.options import segments_options
from pyromq.spark.segments.read import PieceReader
from pyromq.spark.session import spark_session
from pyromq.store.message_store import MessageStore

BODY = bytes(range(250)) * 4
CORES = 2
EIGHT = "topic,queue_id,queue_offset,tags,keys,properties,body,born_ts"
#: Messages a second and core: goals, and what there was before.
GOALS = {"noop": 200_000, "parquet": 90_000}


def a_store(root: Path, messages: int) -> int:
    """Bytes of its log."""
    store = MessageStore(StoreConfig(root=root, segment_bytes=128 * MIB))
    store.open()
    batch = drafts(1000, BODY)
    for _ in range(0, messages, len(batch)):
        store.append(batch)
        store.dispatch()
    end = store.log.end
    store.close()
    return end


def table(spark: SparkSession, root: Path, **options: str) -> DataFrame:
    reader = spark.read.format("pyromq-segments").option("splitBytes", "64m")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load(str(root))


def rate(messages: int, work: Callable[[], object]) -> float:
    """A second and core, of the best of three: the first one warms the JVM."""
    best = 0.0
    for _ in range(3):
        started = time.perf_counter()
        work()
        best = max(best, messages / (time.perf_counter() - started) / CORES)
    return best


def to_nowhere(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def without_spark(root: Path) -> int:
    options = segments_options({"path": str(root), "splitBytes": "64m"})
    reader = PieceReader(options, NAMES)
    return sum(batch.num_rows for pieces in plan(options) for piece in pieces for batch in reader.read(piece))


def measured(spark: SparkSession, root: Path, target: str, messages: int) -> list[tuple[str, float, str]]:
    """What was done, messages a second and core, and the same before."""
    full, eight, tags = table(spark, root), table(spark, root, columns=EIGHT), table(spark, root, columns="tags")
    checked = table(spark, root, columns=EIGHT, verifyCrc="true")
    parquet = full.write.option("compression", "zstd").mode("overwrite")
    work: list[tuple[str, Callable[[], object], str]] = [
        ("18 columns → noop", lambda: to_nowhere(full), ""),
        ("8 columns → noop", lambda: to_nowhere(eight), "220–238 k"),
        ("8 columns, CRCs verified → noop", lambda: to_nowhere(checked), "202 k"),
        ("18 columns → Parquet, zstd", lambda: parquet.parquet(target), "88 k (8 columns)"),
        ("group by tag, all columns", lambda: full.groupBy("tags").count().collect(), "231 k (8 columns)"),
        ("group by tag, only that column", lambda: tags.groupBy("tags").count().collect(), "340 k"),
    ]
    return [(what, rate(messages, each), before) for what, each, before in work]


def main() -> None:
    messages = int(2_000_000 * SCALE) // 1000 * 1000
    with work_directory() as directory, spark_session(master=f"local[{CORES}]", name="benchmark") as spark:
        root, target = directory / "store", str(directory / "parquet")
        size = a_store(root, messages)
        limit = CORES * rate(messages, lambda: without_spark(root))
        assert table(spark, root).count() == messages
        figures = [("18 columns, without Spark, the limit", limit, ""), *measured(spark, root, target, messages)]
        megabytes = size / messages / 1e6
        rows = [
            (what, f"{found / 1000:,.0f} k/s", f"{found * CORES * megabytes:,.0f} MB/s", before, share(found, limit))
            for what, found, before in figures
        ]
        goals = ", ".join(f"{what} {goal // 1000} k/s" for what, goal in GOALS.items())
        what = f"{messages:,} messages of {size // messages} bytes, local[{CORES}] on {os.cpu_count()} cores"
        show(f"{what}, goals: {goals}", rows, ("", "a core", "both", "before", "of the limit"))


if __name__ == "__main__":
    main()
