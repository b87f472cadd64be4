"""A cluster that misbehaves on demand: one name server, some brokers, each answering sends as the story wants it.

Real sockets and the real protocol; only what the brokers decide is made up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from pyromq.errors import TopicNotFound
from pyromq.net.peer import Peer
from pyromq.net.server import Server
from pyromq.net.service import Answer, Service
from pyromq.wire.bodies.routes import BrokerData, QueueData, TopicRoute
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import EndTransaction, Heartbeat, SendMessage, SendReply, UnregisterClient
from pyromq.wire.requests.nameserver import GetRoute
from pyromq.wire.responses import Response, SendReceipt

Decide = Callable[[SendMessage], Answer]


class FakeBroker:
    """Keeps what it was sent. `decide` gives the answer; the default stores everything."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sends: list[SendMessage] = []
        self.ends: list[EndTransaction] = []
        self.ended = asyncio.Event()
        self.peers: list[Peer] = []
        self.decide: Decide = self.stored
        self._port = 0
        self._server: Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def start(self) -> None:
        """The first time, or once more on the same port."""
        self._server = Server(
            Service({
                SendMessage: self._send, SendReply: self._send, EndTransaction: self._end,
                Heartbeat: lambda *_: Response(), UnregisterClient: lambda *_: Response(),
            }).handle
        )  # fmt: skip
        await self._server.start("127.0.0.1", self._port)
        self._port = self._server.port

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0.0)

    def _send(self, request: SendMessage, peer: Peer) -> Answer:
        self.sends.append(request)
        self.peers.append(peer)
        return self.decide(request)

    def _end(self, request: EndTransaction, _: Peer) -> Answer:
        self.ends.append(request)
        self.ended.set()
        return Response()

    # --- ways to answer ----------------------------------------------------------------------------------------------

    def stored(self, request: SendMessage, code: int = ResponseCode.SUCCESS) -> Response:
        number = len(self.sends) - 1
        return SendReceipt(
            code=code,
            message_id=f"7F00000100002A9F{number:016X}",
            queue_id=request.queue_id,
            queue_offset=number,
            transaction_id="T-1",
        )

    def refuse(self, code: ResponseCode, times: int = 1 << 30) -> None:
        """Answer with a code, this many times."""
        left = [times]

        def decide(request: SendMessage) -> Answer:
            left[0] -= 1
            return self.stored(request) if left[0] < 0 else Response(code=code, reason="said the story")

        self.decide = decide

    def say_nothing(self, times: int = 1 << 30) -> None:
        """Take the message, and never answer."""
        left = [times]

        def decide(request: SendMessage) -> Answer:
            left[0] -= 1
            return self.stored(request) if left[0] < 0 else _never()

        self.decide = decide

    def wait_for(self, event: asyncio.Event) -> None:
        """Take the message, and answer when this has happened: as one does that waits for its slave."""

        async def decide(request: SendMessage) -> Response:
            await event.wait()
            return self.stored(request)

        self.decide = decide

    def hang_up(self, times: int = 1 << 30) -> None:
        """Take the message, and close the connection in place of an answer."""
        left = [times]

        def decide(request: SendMessage) -> Answer:
            left[0] -= 1
            if left[0] < 0:
                return self.stored(request)
            peer: Any = self.peers[-1]
            peer.abort()
            return None

        self.decide = decide


async def _never() -> Response:
    await asyncio.Event().wait()
    raise AssertionError


class FakeCluster:
    """Brokers with four queues of every topic each, and a name server that knows of them."""

    def __init__(self, names: Iterable[str]) -> None:
        self.brokers = {name: FakeBroker(name) for name in names}
        self.unknown_topics: set[str] = set()
        #: The name server answers every question with an error.
        self.broken = False
        self.queues = 4
        #: This many answers name slaves only: the master is gone, and no other leads yet.
        self.without_master = 0
        self.routes_asked = 0
        self._server = Server(Service({GetRoute: self._route}).handle)

    @property
    def name_servers(self) -> str:
        return f"127.0.0.1:{self._server.port}"

    def __getitem__(self, name: str) -> FakeBroker:
        return self.brokers[name]

    def sends(self) -> list[SendMessage]:
        return [request for broker in self.brokers.values() for request in broker.sends]

    def _route(self, request: GetRoute, _: Peer) -> Response:
        self.routes_asked += 1
        if self.broken:
            return Response(code=ResponseCode.SYSTEM_ERROR, reason="said the story")
        if request.topic in self.unknown_topics:
            raise TopicNotFound(f"no topic {request.topic}")
        brokers = self.brokers.values()
        number, self.without_master = int(self.without_master > 0), max(self.without_master - 1, 0)
        route = TopicRoute(
            tuple(QueueData(broker.name, self.queues, self.queues, 6) for broker in brokers),
            tuple(BrokerData("c", broker.name, {number: broker.address}) for broker in brokers),
        )
        return Response(body=route.encode(standard=True))

    async def stop_names(self) -> None:
        await self._server.stop(0.0)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakeCluster]:
        await self._server.start("127.0.0.1", 0)
        for broker in self.brokers.values():
            await broker.start()
        try:
            yield self
        finally:
            for broker in self.brokers.values():
                await broker.stop()
            await self._server.stop(0.0)


def cluster(*names: str) -> contextlib.AbstractAsyncContextManager[FakeCluster]:
    return FakeCluster(names or ("a",)).running()
