"""Orders from a topic as a table, a view of the sales, and the large ones announced on another topic."""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

NAMESRV = os.environ.get("PYROMQ_NAMESRV", "localhost:9876")
ORDER = "id BIGINT, item STRING, price DOUBLE, country STRING"


@dp.table
def orders() -> DataFrame:
    """Every order that was sent, once."""
    messages = (
        SparkSession.active()
        .readStream.format("pyromq")
        .option("namesrv", NAMESRV)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("group", "orders-pipeline")
        .option("columns", "tags,body,store_ts")
        .load()
    )
    order = F.from_json(F.col("body").cast("string"), ORDER)
    return messages.select("store_ts", F.col("tags").alias("state"), order.alias("order")).select(
        "store_ts", "state", "order.*"
    )


@dp.materialized_view
def sales_by_item() -> DataFrame:
    table = SparkSession.active().read.table("orders")
    return table.groupBy("item").agg(F.count("*").alias("orders"), F.sum("price").alias("revenue"))


dp.create_sink("large_orders", "pyromq", {"namesrv": NAMESRV, "topic": "large-orders"})


@dp.append_flow(target="large_orders")
def announce_large_orders() -> DataFrame:
    large = SparkSession.active().readStream.table("orders").where("price >= 100")
    return large.select(
        F.to_json(F.struct("id", "item", "price")).alias("body"),
        F.col("country").alias("tags"),
        F.concat(F.lit("order-"), F.col("id")).alias("keys"),
    )
