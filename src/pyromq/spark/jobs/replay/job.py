"""From the lake back into topics: by time and by a filter, in the order of each queue, at a rate.

    replay(spark, ReplayPlan(path="/data/lake", namesrv="localhost:9876", topic="orders-again", rate=500))

The input is the lake as committed when the job began. Rows of one source queue are sent by one task, in order, to one
queue, unless the plan says that order does not matter. The sink's mode decides whether a message may be sent twice
after a failure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Event

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pyromq.clock import Clock, SystemClock
from pyromq.config.checks import require
from pyromq.errors import ConfigError
from pyromq.model.queue import MessageQueue
from pyromq.spark.connecting import session_of
from pyromq.spark.jobs.progress import Progress, silent
from pyromq.spark.jobs.replay.pace import paced, portion
from pyromq.spark.jobs.replay.rows import DDL, Goal, to_messages
from pyromq.spark.lake.opening import FORMATS, open_lake, rows_of
from pyromq.spark.lake.place import told
from pyromq.spark.option_reader import moment_ms
from pyromq.spark.source.options import connection_of

log = logging.getLogger("pyromq.spark")

ORDERS = ("queue", "key", "none")
#: Brokers know a row by the task that sends it and by its number there, so a queue has a task of its own: then they are
#: the same when the job runs again, on however many cores, as long as lake and filter give the same queues.
IDEMPOTENT = "idempotent"
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BUFFER_BYTES = "spark.sql.execution.pandas.udf.buffer.size"
#: A batch has no more rows than this, however high the rate.
MOST_ROWS = 5000
#: The last moment that has a date.
LAST_MS = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp()) * 1000
_SOURCE_QUEUE = ("topic", "broker", "queue_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    path: str
    format: str = "parquet"
    namesrv: str
    #: All messages go here. None: to topics of their own names, behind `prefix`.
    topic: str | None = None
    prefix: str = ""
    #: Only messages of these topics; none: all.
    topics: tuple[str, ...] = ()
    #: Stored from then on, and before then: a time in ISO's form, or ms since 1970.
    since: str | None = None
    until: str | None = None
    #: A condition in SQL over the columns of the lake.
    where: str | None = None
    #: Messages a second, over all tasks; 0: as fast as it goes.
    rate: float = 0.0
    #: "queue": in the order of their queue. "key": only of each sharding key. "none".
    order: str = "queue"
    #: The sink's: atLeastOnce, idempotent or transactional.
    mode: str = "atLeastOnce"
    #: More options of the sink (`acl.…`, `client.…`, `writerId`).
    sink_options: Mapping[str, str] = field(default_factory=dict)
    lake_options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.format in FORMATS, "format", self.format, f"it is one of {', '.join(FORMATS)}")
        require(self.order in ORDERS, "order", self.order, f"it is one of {', '.join(ORDERS)}")
        wanted = "it is a number of messages a second, or 0 for no limit"
        require(0 <= self.rate < float("inf"), "rate", self.rate, wanted)
        self._check_times()
        if self.topic is not None and self.prefix:
            raise ConfigError("topic sends all messages to one topic, prefix to several: give one of them", "prefix")

    def _check_times(self) -> None:
        moments = []
        for name, text in (("since", self.since), ("until", self.until)):
            found = None if text is None else moment_ms(text)
            fits = text is None or (found is not None and found <= LAST_MS)
            require(fits, name, text, "it is a time as in 2026-01-31T12:00:00Z")
            moments.append(found)
        since, until = moments
        if since is not None and until is not None and since >= until:
            raise ConfigError(f"nothing was stored from {self.since} on and before {self.until}", "until")

    def settings(self) -> dict[str, str]:
        """The options of the sink."""
        return {**self.sink_options, "namesrv": self.namesrv, "mode": self.mode}


@dataclass(slots=True)
class ReplayReport:
    #: By the topic where they went.
    sent: dict[str, int] = field(default_factory=dict)
    queues: int = 0
    seconds: float = 0.0

    @property
    def messages(self) -> int:
        return sum(self.sent.values())

    def sentences(self) -> list[str]:
        rate = self.messages / self.seconds if self.seconds else 0.0
        where = ", ".join(f"{count:,} to {topic}" for topic, count in sorted(self.sent.items())) or "none"
        return [f"{self.messages:,} messages of {self.queues} queues in {self.seconds:.1f} s ({rate:,.0f}/s): {where}."]


def replay(
    spark: SparkSession, plan: ReplayPlan, progress: Progress = silent, *, clock: Clock | None = None
) -> ReplayReport:
    """Raises LakeError, ConfigError for a filter that cannot be understood, TopicNotFound."""
    clock = clock or SystemClock()
    began = clock.monotonic()
    with told(plan.path):
        rows = chosen(rows_of(spark, open_lake(plan.path, plan.format, options=plan.lake_options)), plan)
    with _understood(plan):
        counts = _counts(rows)
    total = sum(counts.values())
    progress("messages replayed", 0, total)
    goals = _goals({queue.topic for queue in counts}, plan)
    again = sorted(topic for topic, goal in goals.items() if goal.topic == topic)
    if again:
        log.warning("what was archived from %s goes into it again; an archive takes it in once more", ", ".join(again))
    if counts:
        at_once = min(len(counts), spark.sparkContext.defaultParallelism)
        tasks = len(counts) if plan.mode == IDEMPOTENT else at_once
        _send(spark, in_order(spark, rows, counts, tasks), plan, goals, plan.rate / at_once, at_once)
    progress("messages replayed", total, total)
    sent: dict[str, int] = {}
    for queue, count in counts.items():
        sent[goals[queue.topic].topic] = sent.get(goals[queue.topic].topic, 0) + count
    return ReplayReport(sent, len(counts), clock.monotonic() - began)


# --- which rows, and who sends them ----------------------------------------------------------------------------------


def chosen(rows: DataFrame, plan: ReplayPlan) -> DataFrame:
    if "body" not in rows.columns:
        raise ConfigError(f"the lake {plan.path} has no bodies: it was archived without the column body", "path")
    if plan.topics:
        rows = rows.where(F.col("topic").isin(list(plan.topics)))
    for text, sign, day_sign in ((plan.since, ">=", ">="), (plan.until, "<", "<=")):
        at_ms = moment_ms(text) if text is not None else None
        if at_ms is not None:  # the date leaves out whole directories
            moment = f"timestamp_millis({at_ms})"
            rows = rows.where(f"store_ts {sign} {moment} AND date {day_sign} date'{_utc_day(at_ms)}'")
    if plan.where is None:
        return rows
    with _understood(plan):
        return rows.where(plan.where)


@contextmanager
def _understood(plan: ReplayPlan) -> Iterator[None]:
    """Raise ConfigError if Spark rejects the condition, when it parses it or when it evaluates a row."""
    try:
        yield
    except PySparkException as why:
        if plan.where is None:
            raise
        first = str(why).strip().partition("\n")[0]
        raise ConfigError(f"where = {plan.where!r} cannot be understood: {first}", "where") from why


def _utc_day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()


def _counts(rows: DataFrame) -> dict[MessageQueue, int]:
    return {
        MessageQueue(row.topic, row.broker, row.queue_id): row["count"]
        for row in rows.groupBy(*_SOURCE_QUEUE).count().collect()
    }


def shared_out(counts: Mapping[MessageQueue, int], tasks: int) -> dict[MessageQueue, int]:
    """Assign queues to tasks: the longest first, each to the least loaded task. One task each if there are enough."""
    if tasks >= len(counts):
        return {queue: task for task, queue in enumerate(sorted(counts))}
    loads = [0] * tasks
    found: dict[MessageQueue, int] = {}
    for queue in sorted(counts, key=lambda one: (-counts[one], one)):
        task = loads.index(min(loads))
        found[queue] = task
        loads[task] += counts[queue]
    return found


def in_order(spark: SparkSession, rows: DataFrame, counts: Mapping[MessageQueue, int], tasks: int) -> DataFrame:
    """All rows of a queue in one partition, by offset."""
    parts = [(*queue, part) for queue, part in sorted(shared_out(counts, tasks).items())]
    table = spark.createDataFrame(parts, "topic STRING, broker STRING, queue_id INT, part INT")
    shared = rows.join(F.broadcast(table), list(_SOURCE_QUEUE)).repartitionById(tasks, F.col("part"))
    return shared.drop("part").sortWithinPartitions(*_SOURCE_QUEUE, "queue_offset")


# --- where they go ---------------------------------------------------------------------------------------------------


def _goals(topics: set[str], plan: ReplayPlan) -> dict[str, Goal]:
    named = {topic: plan.topic or f"{plan.prefix}{topic}" for topic in topics}
    if plan.order != "queue":
        return {topic: Goal(target) for topic, target in named.items()}
    portal, session = session_of(connection_of(plan.settings()))
    queues = {target: portal.wait(session.routes.writable(target)) for target in sorted(set(named.values()))}
    return {topic: goal_of(target, queues[target]) for topic, target in named.items()}


def goal_of(topic: str, queues: Sequence[MessageQueue]) -> Goal:
    """A number names one queue where one broker has the topic. Of several, it names one of each."""
    if len({queue.broker_name for queue in queues}) == 1:
        return Goal(topic, len(queues))
    return Goal(topic, by_source_queue=True)


def _send(
    spark: SparkSession, rows: DataFrame, plan: ReplayPlan, goals: Mapping[str, Goal], rate: float, at_once: int
) -> None:
    messages = rows.mapInArrow(_task(dict(goals), rate), DDL)
    with _small_batches(spark, rate):
        if rate > 0:
            _warm_up(spark, plan, at_once)
        messages.write.format("pyromq").options(**plan.settings()).mode("append").save()


def _warm_up(spark: SparkSession, plan: ReplayPlan, tasks: int) -> None:
    """Write nothing, so that the workers of the sink run: while one starts, what others send for it would pile up."""
    nothing = spark.range(0, tasks, 1, tasks).mapInArrow(_nothing, DDL)
    settings = {name: value for name, value in plan.settings().items() if name not in ("mode", "writerId", "batchId")}
    nothing.write.format("pyromq").options(**settings).mode("append").save()


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch for batch in batches if batch.num_rows == 0)


def _task(goals: dict[str, Goal], rate: float) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in paced(batches, rate, SystemClock(), Event().wait):
            yield to_messages(batch, goals)

    return task


@contextmanager
def _small_batches(spark: SparkSession, rate: float) -> Iterator[None]:
    """Spark gathers rows and bytes on their way to the sink: at a low rate, thousands of them would come at once."""
    wanted = {_BATCH_ROWS: str(min(portion(rate), MOST_ROWS)), _BUFFER_BYTES: "512"} if rate > 0 else {}
    before = {name: spark.conf.get(name) for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, known in before.items():
            spark.conf.set(name, str(known))
