"""Name server and brokers that do what a story wants, over real sockets: for what no real broker does on demand.

Each `FakeBroker` answers like a broker with one topic of one queue whose messages are given to it. A story replaces the
answer to a request with `broker.answers[kind] = function`, and looks at the requests in `broker.asked`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import orjson

from pyromq.model.message import LOCALHOST, Draft
from pyromq.net.peer import Peer
from pyromq.net.server import Server
from pyromq.net.service import Service
from pyromq.records import record
from pyromq.wire.bodies.heartbeat import decode_heartbeat
from pyromq.wire.bodies.locks import decode_lock_request, encode_locked
from pyromq.wire.bodies.routes import BrokerData, QueueData, TopicRoute
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import (
    GetConsumerList,
    GetMaxOffset,
    GetMinOffset,
    Heartbeat,
    LockQueues,
    PullMessage,
    QueryConsumerOffset,
    Request,
    SendBack,
    SendMessage,
    UnlockQueues,
    UnregisterClient,
    UpdateConsumerOffset,
)
from pyromq.wire.requests.nameserver import GetRoute
from pyromq.wire.responses import OffsetAnswer, PullResult, Response

TOPIC = "orders"
#: The time for which a fetch without messages is held.
HOLD_SECONDS = 0.05

Kind = TypeVar("Kind", bound=Request)


def stored(text: str, offset: int, reconsume_times: int = 0, properties: bytes = b"") -> bytes:
    """A message as a broker stores it."""
    draft = Draft(
        topic=TOPIC.encode(), body=text.encode(), queue_id=0, born_timestamp_ms=1, born_host=LOCALHOST,
        store_host=LOCALHOST, reconsume_times=reconsume_times, properties=properties or b"UNIQ_KEY\x01id-%d" % offset,
    )  # fmt: skip
    return record.encode(draft, 1000 * offset, offset, 1_700_000_000_000, with_crc=False)


class FakeBroker:
    """Name server too. `copies` are the addresses of brokers with other ids."""

    def __init__(self, first: int = 0) -> None:
        self.asked: list[Request] = []
        self.messages: dict[int, bytes] = {}
        self.first = self.end = first
        self.committed: int | None = None
        self.copies: dict[int, str] = {}
        self.answers: dict[type[Request], Callable[[Any], Any]] = {
            GetRoute: self._route,
            Heartbeat: self._heartbeat,
            UnregisterClient: lambda _: Response(),
            GetConsumerList: lambda _: Response(body=orjson.dumps({"consumerIdList": self.members})),
            QueryConsumerOffset: self._progress,
            UpdateConsumerOffset: self._commit,
            GetMinOffset: lambda _: OffsetAnswer(offset=self.first),
            GetMaxOffset: lambda _: OffsetAnswer(offset=self.end),
            PullMessage: self.pull,
            SendBack: lambda _: Response(),
            SendMessage: lambda _: Response(),
            LockQueues: lambda ask: Response(body=encode_locked(decode_lock_request(ask.body).queues)),
            UnlockQueues: lambda _: Response(),
        }
        self.members: list[str] = []
        handlers = dict.fromkeys(self.answers, self._answer)
        self._server = Server(Service(handlers).handle)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.port}"

    def store(self, *texts: str, **fields: Any) -> None:
        for text in texts:
            self.messages[self.end] = stored(text, self.end, **fields)
            self.end += 1

    def all_of(self, kind: type[Kind]) -> list[Kind]:
        return [request for request in self.asked if isinstance(request, kind)]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakeBroker]:
        await self._server.start("127.0.0.1", 0)
        try:
            yield self
        finally:
            await self._server.stop(0.0)

    # --- answers -----------------------------------------------------------------------------------------------------

    def _answer(self, request: Any, peer: Peer) -> Any:
        self.asked.append(request)
        return self.answers[type(request)](request)

    def _route(self, request: GetRoute) -> Response:
        broker = BrokerData("cluster", "broker-a", {0: self.address, **self.copies})
        queues = 1 if request.topic in (TOPIC, "%RETRY%mailer") else 0
        if not queues:
            return Response(code=ResponseCode.TOPIC_NOT_EXIST, reason="no such topic")
        route = TopicRoute((QueueData("broker-a", queues, queues, 6),), (broker,))
        return Response(body=route.encode(standard=True))

    def _heartbeat(self, request: Heartbeat) -> Response:
        self.members = [decode_heartbeat(request.body).client_id]
        return Response()

    def _progress(self, request: QueryConsumerOffset) -> Response:
        if self.committed is None or request.topic != TOPIC:
            return Response(code=ResponseCode.QUERY_NOT_FOUND, reason="no progress")
        return OffsetAnswer(offset=self.committed)

    def _commit(self, request: UpdateConsumerOffset) -> Response:
        if request.topic == TOPIC:
            self.committed = request.offset
        return Response()

    async def pull(self, request: PullMessage) -> Response:
        found = [data for offset, data in sorted(self.messages.items()) if offset >= request.offset]
        if request.topic == TOPIC and found:
            return self.result(ResponseCode.SUCCESS, self.end, body=b"".join(found))
        await asyncio.sleep(HOLD_SECONDS)
        return self.result(ResponseCode.PULL_NOT_FOUND, request.offset)

    def result(self, code: int, next_offset: int, **more: Any) -> PullResult:
        return PullResult(code=code, next_offset=next_offset, min_offset=self.first, max_offset=self.end, **more)
