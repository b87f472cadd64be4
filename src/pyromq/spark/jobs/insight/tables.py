"""The result tables of `insight`, out of messages: counting is Spark's work, in one pass over the data.

That pass makes a cube: how many messages and bytes for each window, topic, queue, tag and latency. Everything about
volume, skew and latency is made of the cube, which is small. Latencies are rounded to ranges 9 % wide for it; up to
16 ms they are exact. Retries, dead letters and the message trace need more columns, of few messages: they are read
apart.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.window import Window

from pyromq.model import names as model_names
from pyromq.records import property_names
from pyromq.spark.sink.decisions import TOPIC as DECISION_TOPIC

#: The columns of the cube, and those of the other tables.
VOLUME_COLUMNS = ("topic", "broker", "queue_id", "tags", "born_ts", "store_ts", "store_size")
FAILED_COLUMNS = ("topic", "msg_id", "tags", "keys", "properties", "reconsume_times", "born_ts", "store_ts")
TRACE_COLUMNS = ("topic", "body", "store_ts")

USER, RETRY, DEAD, SYSTEM = "user", "retry", "dead-letter", "system"
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
#: The latency of a message born after its store time: two clocks disagree.
EARLY = -1
EXACT_MS = 16
#: Of one topic on one broker: more than anybody has.
MOST_QUEUES = 1 << 16
RANGES_PER_DOUBLING = 8


def kind_of(topic: Column) -> Column:
    """Whose topic it is."""
    system = reduce(
        Column.__or__,
        [topic.startswith(prefix) for prefix in (model_names.SYSTEM_PREFIX, "RMQ_SYS_")],
        topic.isin(sorted({*model_names.SYSTEM_TOPICS, DECISION_TOPIC})),
    )
    return (
        F.when(topic.startswith(model_names.RETRY_PREFIX), RETRY)
        .when(topic.startswith(model_names.DEAD_LETTER_PREFIX), DEAD)
        .when(system | topic.endswith("_REPLY_TOPIC"), SYSTEM)
        .otherwise(USER)
    )


def rounded_ms(ms: Column) -> Column:
    """The middle of the range that a latency is in."""
    power = (F.floor(F.log2(ms.cast("double")) * RANGES_PER_DOUBLING) + 0.5) / RANGES_PER_DOUBLING
    return F.when(ms < 0, F.lit(EARLY)).when(ms <= EXACT_MS, ms).otherwise(F.round(F.pow(F.lit(2.0), power)))


def window_start(at: Column, window_ms: int) -> Column:
    return F.timestamp_millis(F.floor(F.unix_millis(at) / window_ms).cast("long") * window_ms)


def cube(messages: DataFrame, window_ms: int) -> DataFrame:
    """See the module. `messages` has the columns of VOLUME_COLUMNS; those without a store time are of no window."""
    latency = F.unix_millis("store_ts") - F.unix_millis("born_ts")
    return (
        messages.where(F.col("store_ts").isNotNull())
        .select(
            window_start(F.col("store_ts"), window_ms).alias("window"),
            "topic",
            kind_of(F.col("topic")).alias("kind"),
            F.coalesce("broker", F.lit("")).alias("broker"),  # files of a store do not say whose they are
            "queue_id",
            F.coalesce("tags", F.lit("")).alias("tag"),
            rounded_ms(latency).cast("long").alias("latency_ms"),
            F.col("store_size").cast("long").alias("size"),
            latency.alias("exact_ms"),
        )
        .groupBy("window", "topic", "kind", "broker", "queue_id", "tag", "latency_ms")
        .agg(
            F.count("*").alias("messages"),
            F.coalesce(F.sum("size"), F.lit(0)).alias("bytes"),
            F.max("exact_ms").alias("longest_ms"),
        )
    )


# --- out of the cube -------------------------------------------------------------------------------------------------


def _counts() -> list[Column]:
    return [F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes")]


def volume(counted: DataFrame, window_ms: int) -> DataFrame:
    seconds = window_ms / 1000
    return (
        counted.groupBy("window", "topic", "kind")
        .agg(*_counts())
        .withColumn("messages_per_second", F.col("messages") / seconds)
        .withColumn("bytes_per_second", F.col("bytes") / seconds)
    )


def topics(counted: DataFrame) -> DataFrame:
    total = F.sum("messages").over(Window.partitionBy("kind"))
    return (
        counted.groupBy("topic", "kind")
        .agg(*_counts(), *_latencies())
        .withColumn("share", F.col("messages") / total)
        .withColumn("mean_size", F.col("bytes") / F.col("messages"))
    )


def tags(counted: DataFrame) -> DataFrame:
    share = F.col("messages") / F.sum("messages").over(Window.partitionBy("topic"))
    return counted.groupBy("topic", "kind", "tag").agg(*_counts()).withColumn("share", share)


def queues(counted: DataFrame) -> DataFrame:
    """With how many times its fair share each queue gets. A queue with a number below the largest one that is seen is
    there, though nothing may have been sent to it; unless that number can be none."""
    found = counted.groupBy("topic", "kind", "broker", "queue_id").agg(*_counts())
    possible = F.col("queue_id").between(0, MOST_QUEUES - 1)
    numbers = found.where(possible).groupBy("topic", "kind", "broker").agg(F.max("queue_id").alias("last"))
    every = numbers.select("topic", "kind", "broker", F.explode(F.sequence(F.lit(0), "last")).alias("queue_id"))
    joined = every.join(found, ["topic", "kind", "broker", "queue_id"], "full").fillna(0, ["messages", "bytes"])
    of_topic = Window.partitionBy("topic")
    return joined.withColumn("share", F.try_divide("messages", F.sum("messages").over(of_topic))).withColumn(
        "times_fair", F.col("share") * F.count("*").over(of_topic)
    )


def latency(counted: DataFrame, *keys: str) -> DataFrame:
    """Percentiles of the time to be stored, for each combination of the keys."""
    return counted.groupBy(*keys).agg(F.sum("messages").alias("messages"), *_latencies())


def _latencies() -> list[Column]:
    known = F.when(F.col("latency_ms") >= 0, F.col("latency_ms"))
    frequency = F.col("messages")
    early = F.sum(F.when(F.col("latency_ms") < 0, frequency).otherwise(0))
    return [*_percentiles(known, frequency), F.max("longest_ms").alias("longest_ms"), early.alias("early")]


def _percentiles(value: Column, frequency: Column | int = 1, prefix: str = "") -> list[Column]:
    return [F.percentile(value, share, frequency).alias(f"{prefix}{name}") for name, share in PERCENTILES.items()]


# --- retries and dead letters ----------------------------------------------------------------------------------------


def failed(messages: DataFrame) -> DataFrame:
    """One row for each message of retry and dead-letter topics, with the group and where it was first."""
    topic, properties = F.col("topic"), F.col("properties")
    origins = (property_names.RETRY_TOPIC, property_names.DLQ_ORIGIN_TOPIC)
    ids = (property_names.DLQ_ORIGIN_MESSAGE_ID, property_names.ORIGIN_MESSAGE_ID)
    return messages.where(kind_of(topic).isin(RETRY, DEAD)).select(
        kind_of(topic).alias("kind"),
        F.regexp_replace(topic, "^%(RETRY|DLQ)%", "").alias("group"),
        F.coalesce(*(F.try_element_at(properties, F.lit(name)) for name in origins), F.lit("")).alias("topic"),
        F.coalesce(*(F.try_element_at(properties, F.lit(name)) for name in ids), "msg_id").alias("msg_id"),
        F.coalesce("tags", F.lit("")).alias("tag"),
        F.coalesce("keys", F.lit("")).alias("keys"),
        F.coalesce("reconsume_times", F.lit(0)).alias("tries"),
        "born_ts",
        "store_ts",
    )


def failures(messages_failed: DataFrame) -> DataFrame:
    return messages_failed.groupBy("kind", "group", "topic").agg(
        F.count("*").alias("messages"),
        F.max("tries").alias("most_tries"),
        F.min("store_ts").alias("oldest"),
        F.max("store_ts").alias("newest"),
    )


# --- the message trace -----------------------------------------------------------------------------------------------


def _field(position: int) -> Column:
    return F.get("fields", position)


def _whole(position: int) -> Column:
    return _field(position).try_cast("long")


def consuming(trace: DataFrame) -> DataFrame:
    """Return waiting and handling times by group. See `pyromq.client.trace` for the lines; other messages are
    ignored."""
    lines = trace.where(F.col("topic") == model_names.TRACE_TOPIC).select(
        F.explode(F.split(F.make_valid_utf8(F.col("body").cast("string")), "\x02")).alias("line")
    )
    fields = lines.select(F.split("line", "\x01").alias("fields"))
    sent = (
        fields.where(_field(0) == "Pub")
        .select(_field(5).alias("id"), _field(4).alias("topic"), _whole(1).alias("sent_ms"))
        .dropDuplicates(["id"])
    )
    begun = fields.where((_field(0) == "SubBefore") & (_field(3) != "") & (_field(5) != "")).select(
        _field(3).alias("group"), _field(4).alias("request"), _field(5).alias("id"), _whole(1).alias("begun_ms"),
        _whole(6).alias("attempt"),
    )  # fmt: skip
    done = fields.where(_field(0) == "SubAfter").select(
        _field(1).alias("request"), _field(2).alias("id"), _whole(3).alias("handling_ms"),
        (_field(4) == "true").alias("went_well"),
    )  # fmt: skip
    steps = begun.join(done, ["request", "id"], "left").join(sent, "id", "left")
    wait = F.when(F.col("attempt") == 0, F.greatest(F.col("begun_ms") - F.col("sent_ms"), F.lit(0)))
    return (
        steps.withColumn("wait_ms", wait)
        .groupBy("group", F.coalesce("topic", F.lit("")).alias("topic"))
        .agg(
            F.count("*").alias("messages"),
            F.count(F.when(~F.col("went_well"), 1)).alias("failed"),
            *_percentiles(F.col("wait_ms"), prefix="wait_"),
            F.max("wait_ms").alias("wait_longest"),
            *_percentiles(F.col("handling_ms"), prefix="handling_"),
            F.max("handling_ms").alias("handling_longest"),
        )
    )


# --- lag -------------------------------------------------------------------------------------------------------------


def lag(history: DataFrame, window_ms: int) -> DataFrame:
    """The largest lag of each query and topic in each window. Lines that cannot be read count for nothing."""
    each = (
        history.where(F.col("time").isNotNull() & F.col("lag").isNotNull())
        .groupBy("time", "query", "group", "topic")
        .agg(F.sum("lag").alias("lag"))
    )
    return each.groupBy(window_start(F.col("time"), window_ms).alias("window"), "query", "group", "topic").agg(
        F.max("lag").alias("lag")
    )
