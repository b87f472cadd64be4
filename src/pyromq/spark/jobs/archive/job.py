"""Topics into a lake, exactly once and incrementally: each run continues after the last commit.

    report = archive(spark, ArchivePlan(namesrv="localhost:9876", topics=("orders",), path="/data/lake"))

Nothing is remembered outside the lake. A run finishes what the last one left, asks how far the queues reach, and until
it is there: reads a range of each queue, has executors write it to files, counts the rows, and makes one commit with
the files and the offsets. Killed anywhere, either that commit is there or it is not.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from pyromq.clock import Clock, SystemClock
from pyromq.errors import ConfigError
from pyromq.spark.jobs.archive import writing
from pyromq.spark.jobs.archive.broker_errors import PASSING, is_about_brokers
from pyromq.spark.jobs.archive.decoding import Decoder, avro_decoder, json_decoder
from pyromq.spark.jobs.archive.plan import ArchivePlan, ArchiveReport
from pyromq.spark.jobs.archive.ranges import Bounds, Step, next_step, vanished, within
from pyromq.spark.jobs.archive.source import ArchiveSource, SegmentsSource, TopicSource
from pyromq.spark.jobs.archive.writing import SideTable, Written
from pyromq.spark.jobs.progress import Progress, silent
from pyromq.spark.lake import runs
from pyromq.spark.lake.checking import check_ranges
from pyromq.spark.lake.committing import commit
from pyromq.spark.lake.compaction import compact, plan_rewrites
from pyromq.spark.lake.model import Change, DataFile, Head, Lake
from pyromq.spark.lake.opening import open_lake
from pyromq.spark.lake.parquet_lake import ParquetLake
from pyromq.spark.lake.place import place_at, told

log = logging.getLogger("pyromq.spark")

__all__ = ["ArchivePlan", "ArchiveReport", "archive"]

#: Commits of one that follows, between two looks for files to rewrite or to remove.
TIDY_EVERY = 20


def archive(
    spark: SparkSession,
    plan: ArchivePlan,
    progress: Progress = silent,
    *,
    stop: Event | None = None,
    source: ArchiveSource | None = None,
    lake: Lake | None = None,
    clock: Clock | None = None,
) -> ArchiveReport:
    """Archive what there is, or with `follow` until `stop` is set. Source, lake and clock are those of the plan unless
    others are handed in. Raises DataLoss, LakeError, LakeConflict."""
    job = _Archive(
        spark,
        plan,
        progress,
        stop or Event(),
        source or _source_of(spark, plan),
        lake or open_lake(plan.path, plan.format, options=plan.lake_options),
        clock or SystemClock(),
    )
    with told(plan.path):
        return job.run()


def _source_of(spark: SparkSession, plan: ArchivePlan) -> ArchiveSource:
    if plan.segments is not None:
        return SegmentsSource(spark, plan.source_settings(), plan.topics, plan.pattern)
    return TopicSource(plan.source_settings())


class _Archive:
    def __init__(
        self,
        spark: SparkSession,
        plan: ArchivePlan,
        progress: Progress,
        stop: Event,
        source: ArchiveSource,
        lake: Lake,
        clock: Clock,
    ) -> None:
        self._spark = spark
        self._plan = plan
        self._progress = progress
        self._stop = stop
        self._source = source
        self._lake = lake
        self._clock = clock
        self._decoder = decoder_of(plan)
        self._schema = plan.table_schema(self._decoder.type if self._decoder else None)
        self._side = ParquetLake(place_at(plan.bad_path or f"{plan.path.rstrip('/')}/_bad"))
        self._run = runs.new_run(clock.now_ms(), secrets.token_hex(4))
        self._report = ArchiveReport(plan.path)
        #: All files that this run committed, by lake.
        self._committed: dict[str, set[str]] = {}
        self._last = Step()
        self._done = 0
        #: The source has answered once: topics and access are valid.
        self._has_answered = False

    def run(self) -> ArchiveReport:
        began = self._clock.monotonic()
        self._prepare()
        for lake in self._lakes():
            runs.begin(lake.place, self._run)
        try:
            self._follow() if self._plan.follow else self._catch_up()
        except BaseException:
            self._give_up()
            raise
        self._finish()
        self._report.seconds = self._clock.monotonic() - began
        return self._report

    def _lakes(self) -> list[Lake]:
        return [self._lake, self._side] if self._decoder else [self._lake]

    def _prepare(self) -> None:
        """Finish or clean up an earlier run; refuse a lake with another schema."""
        for lake in self._lakes():
            lake.settle()
            self._clean(lake)
        _check_shape(self._lake.head(), self._schema, self._plan.path)

    def _clean(self, lake: Lake) -> None:
        now_ms = self._clock.now_ms()
        self._report.cleaned += lake.clean(now_ms=now_ms, safe_age_s=self._plan.safe_age_s, grace_s=self._plan.grace_s)

    def _finish(self) -> None:
        head = self._lake.head()
        self._report.version, self._report.offsets = head.version, dict(head.offsets)
        for lake in self._lakes():
            self._clean(lake)
            lake.end(self._run, self._committed.get(lake.place.uri, set()))

    def _give_up(self) -> None:
        """Files that are in no commit go at once, as far as that works: perhaps it was they that filled the disk."""
        with suppress(Exception):
            for lake in self._lakes():
                lake.settle()
                lake.end(self._run, {file.path for file in lake.files()})

    # --- going on ----------------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        target = self._source.bounds()
        while not self._stop.is_set() and self._step(target):
            pass
        self._compact()

    def _follow(self) -> None:
        while not self._stop.is_set():
            if not self._next_step():
                self._stop.wait(self._plan.every_s)
            elif not self._is_behind():
                self._tidy_now_and_then()
                self._stop.wait(self._plan.every_s)
        self._compact()

    def _next_step(self) -> bool:
        """One commit, if there is something. A broker that is away is no reason to end: what it has comes later."""
        try:
            return self._step(None)
        except (*PASSING, PySparkException) as error:
            if not self._has_answered or not is_about_brokers(error):
                raise
            log.warning("nothing can be archived now; it is tried again in %g s: %s", self._plan.every_s, error)
            return False

    def _tidy_now_and_then(self) -> None:
        """Looking for small files means reading the list of all: not after every commit."""
        if self._report.commits % TIDY_EVERY == 0:
            self._compact()
            self._clean(self._lake)

    def _is_behind(self) -> bool:
        """The last commit was cut at its limit, so there is more."""
        return self._last.count >= self._plan.max_offsets_per_commit

    def _step(self, target: Bounds | None) -> bool:
        """One commit; False when there is nothing."""
        head = self._lake.head()
        bounds = self._source.bounds()
        self._has_answered = True
        self._report.vanished = vanished(head.offsets, bounds, self._plan.wants)
        bounds = bounds if target is None else within(bounds, target, head.offsets)
        step = next_step(
            head.offsets, bounds, self._begins(head, bounds),
            most=self._plan.max_offsets_per_commit, fails_on_loss=self._plan.fail_on_data_loss,
        )  # fmt: skip
        self._last = step
        if not step.ranges:
            return False
        self._commit(head, step)
        self._note(step, bounds)
        return True

    def _begins(self, head: Head, bounds: Bounds) -> dict[str, int]:
        new = [queue for queue in bounds if queue not in head.offsets]
        since_ms = self._plan.since_ms
        return self._source.begins(new, since_ms) if new and since_ms is not None else {}

    def _note(self, step: Step, bounds: Bounds) -> None:
        self._done += step.count
        waiting = sum(max(end - step.offsets[queue], 0) for queue, (_, end) in bounds.items())
        self._report.lost += step.lost
        self._progress("messages archived", self._done, self._done + waiting)

    # --- one commit --------------------------------------------------------------------------------------------------

    def _commit(self, head: Head, step: Step) -> None:
        rows = self._source.rows(self._spark, step.ranges, self._plan.read_columns)
        side = self._side.head() if self._decoder else None
        written = writing.write(rows, self._lake.target(self._run, self._schema), self._side_table(side))
        check_ranges(step.ranges, written.all, holes=self._plan.may_have_holes)
        if side is not None and written.bad:
            schema, offsets = self._plan.bad_schema(), {**side.offsets, **step.offsets}
            self._add(self._side, self._change(side, schema, offsets, written.bad))
        self._add(self._lake, self._change(head, self._schema, step.offsets, written.good))
        self._count(written)

    def _add(self, lake: Lake, change: Change) -> None:
        commit(lake, change)
        self._remember(lake, change.added)

    def _remember(self, lake: Lake, files: Sequence[DataFile]) -> None:
        self._committed.setdefault(lake.place.uri, set()).update(file.path for file in files)

    def _side_table(self, side: Head | None) -> SideTable | None:
        if self._decoder is None or side is None:
            return None
        return SideTable(self._decoder, self._side.target(self._run, self._plan.bad_schema()), side.offsets)

    def _change(self, base: Head, schema: pa.Schema, offsets: dict[str, int], files: list[DataFile]) -> Change:
        return Change(base, self._run, "archive", self._clock.now_ms(), offsets, schema, files)

    def _count(self, written: Written) -> None:
        report = self._report
        report.commits += 1
        report.rows += sum(file.rows for file in written.good)
        report.bad_rows += sum(file.rows for file in written.bad)
        report.files += len(written.good) + len(written.bad)
        report.bytes += sum(file.size for file in written.good + written.bad)

    def _compact(self) -> None:
        rewrites = plan_rewrites(self._lake.files()) if self._plan.compact else []
        if rewrites:
            made = compact(self._spark, self._lake, rewrites, run=self._run, at_ms=self._clock.now_ms())
            if made is not None:
                self._remember(self._lake, made)
                self._report.compacted += sum(len(rewrite.files) for rewrite in rewrites)


def decoder_of(plan: ArchivePlan) -> Decoder | None:
    """Raises ConfigError for a schema that cannot be read."""
    if plan.schema is None:
        return None
    if plan.decode == "avro":
        try:
            return avro_decoder(Path(plan.schema).read_text(encoding="utf-8"))
        except OSError as why:
            raise ConfigError(f"the Avro schema cannot be read: {why}", "schema") from why
    return json_decoder(_value_type(plan.schema))


def _value_type(columns: str) -> pa.DataType:
    try:
        schema = cast(StructType, StructType.fromDDL(columns))
    except Exception as why:  # Spark's parser has errors of many kinds
        raise ConfigError(f"the schema is no list of columns, as in 'id BIGINT, name STRING': {why}", "schema") from why
    return pa.struct(list(to_arrow_schema(schema, timezone="UTC")))


def _check_shape(head: Head, schema: pa.Schema, path: str) -> None:
    if head.schema is None:
        return
    known, wanted = _columns(head.schema), _columns(schema)
    if known != wanted:
        raise ConfigError(
            f"the lake {path} has the columns {', '.join(known)}, and {', '.join(wanted)} are to be archived: ask for "
            "the same ones, or archive into another path",
            "columns",
        )


def _columns(schema: pa.Schema) -> list[str]:
    """Name and type of each, as Spark calls them: formats have names of their own. Iceberg has no small numbers."""
    return [
        f"{one.name} {one.dataType.simpleString()}".replace("tinyint", "int").replace("smallint", "int")
        for one in from_arrow_schema(schema)
    ]
