"""A broker and a name server on a thread of this process, with an event loop of their own.

They are the ones that `pyromq up` runs, not imitations: what a test proves with them holds in production. Code under
test may be blocking or run on any event loop: it only ever talks to them over the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from pyromq.broker.supervisor import BrokerLife
from pyromq.config import BrokerConfig, LimitsConfig, NameServerConfig
from pyromq.nameserver.assembly import NameServer
from pyromq.testing.brokers.broker_options import BrokerOptions
from pyromq.testing.brokers.local_broker import LocalBroker
from pyromq.testing.brokers.ports import LOOPBACK


class EmbeddedBroker(LocalBroker):
    """In this process. It cannot crash alone: for that, `pyromq.testing.broker(process=True)`."""

    def __init__(self, options: BrokerOptions) -> None:
        super().__init__(options)
        self._life: _Life | None = None

    @property
    def is_running(self) -> bool:
        return self._life is not None

    def _launch(self) -> None:
        home = self.data_dir
        broker = self._options.config(home / "store", self._broker_port)
        names = _name_server_config(home, self._name_server_port, broker.limits)
        life = _Life(names, broker)
        life.begin()
        self._life = life

    def _end(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            life.end()


def _name_server_config(home: Path, port: int, limits: LimitsConfig) -> NameServerConfig:
    return NameServerConfig(
        listen_host=LOOPBACK, listen_port=port, kv_config_path=home / "nameserver" / "kvConfig.json", limits=limits
    )


class _Life:
    """From one start to the next stop."""

    def __init__(self, names: NameServerConfig, broker: BrokerConfig) -> None:
        self._names = names
        self._broker = broker
        self._ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pyromq-testing", daemon=True)

    def begin(self) -> None:
        """Return when it serves; raise what keeps it from that."""
        self._thread.start()
        try:
            self._ready.result()
        except BaseException:
            self._thread.join()
            raise

    def end(self) -> None:
        """Stop cleanly. Raises what stopped it before."""
        loop, stop = self._ready.result()
        with contextlib.suppress(RuntimeError):  # it has failed, and its loop is closed
            loop.call_soon_threadsafe(stop.set)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001  it is raised in the waiting thread
            self._failure = error
            if not self._ready.done():
                self._ready.set_exception(error)

    async def _serve(self) -> None:
        stop = asyncio.Event()
        async with self._serving_names() as names:
            servers = dict.fromkeys((names.address, *self._broker.name_servers))
            async with BrokerLife(replace(self._broker, name_servers=tuple(servers))).running() as life:
                self._ready.set_result((asyncio.get_running_loop(), stop))
                await _until(stop, life)

    @contextlib.asynccontextmanager
    async def _serving_names(self) -> AsyncIterator[NameServer]:
        server = NameServer(self._names)
        await server.start()
        try:
            yield server
        finally:
            await server.stop()


async def _until(stop: asyncio.Event, broker: BrokerLife) -> None:
    """Serve until it is stopped, or until the broker fails: then raise the reason."""
    tasks = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(broker.wait_failed())]
    done, going_on = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in going_on:
        task.cancel()
    await asyncio.gather(*going_on, return_exceptions=True)
    for task in done:
        task.result()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
