"""Test support for programs on PyroMQ: a broker for a test, and simulated faults.

    with pyromq.testing.broker(topics={"orders": 4}) as mq:
        ...                              # any client, with mq.name_servers as its name server

`SimDisk` is a disk whose power can be cut, `FaultProxy` a network that can be cut, and `History` with `check` says
whether a broker and its clients kept their guarantees. Everything is imported on first use: a test run that uses
none of it does not pay for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

if TYPE_CHECKING:
    from pyromq.testing.brokers.embedded import EmbeddedBroker
    from pyromq.testing.brokers.fault_proxy import Direction, FaultProxy
    from pyromq.testing.brokers.local_broker import LocalBroker
    from pyromq.testing.brokers.process import BrokerProcess
    from pyromq.testing.history.check import Report, check
    from pyromq.testing.history.history import History
    from pyromq.testing.sim.crash_choice import CrashChoice, CrashMode
    from pyromq.testing.sim.disk import PowerCut, SimDisk

__all__ = [
    "BrokerProcess", "CrashChoice", "CrashMode", "Direction", "EmbeddedBroker", "FaultProxy", "History", "LocalBroker",
    "PowerCut", "Report", "SimDisk", "broker", "check",
]  # fmt: skip

_HOME_OF = {
    "BrokerProcess": "brokers.process",
    "CrashChoice": "sim.crash_choice",
    "CrashMode": "sim.crash_choice",
    "Direction": "brokers.fault_proxy",
    "EmbeddedBroker": "brokers.embedded",
    "FaultProxy": "brokers.fault_proxy",
    "History": "history.history",
    "LocalBroker": "brokers.local_broker",
    "PowerCut": "sim.disk",
    "Report": "history.check",
    "SimDisk": "sim.disk",
    "check": "history.check",
}


@overload
def broker(
    *,
    topics: Mapping[str, int] | Iterable[str] = ...,
    auto_create_topics: bool = ...,
    flush: Literal["async", "sync"] = ...,
    data_dir: Path | str | None = ...,
    advertise: str | None = ...,
    config: Mapping[str, object] | None = ...,
    process: Literal[False] = ...,
) -> EmbeddedBroker: ...


@overload
def broker(
    *,
    topics: Mapping[str, int] | Iterable[str] = ...,
    auto_create_topics: bool = ...,
    flush: Literal["async", "sync"] = ...,
    data_dir: Path | str | None = ...,
    advertise: str | None = ...,
    config: Mapping[str, object] | None = ...,
    process: Literal[True],
) -> BrokerProcess: ...


def broker(
    *,
    topics: Mapping[str, int] | Iterable[str] = (),
    auto_create_topics: bool = True,
    flush: Literal["async", "sync"] = "async",
    data_dir: Path | str | None = None,
    advertise: str | None = None,
    config: Mapping[str, object] | None = None,
    process: bool = False,
) -> LocalBroker:
    """A real broker and its name server on free loopback ports, for one `with` or `async with`. Raises ConfigError.

    `topics` are there when the block begins: names, or names with their numbers of queues. Data goes to a directory
    that is removed afterwards, unless `data_dir` names one, which is kept. `flush="sync"` waits for the disk before a
    send is acknowledged. `advertise` (`host:port`) is the broker's address for clients, for one behind a
    `FaultProxy`. `config` has further settings of the broker by their paths: `{"store.max_body_bytes": 1024}`.

    It runs on a thread of this process; with `process=True` it is a process of its own, which can be killed.
    """
    from pyromq.testing.brokers.broker_options import options_of

    options = options_of(
        topics=topics, auto_create_topics=auto_create_topics, flush=flush, data_dir=data_dir, advertise=advertise,
        config=config or {},
    )  # fmt: skip
    if process:
        from pyromq.testing.brokers.process import BrokerProcess

        return BrokerProcess(options)
    from pyromq.testing.brokers.embedded import EmbeddedBroker

    return EmbeddedBroker(options)


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = found
    return found
