"""`pyromq cluster`: look at all brokers of a cluster, and restart them one after the other."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from pyromq.cli import output
from pyromq.cli.admin.broker_views import show_brokers
from pyromq.cli.admin.programs import run, words_of
from pyromq.cli.connecting import AsJson, BrokerName, ClusterName, NameServers, Yes, ask, paragraphs, typed_options
from pyromq.cli.output import escaped, plural
from pyromq.cli.reaching import DEFAULT_NAME_SERVER
from pyromq.clock import SystemClock
from pyromq.errors import NotNow, PyroMQError
from pyromq.net.address import parse_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyromq.admin.admin import Admin
    from pyromq.admin.brokers import BrokerStatus
    from pyromq.admin.rolling import Step, Team

#: Time for brokers to become healthy before a rolling restart is refused.
WELL_SECONDS = 10.0
LOOK_AGAIN_SECONDS = 0.5

app = typer.Typer(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})


@app.callback()
def cluster(ctx: typer.Context, as_json: AsJson = False, name_servers: NameServers = DEFAULT_NAME_SERVER) -> None:
    """Show the cluster: every broker with its state, replication and message rates."""
    if ctx.invoked_subcommand is None:
        show_brokers(as_json, name_servers)
    elif given := typed_options(ctx):
        output.fail(f"{given[0]} is for looking at the cluster: put it behind {ctx.invoked_subcommand!r}", 2)


def roll(
    command: Annotated[
        str | None,
        typer.Option(
            "--command", metavar="COMMAND",
            help="Restarts a broker's process, for new code or settings: run for each, without a shell, with {name}, "
            "{id}, {address} and {host} put in; else brokers restart within their processes.",
        ),
    ] = None,
    cluster_name: ClusterName = None,
    broker: BrokerName = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="Time for each broker to be in sync again.")
    ] = 300.0,
    yes: Yes = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:  # fmt: skip
    """Restart all brokers, one after the other, while clients keep working.

    For each name it restarts the slaves first and waits until each is in sync again; then the master hands over to a
    slave and restarts as a slave. It stops at the first problem. Restarted brokers stay restarted, and the command may
    be run again.

    For an upgrade: pyromq cluster roll --command 'ssh {host} systemctl restart pyromq'
    """
    if command is not None:
        words_of(command, dict.fromkeys(("name", "id", "address", "host"), ""))
    with output.working("is everybody well?"):
        teams = ask(name_servers, lambda admin: _teams(admin, cluster_name, broker))
    output.agree(_described(teams, by_command=command is not None), yes=yes)
    ask(name_servers, lambda admin: _roll(admin, teams, command, timeout_s))


app.command(help=paragraphs(roll.__doc__))(roll)


async def _teams(admin: Admin, cluster_name: str | None, broker: str | None) -> Sequence[Team]:
    """Slaves that are on their way to a new master have a moment."""
    from pyromq.admin.rolling import teams_of

    until, told = SystemClock().monotonic() + WELL_SECONDS, False
    while True:
        try:
            return teams_of(await admin.brokers.statuses(), cluster=cluster_name, broker=broker)
        except NotNow as problem:
            if SystemClock().monotonic() > until:
                raise
            if not told:
                output.note(escaped(f"waiting, {WELL_SECONDS:g} s at most: {problem}"))
            told = True
        await asyncio.sleep(LOOK_AGAIN_SECONDS)


def _described(teams: Sequence[Team], *, by_command: bool) -> str:
    told = f"restart {plural(sum(team.brokers for team in teams), 'broker')}, one after the other."
    for team in teams:
        if not team.slaves:
            told += f" {team.name} has no slave: until it is back, sends to it fail and nobody reads from it."
        elif by_command and len(team.slaves) == 1 and team.master.copying and team.master.copying.role == "SYNC_MASTER":
            told += f" {team.name} waits for its only slave: while that is away, sends to it take long or are unknown."
    return told


async def _roll(admin: Admin, teams: Sequence[Team], command: str | None, timeout_s: float) -> None:
    from pyromq.admin.rolling import Rolling, steps_of

    restart = None if command is None else partial(_run_for, command, timeout_s)
    rolling = Rolling(admin.brokers, admin.leading, restart=restart, timeout_s=timeout_s)
    steps = [step for team in teams for step in steps_of(team)]
    for done, step in enumerate(steps):
        began = SystemClock().monotonic()
        try:
            with output.working(f"{step} ({done + 1} of {len(steps)})"):
                await rolling.take(step)
        except asyncio.CancelledError:
            output.note(
                escaped(
                    f"stopped by Ctrl-C: {done} of {len(steps)} done. What was begun ({step}) goes on by itself: "
                    "`pyromq cluster` shows how it ends; then run the same again"
                )
            )
            raise
        except PyroMQError as problem:
            where = f"stopped at {done + 1} of {len(steps)} ({step})"
            raise NotNow(f"{where}: {problem}; when that is well, run the same again") from problem
        _tell(step, SystemClock().monotonic() - began)
    output.stdout().print(f"[green]✓[/] restarted {plural(len(steps), 'broker')}")


def _tell(step: Step, seconds: float) -> None:
    output.stdout().print(f"[green]✓[/] {escaped(step)}, {output.duration(seconds)}", soft_wrap=True)


async def _run_for(command: str, timeout_s: float, broker: BrokerStatus) -> None:
    host, _ = parse_address(broker.address)
    values = {"name": broker.name, "id": str(broker.broker_id), "address": broker.address, "host": host}
    await run(words_of(command, values), timeout_s)
