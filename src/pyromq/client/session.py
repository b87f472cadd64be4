"""The common part of producers, consumers and admin tools: connections, routes, heartbeats, brokers' requests.

    async with Session("localhost:9876") as session:
        answer = await session.ask(address, request)

Every background task belongs to the session: it ends with it, and one that fails is in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import ssl
import weakref
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, Self

from pyromq.auth.signature import Credentials, sign
from pyromq.client.answers import error_of
from pyromq.client.options import ClientOptions, parse_name_servers, tls_context
from pyromq.client.routes import MASTER, Routes
from pyromq.config import LimitsConfig
from pyromq.errors import ClientClosed, NoPermission, PyroMQError
from pyromq.net.client import Client
from pyromq.net.connection import Connection
from pyromq.net.service import Handler, Service
from pyromq.wire.bodies.heartbeat import ConsumerData, HeartbeatData, encode_heartbeat
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.client import Heartbeat, Request, UnregisterClient

log = logging.getLogger("pyromq.client")

#: A stop waits this long for brokers to acknowledge the unregistration.
GOODBYE_SECONDS = 1.0
#: It waits this long for cancelled tasks: handlers may ignore the cancellation.
END_SECONDS = 2.0

#: A client reads answers regardless of how many of its requests wait to be sent: a server that does the same would else
#: wait for it for ever. How much may wait is limited where messages are sent.
_LIMITS = LimitsConfig(max_unsent_bytes_per_connection=1 << 40, max_unsent_bytes=1 << 40)

#: The pauses between looks at a route of which something is wrong.
WATCH_SECONDS = (0.0, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0)

_instances = itertools.count(1)
#: All of this process, for the moment when it becomes two.
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


class Session:
    """One client in the eyes of brokers."""

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        tls: ssl.SSLContext | bool | None = None,
        credentials: Credentials | None = None,
        options: ClientOptions | None = None,
    ) -> None:
        self.options = options or ClientOptions()
        self.clock = self.options.clock
        self.client_id = self.options.client_id or _new_client_id(self.clock.now_ms())
        _sessions.add(self)
        self._addresses = parse_name_servers(name_servers)
        self._tls = tls_context(tls)
        self._sign = None if credentials is None else partial(sign, credentials=credentials)
        self._service = Service({})
        self._client: Client | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Tasks that are cancelled now are to end.
        self.is_closing = False
        #: On which connection each broker has heard of this client; None for one that could not be reached.
        self._heard: dict[str, Connection | None] = {}
        #: The brokers that did not want to hear of this client when they were told last, and why.
        self._unwelcome: dict[str, NoPermission] = {}
        #: Addresses that are asked at the moment whether they are there.
        self._doubted: set[str] = set()
        #: Topics whose routes are looked at more often than usual.
        self._watched: set[str] = set()
        self.routes = Routes(self._addresses, self.ask)
        self.routes.on_master.append(self._greet)
        #: The content of heartbeats: the groups this client is in.
        self.producer_groups: set[str] = set()
        self.consumers: dict[str, Callable[[], ConsumerData]] = {}
        #: Requests before the unregistration, also at an interrupted stop. No background task runs any more.
        self.last_words: list[Callable[[], Awaitable[None]]] = []

    # --- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def is_open(self) -> bool:
        return self._client is not None

    def start(self) -> None:
        """Connections are opened on first use."""
        if self._client is not None:
            raise ClientClosed("this client was started already")
        self.is_closing = False
        self._client = Client(
            self._service.handle,
            _LIMITS,
            tls=self._tls,
            sign=self._sign,
            on_slow=self._wonder,
            connect_timeout_s=self.options.connect_timeout_s,
        )
        self.spawn(self._every(self.options.heartbeat_s, self.heartbeat))
        self.spawn(self._every(self.options.route_refresh_s, self.routes.refresh_all))

    async def close(self) -> None:
        """Unregister from the brokers, end background tasks, close the connections. Closing twice is fine."""
        client, tasks = self._client, tuple(self._tasks)
        if client is None:
            return
        self.is_closing = True
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=END_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await asyncio.gather(*(say() for say in self.last_words))
            await self._say_goodbye()
        finally:  # also without time to unregister: brokers notice the closed connection
            self.last_words.clear()
            self._client = None
            await client.close(grace_s=0.2)

    def leave_to_parent(self) -> None:
        """This process was forked from another one: connections and tasks are the other one's, and the name too."""
        self._client = None
        for mine in (self._tasks, self._heard, self._doubted, self._watched):
            mine.clear()
        if self.options.client_id is None:
            self.client_id = _new_client_id(self.clock.now_ms())

    def spawn(self, work: Coroutine[Any, Any, Any], kind: type[asyncio.Task[Any]] | None = None) -> asyncio.Task[Any]:
        """Run a background task for as long as the session lasts."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work) if kind is None else kind(work, loop=loop)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a part of the client %s stopped working", self.client_id, exc_info=error)

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except Exception:  # it must go on: brokers forget a client that is silent, and routes grow old
                log.exception("the client %s failed at what it does now and then", self.client_id)

    # --- asking ------------------------------------------------------------------------------------------------------

    async def ask(
        self,
        address: str,
        request: Request,
        timeout_s: float | None = None,
        *,
        ok: Collection[int] = (ResponseCode.SUCCESS,),
    ) -> Command:
        """The answer, when its code is one of `ok`; raises what other codes stand for, Unreachable and CallTimeout."""
        limit = self.options.call_timeout_s if timeout_s is None else timeout_s
        answer = await self._open_client().call(address, request, limit)
        if answer.code not in ok:
            raise error_of(answer, address)
        return answer

    async def tell(self, address: str, request: Request) -> None:
        """Send a request that has no answer. Raises Unreachable."""
        await self._open_client().tell(address, request)

    def connected(self, address: str) -> Connection | None:
        """The open connection to an address, if there is one: for those who have no time to wait for nothing."""
        return self._open_client().connected(address)

    async def connect(self, address: str) -> Connection:
        """The connection to an address, made now if there is none. Raises Unreachable."""
        return await self._open_client().connect(address)

    def _open_client(self) -> Client:
        if self._client is None:
            raise ClientClosed("this client is not running: use it within `async with`, or start it first")
        return self._client

    def watch_route(self, topic: str) -> None:
        """Refresh the route in the background, more often than usual for some seconds: a broker does not answer, or its
        master has changed, and a new route is expected soon."""
        if topic not in self._watched and self.is_open:
            self._watched.add(topic)
            watching = self.spawn(self._watch(topic))
            watching.add_done_callback(lambda _: self._watched.discard(topic))

    async def _watch(self, topic: str) -> None:
        for pause_s in WATCH_SECONDS:
            await asyncio.sleep(pause_s)
            await self.routes.look_again(topic)
        while self.routes.masterless(topic):
            await asyncio.sleep(WATCH_SECONDS[-1])
            await self.routes.look_again(topic)

    # --- being asked -------------------------------------------------------------------------------------------------

    def on(self, kind: type[Request], handler: Handler) -> None:
        """Set the handler of brokers' requests to this client."""
        self._service.register(kind, handler)

    # --- heartbeats --------------------------------------------------------------------------------------------------

    async def heartbeat(self) -> None:
        """Send heartbeats to every known broker. Unreachable ones get the next one."""
        if not self.producer_groups and not self.consumers:
            return
        body = self._introduction()
        await asyncio.gather(*(self._beat(address, body) for address in self._listeners()))

    def _greet(self, _: str, address: str) -> None:
        """A new master has no clients. It gets a heartbeat if the one before had one."""
        if self._heard and self.is_open:
            self.spawn(self._beat(address, self._introduction()))

    def _introduction(self) -> bytes:
        return encode_heartbeat(
            HeartbeatData(
                client_id=self.client_id,
                producer_groups=tuple(sorted(self.producer_groups)),
                consumers=tuple(describe() for describe in self.consumers.values()),
            )
        )

    def doubt(self, address: str) -> None:
        """Probe a connection in the background after a request timed out. A dead connection is closed, and the next
        request opens another."""
        if address not in self._doubted and self.is_open:
            self._doubted.add(address)
            probe = self.spawn(self._beat(address, self._introduction()))
            probe.add_done_callback(lambda _: self._doubted.discard(address))

    def _wonder(self, address: str) -> None:
        """A request takes longer than usual. That is fine unless another master leads in its place; a name
        server without a master may have forgotten it."""
        masters = [addresses.get(MASTER) for addresses in self.routes.brokers().values()]
        if address not in masters and None not in masters:
            self._open_client().forget(address, "it no longer leads")
        elif (topic := self.routes.topic_at(address)) is not None:
            self.watch_route(topic)

    def _listeners(self) -> list[str]:
        """Masters hear of producers; consumers read from slaves too."""
        return [
            address
            for addresses in self.routes.brokers().values()
            for broker_id, address in addresses.items()
            if broker_id == MASTER or self.consumers
        ]

    async def _beat(self, address: str, body: bytes) -> None:
        try:
            connection = await self.connect(address)
            await self.ask(address, Heartbeat(body=body))
        except PyroMQError as error:
            self._heard[address] = None
            if isinstance(error, NoPermission):
                self._unwelcome[address] = error
            log.warning("the heartbeat to %s failed: %s", address, error)
        else:
            self._heard[address] = connection
            self._unwelcome.pop(address, None)

    def check_welcome(self) -> None:
        """Raise NoPermission when all known brokers refuse this client: its keys are wrong, and waiting is no help."""
        listeners = self._listeners()
        if listeners and all(address in self._unwelcome for address in listeners):
            raise self._unwelcome[listeners[0]]

    async def introduce(self) -> None:
        """Have every known broker hear of this client before it needs to ask it something: what it brings replies and
        questions to is the connection that it heard of it on."""
        listeners = self._listeners()
        if any(
            address not in self._heard or self._heard[address] is not self.connected(address) for address in listeners
        ):
            await self.heartbeat()

    async def _say_goodbye(self) -> None:
        farewells = [
            *(UnregisterClient(client_id=self.client_id, producer_group=group) for group in self.producer_groups),
            *(UnregisterClient(client_id=self.client_id, consumer_group=group) for group in self.consumers),
        ]
        await asyncio.gather(
            *(self._part(address, farewell) for address in self._listeners() for farewell in farewells)
        )

    async def _part(self, address: str, farewell: UnregisterClient) -> None:
        if self.connected(address) is None:
            return  # the broker has no registration of this client
        try:
            await self.ask(address, farewell, GOODBYE_SECONDS)
        except PyroMQError as error:
            log.debug("%s did not hear that we are gone: %s", address, error)


def _forked() -> None:
    for session in tuple(_sessions):
        session.leave_to_parent()


os.register_at_fork(after_in_child=_forked)


def _new_client_id(now_ms: int) -> str:
    """Unlike any other: the machine, the process, and a number that is new in it."""
    return f"{socket.gethostname()}@{os.getpid()}#{now_ms:x}-{next(_instances)}"
