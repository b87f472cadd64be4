"""Offsets that a broker knows: where a queue begins and ends, which message came at a time, how far a group is."""

from __future__ import annotations

from typing import cast

from pyromq.client.session import Session
from pyromq.errors import CallFailed, NotFound, NotNow, Unreachable
from pyromq.model.queue import MessageQueue
from pyromq.wire.command import Command
from pyromq.wire.fields import read_fields
from pyromq.wire.requests.client import (
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    Request,
    SearchOffset,
    UpdateConsumerOffset,
)
from pyromq.wire.responses import OffsetAnswer


class Places:
    """Asks the brokers. Every question raises CallFailed, or what the broker refuses it with."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def begin(self, queue: MessageQueue) -> int:
        """The offset of the oldest message."""
        return await self._offset(queue, GetMinOffset(topic=queue.topic, queue_id=queue.queue_id))

    async def end(self, queue: MessageQueue) -> int:
        """The offset that the next message will have."""
        return await self._offset(queue, GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id))

    async def at_time(self, queue: MessageQueue, seconds: float) -> int:
        """The offset of the first message that was stored then or later; the end when there is none."""
        request = SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=int(seconds * 1000))
        return await self._offset(queue, request)

    async def committed(self, queue: MessageQueue, group: str, *, zero_if_near: bool = False) -> int | None:
        """Return the group's offset; None if it has none. See `ConsumeFrom.LAST` for `zero_if_near`."""
        request = QueryConsumerOffset(
            group=group, topic=queue.topic, queue_id=queue.queue_id, zero_if_not_found=zero_if_near
        )
        try:
            return await self._offset(queue, request)
        except NotFound:
            return None

    async def commit(self, queue: MessageQueue, group: str, offset: int) -> None:
        request = UpdateConsumerOffset(group=group, topic=queue.topic, queue_id=queue.queue_id, offset=offset)
        await self._ask(queue, request)

    async def _offset(self, queue: MessageQueue, request: Request) -> int:
        answer = await self._ask(queue, request)
        offset = read_fields(OffsetAnswer, answer.fields).get("offset")
        if offset is None:
            raise Unreachable(f"the broker {queue.broker_name} answered {request.CODE.name} without an offset")
        return cast(int, offset)

    async def _ask(self, queue: MessageQueue, request: Request) -> Command:
        if not self._session.routes.addresses(queue.broker_name):
            await self._session.routes.of(queue.topic)  # the queue came from the caller
        try:
            return await self._session.ask(self.address_of(queue), request)
        except (CallFailed, NotNow):
            self._session.watch_route(queue.topic)
            raise

    def address_of(self, queue: MessageQueue) -> str:
        """The master, or a copy while there is none. Raises Unreachable."""
        addresses = self._session.routes.addresses(queue.broker_name)
        if not addresses:
            raise Unreachable(f"the name servers know no address of the broker {queue.broker_name}")
        return addresses[min(addresses)]
