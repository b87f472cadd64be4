"""`pyromq backup` and `pyromq restore`: of a store directory or of a running broker, without Spark.

`pyromq backup TARGET …` makes a backup; what else is done with one has a name: list, verify, prune.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyromq.cli import output
from pyromq.cli.completing import brokers
from pyromq.cli.connecting import AsJson, NameServers, Yes, group_of_commands, require
from pyromq.cli.output import FriendlyGroup, escaped, moment, number, plural, size
from pyromq.cli.reaching import DEFAULT_NAME_SERVER, connection
from pyromq.cli.running import INTERRUPTED, Interrupted, run_interruptible
from pyromq.cli.spark.reaching import moment_of
from pyromq.cli.times import HELP as TIME
from pyromq.errors import ConfigError
from pyromq.net.address import is_address, parse_address, shown_address

if TYPE_CHECKING:
    from datetime import datetime

    from pyromq.backup.listing import Run
    from pyromq.backup.live import LiveBackup
    from pyromq.backup.making import BackupReport
    from pyromq.backup.target import Target

MAKE = "make"
MIB = 1 << 20

Place = Annotated[
    str,
    typer.Argument(metavar="TARGET", help="A directory, or a path such as s3://bucket/broker-a.", show_default=False),
]
Manifest = Annotated[
    int | None, typer.Option("--manifest", min=0, metavar="N", help="This run of the backup. Default: the newest.")
]


class _MakesByDefault(FriendlyGroup):
    """A group whose default command is `make`: an argument that is no command is the target of a backup."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [MAKE, *args]
        return super().parse_args(ctx, args)


app = group_of_commands(
    "Back up a broker, or a store directory: `pyromq backup TARGET --broker NAME`, or --from-store DIR.",
    cls=_MakesByDefault,
)


def target_at(place: str) -> Target:
    """Raises ConfigError."""
    from pyromq.backup.target import LocalTarget

    if "://" not in place:
        return LocalTarget(Path(place).expanduser().absolute())
    try:
        from pyromq.spark.jobs.backup.target import target_of
    except ImportError:
        raise ConfigError(
            f'{place} needs pyarrow, which is not installed: pip install "pyromq[spark]", or name a directory'
        ) from None
    return target_of(place)


@contextlib.contextmanager
def _stoppable(what_then: str) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        output.note(escaped(f"stopped before it was done: {what_then}"))
        raise typer.Exit(INTERRUPTED) from None


# --- making ----------------------------------------------------------------------------------------------------------


@app.command(MAKE)
def make(
    target: Place,
    store: Annotated[
        Path | None,
        typer.Option("--from-store", metavar="DIR", help="Back up this store directory; it may be in use."),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option(
            "--broker",
            metavar="BROKER",
            help="Back up this running broker: name or address.",
            autocompletion=brokers,
        ),
    ] = None,
    ha_address: Annotated[
        str | None,
        typer.Option(
            "--ha-address",
            metavar="HOST:PORT",
            help="Replication address, if the broker does not report it. Alone: the broker is one port below.",
        ),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", metavar="TEXT", help="Name of the store in the backup.", show_default=False)
    ] = "",
    new_series: Annotated[
        bool,
        typer.Option("--new-series", help="Begin a new series, if the log does not continue that of the last backup."),
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="With a running broker: keep backing up until Ctrl-C.")
    ] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=1, help="With --follow: interval between two runs.")
    ] = 60.0,
    chunk_mib: Annotated[
        int,
        typer.Option("--chunk-mib", metavar="MIB", min=1, max=1024, help="With a running broker: size of a chunk."),
    ] = 64,
    commit_log: Annotated[
        Path | None,
        typer.Option("--commit-log", metavar="DIR", help="Directory of the commit log, if the store does not name it."),
    ] = None,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Make a backup, or add the new messages to one. `make` may be omitted.

    Every message is verified. A running broker streams its log as to a slave, at the pace of the backup, which never
    counts as a replica. Run one backup at a time.
    """
    if store is not None and (broker or ha_address):
        raise typer.BadParameter("say one of --from-store and --broker, not both", param_hint="--broker")
    if store is None and not (broker or ha_address):
        raise typer.BadParameter("say what is backed up: --from-store DIR or --broker BROKER", param_hint="--broker")
    if store is not None:
        if follow:
            raise typer.BadParameter("--follow is for a running broker: --broker", param_hint="--follow")
        report = _of_directory(store, target_at(target), name, commit_log, new_series)
    else:
        report = _of_broker(
            target_at(target), broker, ha_address, name_servers, every if follow else None,
            name=name, new_series=new_series, chunk_bytes=chunk_mib * MIB,
        )  # fmt: skip
    output.show_report(report, as_json)


def _of_directory(store: Path, target: Target, name: str, commit_log: Path | None, new_series: bool) -> BackupReport:
    from pyromq.backup.making import back_up

    with _stoppable("nothing of this run was added; run it again"), output.progress_bar("Saving") as progress:
        return back_up(store, target, name=name, commit_log=commit_log, new_series=new_series, progress=progress)


def _of_broker(
    target: Target,
    broker: str | None,
    ha_address: str | None,
    name_servers: str,
    every_s: float | None,
    **options: Any,
) -> BackupReport:
    made: list[LiveBackup] = []

    async def work() -> None:
        from pyromq.admin.admin import Admin
        from pyromq.backup.broker_state import RunningBroker
        from pyromq.backup.live import LiveBackup

        async with Admin(require(name_servers), **connection()) as admin:
            address = broker or _one_below(ha_address or "")
            if not is_address(address):
                address = (await admin.directory.broker(address)).address
            running = RunningBroker(admin.session.ask, address, ha_address)
            made.append(LiveBackup(running, target, progress=progress, tell=_tell, **options))
            await (made[0].run() if every_s is None else made[0].follow(every_s))

    with output.progress_bar("Saving", gone_when_done=every_s is not None) as progress:
        try:
            run_interruptible(work, lambda: bool(made) and made[0].stop_soon())
        except Interrupted:
            report = made[0].report if made else None
            if every_s is None or report is None:
                end = f"the backup has the log up to position {report.manifest.end}" if report else "nothing was added"
                output.note(escaped(f"stopped before it was done: {end}; run it again, and it goes on there"))
                raise typer.Exit(INTERRUPTED) from None
    report = made[0].report
    assert report is not None
    return report


def _tell(sentence: str) -> None:
    output.note(escaped(sentence))


def _one_below(ha_address: str) -> str:
    """Return the broker's address: by default the replication port is one above its own. Raises ConfigError."""
    try:
        host, port = parse_address(ha_address)
    except ValueError:
        raise ConfigError(f"--ha-address is {ha_address!r}: an address is host:port") from None
    return shown_address(host, port - 1)


# --- looking ---------------------------------------------------------------------------------------------------------


@app.command("list")
def list_runs(target: Place, as_json: AsJson = False) -> None:
    """List the runs of a backup with the range of the log and the added messages."""
    from pyromq.backup.listing import runs

    place = target_at(target)
    found = runs(place)
    if as_json:
        output.print_json(found)
    else:
        _show_runs(place.shown(), found)
    if any(run.problem for run in found):
        raise typer.Exit(1)


def _show_runs(shown: str, found: list[Run]) -> None:
    console = output.stdout()
    newest = found[-1]
    console.print(f"[bold]{escaped(shown)}[/], {plural(len(found), 'run')} of {escaped(newest.source or '?')}")
    numbers = ("run", "series", "from", "to", "messages", "added", "bytes added")
    table = output.listing("run", "made", *numbers[1:], "last message", numbers=numbers)
    for run in found:
        if run.problem:
            table.add_row(str(run.number), "[red]damaged[/]", *[""] * 7)
            continue
        table.add_row(
            str(run.number), moment(run.made_ms), str(run.series), number(run.start), number(run.end),
            number(run.records), number(run.new_records), size(run.new_bytes), moment(run.last_ms),
        )  # fmt: skip
    console.print(table)
    for run in found:
        if run.problem:
            output.note(f"[red]![/] {escaped(run.problem)}")


@app.command()
def verify(target: Place, manifest: Manifest = None, as_json: AsJson = False) -> None:
    """Read a whole backup and verify every message and every small file.

    Exits with 1 if something is damaged.
    """
    from pyromq.backup.checking import check

    with _stoppable("what was read is as it was saved"), output.progress_bar("Verifying") as progress:
        report = check(target_at(target), number=manifest, progress=progress)
    if as_json:
        output.print_json({"ok": report.ok, **output.plain(report)})
    else:
        output.show_report(report, as_json=False)
    if not report.ok:
        output.note(
            "What is damaged cannot be restored: copy those files from another copy of the backup, restore an older "
            "run that does not need them (--manifest), or begin a new series (--new-series) while the broker has its "
            "log."
        )
        raise typer.Exit(1)


@app.command()
def prune(
    target: Place,
    before: Annotated[
        str,
        typer.Option("--before", metavar="TIME", help=f"Remove messages stored before: {TIME}.", show_default=False),
    ],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove the segments of a backup whose messages are all older than a time, and the runs that need them.

    The last segment is always kept.
    """
    from pyromq.backup.pruning import prune as job

    place, until = target_at(target), moment_of(before, "--before")
    assert until is not None
    output.agree(f"remove what was stored before {until:%Y-%m-%d %H:%M:%S} from the backup in {place.shown()}", yes=yes)
    output.show_report(job(place, before_ms=int(until.timestamp() * 1000)), as_json)


# --- restoring -------------------------------------------------------------------------------------------------------


def restore(
    target: Place,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The store directory to create: empty or missing.", show_default=False)
    ],
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help=f"Leave out messages stored later: {TIME}.")
    ] = None,
    until_position: Annotated[
        int | None, typer.Option("--until-position", min=0, metavar="N", help="Leave out the log after this position.")
    ] = None,
    manifest: Manifest = None,
    as_json: AsJson = False,
) -> None:
    """Restore a backup into a store directory, for a PyroMQ or an Apache RocketMQ broker.

    Every message is verified. DIR must be empty or missing.
    """
    from pyromq.backup.planning import Until
    from pyromq.backup.restoring import restore as job

    if until is not None and until_position is not None:
        raise typer.BadParameter("say --until or --until-position, not both", param_hint="--until")
    end = moment_of(until, "--until")
    then = f"{directory} is no store yet; restore to it again"
    with _stoppable(then), output.progress_bar("Restoring") as progress:
        report = job(
            target_at(target), directory, number=manifest, until=Until(_ms(end), until_position), progress=progress
        )
    output.show_report(report, as_json)


def _ms(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp() * 1000)
