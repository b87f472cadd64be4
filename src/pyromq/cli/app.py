"""The commands, put together. A command's module is imported when the command is run, or shown in the help.

That is for the start of a server: it need not wait for what only other commands use.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyromq.cli.output import FriendlyGroup, show_warnings
from pyromq.cli.streams import take_all_characters

if TYPE_CHECKING:
    from typer.core import TyperCommand, TyperGroup

#: Variable in which a shell asks for completions; see `completion`.
COMPLETION = "_PYROMQ_COMPLETE"

CONTEXT = {"help_option_names": ["-h", "--help"]}

SERVERS, MESSAGES, CLUSTER = "Run it", "Try it", "Look at a cluster, change it"
DATA, TOOLS = "Work on much of it", "Look inside"

#: In the order of the help: the panel that a command is shown in, and where its function or group is.
COMMANDS = {
    "up": (SERVERS, "pyromq.cli.servers.serve", "up"),
    "nameserver": (SERVERS, "pyromq.cli.servers.serve", "nameserver"),
    "broker": (SERVERS, "pyromq.cli.admin.brokers", "app"),
    "demo": (MESSAGES, "pyromq.cli.demo.command", "demo"),
    "send": (MESSAGES, "pyromq.cli.messages.send_and_consume", "send"),
    "consume": (MESSAGES, "pyromq.cli.messages.send_and_consume", "consume"),
    "tail": (MESSAGES, "pyromq.cli.messages.send_and_consume", "tail"),
    "cluster": (CLUSTER, "pyromq.cli.admin.clusters", "app"),
    "topic": (CLUSTER, "pyromq.cli.admin.topics", "app"),
    "group": (CLUSTER, "pyromq.cli.admin.groups", "app"),
    "consumer": (CLUSTER, "pyromq.cli.admin.consumers", "app"),
    "producer": (CLUSTER, "pyromq.cli.admin.consumers", "producers_app"),
    "message": (CLUSTER, "pyromq.cli.messages.commands", "app"),
    "dlq": (CLUSTER, "pyromq.cli.messages.dead_letters", "app"),
    "backup": (DATA, "pyromq.cli.backup", "app"),
    "restore": (DATA, "pyromq.cli.backup", "restore"),
    "spark": (DATA, "pyromq.cli.spark.commands", "app"),
    "store": (TOOLS, "pyromq.cli.store", "app"),
    "bench": (TOOLS, "pyromq.cli.messages.bench", "bench"),
    "doctor": (TOOLS, "pyromq.cli.servers.doctor", "doctor"),
    "completion": (TOOLS, "pyromq.cli.completion", "completion"),
}


class Commands(FriendlyGroup):
    """Knows the names of its commands before it has any of them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            self.commands[cmd_name] = _load(cmd_name)
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS:  # suggestions need all commands loaded
            for name in COMMANDS:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)


def _load(name: str) -> TyperCommand | TyperGroup:
    panel, module, attribute = COMMANDS[name]
    found: typer.Typer | Callable[..., None] = getattr(import_module(module), attribute)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name, rich_help_panel=panel)
        command: Any = typer.main.get_command(alone).commands[name]  # type: ignore[attr-defined]
    else:
        alone.command(name, rich_help_panel=panel, help=_paragraphs(found))(found)
        command = typer.main.get_command(alone)
    return command  # type: ignore[no-any-return]


def _paragraphs(found: Callable[..., None]) -> str:
    """The docstring without its line ends: a terminal has a width of its own."""
    return "\n\n".join(" ".join(part.split()) for part in (found.__doc__ or "").split("\n\n"))


app = typer.Typer(
    name="pyromq",
    cls=Commands,
    help="A message queue in Python that speaks Apache RocketMQ. Start with: pyromq up",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


def _version(wanted: bool) -> None:
    if wanted:
        from pyromq import __version__

        typer.echo(f"pyromq {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and stop.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    show_warnings()


def main() -> None:
    take_all_characters()
    if COMPLETION in os.environ:  # a shell asks
        from typer.completion import get_completion_inspect_parameters

        get_completion_inspect_parameters()  # teaches typer the ways that shells ask in
    app()
