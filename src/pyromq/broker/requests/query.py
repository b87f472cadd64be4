"""Looking for messages: by key, by unique key, by position. Data that has left memory is fetched by a thread first."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable

from pyromq.errors import OffsetNotFound, ServiceError
from pyromq.net.peer import Peer
from pyromq.store.message_store import MessageStore
from pyromq.store.reader import MAX_QUERY_RESULTS
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import QueryMessage, ViewMessage
from pyromq.wire.responses import QueryAnswer, Response

#: RocketMQ's number of messages for a unique key, whatever the client asks for: of several it shows the last.
UNIQUE_KEY_RESULTS = 32
#: Clients refuse an answer of more than 16 MiB. The first message fits in any case.
MAX_ANSWER_BYTES = 8 << 20


class QueryProcessor:
    """Handles `QueryMessage` and `ViewMessage`."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def query(self, request: QueryMessage, peer: Peer) -> Awaitable[Response]:
        return self._query(request)

    async def _query(self, request: QueryMessage) -> Response:
        most = UNIQUE_KEY_RESULTS if request.by_unique_key else request.max_messages
        found: list[memoryview] = []
        if most > 0:
            found = await self._store.query_soon(
                request.topic,
                request.key,
                begin_ms=request.begin_ms,
                end_ms=request.end_ms,
                max_messages=min(most, MAX_QUERY_RESULTS),
            )
        updated_ms, position = self._index_state()
        return QueryAnswer(
            code=ResponseCode.SUCCESS if found else ResponseCode.QUERY_NOT_FOUND,
            reason=None if found else "can not find message, maybe time range not correct",
            body=_oldest_first(found),
            index_timestamp_ms=updated_ms,
            index_position=position,
        )

    def _index_state(self) -> tuple[int, int]:
        """Store time and position of the newest message in the index."""
        return self._store.newest_indexed()

    def view(self, request: ViewMessage, peer: Peer) -> Awaitable[Response]:
        return self._view(request.position)

    async def _view(self, position: int) -> Response:
        """Raises ServiceError when no message begins there."""
        try:
            return Response(body=await self._store.message_soon(position))
        except OffsetNotFound as problem:
            raise ServiceError(f"can not find message by the offset, {position}: {problem}") from None


def _oldest_first(newest_first: Iterable[memoryview]) -> list[memoryview]:
    """In RocketMQ's order; where all is too much for one answer, the newest of it."""
    kept: list[memoryview] = []
    size = 0
    for view in newest_first:
        size += len(view)
        if kept and size > MAX_ANSWER_BYTES:
            break
        kept.append(view)
    kept.reverse()
    return kept
