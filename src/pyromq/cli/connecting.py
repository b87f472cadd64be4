"""What every command that asks a cluster has in common: where it is, who asks, and how the answer is shown.

The name servers come from `--name-servers`, else from NAMESRV_ADDR, else it is the one on this machine. Keys and
certificates come from the environment alone: what is on a command line can be read by everybody on the machine.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar

import typer

from pyromq.cli.completing import groups, topics
from pyromq.errors import ConfigError

if TYPE_CHECKING:
    from pyromq.admin.admin import Admin
    from pyromq.auth.signature import Credentials

Result = TypeVar("Result")

DEFAULT_NAME_SERVER = "127.0.0.1:9876"

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
AsJson = Annotated[bool, typer.Option("--json", help="For scripts: JSON and nothing else.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, do it.")]
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


class Connection(TypedDict):
    """The keywords that every client takes."""

    tls: ssl.SSLContext | bool | None
    credentials: Credentials | None


def connection() -> Connection:
    """From PYROMQ_TLS, PYROMQ_ACCESS_KEY, PYROMQ_SECRET_KEY and PYROMQ_SECURITY_TOKEN. Raises ConfigError."""
    return {"tls": _tls(os.environ.get("PYROMQ_TLS", "")), "credentials": _credentials()}


def _tls(wanted: str) -> ssl.SSLContext | bool | None:
    """`1`: checked with the system's authorities; a file: with the authorities in it."""
    if wanted.lower() in ("", "0", "no", "off", "false"):
        return None
    if wanted.lower() in ("1", "yes", "on", "true"):
        return True
    try:
        return ssl.create_default_context(cafile=wanted)
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"PYROMQ_TLS is {wanted!r}, which is no file of certificates: {why}", "PYROMQ_TLS") from None


def _credentials() -> Credentials | None:
    access, secret = os.environ.get("PYROMQ_ACCESS_KEY"), os.environ.get("PYROMQ_SECRET_KEY")
    if not access and not secret:
        return None
    if not access or not secret:
        raise ConfigError("PYROMQ_ACCESS_KEY and PYROMQ_SECRET_KEY belong together: one of them is missing")
    from pyromq.auth.signature import Credentials

    return Credentials(access, secret, os.environ.get("PYROMQ_SECURITY_TOKEN") or None)


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
