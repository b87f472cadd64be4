"""`pyromq up`, `pyromq nameserver`, `pyromq broker`: the servers, in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pyromq import __version__
from pyromq.broker.assembly import Broker
from pyromq.cli import output
from pyromq.cli.logs import LogFormat, LogLevel, start_logging
from pyromq.cli.output import escaped
from pyromq.config import BrokerConfig, NameServerConfig
from pyromq.config.load import Loaded, load_broker, load_name_server
from pyromq.nameserver.assembly import NameServer

log = logging.getLogger("pyromq")

#: What other programs wait for on stdout.
READY = "PyroMQ is up"

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="Settings: TOML, or RocketMQ's own .conf taken as it is."),
]
Level = Annotated[LogLevel, typer.Option("--log-level", help="How much is said on stderr.")]
Format = Annotated[LogFormat, typer.Option("--log-format", help="Lines for people, or JSON for machines.")]
AllowPublic = Annotated[
    bool | None,
    typer.Option(
        "--allow-public/--loopback-only",
        help="Listen where other machines can connect, although nobody has to log in.",
        show_default="loopback only",
    ),
]


def up(
    data_dir: Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="Where everything is kept.")] = Path(
        "pyromq-data"
    ),
    nameserver_port: Annotated[int, typer.Option(help="Port of the name server; 0: any free one.")] = 9876,
    broker_port: Annotated[int, typer.Option(help="Port of the broker; 0: any free one.")] = 10911,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    config: ConfigFile = None,
    allow_public: AllowPublic = None,
    log_level: Level = LogLevel.WARNING,
    log_format: Format = LogFormat.TEXT,
) -> None:
    """Name server and broker in one process: everything that a producer and a consumer need.

    Topics and consumer groups are made when they are first used. Ctrl-C stops it cleanly, and the next start goes on
    with the same messages.
    """
    start_logging(log_level, log_format)
    name_server = load_name_server(
        None,
        environ=os.environ,
        overrides={
            "listen_host": host, "listen_port": nameserver_port, "allow_public": allow_public,
            "kv_config_path": data_dir / "nameserver" / "kvConfig.json",
        },
    )  # fmt: skip
    broker = load_broker(
        config,
        environ={"PYROMQ_BROKER_AUTO_CREATE_TOPICS": "true", "PYROMQ_BROKER_AUTO_CREATE_GROUPS": "true", **os.environ},
        overrides={
            "listen_host": host, "listen_port": broker_port, "allow_public": allow_public,
            "store.root": data_dir / "store",
        },
    )  # fmt: skip
    _run(lambda: _up(name_server, broker, data_dir))


def nameserver(
    config: ConfigFile = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0: any free one.", show_default="9876")] = None,
    allow_public: AllowPublic = None,
    log_level: Level = LogLevel.INFO,
    log_format: Format = LogFormat.TEXT,
) -> None:
    """A name server: tells clients which broker has which topic.

    Run two or three of them, side by side. They know nothing of each other: brokers register with all, clients ask
    any. Flags win over the environment (PYROMQ_NAMESERVER_LISTEN_PORT …), and that over the file.
    """
    start_logging(log_level, log_format)
    overrides = {"listen_host": host, "listen_port": port, "allow_public": allow_public}
    loaded = load_name_server(config, environ=os.environ, overrides=overrides)
    _run(lambda: _name_server(loaded))


def broker(
    config: ConfigFile = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0: any free one.", show_default="10911")] = None,
    name_servers: Annotated[
        str | None, typer.Option("--name-servers", "-n", metavar="HOST:PORT;…", help="Name servers to register with.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The broker's name.", show_default="broker-a")] = None,
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The store directory.", show_default="pyromq-data/store")
    ] = None,
    allow_public: AllowPublic = None,
    log_level: Level = LogLevel.INFO,
    log_format: Format = LogFormat.TEXT,
) -> None:
    """A broker: stores messages and hands them to consumers.

    It starts and serves without a name server, and registers as soon as one answers. Flags win over the environment
    (PYROMQ_BROKER_LISTEN_PORT …, NAMESRV_ADDR), and that over the file.
    """
    start_logging(log_level, log_format)
    overrides = {
        "listen_host": host, "listen_port": port, "name_servers": name_servers, "name": name, "store.root": store,
        "allow_public": allow_public,
    }  # fmt: skip
    loaded = load_broker(config, environ=os.environ, overrides=overrides)
    _run(lambda: _broker(loaded))


# --- running ---------------------------------------------------------------------------------------------------------


def _run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """On uvloop where it is installed."""
    factory = None
    if find_spec("uvloop") is not None:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work())


async def _stopped() -> None:
    """Return when somebody wants the program to end."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    log.info("stopping")


async def _until_stopped(*failures: Coroutine[Any, Any, None]) -> None:
    """Serve until a signal comes, or until one of these raises."""
    tasks = [asyncio.ensure_future(one) for one in (_stopped(), *failures)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for task in done:
        task.result()


@contextlib.asynccontextmanager
async def _serving_names(config: NameServerConfig) -> AsyncIterator[NameServer]:
    server = NameServer(config)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def _warn(loaded: Loaded[Any]) -> None:
    for warning in loaded.warnings:
        log.warning("%s", warning)


async def _name_server(loaded: Loaded[NameServerConfig]) -> None:
    _warn(loaded)
    async with _serving_names(loaded.config) as server:
        _say(f"{READY}: name server on {server.address}")
        await _until_stopped()


async def _broker(loaded: Loaded[BrokerConfig]) -> None:
    _warn(loaded)
    async with Broker(loaded.config).running() as server:
        _say(f"{READY}: broker {loaded.config.name} on {server.address}, store in {loaded.config.store.root}")
        await _until_stopped(server.wait_failed())


async def _up(name_server: Loaded[NameServerConfig], broker: Loaded[BrokerConfig], data_dir: Path) -> None:
    from dataclasses import replace

    for warning in dict.fromkeys([*name_server.warnings, *broker.warnings]):
        log.warning("%s", warning)
    async with _serving_names(name_server.config) as names:
        config = replace(broker.config, name_servers=(names.address, *broker.config.name_servers))
        async with Broker(config).running() as server:
            _welcome(output.stdout(), names.address, server.address, data_dir)
            await _until_stopped(server.wait_failed())
    output.stdout().print("Stopped cleanly.")


def _say(line: str) -> None:
    output.stdout().print(escaped(line))


def _welcome(console: Console, names: str, server: str, data_dir: Path) -> None:
    console.print(f"[bold]{READY}[/] (version {__version__})")
    table = output.facts()
    table.add_row("name server", names)
    table.add_row("broker", server)
    table.add_row("data", escaped(data_dir))
    console.print(table)
    option = "" if names == "127.0.0.1:9876" else f" -n {names}"
    console.print("\nTry it in another terminal:")
    console.print(f'  [bold]pyromq send hello "my first message"{option}[/]')
    console.print(f"  [bold]pyromq consume hello{option}[/]")
    console.print(f"\nAny RocketMQ client works: its name server address is [bold]{names}[/]. Ctrl-C stops.")
