"""`pyromq spark`: jobs over whole topics and stores, on this machine or on a cluster of Spark's."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from pyromq.cli import output
from pyromq.cli.completing import topics as complete_topics
from pyromq.cli.connecting import AsJson, NameServers, Yes, group_of_commands
from pyromq.cli.output import escaped, show_report
from pyromq.cli.reaching import DEFAULT_NAME_SERVER
from pyromq.cli.spark import stores
from pyromq.cli.spark.reaching import cluster_of, moment_of, options_of
from pyromq.cli.spark.running import LOCAL, Conf, Log, Master, require_spark, run
from pyromq.cli.times import HELP as TIME

if TYPE_CHECKING:
    from pyromq.spark.jobs.insight.job import InsightReport

app = group_of_commands("Jobs on Spark: archive, replay, backup, restore, audit, rebuild, insight.")

Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", metavar="TOPIC", help="This topic. Repeatable.",
                 autocompletion=complete_topics),
]  # fmt: skip
Store = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="DIR", help="Read a store directory, a commit log or a backup instead of a cluster."
    ),
]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help=f"Only messages stored from this time on: {TIME}.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only messages stored before this time.")]


# --- a lake ----------------------------------------------------------------------------------------------------------

Lake = Annotated[
    str,
    typer.Argument(
        metavar="LAKE", help="Directory of the lake, or a path such as s3://bucket/lake.", show_default=False
    ),
]
LakeFormat = Annotated[str, typer.Option("--format", metavar="NAME", help="Table format: parquet, delta or iceberg.")]
Pattern = Annotated[str | None, typer.Option("--pattern", metavar="REGEX", help="All topics whose whole name matches.")]
Begin = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help=f"Where topics begin that the lake does not know yet: {TIME}."),
]
Tags = Annotated[str | None, typer.Option("--tags", metavar="EXPR", help="Only these tags: 'paid || shipped'.")]
Sql = Annotated[str | None, typer.Option("--sql", metavar="EXPR", help="Only these properties: 'amount > 5'.")]
Columns = Annotated[str | None, typer.Option("--columns", metavar="NAME,…", help="Only these columns.")]
Decode = Annotated[str, typer.Option("--decode", metavar="KIND", help="Format of the bodies: raw, json or avro.")]
Schema = Annotated[
    str | None,
    typer.Option("--schema", metavar="TEXT", help="For json: 'id BIGINT, name STRING'; for avro: a schema file."),
]
BadRows = Annotated[
    str | None, typer.Option("--bad-rows", metavar="PATH", help="Path for bodies that cannot be decoded.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Keep archiving until Ctrl-C.")]
Every = Annotated[
    float, typer.Option("--every", min=0.1, metavar="SECONDS", help="With --follow: interval between two runs.")
]
Compact = Annotated[bool, typer.Option("--compact/--no-compact", help="Compact small files.")]
SkipLost = Annotated[
    bool, typer.Option("--skip-lost", help="Continue if messages were removed before they were archived.")
]


@app.command()
def archive(
    lake: Lake,
    topics: Topics = None,
    pattern: Pattern = None,
    lake_format: LakeFormat = "parquet",
    store: Store = None,
    since: Begin = None,
    tags: Tags = None,
    sql: Sql = None,
    columns: Columns = None,
    decode: Decode = "raw",
    schema: Schema = None,
    bad_rows: BadRows = None,
    follow: Follow = False,
    every: Every = 10.0,
    compact: Compact = True,
    skip_lost: SkipLost = False,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
    master: Master = LOCAL,
    conf: Conf = None,
    log: Log = None,
) -> None:
    """Archive topics in a lake, exactly once: tables of Parquet files by topic and date.

    Each run continues where the last one ended; the lake stores the offsets. It may be killed at any time.
    """
    require_spark()
    from pyromq.spark.jobs.archive.job import ArchivePlan
    from pyromq.spark.jobs.archive.job import archive as job

    begin = moment_of(since, "--since")
    # Topics to follow may not exist yet.
    cluster = None if store is not None else cluster_of(name_servers, () if follow else topics or ())
    plan = ArchivePlan(
        path=lake,
        format=lake_format,
        namesrv=None if cluster is None else cluster.name_servers,
        segments=store,
        topics=tuple(topics or ()),
        pattern=pattern,
        columns=tuple(name.strip() for name in columns.split(",")) if columns is not None else None,
        tags=tags,
        sql=sql,
        decode=decode,
        schema=schema,
        bad_path=bad_rows,
        from_="earliest" if begin is None else begin.isoformat(),
        follow=follow,
        every_s=every,
        compact=compact,
        fail_on_data_loss=not skip_lost,
        source_options={} if cluster is None else options_of(cluster),
    )
    stop = Event()
    report = run(
        "archive", lambda spark, progress: job(spark, plan, progress, stop=stop),
        master=master, conf=conf, log=log, stop=stop if follow else None,
    )  # fmt: skip
    show_report(report, as_json)


@app.command()
def replay(
    lake: Lake,
    to: Annotated[str | None, typer.Option("--to", metavar="TOPIC", help="Send all messages to this topic.")] = None,
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Prefix of the target topics' names.")] = "",
    topics: Topics = None,
    lake_format: LakeFormat = "parquet",
    since: Since = None,
    until: Until = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Only these rows of the lake: \"tags = 'paid'\".")
    ] = None,
    rate: Annotated[float, typer.Option("--rate", min=0, metavar="N", help="Messages per second; 0: no limit.")] = 0.0,
    order: Annotated[
        str,
        typer.Option("--order", metavar="KIND", help="Order to keep: queue, key (of each sharding key), or none."),
    ] = "queue",
    mode: Annotated[
        str,
        typer.Option("--mode", metavar="MODE", help="Delivery guarantee: atLeastOnce, idempotent or transactional."),
    ] = "atLeastOnce",
    writer_id: Annotated[
        str | None,
        typer.Option(
            "--writer-id", metavar="NAME", help="For idempotent: id of this replay, the same in each run of it."
        ),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
    master: Master = LOCAL,
    conf: Conf = None,
    log: Log = None,
) -> None:
    """Send archived messages to topics again, in their order: all of them, or those of a time range or a condition.

    Without --to or --prefix messages go to their original topics, after a confirmation.
    """
    require_spark()
    from pyromq.spark.jobs.replay.job import ReplayPlan
    from pyromq.spark.jobs.replay.job import replay as job

    cluster = cluster_of(name_servers)
    plan = ReplayPlan(
        path=lake,
        format=lake_format,
        namesrv=cluster.name_servers,
        topic=to,
        prefix=prefix,
        topics=tuple(topics or ()),
        since=_iso(since, "--since"),
        until=_iso(until, "--until"),
        where=where,
        rate=rate,
        order=order,
        mode=mode,
        sink_options={**options_of(cluster), **({} if writer_id is None else {"writerId": writer_id})},
    )
    if to is None and not prefix:
        output.agree(f"send what {lake} holds into the topics it came from, where consumers get it once more.", yes=yes)
    report = run("replay", lambda spark, progress: job(spark, plan, progress), master=master, conf=conf, log=log)
    show_report(report, as_json)


def _iso(text: str | None, option: str) -> str | None:
    moment = moment_of(text, option)
    return None if moment is None else moment.isoformat()


# --- a look at it ----------------------------------------------------------------------------------------------------


@app.command()
def insight(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Directory for the page and its tables.", show_default=False)
    ],
    topics: Topics = None,
    store: Store = None,
    lake: Annotated[
        str | None, typer.Option("--lake", metavar="PATH", help="Read a lake instead of a cluster.")
    ] = None,
    lake_format: LakeFormat = "parquet",
    since: Since = None,
    until: Until = None,
    window: Annotated[
        float | None,
        typer.Option("--window", min=1, metavar="SECONDS", help="Count in windows of this length.", show_default=False),
    ] = None,
    lag: Annotated[
        str | None, typer.Option("--lag", metavar="DIR", help="Lag history written by a stream's listener.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Only this group's lag.")] = None,
    page: Annotated[
        str | None, typer.Option("--page", metavar="FILE", help="The page, if not DIR/insight.html.")
    ] = None,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
    master: Master = LOCAL,
    conf: Conf = None,
    log: Log = None,
) -> None:
    """Report volume, latency, skew, retries, dead letters and lag, as tables and as one HTML page with plots.

    Reads the topics of a cluster, or files with --store or --lake.
    """
    require_spark()
    from pyromq.spark.jobs.insight.job import InsightPlan
    from pyromq.spark.jobs.insight.job import insight as job

    plan = InsightPlan(
        output=directory,
        cluster=None if store is not None or lake is not None else cluster_of(name_servers),
        store=store,
        lake=lake,
        lake_format=lake_format,
        topics=tuple(topics or ()),
        since=moment_of(since, "--since"),
        until=moment_of(until, "--until"),
        window_s=window,
        lag=lag,
        group=group,
        page=page,
    )
    report = run("insight", lambda spark, progress: job(spark, plan, progress), master=master, conf=conf, log=log)
    show_report(report, as_json)
    if not as_json:
        _show_places(report)


def _show_places(report: InsightReport) -> None:
    console = output.stdout()
    console.print(f"\n[bold]page[/]    {escaped(report.page)}", soft_wrap=True)
    for name, place in report.tables.items():
        console.print(f"[dim]table[/]   {escaped(name)}: {escaped(place)}", soft_wrap=True)


# --- stores ----------------------------------------------------------------------------------------------------------

for command in stores.COMMANDS:
    app.command()(command)
