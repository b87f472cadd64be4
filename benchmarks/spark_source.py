"""A topic read by Spark: from a broker in a process of its own to nowhere (`noop`), and to Parquet.

Goals, for messages of 1 KB and each core that reads: 200 000 a second to `noop`, 90 000 to Parquet. Limit: what one
connection and the decoder do without Spark. Spark runs with `local[2]`, and the broker works on the same two cores, so
beside the rate stands what it cost: messages for each second of processor time that Spark took (its JVM and its Python
workers), and the seconds of the broker. These hold on a busy machine, too.

`PYROMQ_BENCH_SCALE=0.1` is quick; `PYROMQ_BENCH_DIR` names another disk.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import SCALE, best_cost, share, show, thousands, work_directory

from pyromq import testing
from pyromq.model.queue import MessageQueue
from pyromq.spark.connecting import Cluster
from pyromq.spark.decode.columns import NAMES
from pyromq.spark.session import spark_session
from pyromq.spark.source.offsets import Span
from pyromq.spark.source.options import Pulling
from pyromq.spark.source.remote import read_span
from pyromq.sync import Message, Producer
from pyromq.testing import BrokerProcess

TOPIC = "benchmark"
QUEUES = 4
EACH = max(int(250_000 * SCALE), 1000)
BODY = os.urandom(512) + bytes(488)
#: A message is sent so many at a time.
TOGETHER = 500
CONFIG = {"store.segment_bytes": 256 << 20, "store.queue_file_entries": 300_000, "store.prefault_bytes": 2 << 30}


def fill(name_servers: str) -> None:
    with Producer(name_servers, group="filling") as producer:
        for queue_id in range(QUEUES):
            queue = MessageQueue(TOPIC, "broker-a", queue_id)
            for first in range(0, EACH, TOGETHER):
                numbers = range(first, min(first + TOGETHER, EACH))
                batch = [Message(TOPIC, BODY, tags="tagA", keys=f"order-{number}") for number in numbers]
                producer.send_batch(batch, queue=queue)


def without_spark(name_servers: str) -> float:
    """Messages for a second of processor time, of one queue that is pulled and decoded in this process."""
    pulling = Pulling(cluster=Cluster(name_servers))
    span = Span(MessageQueue(TOPIC, "broker-a", 0), 0, EACH)
    started = time.process_time()
    rows = sum(batch.num_rows for batch in read_span(pulling, span, NAMES))
    assert rows == EACH
    return rows / (time.process_time() - started)


def through_spark(spark: Any, mq: BrokerProcess, directory: Path, limit: float) -> list[tuple[str, ...]]:
    def table(**options: str) -> Any:
        reader = spark.read.format("pyromq").option("namesrv", mq.name_servers).option("subscribe", TOPIC)
        return reader.options(**options).load()

    def to_noop(**options: str) -> Callable[[], None]:
        return lambda: table(**options).write.format("noop").mode("overwrite").save()

    parquet = str(directory / "parquet")
    works = {
        "to noop, all columns": to_noop(),
        "to noop, columns=queue_offset,body": to_noop(columns="queue_offset,body"),
        "to noop, columns=tags": to_noop(columns="tags"),
        "to Parquet (zstd)": lambda: table().write.option("compression", "zstd").mode("overwrite").parquet(parquet),
    }
    rows = []
    for name, work in works.items():
        cost = best_cost(work, QUEUES * EACH, mq, times=5)
        rows.append(
            (name, thousands(cost.rate), thousands(cost.per_core), f"{cost.broker:.2f}", share(cost.per_core, limit))
        )
    return rows


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with work_directory() as directory, testing.broker(topics={TOPIC: QUEUES}, process=True, config=CONFIG) as mq:
        fill(mq.name_servers)
        limit = max(without_spark(mq.name_servers) for _ in range(3))
        with spark_session(master="local[2]", name="spark-source", conf={"spark.driver.memory": "2g"}) as spark:
            spark.sparkContext.setLogLevel("ERROR")
            rows = through_spark(spark, mq, directory, limit)
    rows.insert(0, ("without Spark", "", thousands(limit), "", ""))
    show(
        f"{QUEUES * EACH} messages of {len(BODY)} bytes",
        rows,
        ("read", "msg/s", "msg/s of one core", "broker's cores", "of the limit"),
    )


if __name__ == "__main__":
    main()
