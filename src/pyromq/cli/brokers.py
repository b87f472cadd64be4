"""`pyromq broker` and `pyromq cluster`: look at running brokers and change their settings.

`pyromq broker` without a command of its own starts a broker, as it always has; what that needs is imported first, and
what the other commands need only when they run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from pyromq.cli import output, serve
from pyromq.cli.completing import brokers
from pyromq.cli.connecting import AsJson, NameServers, Yes, ask
from pyromq.cli.output import ago, duration, escaped, moment, plural, rate, size
from pyromq.cli.reaching import DEFAULT_NAME_SERVER
from pyromq.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyromq.admin.brokers import BrokerStatus, Copying

app = typer.Typer(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})

Broker = Annotated[
    str,
    typer.Argument(metavar="BROKER", help="Its name, or its address.", show_default=False, autocompletion=brokers),
]


def _starting(start: Callable[..., None]) -> Callable[..., None]:
    """The command that starts a broker, where no other command is given. Its options belong to no other."""

    def callback(ctx: typer.Context, **options: Any) -> None:
        if ctx.invoked_subcommand is None:
            start(**options)
            return
        given = [name for name in options if _is_typed(ctx, name)]
        if given:
            wrong = f"--{given[0].replace('_', '-')}"
            output.fail(f"{wrong} is for starting a broker: put it behind {ctx.invoked_subcommand!r}, if it has it", 2)

    hints = get_type_hints(start, include_extras=True)
    parameters = inspect.signature(start).parameters.values()
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    told: Any = callback
    told.__signature__ = inspect.Signature([context, *(one.replace(annotation=hints[one.name]) for one in parameters)])
    told.__annotations__ = {"ctx": typer.Context, **hints}
    told.__doc__ = f"{start.__doc__}\n\nWith one of the commands below it looks at brokers that run, or changes them."
    return callback


def _is_typed(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


_start = _starting(serve.broker)
app.callback(help=_paragraphs(_start.__doc__ or ""))(_start)


# --- looking ---------------------------------------------------------------------------------------------------------


def cluster(as_json: AsJson = False, name_servers: NameServers = DEFAULT_NAME_SERVER) -> None:
    """Show the cluster: every broker, how it is doing, and how much comes and goes."""
    _list(as_json, name_servers)


@app.command("list")
def list_brokers(as_json: AsJson = False, name_servers: NameServers = DEFAULT_NAME_SERVER) -> None:
    """List the brokers of the cluster, and how they are doing."""
    _list(as_json, name_servers)


def _list(as_json: bool, name_servers: str) -> None:
    found = ask(name_servers, lambda admin: admin.brokers.statuses())
    if as_json:
        output.print_json([_status_json(one) for one in found])
    elif found:
        for name in dict.fromkeys(one.cluster for one in found):
            _show_cluster(name, [one for one in found if one.cluster == name])
    else:
        output.note("no broker has registered yet: start one with `pyromq broker`, or wait a moment")
    if any(one.problem for one in found):
        raise typer.Exit(1)


def _show_cluster(name: str, found: Sequence[BrokerStatus]) -> None:
    console = output.stdout()
    console.print(f"[bold]{escaped(name)}[/], {plural(len(found), 'broker')}")
    table = output.listing(
        "broker", "id", "address", "version", "in/s", "out/s", "disk", "copies", numbers=("id", "in/s", "out/s", "disk")
    )
    for one in found:
        where = [escaped(one.name), str(one.broker_id), escaped(one.address)]
        if one.problem:
            table.add_row(*where, "[red]no answer[/]", "", "", "", "")
        else:
            table.add_row(
                *where, _version(one), rate(one.in_per_second), rate(one.out_per_second), _disk(one.disk_used),
                _copies(one.copying),
            )  # fmt: skip
    console.print(table)
    for one in found:
        if one.problem:
            output.note(f"[red]![/] {escaped(f'{one.name}: {one.problem}')}")


def _role(broker_id: int) -> str:
    return "master" if broker_id == 0 else f"slave {broker_id}"


def _copies(copying: Copying | None) -> str:
    """Who copies a master, or how a slave is doing, in a few words."""
    if copying is None:
        return ""
    if copying.role == "SLAVE":
        return _behind(copying) if copying.is_connected else "[red]copies nobody[/]"
    if not copying.slaves:
        return "[red]none, and waits for one[/]" if copying.role == "SYNC_MASTER" else "none"
    colour = "green" if copying.slaves_in_sync == copying.slaves else "yellow"
    return f"[{colour}]{copying.slaves_in_sync} of {copying.slaves} in sync[/], {_behind(copying)}"


def _behind(copying: Copying) -> str:
    return f"{size(copying.lag_bytes)} behind" if copying.lag_bytes else "level"


def _version(status: BrokerStatus) -> str:
    return f"PyroMQ {escaped(status.pyromq_version)}" if status.pyromq_version else escaped(status.version)


def _disk(used: float) -> str:
    colour = "red" if used > 0.85 else "yellow" if used > 0.75 else "green"
    return f"[{colour}]{used:.0%}[/]"


@app.command()
def status(
    broker: Broker,
    figures: Annotated[bool, typer.Option("--all", "-a", help="Everything that the broker tells.")] = False,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Show how one broker is doing."""
    found = ask(name_servers, lambda admin: admin.brokers.status(broker))
    if as_json:
        output.print_json(_status_json(found) | {"figures": dict(found.figures)})
        return
    now_ms = SystemClock().now_ms()
    facts = output.facts()
    facts.add_row("broker", f"[bold]{escaped(found.name)}[/], {_role(found.broker_id)}")
    facts.add_row("cluster", escaped(found.cluster))
    if found.copying is not None:
        since = f", for {duration(found.copying.lag_ms / 1000)}" if found.copying.lag_ms else ""
        facts.add_row("copies", f"{_copies(found.copying)}{since} ({escaped(found.copying.role)})")
    if found.copying is not None and found.copying.master:
        facts.add_row("copy of", escaped(found.copying.master))
    facts.add_row("address", escaped(found.address))
    facts.add_row("version", f"{_version(found)}, speaks {escaped(found.version)}")
    facts.add_row("started", f"{moment(found.started_ms)} ({ago(found.started_ms, now_ms)})")
    facts.add_row("coming in", f"{rate(found.in_per_second)}/s, {plural(found.messages_in_today, 'message')} today")
    facts.add_row("going out", f"{rate(found.out_per_second)}/s, {plural(found.messages_out_today, 'message')} today")
    facts.add_row("log", f"{size(found.log_bytes)}, the oldest message is from {moment(found.oldest_message_ms)}")
    facts.add_row("disk in use", _disk(found.disk_used))
    if found.clock_ms:
        facts.add_row("clock", f"within {duration(max(abs(found.clock_ms - now_ms) / 1000, 1))} of this machine's")
    for name, value in found.figures.items() if figures else ():
        facts.add_row(escaped(name), escaped(value))
    output.stdout().print(facts)


@app.command()
def config(
    broker: Broker,
    search: Annotated[str | None, typer.Option("--search", help="Only names with this in them.")] = None,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Show the settings of a running broker, by RocketMQ's names."""
    found = ask(name_servers, lambda admin: admin.brokers.config(broker))
    chosen = {name: value for name, value in found.items() if (search or "").lower() in name.lower()}
    if as_json:
        output.print_json(chosen)
        return
    facts = output.facts()
    for name, value in chosen.items():
        facts.add_row(escaped(name), escaped(value))
    output.stdout().print(facts)


@app.command("set")
def change(
    broker: Broker,
    settings: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE…", help="Settings, by RocketMQ's names.", show_default=False)
    ],
    yes: Yes = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Change settings of a running broker, all of them or none. It keeps them when it starts again."""
    wanted = dict(_pair(one) for one in settings)
    known = ask(name_servers, lambda admin: admin.brokers.config(broker))
    changes = ", ".join(f"{name} from {known.get(name, 'nothing')} to {value}" for name, value in wanted.items())
    output.agree(f"change on {broker}: {changes}.", yes=yes)
    ask(name_servers, lambda admin: admin.brokers.change(broker, wanted))
    output.stdout().print(f"[green]✓[/] changed {plural(len(wanted), 'setting')} of [bold]{escaped(broker)}[/]")


def _pair(written: str) -> tuple[str, str]:
    name, equals, value = written.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{written!r} is no NAME=VALUE", param_hint="NAME=VALUE")
    return name, value


def _status_json(one: BrokerStatus) -> dict[str, Any]:
    return {
        "cluster": one.cluster,
        "broker": one.name,
        "id": one.broker_id,
        "address": one.address,
        "version": one.version,
        "pyromq_version": one.pyromq_version,
        "started_ms": one.started_ms or None,
        "in_per_second": one.in_per_second,
        "out_per_second": one.out_per_second,
        "messages_in_today": one.messages_in_today,
        "messages_out_today": one.messages_out_today,
        "log_bytes": one.log_bytes,
        "disk_used": one.disk_used,
        "oldest_message_ms": one.oldest_message_ms or None,
        "copies": None if one.copying is None else asdict(one.copying),
        "problem": one.problem,
    }
