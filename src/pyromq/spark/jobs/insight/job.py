"""Report on a cluster, a store or a lake: volume, latency, skew, failures and lag, as tables and as one page.

    report = insight(spark, InsightPlan(output="insight", cluster=Cluster("localhost:9876")))
    report.sentences()   # the three that matter
    report.page          # an HTML file that needs nothing but itself

The tables are Parquet below `output/tables`: cube, topics, volume, tags, queues, latency, latency_all, and where there
is something to tell failures, failed, consuming and lag. A run replaces what the one before wrote; `report.tables`
names its own, as a table that it has nothing for stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pyromq.clock import Clock, SystemClock
from pyromq.config.checks import require
from pyromq.errors import ConfigError
from pyromq.model.names import TRACE_TOPIC
from pyromq.spark.connecting import Cluster
from pyromq.spark.jobs.insight import collecting, tables
from pyromq.spark.jobs.insight.findings import Findings
from pyromq.spark.jobs.insight.page import page
from pyromq.spark.jobs.insight.scales import MOST_WINDOWS, fitting_window_ms, window_starts
from pyromq.spark.jobs.insight.sentences import sentences
from pyromq.spark.jobs.insight.sources import ClusterSource, MessageSource, Span, StoreSource, lake_source
from pyromq.spark.jobs.insight.tables import DEAD, RETRY, SYSTEM, USER
from pyromq.spark.jobs.progress import Progress, silent
from pyromq.spark.progress.lag_history import LAG_DDL
from pyromq.spark.segments.store_places import is_remote, local_path

PAGE = "insight.html"
TABLES = "tables"
#: A page with more windows is slow in browsers and unreadable.
WINDOW_LIMIT = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class InsightPlan:
    """The input and output of a report. Exactly one of `cluster`, `store` and `lake` is the input."""

    output: str
    cluster: Cluster | None = None
    #: A store directory, a commit log, or a backup.
    store: str | None = None
    lake: str | None = None
    lake_format: str = "parquet"
    #: Only these; none named: all. Retries and dead letters are always looked at.
    topics: tuple[str, ...] = ()
    #: The range of store times. UTC without a zone.
    since: datetime | None = None
    until: datetime | None = None
    #: None: one that suits the span. Messages are read once more then, to find the span, unless both ends are given.
    window_s: float | None = None
    #: The directory of the lag history (`pyromq.spark.progress.listener` writes it), and the one group to read of it.
    lag: str | None = None
    group: str | None = None
    #: None: in the output directory.
    page: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("cluster", "store", "lake") if getattr(self, name) is not None]
        require(len(given) == 1, "source", " and ".join(given) or None, "give one of cluster, store and lake")
        require(bool(self.output), "output", self.output, "it is the directory that tables and page go to")
        require(self.window_s is None or self.window_s >= 1, "window", self.window_s, "it is a second or more")
        since_ms, until_ms = self.span.since_ms, self.span.until_ms
        if since_ms is not None and until_ms is not None:
            require(since_ms < until_ms, "until", str(self.until), f"it must be after {self.since}")
        if "://" in self.output and not self.output.startswith("file://"):
            require(self.page is not None, "page", None, "say where on this machine, as the output is elsewhere")

    @property
    def span(self) -> Span:
        return Span(_ms(self.since), _ms(self.until))

    @property
    def page_path(self) -> Path:
        return Path(self.page) if self.page is not None else Path(self.output.removeprefix("file://")) / PAGE


def _ms(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class InsightReport:
    findings: Findings
    page: str
    #: The path of each table.
    tables: Mapping[str, str]

    def sentences(self) -> list[str]:
        return sentences(self.findings)


def insight(
    spark: SparkSession, plan: InsightPlan, progress: Progress = silent, clock: Clock | None = None
) -> InsightReport:
    """Raises ConfigError, and what the sources raise: TopicNotFound, Unreachable, LakeError and the like."""
    if plan.lag is not None and not is_remote(plan.lag) and not local_path(plan.lag).exists():
        raise ConfigError(f"there is no lag history {plan.lag}: a stream's listener writes one", "lag")
    return insight_of(spark, _source(spark, plan), plan, progress, clock or SystemClock())


def _source(spark: SparkSession, plan: InsightPlan) -> MessageSource:
    if plan.cluster is not None:
        return ClusterSource(spark, plan.cluster, plan.topics, plan.span)
    if plan.store is not None:
        return StoreSource(spark, plan.store, plan.topics)
    assert plan.lake is not None
    return lake_source(spark, plan.lake, plan.lake_format, plan.topics)


def insight_of(
    spark: SparkSession, source: MessageSource, plan: InsightPlan, progress: Progress, clock: Clock
) -> InsightReport:
    """The same for messages from anywhere."""
    look = _Look(spark, source, plan, progress)
    findings = replace(look.findings(), made_ms=clock.now_ms())
    plan.page_path.parent.mkdir(parents=True, exist_ok=True)
    plan.page_path.write_text(page(findings), encoding="utf-8")
    return InsightReport(findings, str(plan.page_path), look.written)


class _Look:
    """One run: each table is written once it is counted, and later steps read the written table."""

    def __init__(self, spark: SparkSession, source: MessageSource, plan: InsightPlan, progress: Progress) -> None:
        self._spark = spark
        self._source = source
        self._plan = plan
        self._progress = progress
        self.written: dict[str, str] = {}

    def findings(self) -> Findings:
        found = Findings(source=self._source.name, made_ms=0, window_ms=1000, starts=())
        messages = self._read(tables.VOLUME_COLUMNS, (USER, RETRY, DEAD, SYSTEM))
        window_ms = None if messages is None else self._window_ms(messages)
        if messages is not None and window_ms is not None:
            found = self._counted(replace(found, window_ms=window_ms), messages)
            found = self._lagging(self._consumed(self._failed(found)))
        return replace(found, notes=tuple(self._source.notes))

    def _read(self, columns: tuple[str, ...], kinds: tuple[str, ...]) -> DataFrame | None:
        frame = self._source.read(columns, kinds)
        since_ms, until_ms = self._plan.span.since_ms, self._plan.span.until_ms
        if frame is not None and since_ms is not None:
            frame = frame.where(F.col("store_ts") >= F.timestamp_millis(F.lit(since_ms)))
        if frame is not None and until_ms is not None:
            frame = frame.where(F.col("store_ts") < F.timestamp_millis(F.lit(until_ms)))
        return frame

    def _window_ms(self, messages: DataFrame) -> int | None:
        """None when there are no messages, as far as that was looked at."""
        if self._plan.window_s is not None:
            return int(self._plan.window_s * 1000)
        span = self._plan.span
        first, last = span.since_ms, span.until_ms
        if first is None or last is None:
            self._progress("looking for the first and the last message", 0, None)
            ends = messages.agg(F.unix_millis(F.min("store_ts")), F.unix_millis(F.max("store_ts"))).collect()[0]
            if ends[0] is None:
                return None
            first, last = ends
        return fitting_window_ms(last - first, MOST_WINDOWS)

    def _counted(self, found: Findings, messages: DataFrame) -> Findings:
        self._progress("counting messages", 0, None)
        cube = self._write("cube", tables.cube(messages, found.window_ms))
        made = {
            "volume": tables.volume(cube, found.window_ms),
            "topics": tables.topics(cube),
            "tags": tables.tags(cube),
            "queues": tables.queues(cube),
            "latency": tables.latency(cube, "window", "topic"),
            "latency_all": tables.latency(cube.where(F.col("kind") == USER), "window"),
        }
        for number, (name, frame) in enumerate(made.items()):
            self._progress("writing tables", number, len(made))
            self._write(name, frame)
        self._progress("writing tables", len(made), len(made))
        return self._volume_of(found)

    def _volume_of(self, found: Findings) -> Findings:
        volume = self._table("volume")
        span = collecting.span(volume.where(F.col("kind") == USER))
        if span is None:
            return found
        starts = window_starts(span[0], span[1], found.window_ms)
        if len(starts) > WINDOW_LIMIT:
            raise ConfigError(
                f"the messages are of {len(starts)} windows, and a page has room for {WINDOW_LIMIT}: make the window "
                "longer, or look at less time",
                "window",
            )
        topics = collecting.topics(self._table("topics"))
        return replace(
            found,
            starts=starts,
            topics=topics,
            messages=collecting.messages(volume, topics, starts),
            bytes=collecting.bytes_of(volume, starts),
            latency=collecting.latency(self._table("latency_all"), starts),
            tags=collecting.tags(self._table("tags")),
            queues=collecting.queues(self._table("queues"), topics),
        )

    def _failed(self, found: Findings) -> Findings:
        there = self._has(F.col("kind").isin(RETRY, DEAD))
        messages = self._read(tables.FAILED_COLUMNS, (RETRY, DEAD)) if there else None
        if messages is None:
            return found
        self._progress("looking at retries and dead letters", 0, None)
        failed = self._write("failed", tables.failed(messages))
        failures = self._write("failures", tables.failures(failed))
        return replace(
            found,
            retries=collecting.failures(failures, RETRY),
            dead=collecting.failures(failures, DEAD),
            letters=collecting.letters(failed),
        )

    def _has(self, wanted: Column) -> bool:
        return not self._table("topics").where(wanted).isEmpty()

    def _consumed(self, found: Findings) -> Findings:
        there = self._has(F.col("topic") == TRACE_TOPIC)
        trace = self._read(tables.TRACE_COLUMNS, (SYSTEM,)) if there else None
        if trace is None:
            return found
        self._progress("reading the message trace", 0, None)
        return replace(found, consuming=collecting.consuming(self._write("consuming", tables.consuming(trace))))

    def _lagging(self, found: Findings) -> Findings:
        """Of the time that the messages are of."""
        if self._plan.lag is None or not found.starts:
            return found
        history = self._spark.read.schema(LAG_DDL).json(self._plan.lag)
        first, end = found.starts[0], found.starts[-1] + 2 * found.window_ms
        history = history.where(F.unix_millis("time").between(first, end - 1))
        if self._plan.group is not None:
            history = history.where(F.col("group") == self._plan.group)
        starts, lag = collecting.lag(self._write("lag", tables.lag(history, found.window_ms)), found.window_ms)
        return replace(found, lag=lag, lag_starts=starts)

    # --- tables ------------------------------------------------------------------------------------------------------

    def _write(self, name: str, frame: DataFrame) -> DataFrame:
        self.written[name] = f"{self._plan.output.rstrip('/')}/{TABLES}/{name}"
        frame.write.mode("overwrite").parquet(self.written[name])
        return self._table(name)

    def _table(self, name: str) -> DataFrame:
        return self._spark.read.parquet(self.written[name])
