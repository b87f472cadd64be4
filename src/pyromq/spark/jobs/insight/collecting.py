"""From result tables to findings: the few rows that a page shows, collected on the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pyromq.spark.jobs.insight.findings import (
    OTHERS,
    ConsumeFacts,
    DeadLetter,
    FailedFacts,
    LagFacts,
    Latency,
    QueueFacts,
    TagFacts,
    TopicFacts,
)
from pyromq.spark.jobs.insight.scales import window_starts
from pyromq.spark.jobs.insight.tables import DEAD, USER

#: Topics that are shown one by one.
MOST_TOPICS = 12
MOST_ROWS = 50
MOST_LAGS = 20


def _ms(column: str) -> Column:
    return F.unix_millis(column).alias(column)


def _largest(frame: DataFrame, count: int | None, *more: str) -> list[Row]:
    ordered = frame.orderBy(F.desc("messages"), *more)
    return ordered.collect() if count is None else ordered.limit(count).collect()


def _latency(row: Row, prefix: str = "", longest: str = "longest_ms") -> Latency | None:
    if row[f"{prefix}p50"] is None:
        return None
    # Between two ranges Spark takes the middle: parts of a millisecond say nothing.
    p50, p90, p99, p999 = (float(round(row[f"{prefix}{name}"])) for name in ("p50", "p90", "p99", "p999"))
    return Latency(p50, p90, p99, p999, float(max(row[longest] or 0, 0)))


def topics(table: DataFrame) -> list[TopicFacts]:
    return [
        TopicFacts(row["topic"], row["messages"], row["bytes"], _latency(row), row["early"])
        for row in _largest(table.where(F.col("kind") == USER), None, "topic")
    ]


def span(volume: DataFrame) -> tuple[int, int] | None:
    """The first and the last window."""
    row = volume.agg(F.min("window").alias("first"), F.max("window").alias("last")).select(_ms("first"), _ms("last"))
    first, last = row.collect()[0]
    return None if first is None else (first, last)


def messages(volume: DataFrame, known: Sequence[TopicFacts], starts: Sequence[int]) -> dict[str, list[int]]:
    """By topic and window: the largest topics, and all others as one."""
    shown = [one.topic for one in known[:MOST_TOPICS]]
    topic = F.when(F.col("topic").isin(shown), F.col("topic")).otherwise(OTHERS)
    rows = (
        volume.where(F.col("kind") == USER)
        .groupBy(topic.alias("topic"), _ms("window"))
        .agg(F.sum("messages").alias("messages"))
        .collect()
    )
    index = {start: position for position, start in enumerate(starts)}
    found = {name: [0] * len(starts) for name in shown}
    for row in rows:
        found.setdefault(row["topic"], [0] * len(starts))[index[row["window"]]] = row["messages"]
    return found


def bytes_of(volume: DataFrame, starts: Sequence[int]) -> list[int]:
    rows = volume.where(F.col("kind") == USER).groupBy(_ms("window")).agg(F.sum("bytes").alias("bytes")).collect()
    by_window = {row["window"]: row["bytes"] for row in rows}
    return [by_window.get(start, 0) for start in starts]


def latency(by_window: DataFrame, starts: Sequence[int]) -> list[Latency | None]:
    rows = by_window.withColumn("window", _ms("window")).collect()
    known = {row["window"]: _latency(row) for row in rows}
    return [known.get(start) for start in starts]


def tags(table: DataFrame) -> list[TagFacts]:
    named = table.where((F.col("kind") == USER) & (F.col("tag") != ""))
    return [
        TagFacts(row["topic"], row["tag"], row["messages"], row["bytes"])
        for row in _largest(named, MOST_ROWS, "topic", "tag")
    ]


def queues(table: DataFrame, known: Sequence[TopicFacts]) -> list[QueueFacts]:
    shown = [one.topic for one in known[:MOST_TOPICS]]
    rows = table.where(F.col("topic").isin(shown)).orderBy("broker", "queue_id").collect()
    rows.sort(key=lambda row: shown.index(row["topic"]))
    return [
        QueueFacts(row["topic"], row["broker"], row["queue_id"], row["messages"], row["times_fair"]) for row in rows
    ]


def consuming(table: DataFrame) -> list[ConsumeFacts]:
    return [
        ConsumeFacts(
            row["group"] or "",
            row["topic"],
            row["messages"],
            row["failed"],
            _latency(row, "wait_", "wait_longest"),
            _latency(row, "handling_", "handling_longest"),
        )
        for row in _largest(table, MOST_ROWS, "group", "topic")
    ]


def failures(table: DataFrame, kind: str) -> list[FailedFacts]:
    rows = table.where(F.col("kind") == kind).withColumns({name: F.unix_millis(name) for name in ("oldest", "newest")})
    return [
        FailedFacts(row["group"], row["topic"], row["messages"], row["most_tries"], row["oldest"], row["newest"])
        for row in _largest(rows, MOST_ROWS, "group", "topic")
    ]


def letters(failed: DataFrame) -> list[DeadLetter]:
    rows = failed.where(F.col("kind") == DEAD).orderBy(F.desc("store_ts"), "msg_id").limit(MOST_ROWS)
    return [
        DeadLetter(row["group"], row["topic"], row["msg_id"] or "", row["keys"], row["tries"], row["store_ts"])
        for row in rows.withColumn("store_ts", F.unix_millis("store_ts")).collect()
    ]


def lag(table: DataFrame, window_ms: int) -> tuple[range, list[LagFacts]]:
    """The windows that the history speaks of, and the queries that were furthest behind."""
    limits = span(table)
    if limits is None:
        return range(0), []
    starts = window_starts(limits[0], limits[1], window_ms)
    names = ["query", "group", "topic"]
    worst = table.groupBy(*names).agg(F.max("lag").alias("most")).orderBy(F.desc("most"), *names).limit(MOST_LAGS)
    rows = table.join(worst.select(*names), names, "left_semi").withColumn("window", _ms("window")).collect()
    found: dict[tuple[Any, ...], dict[int, int]] = {}
    for row in rows:
        found.setdefault((row["group"] or row["query"], row["topic"]), {})[row["window"]] = row["lag"]
    return starts, [
        LagFacts(group, topic, [values.get(start) for start in starts]) for (group, topic), values in found.items()
    ]
