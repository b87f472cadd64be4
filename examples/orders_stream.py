"""A stream that counts orders by tag: python examples/orders_stream.py [--until-now] [--sink console]

While it runs, `pyromq consumer lag orders-by-tag` shows how far it is. The offsets that count for the stream itself are
in Spark's checkpoint: stop it and start it again, and no order is lost or counted twice.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from pyromq.spark.progress.listener import GroupProgress
from pyromq.spark.session import spark_session

NAMESRV = os.environ.get("PYROMQ_NAMESRV", "localhost:9876")
GROUP = "orders-by-tag"


def run(spark: SparkSession, checkpoint: str, sink: str, until_now: bool) -> None:
    # The source tells the brokers how far it is when it asks for the next batch; the listener does so after each one.
    spark.streams.addListener(GroupProgress(NAMESRV, GROUP, query=GROUP))
    orders = (
        spark.readStream.format("pyromq")
        .option("namesrv", NAMESRV)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("group", GROUP)
        .option("columns", "tags,store_size")  # what is not named is not decoded
        .load()
    )
    counts = orders.groupBy("tags").count()
    writer = counts.writeStream.queryName(GROUP).outputMode("complete").option("checkpointLocation", checkpoint)
    trigger = {"availableNow": True} if until_now else {"processingTime": "2 seconds"}
    writer.format(sink).trigger(**trigger).start().awaitTermination()


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts orders by tag.")
    parser.add_argument("--until-now", action="store_true", help="stop when everything there is now is counted")
    parser.add_argument("--sink", default="console", help="where the counts go: console or noop")
    parser.add_argument("--checkpoint", default=str(Path(tempfile.gettempdir()) / "orders-by-tag"))
    given = parser.parse_args()
    with spark_session(name=GROUP) as spark:
        run(spark, given.checkpoint, given.sink, given.until_now)


if __name__ == "__main__":
    main()
