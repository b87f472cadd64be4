"""A frame of 1 KB messages written by Spark, in each mode, to a broker in a process of its own.

Goal: 50 000 acknowledged messages a second for each core of Spark's, in mode atLeastOnce. Limit: a Python sink that
does nothing but count what it is given. Spark runs with `local[2]`, and the broker works on the same two cores, so
beside the rate stands what it cost: messages for each second of processor time that Spark took (its JVM and its Python
workers), and the processor time of the broker. These hold on a busy machine, too.

`PYROMQ_BENCH_SCALE=0.1` is quick.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from common import SCALE, best_cost, share, show, thousands
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from pyromq import testing
from pyromq.client.sending.unique_ids import UniqueIds
from pyromq.model.queue import MessageQueue
from pyromq.spark.session import spark_session
from pyromq.spark.sink.queues import Spread, by_queue
from pyromq.spark.sink.rows import Packer, pieces
from pyromq.testing import BrokerProcess

QUEUES = 8
ROWS = max(int(400_000 * SCALE), 4000)
#: Two requests for each row: some are enough.
HALVES = max(ROWS // 20, 1000)
BODY = 1000
CONFIG = {"store.segment_bytes": 256 << 20, "store.queue_file_entries": 300_000, "store.prefault_bytes": 2 << 30}


class CountingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Counting(DataSource):
    """The least that a Python sink can do."""

    @classmethod
    def name(cls) -> str:
        return "counting"

    def writer(self, schema: Any, overwrite: bool) -> CountingWriter:
        return CountingWriter()


def packing() -> float:
    """Messages for a second of processor time that are made ready to be sent, without Spark and without a network."""
    packer = Packer("t", None, UniqueIds("127.0.0.1", 1, os.urandom), lambda: int(time.time() * 1000))
    frame = pa.record_batch({"body": pa.array([os.urandom(BODY)] * 5000), "tags": pa.array(["tagA"] * 5000)})
    queues = [MessageQueue("t", "b", number) for number in range(QUEUES)]
    spread, started = Spread("w"), time.process_time()
    for _ in range(20):
        rows = packer.pack(frame)
        everything = rows.numbers() - rows.first
        for _, places in by_queue(spread.assign(rows, everything, queues)):
            for _ in pieces(*rows.take(places), rows.flags[places], 512 << 10):
                pass
    return 20 * 5000 / (time.process_time() - started)


def measured(spark: Any, mq: BrokerProcess) -> list[tuple[str, ...]]:
    def frame(rows: int) -> Any:
        """Made once and kept: to make bodies is not what is measured."""
        made = spark.range(0, rows, 1, 4).selectExpr(
            f"rpad(cast(id as string), {BODY}, 'x') as body", "'tagA' as tags", "cast(id as string) as keys"
        )
        made = made.selectExpr("cast(body as binary) as body", "tags", "keys").cache()
        made.count()
        return made

    large, small, runs = frame(ROWS), frame(HALVES), iter(range(1_000_000))

    def written(rows: Any, mode: str) -> Callable[[], None]:
        def write() -> None:
            writer = rows.write.format("pyromq").option("namesrv", mq.name_servers).option("topic", "benchmark")
            writer.option("mode", mode).option("writerId", f"run-{next(runs)}").mode("append").save()

        return write

    def counted() -> None:
        large.write.format("counting").mode("append").save()

    counting = best_cost(counted, ROWS, mq)
    found = [("counting sink", thousands(counting.rate), thousands(counting.per_core), "", "")]
    for mode, rows, count in (
        ("atLeastOnce", large, ROWS), ("idempotent", large, ROWS), ("transactional", small, HALVES)
    ):  # fmt: skip
        cost = best_cost(written(rows, mode), count, mq)
        part = share(cost.per_core, counting.per_core)
        found.append((mode, thousands(cost.rate), thousands(cost.per_core), f"{cost.broker:.2f}", part))
    return found


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with testing.broker(topics={"benchmark": QUEUES}, process=True, config=CONFIG) as mq:
        conf = {"spark.driver.memory": "4g"}
        with spark_session(master="local[2]", name="spark-sink", conf=conf) as spark:
            spark.sparkContext.setLogLevel("ERROR")
            spark.dataSource.register(Counting)
            rows = measured(spark, mq)
    rows.insert(0, ("packing alone", "", thousands(packing()), "", ""))
    show(
        f"{ROWS} messages of {BODY} bytes ({HALVES} in transactions)",
        rows,
        ("written", "msg/s", "msg/s of one core", "broker's cores", "of the limit"),
    )


if __name__ == "__main__":
    main()
