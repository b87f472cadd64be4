"""`rebuild`: consume queues and key index of a store from its commit log, side by side.

    rebuild(spark, RebuildPlan(store="/data/store"))

For logs that are too large for one machine's recovery. The result is what `pyromq store recover --rebuild-queues`
makes: the same entries, byte by byte. The store is locked during the rebuild; executors must see its
files.

1. every segment is verified; damage ends the rebuild before anything was changed
2. queues and index are written to `staging/` in the store
3. the recover point says that queues and index must be derived again; then the new files replace the old ones
4. the recover point says that they are complete

If the job stops before step 3, the store is unchanged; after it, the next start derives the missing parts.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path

from pyspark.sql import SparkSession

from pyromq.clock import Clock, SystemClock
from pyromq.config import StoreConfig
from pyromq.errors import ConfigError, CorruptStore
from pyromq.files import platform
from pyromq.files.disk import OsDisk
from pyromq.records.checksum import crc32
from pyromq.spark.jobs.progress import Progress, silent
from pyromq.spark.jobs.rebuild.index import IndexTask, Survey, plan_files, survey, write_index
from pyromq.spark.jobs.rebuild.queues import LogPart, QueueWriter, RunKey, RunValue, runs_of
from pyromq.spark.jobs.spread import spread, watched
from pyromq.spark.segments.store_places import local_path
from pyromq.store.durability.checkpoint import AbortMark, Checkpoint, CheckpointFile, RecoverPoint, RecoverPointFile
from pyromq.store.log import log_place
from pyromq.store.offline.inspect import detect
from pyromq.store.offline.readable_log import ReadableLog, readable_log
from pyromq.store.paths import StorePaths
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.queues.queue_cursor import queue_key
from pyromq.store.queues.queue_table import QueueTable

#: Names of index files are times; between two of one rebuild there is room for files that a large record makes.
NAME_STEP = 1000


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """Which store, and the lengths of its files where they do not tell."""

    store: str
    commit_log: str | None = None
    queue_file_entries: int | None = None
    index_slots: int | None = None
    index_entries: int | None = None
    #: Make the key index too.
    index: bool = True
    #: Of SCHEDULE_TOPIC_XXXX, when the broker has other levels than the usual ones.
    delay_levels: str | None = None

    def __post_init__(self) -> None:
        if not self.store:
            raise ConfigError("a rebuild needs a store", "store")


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """The counts of a rebuild."""

    store: str
    segments: int
    records: int
    queues: int
    index_files: int
    keys: int
    start: int
    end: int
    seconds: float

    def sentences(self) -> list[str]:
        return [
            f"{self.store}: made {self.queues} queues and {self.index_files} index files with {self.keys} keys from "
            f"{self.records} records in {self.segments} segments, in {self.seconds:.1f} s.",
            "The store is ready to be started.",
        ]


def rebuild(
    spark: SparkSession, plan: RebuildPlan, progress: Progress = silent, *, clock: Clock | None = None
) -> RebuildReport:
    """Raises StoreLocked, StoreError, CorruptLog, ConfigError, OSError."""
    clock = clock or SystemClock()
    started = clock.monotonic()
    config = config_of(plan)
    paths = StorePaths.of(config)
    with log_place.lock(OsDisk(paths.staging), paths):
        work = _Rebuild(spark, config, plan.index, progress, clock)
        report = work.run()
    return replace(report, seconds=clock.monotonic() - started)


def config_of(plan: RebuildPlan) -> StoreConfig:
    """The lengths that the store's files have, or those that were said. Raises StoreError."""
    found = detect(
        local_path(plan.store),
        commit_log=local_path(plan.commit_log) if plan.commit_log else None,
        index_slots=plan.index_slots,
        index_entries=plan.index_entries,
    )
    return replace(
        found,
        queue_file_entries=plan.queue_file_entries or found.queue_file_entries,
        delay_levels=plan.delay_levels or found.delay_levels,
    )


class _Rebuild:
    """One rebuild of a store that is locked."""

    def __init__(
        self, spark: SparkSession, config: StoreConfig, with_index: bool, progress: Progress, clock: Clock
    ) -> None:
        self._spark = spark
        self._config = config
        self._with_index = with_index
        self._progress = progress
        self._clock = clock
        self._paths = StorePaths.of(config)
        self._disk = OsDisk(self._paths.staging)
        self._made = self._paths.staging / "rebuild"

    def run(self) -> RebuildReport:
        platform.raise_open_file_limit()
        log = readable_log(self._config.root, commit_log=self._config.commit_log, is_mine=True)
        parts = [LogPart(each, min(each.end, log.end)) for each in log.segments]
        surveys = spread(
            self._spark, parts, partial(survey, self._config), what="segments verified", progress=self._progress
        )
        shutil.rmtree(self._paths.staging, ignore_errors=True)
        try:
            for directory in ("consumequeue", "index", "drafts"):
                (self._made / directory).mkdir(parents=True)
            ends = self._make_queues(parts, log)
            index = self._make_index(surveys, log)
        except BaseException:
            shutil.rmtree(self._made, ignore_errors=True)  # a disk that is full needs the room
            raise
        self._put_in_place(log, surveys, ends, index)
        return RebuildReport(
            store=str(self._config.root),
            segments=len(parts),
            records=sum(each.records for each in surveys),
            queues=len(ends),
            index_files=len(index),
            keys=sum(each.keys for each in surveys) if self._with_index else 0,
            start=log.start,
            end=log.end,
            seconds=0.0,
        )

    # --- queues ------------------------------------------------------------------------------------------------------

    def _make_queues(self, parts: Sequence[LogPart], log: ReadableLog) -> dict[bytes, int]:
        """The next offset of every queue."""
        given_out = self._given_out(log.start)
        writer = QueueWriter(self._config, self._made / "consumequeue", self._made / "drafts", log.start, given_out)
        ends = dict(self._write_runs(parts, writer)) if parts else {}
        for key in given_out.keys() - ends.keys():  # all their messages are gone
            ends[key] = writer.write(key, [])
        return ends

    def _given_out(self, log_start: int) -> dict[bytes, int]:
        """Of every queue that is there: what only its files know."""
        table = QueueTable(self._disk, self._paths.queues, self._config.queue_file_entries, writable=False)
        found: dict[bytes, int] = {}
        for topic in self._disk.names(self._paths.queues):
            for number in self._disk.names(self._paths.queues / topic):
                if number.isascii() and number.isdigit() and len(number) <= 10 and int(number) < 1 << 31:
                    queue = table.get_or_create(topic.encode("utf-8", "surrogateescape"), int(number))
                    found[queue_key(queue.topic, queue.id.number)] = _end_of_gone(queue, log_start)
                    queue.close()
        return found

    def _write_runs(self, parts: Sequence[LogPart], writer: QueueWriter) -> list[tuple[bytes, int]]:
        """Runs of entries out of the segments, sorted, to one task for each few queues."""
        context = self._spark.sparkContext
        tasks = max(min(len(parts) * 4, context.defaultParallelism * 4), 1)

        def job() -> list[tuple[bytes, int]]:
            runs = context.parallelize(parts, len(parts)).flatMap(partial(runs_of, self._config))
            by_queue = runs.repartitionAndSortWithinPartitions(tasks, partial(task_of, tasks))
            return by_queue.mapPartitions(partial(write_queues, writer)).collect()

        what = "queues written"
        return watched(context, job, what=what, total=len(parts) + tasks, progress=self._progress)

    # --- index -------------------------------------------------------------------------------------------------------

    def _make_index(self, surveys: Sequence[Survey], log: ReadableLog) -> list[tuple[str, int]]:
        """Names of the files, in order, and the time of the last key of each."""
        if not self._with_index or not sum(each.keys for each in surveys):
            return []
        starts = plan_files(self._config, surveys)
        moment = datetime.fromtimestamp(self._clock.now_ms() / 1000).astimezone()
        first = int(f"{moment:%Y%m%d%H%M%S}000")
        tasks = [
            IndexTask(
                self._config,
                tuple(each.part for each in surveys if each.part.file.base < end and each.part.end > start),
                start,
                end,
                self._made / "index",
                self._made / "drafts",
                first + number * NAME_STEP,
            )
            for number, (start, end) in enumerate(pairwise(starts))
        ]
        made = spread(self._spark, tasks, write_index, what="index files written", progress=self._progress)
        return [each for files in made for each in files]

    # --- in place ----------------------------------------------------------------------------------------------------

    def _put_in_place(
        self, log: ReadableLog, surveys: Sequence[Survey], ends: dict[bytes, int], index: list[tuple[str, int]]
    ) -> None:
        disk, paths = self._disk, self._paths
        was_clean = not AbortMark(disk, paths.abort).is_set()
        last_ms = next((each.last_ms for each in reversed(surveys) if each.last_ms), 0)
        for each in log.segments:
            _sync(each.path)  # after a crash some of it may be in memory only
        AbortMark(disk, paths.abort).set()
        before = RecoverPointFile(disk, paths.recover_point).load() or RecoverPoint()
        begun = RecoverPoint(log_start=log.start, synced=log.end, queues_to=log.start, timestamp_ms=last_ms)
        self._note(begun, Checkpoint())
        swaps = [(paths.queues, "consumequeue")] + ([(paths.index, "index")] if self._with_index else [])
        for place, name in swaps:
            if place.exists():
                disk.move_tree(place, self._made / f"old-{name}")
            disk.move_tree(self._made / name, place)
        topics = [place for place in paths.queues.iterdir() if place.is_dir()]
        for directory in (*topics, paths.queues, paths.index, paths.root):
            if directory.exists():
                _sync(directory)
        digest = sum(crc32(key + end.to_bytes(8, "big"), 0) for key, end in ends.items() if end)
        done = replace(
            begun,
            queues_to=log.end,
            queue_digest=digest,
            index_to=log.end if self._with_index else before.index_to,
            index_file=self._last_index_file(index, before),
            clean=was_clean,
        )
        self._note(done, Checkpoint(last_ms, last_ms, index[-1][1] if index else 0))
        if was_clean:
            AbortMark(disk, paths.abort).clear()
        shutil.rmtree(self._made, ignore_errors=True)

    def _last_index_file(self, index: list[tuple[str, int]], before: RecoverPoint) -> int:
        if not self._with_index:
            return before.index_file
        return int(index[-1][0]) if index else 0

    def _note(self, point: RecoverPoint, checkpoint: Checkpoint) -> None:
        points = RecoverPointFile(self._disk, self._paths.recover_point)
        points.load()  # continues its sequence number
        points.save(point)
        points.close()
        times = CheckpointFile(self._disk, self._paths.checkpoint)
        times.save(checkpoint)
        times.close()


def _end_of_gone(queue: ConsumeQueue, log_start: int) -> int:
    """Files that are no queue's are as good as none: a rebuild throws them away."""
    try:
        queue.load(log_start)
    except CorruptStore:
        return 0
    return queue.end_of_gone(log_start)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def task_of(tasks: int, key: RunKey) -> int:
    """Which task has a queue: the same one in every process."""
    return zlib.crc32(key[0]) % tasks


def write_queues(writer: QueueWriter, rows: Iterable[tuple[RunKey, RunValue]]) -> Iterator[tuple[bytes, int]]:
    return writer.write_all(rows)
