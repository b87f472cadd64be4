"""`audit`: check a whole store, or a backup, side by side: every record, every queue entry, every key.

    report = audit(spark, AuditPlan(path="/data/store"))
    report.ok, report.sentences(), report.table(spark)

Of a store it finds what `pyromq store verify` finds, and says it in the same words: the segments are checked by the
same code, each by a task, and put together here. A store may be in use. Executors must see its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pyromq.backup import checking
from pyromq.backup.history import numbers, wanted
from pyromq.backup.target import Target
from pyromq.clock import Clock, SystemClock
from pyromq.config import StoreConfig
from pyromq.errors import ConfigError
from pyromq.files import platform
from pyromq.files.disk import OsDisk
from pyromq.spark.jobs.audit.backup import ChunkResult, OffsetJoin, audit_chunk
from pyromq.spark.jobs.audit.index import (
    IndexTask,
    audit_index,
    file_tasks,
    index_check,
    is_as_written,
    new_report,
)
from pyromq.spark.jobs.audit.segment import SegmentResult, SegmentTask, audit_segment
from pyromq.spark.jobs.backup.target import target_of
from pyromq.spark.jobs.progress import Progress, silent
from pyromq.spark.jobs.spread import spread
from pyromq.spark.segments.store_places import local_path
from pyromq.store.log.segmented_file import Segment
from pyromq.store.offline.inspect import detect
from pyromq.store.offline.verify import Verification
from pyromq.store.offline.verify_report import MAX_FINDINGS, Finding, Severity, VerifyReport
from pyromq.store.paths import StorePaths

TABLE = "file STRING, position BIGINT, severity STRING, what STRING"


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """The input of an audit."""

    #: A store's directory, or a backup: a directory or a URI.
    path: str
    #: The commit log's directory, if it is outside the store and the store does not name it.
    commit_log: str | None = None
    #: Look at the key index too.
    index: bool = True
    #: Slots and entries of index files, where their length and content do not tell.
    index_slots: int | None = None
    index_entries: int | None = None
    #: A certain manifest of a backup; None: the newest.
    manifest: int | None = None
    #: Findings that are kept; all are counted.
    max_findings: int = MAX_FINDINGS

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("an audit needs the path of a store or a backup", "path")
        if self.max_findings < 1:
            raise ConfigError(f"max_findings is {self.max_findings}; it must be above 0", "max_findings")


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The counts and findings of an audit."""

    path: str
    is_backup: bool
    log_start: int
    log_end: int
    #: Segments of a store, chunks of a backup.
    files: int
    records: int
    queues: int
    queue_entries: int
    index_entries: int
    live: bool
    errors: int
    notes: int
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.errors

    def sentences(self) -> list[str]:
        kind, files = ("backup", "chunks") if self.is_backup else ("store", "segments")
        rate = int(self.records / self.seconds) if self.seconds else 0
        verdict = "everything is as it was written" if self.ok else f"{self.errors} errors"
        lines = [
            f"The {kind} {self.path}: {verdict}.",
            f"{self.records} records in {self.files} {files}, {self.queue_entries} queue entries in {self.queues} "
            f"queues, {self.index_entries} keys, {self.seconds:.1f} s ({rate} records/s).",
        ]
        lines += ["It is in use: what was written meanwhile was not looked at."] if self.live else []
        return [*lines, *(f"{each.severity.value}: {each.file}, position {each.position}: {each.what}"
                          for each in self.findings)]  # fmt: skip

    def table(self, spark: SparkSession) -> DataFrame:
        """The findings, to be stored or asked."""
        rows = [(str(each.file), each.position, each.severity.value, each.what) for each in self.findings]
        return spark.createDataFrame(rows, TABLE)


def audit(
    spark: SparkSession, plan: AuditPlan, progress: Progress = silent, *, clock: Clock | None = None
) -> AuditReport:
    """Raises StoreError, BackupError, ConfigError, OSError. Damage is a finding, not an error."""
    target = target_of(plan.path)
    clock = clock or SystemClock()
    is_backup = bool(numbers(target))
    return (_audit_backup if is_backup else _audit_store)(spark, plan, target, progress, clock)


# --- a store -------------------------------------------------------------------------------------------------------


def _audit_store(spark: SparkSession, plan: AuditPlan, target: Target, progress: Progress, clock: Clock) -> AuditReport:
    started = clock.monotonic()
    root = Path(target.shown())
    disk = OsDisk(StorePaths(root).staging)
    config = detect(
        root,
        commit_log=local_path(plan.commit_log) if plan.commit_log else None,
        disk=disk,
        index_slots=plan.index_slots,
        index_entries=plan.index_entries,
    )
    platform.raise_open_file_limit()
    report = VerifyReport(root, StorePaths.of(config).commit_log, max_findings=plan.max_findings)
    check = Verification(disk, StorePaths.of(config), config, report, lambda done, total: None)
    tasks = [
        SegmentTask(config, each.path, each.base, check.sure_to, check.queues_sure_to, report.live, plan.max_findings)
        for each in check.segments
    ]
    results = spread(spark, tasks, audit_segment, what="segments checked", progress=progress)
    joined = join_segments(check, report, results)
    index = _audit_index(spark, plan, config, check, joined, report.live, progress)
    check.finish(lambda: add_report(report, index))
    return _report_of(plan.path, report, clock.monotonic() - started)


def join_segments(
    check: Verification, report: VerifyReport, results: Sequence[SegmentResult]
) -> list[tuple[Segment, SegmentResult]]:
    """Merge the findings up to the end of the log; return the segments that belong to it."""
    joined: list[tuple[Segment, SegmentResult]] = []
    for segment, result in zip(check.segments, results, strict=True):
        walk = result.walk(segment)
        goes_on = check.joined(walk)
        add_report(report, result.report)
        for queue in result.queues:
            check.queues.join(queue.topic, queue.number, queue.runs)
        joined.append((segment, result))
        if not goes_on:
            check.end_in(walk)
            break
    return joined


def add_report(report: VerifyReport, part: VerifyReport | None) -> None:
    """Add the findings of another part."""
    if part is None:
        return
    report.errors += part.errors
    report.notes += part.notes
    report.findings += part.findings[: max(report.max_findings - len(report.findings), 0)]
    report.queue_entries += part.queue_entries
    report.index_files += part.index_files
    report.index_entries += part.index_entries


def _audit_index(
    spark: SparkSession,
    plan: AuditPlan,
    config: StoreConfig,
    check: Verification,
    joined: list[tuple[Segment, SegmentResult]],
    live: bool,
    progress: Progress,
) -> VerifyReport | None:
    if not plan.index:
        return None
    task = IndexTask(
        config,
        check.kept_index,
        tuple((segment.path, segment.base, tuple(result.good)) for segment, result in joined),
        tuple((segment.base + start, segment.base + end) for segment, result in joined for start, end, _ in result.bad),
        check.log.end,
        live,
        plan.max_findings,
    )
    report = new_report(task)
    files = index_check(task, report, check.segments).files
    tasks = file_tasks(task, files)
    if tasks is not None and all(spread(spark, tasks, is_as_written, what="index files checked", progress=progress)):
        report.index_entries += sum(file.count - 1 for file in files)
        return report
    [report] = spread(spark, [task], audit_index, what="key index checked", progress=progress)
    return report


def _report_of(path: str, report: VerifyReport, seconds: float) -> AuditReport:
    return AuditReport(
        path=path,
        is_backup=False,
        log_start=report.log_start,
        log_end=report.log_end,
        files=report.segments,
        records=report.records,
        queues=report.queues,
        queue_entries=report.queue_entries,
        index_entries=report.index_entries,
        live=report.live,
        errors=report.errors,
        notes=report.notes,
        findings=tuple(report.findings),
        seconds=seconds,
    )


# --- a backup ------------------------------------------------------------------------------------------------------


def _audit_backup(
    spark: SparkSession, plan: AuditPlan, target: Target, progress: Progress, clock: Clock
) -> AuditReport:
    started = clock.monotonic()
    manifest = wanted(target, plan.manifest)
    work = partial(audit_chunk, target, manifest.segment_bytes)
    results = spread(spark, manifest.chunks, work, what="chunks checked", progress=progress)
    offsets, findings = join_chunks(results)
    for each in checking.check_small_files(target, manifest):
        findings.append(Finding(Path(each.file), each.position, each.what, Severity.ERROR))
    errors = sum(each.severity is Severity.ERROR for each in findings)
    return AuditReport(
        path=plan.path,
        is_backup=True,
        log_start=manifest.start,
        log_end=manifest.end,
        files=len(manifest.chunks),
        records=manifest.records,
        queues=offsets.queues,
        queue_entries=offsets.entries,
        index_entries=0,
        live=False,
        errors=errors,
        notes=len(findings) - errors,
        findings=tuple(findings[: plan.max_findings]),
        seconds=clock.monotonic() - started,
    )


def join_chunks(results: Sequence[ChunkResult]) -> tuple[OffsetJoin, list[Finding]]:
    """Return the offsets of all queues along all chunks, and the findings."""
    offsets, findings, damaged = OffsetJoin(), [], False
    for result in results:
        offsets.add(result.chunk.file, result.queues, after_damage=damaged)
        if result.finding is not None:
            damaged = True
            found = result.finding
            findings.append(Finding(Path(found.file), found.position, found.what, Severity.ERROR))
    return offsets, findings + offsets.findings
