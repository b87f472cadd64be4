"""`pyromq up`, `pyromq nameserver`, `pyromq broker`: the servers, in the foreground, until Ctrl-C or SIGTERM.

SIGINT, SIGTERM, SIGQUIT, SIGXCPU and SIGPWR stop cleanly, with exit code 0. SIGHUP, SIGUSR1 and SIGUSR2 are logged and
ignored: a server outlives its terminal, and reads its settings at the start only. The signals of timers and
descriptors, and real-time signals, are ignored. A fatal error is one sentence and exit code 1, after the servers that
already run are stopped. Servers are imported when they are started, so that a name server does not load the broker's
code.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import pyromq
from pyromq.cli import output
from pyromq.cli.output import escaped
from pyromq.cli.reaching import DEFAULT_NAME_SERVER
from pyromq.cli.running import as_called
from pyromq.cli.servers.logs import LogFormat, LogLevel, start_logging
from pyromq.config import BrokerConfig, NameServerConfig, StoreConfig
from pyromq.config.load import DEFAULT_DATA, Loaded, load_broker, load_name_server
from pyromq.errors import ConfigError, PyroMQError
from pyromq.net.address import shown_address
from pyromq.store.paths import StorePaths

if TYPE_CHECKING:
    from pyromq.broker.broker import Broker
    from pyromq.nameserver.assembly import NameServer

log = logging.getLogger("pyromq")

#: First words of the line on stdout that other programs wait for.
READY = "PyroMQ is up"
#: End of the error text for a port in use.
ANOTHER_PORT = "choose another port"
#: Addresses that mean "all of this machine": good to listen on, useless to connect to.
WILDCARDS = ("0.0.0.0", "::")  # noqa: S104  they are compared with
#: An address of documentation: nothing is sent there, the system is asked which way it would go.
SOMEWHERE = {"0.0.0.0": ("192.0.2.1", 9), "::": ("2001:db8::1", 9)}  # noqa: S104


#: SIGXCPU: the soft limit of processor time (`ulimit -t`). SIGPWR: containers of LXC, and power supplies; Linux only.
STOPPING = tuple(one for one in signal.Signals if one.name in ("SIGINT", "SIGTERM", "SIGQUIT", "SIGXCPU", "SIGPWR"))
IGNORED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: End a process by default, and come from timers and descriptors, maybe of the program that started the server: many a
#: second, so they are ignored without a log line. On Linux real-time signals are as well.
SILENTLY_IGNORED = tuple(
    one for one in signal.Signals if one.name in ("SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPOLL", "SIGSTKFLT")
)


class BrokerRole(StrEnum):
    """As `brokerRole` in RocketMQ's files, in the way of options."""

    ASYNC_MASTER = "async-master"
    SYNC_MASTER = "sync-master"
    SLAVE = "slave"


def role_named(written: str) -> BrokerRole:
    """As options write it or as RocketMQ's files do: sync-master, SYNC_MASTER. Raises BadParameter."""
    try:
        return BrokerRole(written.strip().lower().replace("_", "-"))
    except ValueError:
        raise typer.BadParameter(f"{written!r} is none of {', '.join(BrokerRole)}") from None


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Settings: TOML if the name ends in .toml, else RocketMQ's key=value format.",
    ),
]
Host = Annotated[str | None, typer.Option("--host", metavar="HOST", help="Address to listen on. Default: 127.0.0.1.")]
AdvertiseHost = Annotated[
    str | None,
    typer.Option(
        "--advertise-host", metavar="HOST", help="Host that clients connect to. Default: the listening address."
    ),
]
AllowPublic = Annotated[
    bool | None,
    typer.Option(
        "--allow-public",
        help="Let --host be an address that other machines reach, although there is no authentication.",
    ),
]
Role = Annotated[
    BrokerRole | None,
    typer.Option(
        "--role", metavar="ROLE", parser=role_named,
        help="async-master acknowledges messages that it has itself, sync-master messages that slaves have too; slave "
        "replicates the master of its name.",
    ),
]  # fmt: skip
Level = Annotated[
    LogLevel,
    typer.Option("--log-level", metavar="LEVEL", help="Log level on stderr: debug, info, warning or error."),
]
Format = Annotated[
    LogFormat,
    typer.Option("--log-format", metavar="FORMAT", help="Log format: text or json."),
]


def up(
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Data directory. Default: pyromq-data."),
    ] = None,
    nameserver_port: Annotated[
        int | None,
        typer.Option(
            "--nameserver-port", metavar="PORT", help="Port of the name server. Default: 9876; 0: any free port."
        ),
    ] = None,
    broker_port: Annotated[
        int | None,
        typer.Option("--broker-port", metavar="PORT", help="Port of the broker. Default: 10911; 0: any free port."),
    ] = None,
    host: Host = None,
    advertise_host: AdvertiseHost = None,
    role: Role = None,
    allow_public: AllowPublic = None,
    config: ConfigFile = None,
    log_level: Level = LogLevel.WARNING,
    log_format: Format = LogFormat.TEXT,
) -> None:
    """Start everything: a name server and a broker in one process.

    PyroMQ's and RocketMQ's clients need only the name server's address. Topics and consumer groups are created at first
    use. Ctrl-C stops it cleanly, and the next start has the same messages. A --config file has the broker's settings.
    """
    with _reporting(log_level, log_format):
        common = {"listen_host": host, "allow_public": allow_public}
        home = data_dir or DEFAULT_DATA
        _refuse_store(home)
        names = load_name_server(
            None,
            environ=os.environ,
            overrides={**common, "listen_port": nameserver_port, "kv_config_path": home / "nameserver/kvConfig.json"},
        )
        store = {"store.root": home / "store"}
        broker = load_broker(
            config,
            environ=os.environ,
            overrides={
                **common, "listen_port": broker_port, "advertise_host": advertise_host, **(store if data_dir else {}),
                "role": role and role.name,
            },
            defaults={"auto_create_topics": True, "auto_create_groups": True, **store},
        )  # fmt: skip
        _refuse_lonely_slave(broker.config)
        _run(lambda stop: _up(names, broker, stop))


def nameserver(
    config: ConfigFile = None,
    host: Host = None,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="PORT", help="Port to listen on. Default: 9876; 0: any free port."),
    ] = None,
    allow_public: AllowPublic = None,
    log_level: Level = LogLevel.INFO,
    log_format: Format = LogFormat.TEXT,
) -> None:
    """Start a name server: the directory of brokers and their topics.

    Run two or three of them. They do not talk to each other: brokers register with all, clients ask any. Options
    override the environment (PYROMQ_NAMESERVER_LISTEN_PORT …), which overrides the file.
    """
    with _reporting(log_level, log_format):
        overrides = {"listen_host": host, "listen_port": port, "allow_public": allow_public}
        loaded = load_name_server(config, environ=os.environ, overrides=overrides)
        _run(lambda stop: _name_server(loaded, stop))


def broker(
    config: ConfigFile = None,
    host: Host = None,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="PORT", help="Port to listen on. Default: 10911; 0: any free port."),
    ] = None,
    advertise_host: AdvertiseHost = None,
    role: Role = None,
    broker_id: Annotated[
        int | None,
        typer.Option("--id", metavar="NUMBER", help="Broker id: 0 for a master, from 1 on for the slaves of a name."),
    ] = None,
    name_servers: Annotated[
        str | None, typer.Option("--name-servers", "-n", metavar="HOST:PORT;…", help="Name servers to register with.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="Name of the broker, shared by a master and its slaves. Default: broker-a."
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option("--store", metavar="DIR", help="Store directory. Default: pyromq-data/store."),
    ] = None,
    allow_public: AllowPublic = None,
    log_level: Level = LogLevel.INFO,
    log_format: Format = LogFormat.TEXT,
) -> None:
    """Start a broker: it stores messages and delivers them to consumers.

    It starts without a name server, too, and registers as soon as one answers. A slave gets the address of its master
    from the name servers, by default from that on this machine. Options override the environment
    (PYROMQ_BROKER_LISTEN_PORT …, NAMESRV_ADDR), which overrides the file.
    """
    with _reporting(log_level, log_format):
        overrides = {
            "listen_host": host, "listen_port": port, "advertise_host": advertise_host, "name_servers": name_servers,
            "name": name, "store.root": store, "allow_public": allow_public, "role": role and role.name,
            "broker_id": broker_id,
        }  # fmt: skip
        loaded = load_broker(config, environ=os.environ, overrides=overrides)
        _run(lambda stop: _broker(loaded, stop))


# --- running ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _reporting(level: LogLevel, form: LogFormat) -> Iterator[None]:
    """Start the log. Where machines read it, what stops the program is a line of it as well."""
    start_logging(level, form)
    try:
        yield
    except (PyroMQError, OSError) as error:
        if form is LogFormat.TEXT:
            raise
        log.critical("%s", output.sentence(error))
        raise typer.Exit(1) from None


def _run(work: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Give the work an event that a signal sets. On uvloop where it is installed."""
    factory = None
    if find_spec("uvloop") is not None:
        import uvloop

        factory = uvloop.new_event_loop
    _keep_standard_streams()
    if os.geteuid() == 0:
        log.info("running as root; a user of its own that may write nothing but the data directory is safer")
    with asyncio.Runner(loop_factory=factory) as runner:
        stop = asyncio.Event()
        _handle_signals(runner.get_loop(), stop)
        runner.run(work(stop))


def _handle_signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    for number in STOPPING:
        loop.add_signal_handler(number, _stop, stop, number)
    for number in IGNORED:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup: nothing to say either
            loop.add_signal_handler(number, _ignore, number)
    real_time = range(getattr(signal, "SIGRTMIN", 1), getattr(signal, "SIGRTMAX", 0) + 1)
    for each in (*SILENTLY_IGNORED, *real_time):
        if signal.getsignal(each) is signal.SIG_DFL:  # a profiler has a handler of its own
            signal.signal(each, signal.SIG_IGN)


def _keep_standard_streams() -> None:
    """The parent process may have closed them, and a socket must not get their descriptors."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _ignore(number: signal.Signals) -> None:
    log.warning("%s is ignored: SIGTERM stops this server; settings are read at its start only", number.name)


def _stop(stop: asyncio.Event, number: signal.Signals) -> None:
    if not stop.is_set():
        log.info("stopping because of %s", number.name)
        stop.set()


async def _until(stop: asyncio.Event, *failures: Coroutine[Any, Any, None]) -> None:
    """Serve until a signal comes, or until one of these raises."""
    gc.freeze()  # exclude the objects of the start from garbage collection: they live until the end
    tasks = [asyncio.ensure_future(one) for one in (stop.wait(), *failures)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


@contextlib.asynccontextmanager
async def _serving_names(config: NameServerConfig, port_option: str) -> AsyncIterator[NameServer]:
    from pyromq.nameserver.assembly import NameServer

    server = NameServer(config)
    try:
        await server.start()
    except ConfigError as error:
        if str(error).endswith(ANOTHER_PORT):
            raise ConfigError(f"{error} with {port_option}", "listen_port") from None
        raise
    try:
        yield server
    finally:
        await server.stop()


async def _name_server(loaded: Loaded[NameServerConfig], stop: asyncio.Event) -> None:
    _warn(loaded.warnings)
    async with _serving_names(loaded.config, "--port") as server:
        _say(f"{READY}: name server on {server.address}")
        await _until(stop)
    log.info("stopped cleanly")


async def _broker(loaded: Loaded[BrokerConfig], stop: asyncio.Event) -> None:
    from pyromq.broker.supervisor import BrokerLife

    _warn(loaded.warnings)
    config = _reachable(_with_a_name_server(loaded.config))
    _check_directories(config.store)
    async with BrokerLife(config).running() as life:
        where = _where(life.broker)
        log.info("broker %s (version %s) serves on %s", config.name, pyromq.__version__, where)
        _say(f"{READY}: broker {config.name} on {where}, store in {config.store.root}")
        await _until(stop, life.wait_failed())
    log.info("stopped cleanly")


async def _up(names: Loaded[NameServerConfig], broker: Loaded[BrokerConfig], stop: asyncio.Event) -> None:
    from pyromq.broker.supervisor import BrokerLife

    _warn([*names.warnings, *broker.warnings])
    config = _reachable(broker.config)
    _check_directories(config.store)
    async with _serving_names(names.config, "--nameserver-port") as found:
        near = names.config.listen_host if names.config.listen_host not in WILDCARDS else "localhost"
        far = config.client_host if names.config.listen_host in WILDCARDS else near
        servers = dict.fromkeys((shown_address(near, found.port), *config.name_servers))
        async with BrokerLife(replace(config, name_servers=tuple(servers))).running() as life:
            _welcome(shown_address(far, found.port), life.broker.address, config)
            await _until(stop, life.wait_failed())
    _say("Stopped cleanly.")


def _with_a_name_server(config: BrokerConfig) -> BrokerConfig:
    """A slave without configured name servers or master uses the default name server."""
    if not config.is_slave or config.name_servers or config.replication.primary:
        return config
    log.info(
        "no name server is given: asking the one of this machine, %s, where the master of %s is; --name-servers names "
        "another",
        DEFAULT_NAME_SERVER,
        config.name,
    )
    return replace(config, name_servers=(DEFAULT_NAME_SERVER,))


def _refuse_lonely_slave(config: BrokerConfig) -> None:
    """Raise ConfigError for a slave together with a new name server, which knows no master."""
    if config.is_slave and not config.name_servers and not config.replication.primary:
        raise ConfigError(
            "`pyromq up` starts a name server of its own, which knows no master that a slave could copy: start the "
            "slave with `pyromq broker --role slave`, and name the name server of its master with --name-servers",
            "role",
        )


def _refuse_store(home: Path) -> None:
    """Raises ConfigError: what `up` keeps is in directories inside, and a store would get another one inside it."""
    if StorePaths(home).commit_log.is_dir():
        raise ConfigError(
            f"{home} is itself a store, and --data-dir is a directory with the store in `store`: start a broker on it "
            f"with `pyromq broker --store {home}`, or move it to {home}/store"
        )


def _reachable(config: BrokerConfig) -> BrokerConfig:
    """A broker that listens on all addresses advertises one of them: the source address of this machine's traffic."""
    if config.client_host not in WILDCARDS:
        return config
    family = socket.AF_INET6 if ":" in config.client_host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(SOMEWHERE[config.client_host])
            host = str(probe.getsockname()[0])
    except OSError:
        raise ConfigError(
            f"{config.client_host} is no address that a client could connect to, and this machine has no other network "
            "that would tell one: give it with --advertise-host (advertise_host, brokerIP1)",
            "advertise_host",
        ) from None
    log.info("clients are told to connect to %s; --advertise-host gives another address", host)
    return replace(config, advertise_host=host)


def _check_directories(store: StoreConfig) -> None:
    _check_directory(store.root)
    if store.log_is_apart:
        _check_directory(store.log_directory)


def _check_directory(root: Path) -> None:
    """Raises ConfigError for a store directory that cannot be made or written."""
    why = ""
    try:
        root.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        why = "there is a file where a directory should be"
    except OSError as error:
        why = error.strerror or str(error)
    else:
        why = "" if os.access(root, os.W_OK | os.X_OK) else "this user may not write there"
    if why:
        raise ConfigError(f"the store directory {root} cannot be used: {why}; give another one")


# --- output ----------------------------------------------------------------------------------------------------------


def _warn(warnings: list[str]) -> None:
    for warning in dict.fromkeys(warnings):
        log.warning("%s", warning)


def _where(server: Broker) -> str:
    """Return the listening address, and the advertised one if it differs."""
    listens = shown_address(server.config.listen_host, server.server.port)
    return listens if listens == server.address else f"{listens} (clients are told {server.address})"


def _say(*lines: str) -> None:
    """Keep serving after the reader of stdout closed it: rich would end the program on a closed pipe."""
    console = output.stdout()
    with contextlib.suppress(SystemExit, OSError):
        for line in lines:
            console.print(escaped(line), soft_wrap=True)


def _welcome(names: str, broker: str, config: BrokerConfig) -> None:
    option = "" if names == DEFAULT_NAME_SERVER else f" -n {names}"
    command = as_called()
    try_it = (
        "Send a message and receive it, in another terminal:",
        f'  {command} send hello "my first message"{option} && {command} consume hello --count 1{option}',
        "",
    )
    _say(
        f"{READY} (version {pyromq.__version__})",
        f"  name server  {names}",
        f"  broker       {broker}",
        f"  data         {config.store.root}",
        "",
        *(() if config.is_slave else try_it),
        f"Any RocketMQ client works: its name server address is {names}. Ctrl-C stops.",
    )
