"""Options and helpers shared by the commands that connect to a cluster.

The name servers come from `--name-servers`, else from NAMESRV_ADDR, else it is the one on this machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pyromq.cli.completing import groups, topics
from pyromq.cli.reaching import connection
from pyromq.errors import ConfigError

if TYPE_CHECKING:
    from pyromq.admin.admin import Admin

Result = TypeVar("Result")

NameServers = Annotated[
    str,
    typer.Option(
        "--name-servers",
        "-n",
        metavar="HOST:PORT;…",
        envvar="NAMESRV_ADDR",
        help="Name servers to ask.",
        rich_help_panel="Cluster",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
TopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False, autocompletion=topics)
]
GroupName = Annotated[
    str, typer.Argument(metavar="GROUP", help="The consumer group.", show_default=False, autocompletion=groups)
]
ClusterName = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Only this cluster.", rich_help_panel="Cluster")
]
BrokerName = Annotated[
    str | None, typer.Option("--broker", metavar="NAME", help="Only this broker.", rich_help_panel="Cluster")
]


def require(name_servers: str) -> str:
    """Raises ConfigError where none is named."""
    if not name_servers.replace(";", " ").strip():
        raise ConfigError("no name server is given: use --name-servers")
    return name_servers


def ask(name_servers: str, work: Callable[[Admin], Awaitable[Result]]) -> Result:
    """Do something with an admin client, and wait for it. Ctrl-C ends it with exit code 130."""
    try:
        return asyncio.run(_asked(name_servers, work))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


async def _asked(name_servers: str, work: Callable[[Admin], Awaitable[Result]]) -> Result:
    from pyromq.admin.admin import Admin

    async with Admin(require(name_servers), **connection()) as admin:
        return await work(admin)


def group_of_commands(help_text: str, **more: Any) -> typer.Typer:
    """A command with commands of its own."""
    return typer.Typer(
        help=help_text, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]}, **more
    )


def paragraphs(text: str | None) -> str:
    """A docstring without its line ends: a terminal has a width of its own."""
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


def typed_options(ctx: typer.Context) -> list[str]:
    """Return the options that were given to the command group itself."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return [
        f"--{name.removeprefix('as_').replace('_', '-')}"
        for name, one in sources.items()
        if one and one.name == "COMMANDLINE"
    ]
