"""The common part of brokers for tests, in this process or another: addresses, a directory, topics, a clean end.

It is used with `with` or `async with`. In between it can be stopped and started on the same ports and data.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

from pyromq.clock import SystemClock
from pyromq.errors import ConfigError, NotNow, ServiceError
from pyromq.model.topic import Permission
from pyromq.net.address import shown_address
from pyromq.testing.brokers.asking import ask
from pyromq.testing.brokers.broker_options import DEFAULT_QUEUES, BrokerOptions
from pyromq.testing.brokers.ports import LOOPBACK, broker_ports, free_broker_port, free_port, give_back
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.admin import UpdateTopic
from pyromq.wire.requests.nameserver import GetRoute

#: Another process may take a free port before the server listens on it.
PORT_ATTEMPTS = 10
#: A server's message about a port that is in use.
TAKEN = "another program listens there"
#: A new topic is in the name server's table a moment after the broker has it.
ROUTE_SECONDS = 5.0
LOOK_AGAIN_SECONDS = 0.002


class LocalBroker(ABC):
    """A broker and its name server on this machine, for as long as a test needs them."""

    def __init__(self, options: BrokerOptions) -> None:
        self._options = options
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._name_server_port = 0
        self._broker_port = options.port
        self._is_closed = False

    # --- where it is -------------------------------------------------------------------------------------------------

    @property
    def name_servers(self) -> str:
        """The name server's address for clients, as `host:port`."""
        self._require_ports()
        return shown_address(LOOPBACK, self._name_server_port)

    @property
    def broker_address(self) -> str:
        """The broker's own address. Clients need it only to bypass the advertised one."""
        self._require_ports()
        return shown_address(LOOPBACK, self._broker_port)

    @property
    def data_dir(self) -> Path:
        """Laid out as `pyromq up --data-dir` does it: the store is in `store`."""
        if self._options.data_dir is not None:
            return self._options.data_dir
        if self._temporary is None:
            raise NotNow("this broker has no directory: it was not started, or its block has ended")
        return Path(self._temporary.name)

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """It was started and not stopped."""

    def _require_ports(self) -> None:
        if not self._name_server_port:
            raise NotNow("this broker has no address yet: use it as `with pyromq.testing.broker() as mq:`")

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Serve: for the first time, or again on the same ports and data. Raises ConfigError, StoreError."""
        if self._is_closed:
            raise NotNow("this broker's block has ended and its data is gone: make another one")
        if self.is_running:
            raise NotNow("this broker runs already: stop it first, or use restart()")
        first = not self._name_server_port
        self._make_directory()
        self._launch_on_free_ports() if first else self._launch()
        if first:
            self._make_topics()

    def stop(self) -> None:
        """Stop cleanly. Data and ports are kept for the next start."""
        if self.is_running:
            self._end()

    def restart(self) -> None:
        """Stop cleanly and start again on the same ports and data; clients are to find their way back."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop for good. A directory that was made for this broker is removed."""
        self._is_closed = True
        try:
            self.stop()
        finally:
            self._give_ports_back()
            if self._temporary is not None:
                self._temporary.cleanup()
                self._temporary = None

    @abstractmethod
    def _launch(self) -> None:
        """Start on the chosen ports, and return when it serves; undo everything on an error."""

    @abstractmethod
    def _end(self) -> None: ...

    def _make_directory(self) -> None:
        if self._options.data_dir is not None:
            self._options.data_dir.mkdir(parents=True, exist_ok=True)
        elif self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="pyromq-", ignore_cleanup_errors=True)

    def _launch_on_free_ports(self) -> None:
        for attempt in range(1, PORT_ATTEMPTS + 1):
            self._broker_port = self._options.port or free_broker_port()
            self._name_server_port = free_port(besides={self._broker_port})
            try:
                return self._launch()
            except ConfigError as error:
                self._give_ports_back()
                if attempt == PORT_ATTEMPTS or self._options.port or not _is_taken(error):
                    self._name_server_port = 0
                    raise
        return None

    def _give_ports_back(self) -> None:
        """Those that were chosen here."""
        give_back(self._name_server_port)
        if not self._options.port:
            give_back(*broker_ports(self._broker_port))

    # --- topics ------------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, queues: int = DEFAULT_QUEUES) -> None:
        """Make a topic, and return when the name server tells clients of it. Raises ServiceError, CallFailed."""
        request = UpdateTopic(
            topic=name, read_queues=queues, write_queues=queues, permission=int(Permission.READ_WRITE)
        )
        answer = ask(self.broker_address, request)
        if answer.code != ResponseCode.SUCCESS:
            raise ServiceError(f"the topic {name} was not made: {answer.reason}")
        self._await_route(name)

    def _make_topics(self) -> None:
        try:
            for name, queues in self._options.topics.items():
                self.create_topic(name, queues)
        except BaseException:
            self._end()
            raise

    def _await_route(self, topic: str) -> None:
        clock, pause = SystemClock(), threading.Event()
        deadline = clock.monotonic() + ROUTE_SECONDS
        while ask(self.name_servers, GetRoute(topic=topic)).code != ResponseCode.SUCCESS:
            if clock.monotonic() > deadline:
                raise NotNow(f"the name server does not know the topic {topic} {ROUTE_SECONDS:g} s after it was made")
            pause.wait(LOOK_AGAIN_SECONDS)  # there is no event for the registration

    # --- with --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await _beside(self.__enter__, undo=self.close)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _beside(self.close)


async def _beside(work: Callable[[], object], undo: Callable[[], None] | None = None) -> None:
    """Run a blocking call on a thread, so that the caller's loop continues. It is never abandoned half done."""
    done: Future[object] = Future()
    thread = threading.Thread(target=_settle, args=(done, work), name="pyromq-testing-starter", daemon=True)
    thread.start()
    try:
        await asyncio.shield(asyncio.wrap_future(done))
    except asyncio.CancelledError:
        thread.join()
        if undo is not None:
            undo()
        raise
    finally:
        thread.join()


def _settle(done: Future[object], work: Callable[[], object]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:  # noqa: BLE001  it is raised in the waiting thread
        done.set_exception(error)


def _is_taken(error: ConfigError) -> bool:
    return TAKEN in str(error)
