"""`backup`: one more step of a backup of a store, its segments copied and verified side by side.

    backup(spark, BackupPlan(store="/data/store", target="s3://backups/broker-a"))

The same as `pyromq.backup.making.back_up`, and the same backup: one may go on with what the other made. Executors must
see the store's files: a shared file system, or a local master.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import SparkSession

from pyromq.backup import making
from pyromq.backup.making import BackupReport
from pyromq.backup.pieces import copy_stretch
from pyromq.clock import Clock, SystemClock
from pyromq.errors import ConfigError
from pyromq.spark.jobs.backup.target import target_of
from pyromq.spark.jobs.progress import Progress, silent
from pyromq.spark.jobs.spread import spread
from pyromq.spark.segments.store_places import local_path


@dataclass(frozen=True, slots=True)
class BackupPlan:
    """The store to back up, and the target."""

    #: The store's directory; it may be in use.
    store: str
    #: A directory, or a URI that pyarrow knows (`s3://…`).
    target: str
    #: The store's name in the manifest; the directory's name if empty.
    name: str = ""
    #: The commit log's directory, if it is outside the store and the store does not name it.
    commit_log: str | None = None
    #: Begin a new chain although the log does not continue the last backup.
    new_series: bool = False

    def __post_init__(self) -> None:
        for setting in ("store", "target"):
            if not getattr(self, setting):
                raise ConfigError(f"a backup needs a {setting}", setting)


def backup(
    spark: SparkSession, plan: BackupPlan, progress: Progress = silent, *, clock: Clock | None = None
) -> BackupReport:
    """Raises BackupError, CorruptLog, CorruptBackup, StoreError, ConfigError, OSError."""
    clock = clock or SystemClock()
    started = clock.monotonic()
    target = target_of(plan.target)
    step = making.prepare(
        local_path(plan.store),
        target,
        name=plan.name,
        commit_log=local_path(plan.commit_log) if plan.commit_log else None,
        new_series=plan.new_series,
        clock=clock,
    )
    work = partial(copy_stretch, target=target, series=step.base.series)
    chunks = spread(spark, step.stretches, work, what="segments saved", progress=progress)
    return replace(making.publish(step, target, chunks), seconds=clock.monotonic() - started)
