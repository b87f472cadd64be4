"""`pyromq spark` for whole stores: back up, restore, check, and derive queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyromq.cli.connecting import AsJson
from pyromq.cli.output import show_report
from pyromq.cli.spark.reaching import moment_of
from pyromq.cli.spark.running import LOCAL, Conf, Job, Log, Master, require_spark, run
from pyromq.cli.times import HELP as TIME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyromq.spark.jobs.audit.compare import CompareReport
    from pyromq.spark.jobs.audit.job import AuditReport
    from pyromq.spark.jobs.progress import Progress

#: Ids that people still read; a program has them all.
MOST_IDS = 20

StoreDirectory = Annotated[
    str, typer.Argument(metavar="STORE", help="The store directory; it may be in use.", show_default=False)
]
Backup = Annotated[
    str,
    typer.Argument(metavar="BACKUP", help="A directory, or a path such as s3://bucket/broker-a.", show_default=False),
]
CommitLog = Annotated[
    str | None,
    typer.Option("--commit-log", metavar="DIR", help="Directory of the commit log, if the store does not name it."),
]
Manifest = Annotated[
    int | None, typer.Option("--manifest", min=0, metavar="N", help="This run of the backup. Default: the newest.")
]


def backup(
    store: StoreDirectory,
    target: Backup,
    name: Annotated[
        str, typer.Option("--name", metavar="TEXT", help="Name of the store in the backup.", show_default=False)
    ] = "",
    commit_log: CommitLog = None,
    new_series: Annotated[
        bool,
        typer.Option("--new-series", help="Begin a new series, if the log does not continue that of the last backup."),
    ] = False,
    as_json: AsJson = False,
    master: Master = LOCAL,
    conf: Conf = None,
    log: Log = None,
) -> None:
    """Back up a store incrementally, and verify every message.

    The store may be in use. The first run copies everything. Spark's workers need access to the store's files.
    """
    require_spark()
    from pyromq.spark.jobs.backup.job import BackupPlan
    from pyromq.spark.jobs.backup.job import backup as job

    plan = BackupPlan(store=store, target=target, name=name, commit_log=commit_log, new_series=new_series)
    report = run("backup", lambda spark, progress: job(spark, plan, progress), master=master, conf=conf, log=log)
    show_report(report, as_json)


def restore(
    target: Backup,
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="The store directory to create: empty or missing.", show_default=False)
    ],
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help=f"Leave out messages stored later: {TIME}.")
    ] = None,
    until_position: Annotated[
        int | None, typer.Option("--until-position", min=0, metavar="N", help="Leave out the log after this position.")
    ] = None,
    manifest: Manifest = None,
    as_json: AsJson = False,
    master: Master = LOCAL,
    conf: Conf = None,
    log: Log = None,
) -> None:
    """Restore a backup into a store directory, for a PyroMQ or an Apache RocketMQ broker."""
    require_spark()
    from pyromq.spark.jobs.backup.restore import RestorePlan
    from pyromq.spark.jobs.backup.restore import restore as job

    end = moment_of(until, "--until")
    plan = RestorePlan(
        target=target,
        directory=directory,
        manifest=manifest,
        until_ms=None if end is None else int(end.timestamp() * 1000),
        until_position=until_position,
    )
    report = run("restore", lambda spark, progress: job(spark, plan, progress), master=master, conf=conf, log=log)
    show_report(report, as_json)


def audit(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A store directory, or a backup.", show_default=False)],
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="PATH", help="Compare it with this store or backup of a replica instead."),
    ] = None,
    consumed: Annotated[
        str | None,
        typer.Option("--consumed", metavar="TABLE", help="Reconcile a topic with this table of consumed ids instead."),
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="With --consumed: the topic.")
    ] = None,
    id_column: Annotated[
        str, typer.Option("--id", metavar="COLUMN", help="With --consumed: the column with the ids.")
    ] = "msg_id",
    commit_log: CommitLog = None,
    index: Annotated[bool, typer.Option("--index/--no-index", help="Check the key index, too.")] = True,
    manifest: Manifest = None,
    as_json: AsJson = False,
    master: Master = LOCAL,
    conf: Conf = None,
    log: Log = None,
) -> None:
    """Check a whole store or backup: checksums, gaps, and agreement of the queues with the log.

    --against compares it with a replica, --consumed compares a topic with a table of consumed ids.

    Reads only; the store may be in use. Exits with 1 if a check fails.
    """
    require_spark()
    if against is not None and consumed is not None:
        raise typer.BadParameter("give --against or --consumed, not both", param_hint="--consumed")
    job: Job[Any]
    if against is not None:
        job = _compare(path, against)
    elif consumed is not None:
        job = _reconcile(path, consumed, topic, id_column)
    else:
        job = _audit(path, commit_log, index, manifest)
    report: Any = run("audit", job, master=master, conf=conf, log=log)
    show_report(report, as_json)
    if not (report.ok if against is None else report.same):
        raise typer.Exit(1)


def _audit(path: str, commit_log: str | None, index: bool, manifest: int | None) -> Job[AuditReport]:
    from pyromq.spark.jobs.audit.job import AuditPlan, audit

    plan = AuditPlan(path=path, commit_log=commit_log, index=index, manifest=manifest)
    return lambda spark, progress: audit(spark, plan, progress)


def _compare(left: str, right: str) -> Job[CompareReport]:
    from pyromq.spark.jobs.audit.compare import ComparePlan, compare

    plan = ComparePlan(left=left, right=right)
    return lambda spark, progress: compare(spark, plan, progress)


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The counts, and the first ids of each kind: tables cannot be shown when Spark has stopped."""

    ok: bool
    counts: dict[str, int]
    missing: list[str]
    extra: list[str]
    said: list[str]

    def sentences(self) -> list[str]:
        shown = {"missing": self.missing, "never sent": self.extra}
        return [*self.said, *(f"{what}: {one}" for what, some in shown.items() for one in some)]


def _reconcile(store: str, consumed: str, topic: str | None, column: str) -> Job[Reconciled]:
    from pyromq.spark.jobs.audit.reconcile import ReconcilePlan, reconcile

    if topic is None:
        raise typer.BadParameter("--consumed needs the topic that was sent to", param_hint="--topic")
    plan = ReconcilePlan(sent=store, consumed=consumed, sent_topic=topic, consumed_id=column)

    def job(spark: SparkSession, progress: Progress) -> Reconciled:
        progress("comparing ids", 0, None)
        found = reconcile(spark, plan)
        missing, extra = (
            [str(row.id) for row in table.limit(MOST_IDS).collect()] for table in (found.missing, found.extra)
        )
        return Reconciled(found.ok, found.counts, missing, extra, found.sentences())

    return job


def rebuild(
    store: Annotated[
        str, typer.Argument(metavar="STORE", help="The store directory; it must not be in use.", show_default=False)
    ],
    index: Annotated[bool, typer.Option("--index/--no-index", help="Derive the key index, too.")] = True,
    commit_log: CommitLog = None,
    as_json: AsJson = False,
    master: Master = LOCAL,
    conf: Conf = None,
    log: Log = None,
) -> None:
    """Derive consume queues and key index from the commit log in parallel, for logs too long for one process.

    The broker must be stopped. `pyromq store recover DIR --rebuild-queues` derives the same entries.
    """
    require_spark()
    from pyromq.spark.jobs.rebuild.job import RebuildPlan
    from pyromq.spark.jobs.rebuild.job import rebuild as job

    plan = RebuildPlan(store=store, commit_log=commit_log, index=index)
    report = run("rebuild", lambda spark, progress: job(spark, plan, progress), master=master, conf=conf, log=log)
    show_report(report, as_json)


COMMANDS = (backup, restore, audit, rebuild)
