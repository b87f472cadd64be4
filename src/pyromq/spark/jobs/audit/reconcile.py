"""Reconcile sent messages with consumed ones: missing, unknown and repeated messages.

    found = reconcile(spark, ReconcilePlan(sent="sent.parquet", consumed="consumed.csv", consumed_id="id"))
    found.missing.show(); found.counts

Both sides are tables of message ids: files that Spark reads (Parquet, JSON, CSV, ORC, text with an id in each line), a
store or a backup, or any data frame (`reconcile_frames`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, SparkSession, functions

from pyromq.errors import ConfigError

#: The reader of a table, by the suffix of its name.
FORMATS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".orc": "orc", ".txt": "text"}


@dataclass(frozen=True, slots=True)
class ReconcilePlan:
    """Two tables of message ids."""

    #: A path; or with `sent_topic`, a store or a backup.
    sent: str
    consumed: str
    #: The columns that hold the ids. Text files have one, `value`.
    sent_id: str = "msg_id"
    consumed_id: str = "msg_id"
    #: The sent messages are those of this topic in a store or a backup.
    sent_topic: str | None = None
    #: The format of the files if their suffix does not say: parquet, json, csv, orc, text.
    sent_format: str | None = None
    consumed_format: str | None = None

    def __post_init__(self) -> None:
        for setting in ("sent", "consumed", "sent_id", "consumed_id"):
            if not getattr(self, setting):
                raise ConfigError(f"{setting} is empty", setting)


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """Tables, worked out when they are asked, and their lengths."""

    #: `id, sent`: sent and never consumed.
    missing: DataFrame
    #: `id, consumed`: consumed and never sent.
    extra: DataFrame
    #: `id, sent, consumed`: consumed more often than sent.
    duplicated: DataFrame
    counts: dict[str, int]

    @property
    def ok(self) -> bool:
        """No message is missing or unknown. Repeats are allowed: delivery is at least once."""
        return not self.counts["missing"] and not self.counts["extra"]

    def sentences(self) -> list[str]:
        counts = self.counts
        return [
            f"{counts['sent']} ids were sent and {counts['consumed']} consumed: {counts['missing']} are missing, "
            f"{counts['extra']} were never sent, {counts['duplicated']} came more often than they were sent."
        ]


def reconcile(spark: SparkSession, plan: ReconcilePlan) -> ReconcileReport:
    """Raise ConfigError if the table's format is unknown, or the column is missing."""
    if plan.sent_topic is not None:
        stored = spark.read.format("pyromq-segments").option("topics", plan.sent_topic)
        sent = stored.option("columns", "msg_id").load(plan.sent)
    else:
        sent = _table(spark, plan.sent, plan.sent_format, "sent_format")
    consumed = _table(spark, plan.consumed, plan.consumed_format, "consumed_format")
    return reconcile_frames(_ids(sent, plan.sent_id, "sent_id"), _ids(consumed, plan.consumed_id, "consumed_id"))


def format_of(path: str, said: str | None, setting: str) -> str:
    """Return the reader of a table. Raises ConfigError."""
    known = sorted(set(FORMATS.values()))
    found = said or FORMATS.get(PurePosixPath(urlsplit(path).path or path).suffix.lower())
    if found not in known:
        raise ConfigError(f"how is {path} to be read? Say one of {', '.join(known)}", setting)
    return found


def _table(spark: SparkSession, path: str, said: str | None, setting: str) -> DataFrame:
    form = format_of(path, said, setting)
    reader = spark.read.format(form)
    return (reader.option("header", "true") if form == "csv" else reader).load(path)


def _ids(table: DataFrame, column: str, setting: str) -> DataFrame:
    wanted = "value" if column not in table.columns and table.columns == ["value"] else column
    if wanted not in table.columns:
        raise ConfigError(f"there is no column {column} for {setting}; there are {', '.join(table.columns)}", setting)
    return table.select(functions.col(wanted).cast("string").alias("id"))


def reconcile_frames(sent: DataFrame, consumed: DataFrame) -> ReconcileReport:
    """Two data frames with a column `id`. Nulls are no ids."""
    sides = [
        side.where(functions.col("id").isNotNull()).groupBy("id").agg(functions.count("*").alias(name))
        for side, name in ((sent, "sent"), (consumed, "consumed"))
    ]
    both = sides[0].join(sides[1], "id", "full").na.fill(0, ["sent", "consumed"]).cache()
    missing, extra = both.where("consumed = 0"), both.where("sent = 0")
    duplicated = both.where("sent > 0 and consumed > sent")
    figures = both.agg(
        functions.sum("sent").alias("sent"),
        functions.sum("consumed").alias("consumed"),
        functions.sum((functions.col("consumed") == 0).cast("long")).alias("missing"),
        functions.sum((functions.col("sent") == 0).cast("long")).alias("extra"),
        functions.sum(
            ((functions.col("sent") > 0) & (functions.col("consumed") > functions.col("sent"))).cast("long")
        ).alias("duplicated"),
    ).first()
    assert figures is not None
    counts = {name: int(value or 0) for name, value in figures.asDict().items()}
    return ReconcileReport(missing.drop("consumed"), extra.drop("sent"), duplicated, counts)
