"""`restore`: a backup back to a store directory that a broker starts on, its segments put back side by side.

    restore(spark, RestorePlan(target="s3://backups/broker-a", directory="/data/store"))

Executors must see the directory: a shared file system, or a local master. Also here: `check`, which reads a whole
backup and holds it against its manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from pyromq.backup import checking, restoring
from pyromq.backup.checking import CheckReport
from pyromq.backup.history import wanted
from pyromq.backup.pieces import restore_segment
from pyromq.backup.planning import Until
from pyromq.backup.restoring import RestoreReport
from pyromq.errors import ConfigError
from pyromq.spark.jobs.backup.target import target_of
from pyromq.spark.jobs.progress import Progress, silent
from pyromq.spark.jobs.spread import spread
from pyromq.spark.segments.store_places import local_path


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The backup to restore, and the target directory."""

    #: The backup: a directory or a URI.
    target: str
    #: Empty, or not there yet.
    directory: str
    #: A certain manifest; None: the newest.
    manifest: int | None = None
    #: Messages that were stored later are left out.
    until_ms: int | None = None
    #: Messages that end behind this position of the log are left out.
    until_position: int | None = None

    def __post_init__(self) -> None:
        for setting in ("target", "directory"):
            if not getattr(self, setting):
                raise ConfigError(f"a restore needs a {setting}", setting)
        if self.until_ms is not None and self.until_position is not None:
            raise ConfigError("say until_ms or until_position, not both", "until_ms")


def restore(spark: SparkSession, plan: RestorePlan, progress: Progress = silent) -> RestoreReport:
    """Raises BackupError, CorruptBackup, ConfigError, OSError."""
    target = target_of(plan.target)
    until = Until(plan.until_ms, plan.until_position)
    begun = restoring.begin(target, local_path(plan.directory), number=plan.manifest, until=until)
    work = partial(restore_segment, target, restoring.log_of(begun))
    with restoring.claimed(begun):
        restored = spread(spark, begun.segments, work, what="segments restored", progress=progress)
        return restoring.finish(target, begun, restored)


def check(spark: SparkSession, target: str, *, manifest: int | None = None, progress: Progress = silent) -> CheckReport:
    """Every chunk and small file of a backup. Raises BackupError, CorruptBackup (the manifest itself), OSError."""
    place = target_of(target)
    made = wanted(place, manifest)
    work = partial(checking.finding_in, place, made.segment_bytes)
    found = spread(spark, made.chunks, work, what="chunks checked", progress=progress)
    small = checking.check_small_files(place, made)
    return CheckReport(made, (*small, *(each for each in found if each is not None)))
