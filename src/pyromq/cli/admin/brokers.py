"""`pyromq broker`: start, list, configure and promote brokers.

Without a command `pyromq broker` starts a broker. Its imports come first; other commands import when they run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from pyromq.cli import output
from pyromq.cli.admin.broker_views import show_brokers, status_facts, status_json
from pyromq.cli.admin.promote import forget_member, promote
from pyromq.cli.completing import brokers
from pyromq.cli.connecting import AsJson, NameServers, Yes, ask, paragraphs, typed_options
from pyromq.cli.output import escaped, plural
from pyromq.cli.reaching import DEFAULT_NAME_SERVER
from pyromq.cli.servers import serve
from pyromq.clock import SystemClock

if TYPE_CHECKING:
    from pyromq.admin.brokers import BrokerStatus

app = typer.Typer(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})

Broker = Annotated[
    str,
    typer.Argument(metavar="BROKER", help="Name or address of the broker.", show_default=False, autocompletion=brokers),
]


def _starting(start: Callable[..., None]) -> Callable[..., None]:
    """The command that starts a broker, where no other command is given. Its options belong to no other."""

    def callback(ctx: typer.Context, **options: Any) -> None:
        if ctx.invoked_subcommand is None:
            start(**options)
            return
        if given := typed_options(ctx):
            output.fail(
                f"{given[0]} is for starting a broker: put it behind {ctx.invoked_subcommand!r}, if it has it", 2
            )

    hints = get_type_hints(start, include_extras=True)
    parameters = inspect.signature(start).parameters.values()
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    told: Any = callback
    told.__signature__ = inspect.Signature([context, *(one.replace(annotation=hints[one.name]) for one in parameters)])
    told.__annotations__ = {"ctx": typer.Context, **hints}
    told.__doc__ = f"{start.__doc__}\n\nWith one of the commands below it looks at brokers that run, or changes them."
    return callback


_start = _starting(serve.broker)
app.callback(help=paragraphs(_start.__doc__))(_start)


# --- looking ---------------------------------------------------------------------------------------------------------


@app.command("list")
def list_brokers(as_json: AsJson = False, name_servers: NameServers = DEFAULT_NAME_SERVER) -> None:
    """List the brokers of the cluster with their state."""
    show_brokers(as_json, name_servers)


@app.command()
def status(
    broker: Broker,
    figures: Annotated[bool, typer.Option("--all", "-a", help="Show all figures of the broker.")] = False,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Show the state of one broker: role, replication, disk and message rates."""
    from pyromq.admin.directory import no_master

    found = ask(name_servers, lambda admin: admin.brokers.status(broker))
    if as_json:
        output.print_json(status_json(found) | {"figures": dict(found.figures)})
    else:
        _show_status(found, figures)
    if broker == found.name and found.broker_id != 0:  # a name stands for its master
        output.note(f"[red]![/] {escaped(no_master(found.name))}")
        raise typer.Exit(1)


def _show_status(found: BrokerStatus, figures: bool) -> None:
    facts = status_facts(found, SystemClock().now_ms())
    for name, value in found.figures.items() if figures else ():
        facts.add_row(escaped(name), escaped(value))
    output.stdout().print(facts)


@app.command()
def config(
    broker: Broker,
    search: Annotated[str | None, typer.Option("--search", help="Only names that contain this text.")] = None,
    as_json: AsJson = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Show the settings of a running broker under RocketMQ's names."""
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
        list[str], typer.Argument(metavar="NAME=VALUE…", help="Settings under RocketMQ's names.", show_default=False)
    ],
    yes: Yes = False,
    name_servers: NameServers = DEFAULT_NAME_SERVER,
) -> None:
    """Change settings of a running broker: all of them or, if one is invalid, none. They survive a restart."""
    wanted = dict(_pair(one) for one in settings)
    known = ask(name_servers, lambda admin: admin.brokers.config(broker))
    changes = ", ".join(f"{name} from {known.get(name, 'nothing')} to {value}" for name, value in wanted.items())
    output.agree(f"change on {broker}: {changes}.", yes=yes)
    ask(name_servers, lambda admin: admin.brokers.change(broker, wanted))
    output.stdout().print(f"[green]✓[/] changed {plural(len(wanted), 'setting')} of [bold]{escaped(broker)}[/]")


app.command(help=paragraphs(promote.__doc__))(promote)
app.command("forget-member", help=paragraphs(forget_member.__doc__))(forget_member)


def _pair(written: str) -> tuple[str, str]:
    name, equals, value = written.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{written!r} is no NAME=VALUE", param_hint="NAME=VALUE")
    return name, value
