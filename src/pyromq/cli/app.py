"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from pyromq import __version__
from pyromq.cli import doctor, messages, serve, store, tour
from pyromq.cli.output import FriendlyGroup, show_warnings

app = typer.Typer(
    name="pyromq",
    cls=FriendlyGroup,
    help="A message queue in Python that speaks Apache RocketMQ.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(serve.up)
app.command("nameserver")(serve.nameserver)
app.command("broker")(serve.broker)
app.command("send")(messages.send)
app.command("consume")(messages.consume)
app.add_typer(store.app, name="store")
app.command("doctor")(doctor.doctor)
app.command("try")(tour.tour)


def _version(wanted: bool) -> None:
    if wanted:
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
    app()
