"""Offsets: how far a group is, and where a queue begins and ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pyromq.broker.state.groups import Groups
from pyromq.broker.state.offsets import Progress
from pyromq.broker.state.resets import Resets
from pyromq.broker.state.topics import Topics
from pyromq.errors import BadRequest, GroupNotFound, NotFound
from pyromq.model.ids import QueueId
from pyromq.model.topic import TopicConfig
from pyromq.net.peer import Peer
from pyromq.store.message_store import MessageStore
from pyromq.wire.requests.client import (
    GetEarliestStoreTime,
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from pyromq.wire.responses import OffsetAnswer, Response, StoreTimeAnswer


class OffsetProcessor:
    """Handles the requests about offsets that ordinary clients make."""

    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        progress: Progress,
        store: MessageStore,
        resets: Resets,
        check_saved: Callable[[], None] = lambda: None,
    ) -> None:
        """`check_saved` raises NotNow while progress cannot be written to the disk."""
        self._topics = topics
        self._groups = groups
        self._progress = progress
        self._store = store
        self._resets = resets
        self._check_saved = check_saved

    def query(self, request: QueryConsumerOffset, peer: Peer) -> Response:
        """Raises NotFound: the group has no progress here, and its consumer decides where to begin."""
        offset = self._progress.offset_of(request.group, request.topic, request.queue_id)
        if offset is None and request.zero_if_not_found:
            offset = self._progress.start_of(request.topic, request.queue_id)
        if offset is None:
            raise NotFound(f"the group {request.group} has no offset for {QueueId(request.topic, request.queue_id)}")
        return OffsetAnswer(offset=offset)

    def update(self, request: UpdateConsumerOffset, peer: Peer) -> Response:
        """Raises GroupNotFound, TopicNotFound, BadRequest, IllegalOffset, NotNow; the progress stays what it was."""
        self._check_saved()
        if self._groups.get(request.group) is None:
            raise GroupNotFound(f"Group {request.group} not exist! Its progress cannot be kept: make the group first")
        topic = self._topics.require(request.topic)
        if not self._has_queue(topic, request.queue_id):
            raise BadRequest(f"the topic {topic.name} has no queue {request.queue_id}: no progress is kept for it")
        if self._resets.is_pending(request.group, request.topic, request.queue_id):
            return Response(reason="Offset has been previously reset: the next pull is told where to go on")
        move = self._progress.advance if request.only_forward else self._progress.commit
        move(request.group, request.topic, request.queue_id, request.offset)
        return Response()

    def _has_queue(self, topic: TopicConfig, queue_id: int) -> bool:
        """Also a queue that a topic had before it was made smaller: its messages are still consumed."""
        return (
            0 <= queue_id < max(topic.read_queues, topic.write_queues)
            or self._store.queue(topic.name, queue_id) is not None
        )

    def search(self, request: SearchOffset, peer: Peer) -> Awaitable[Response]:
        return self._search(request)

    async def _search(self, request: SearchOffset) -> Response:
        upper = request.boundary.upper() == "UPPER"
        offset = await self._store.offset_at_soon(request.topic, request.queue_id, request.timestamp_ms, upper=upper)
        return OffsetAnswer(offset=offset)

    def maximum(self, request: GetMaxOffset, peer: Peer) -> Response:
        return OffsetAnswer(offset=self._store.max_offset(request.topic, request.queue_id))

    def minimum(self, request: GetMinOffset, peer: Peer) -> Response:
        return OffsetAnswer(offset=self._store.min_offset(request.topic, request.queue_id))

    def earliest_store_time(self, request: GetEarliestStoreTime, peer: Peer) -> Awaitable[Response]:
        """Return the store time of the oldest message of a queue; -1 if there is none."""
        return self._earliest(request)

    async def _earliest(self, request: GetEarliestStoreTime) -> Response:
        stored_ms = await self._store.earliest_store_time_soon(request.topic, request.queue_id)
        return StoreTimeAnswer(timestamp_ms=-1 if stored_ms is None else stored_ms)
