"""Messages: found by id, key, place or time; looked at without anybody's progress changing."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator
from datetime import datetime

from pyromq.admin.directory import Directory, of_each, of_reachable
from pyromq.admin.reading import number_in
from pyromq.client.received import ReceivedMessage, split_records
from pyromq.errors import BadRequest, NotFound, OffsetNotFound, ServiceError
from pyromq.model.json_form import INT64_MAX
from pyromq.model.names import TOOLS_GROUP
from pyromq.model.queue import MessageQueue
from pyromq.model.topic import Permission
from pyromq.net.address import MAX_PORT, shown_address
from pyromq.records import layout
from pyromq.records.message_id import decode_message_id
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import GetMaxOffset, GetMinOffset, PullMessage, QueryMessage, SearchOffset, ViewMessage

#: Carries a subscription; is not held.
PULL_FLAGS = 4
#: Most messages of one answer, by RocketMQ's default.
AT_ONCE = 32
#: Most messages that a question by key answers with.
MOST_BY_KEY = 64
#: Answers of a pull that say where to go on.
GOES_ON = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class Messages:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        #: By broker name, as the last route that was asked for has them.
        self._addresses: dict[str, str] = {}

    # --- found -------------------------------------------------------------------------------------------------------

    async def find(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """A message by either of its ids: the one its producer gave it needs the topic. Raises OffsetNotFound."""
        if topic is not None:
            found = await self.by_unique_id(topic, message_id)
            if found:
                return found[-1]
        try:
            return await self.by_id(message_id)
        except (OffsetNotFound, ServiceError) as problem:
            if topic is not None:
                raise OffsetNotFound(f"no message of {topic!r} has the id {message_id}") from None
            raise OffsetNotFound(f"{problem}. If its producer gave it this id, say the topic too: --topic") from None

    async def by_id(self, message_id: str) -> ReceivedMessage:
        """By the id that says where it is: the broker's address and a position. Raises OffsetNotFound."""
        host, position = decode_message_id(message_id)
        port = int.from_bytes(host[-4:], "big")
        if port > MAX_PORT:
            raise OffsetNotFound(f"the id {message_id} does not say where its message is")
        address = shown_address(str(ipaddress.ip_address(host[:-4])), port)
        # Only brokers of this cluster are asked: an id may come from anywhere.
        known = {one.address: one for one in await self._directory.brokers()}
        if address not in known:
            raise OffsetNotFound(f"the id {message_id} names a broker at {address}, which is not in this cluster")
        try:
            answer = await self._directory.ask(address, ViewMessage(position=position))
        except ServiceError as problem:
            raise OffsetNotFound(f"no message has the id {message_id} ({problem})") from None
        return records_of(answer.body, known[address].name)[0]

    async def by_unique_id(self, topic: str, unique_id: str) -> list[ReceivedMessage]:
        """By the id that its producer gave it, oldest first. Several when it was sent or delivered again."""
        return await self._query(topic, unique_id, AT_ONCE, 0, INT64_MAX, by_unique_key=True)

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        most: int = MOST_BY_KEY,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[ReceivedMessage]:
        """By one of its keys, oldest first."""
        begin_ms = 0 if since is None else int(since.timestamp() * 1000)
        end_ms = INT64_MAX if until is None else int(until.timestamp() * 1000)
        return await self._query(topic, key, most, begin_ms, end_ms)

    async def _query(
        self, topic: str, key: str, most: int, begin_ms: int, end_ms: int, *, by_unique_key: bool = False
    ) -> list[ReceivedMessage]:
        request = QueryMessage(
            topic=topic, key=key, max_messages=most, begin_ms=begin_ms, end_ms=end_ms, by_unique_key=by_unique_key
        )
        ok = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        masters = await self._directory.masters_of(topic)
        told = await of_reachable(masters, lambda broker: self._directory.ask(broker.address, request, ok=ok))
        found = [
            message
            for broker, answer in told
            for message in records_of(answer.body, broker.name)
            # Keys are looked up by their hash: another key may have the same.
            if (message.message_id == key if by_unique_key else key in message.keys)
        ]
        return sorted(found, key=by_time)[-most:]

    # --- looked at ---------------------------------------------------------------------------------------------------

    async def at(self, queue: MessageQueue, offset: int) -> ReceivedMessage:
        """The message at an offset of a queue. Raises OffsetNotFound."""
        async for message in self.read(queue, offset, offset + 1):
            return message
        raise OffsetNotFound(f"{queue.topic} queue {queue.queue_id} of {queue.broker_name} has no message {offset}")

    async def peek(
        self, topic: str, *, broker: str | None = None, queue_id: int | None = None, offset: int | None = None,
        count: int = 10, newest: bool = False,
    ) -> list[ReceivedMessage]:  # fmt: skip
        """The oldest messages of a topic, the newest, or those from an offset of its queues on; by store time."""
        queues = await self.queues(topic, broker=broker, queue_id=queue_id)
        told = await of_each(queues, lambda queue: self._some(queue, offset, count, newest))
        found = sorted((message for some in told for message in some), key=by_time)
        return found[-count:] if newest else found[:count]

    async def _some(self, queue: MessageQueue, offset: int | None, count: int, newest: bool) -> list[ReceivedMessage]:
        smallest, largest = await self.bounds(queue)
        first = max(largest - count, smallest) if newest else smallest if offset is None else max(offset, smallest)
        return [message async for message in self.read(queue, first, min(first + count, largest))]

    async def between(self, topic: str, since: datetime, until: datetime, *, most: int = 1000) -> list[ReceivedMessage]:
        """Return at most this many messages of a time range, ordered by store time, oldest first."""
        queues = await self.queues(topic)
        told = await of_each(queues, lambda queue: self._stored_between(queue, since, until, most))
        return sorted((message for some in told for message in some), key=by_time)[:most]

    async def _stored_between(
        self, queue: MessageQueue, since: datetime, until: datetime, most: int
    ) -> list[ReceivedMessage]:
        _, largest = await self.bounds(queue)
        first = await self.offset_at(queue, since)
        found: list[ReceivedMessage] = []
        async for message in self.read(queue, first, largest):
            if message.stored_at > until.timestamp() or len(found) >= most:
                break
            if message.stored_at >= since.timestamp():
                found.append(message)
        return found

    # --- queues ------------------------------------------------------------------------------------------------------

    async def queues(self, topic: str, *, broker: str | None = None, queue_id: int | None = None) -> list[MessageQueue]:
        """The queues that can be read. Raises TopicNotFound, BadRequest when there is none such."""
        route = await self._directory.route(topic)
        self._addresses |= {one.name: one.addresses[min(one.addresses)] for one in route.brokers if one.addresses}
        found = [
            MessageQueue(topic, data.broker_name, number)
            for data in sorted(route.queues, key=lambda one: one.broker_name)
            if broker in (None, data.broker_name) and data.permission & Permission.READ
            for number in range(data.read_queues)
            if queue_id in (None, number)
        ]
        if not found:
            raise BadRequest(
                f"the topic {topic!r} has no such queue that may be read: `pyromq topic describe {topic}` shows them"
            )
        return found

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """The offset of the oldest message, and the one that the next message gets."""
        address = await self.address(queue)
        smallest = await self._directory.ask(address, GetMinOffset(topic=queue.topic, queue_id=queue.queue_id))
        largest = await self._directory.ask(address, GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id))
        return number_in(smallest, "offset"), number_in(largest, "offset")

    async def offset_at(self, queue: MessageQueue, when: datetime) -> int:
        """The offset of the first message that was stored at a time or later."""
        request = SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=int(when.timestamp() * 1000))
        return number_in(await self._directory.ask(await self.address(queue), request), "offset")

    def forget_addresses(self) -> None:
        """Refresh the routes: a broker that did not answer may have another address."""
        self._addresses.clear()

    async def address(self, queue: MessageQueue) -> str:
        """Return the address of a queue's broker by the cached route. Raises TopicNotFound, NotFound."""
        if queue.broker_name not in self._addresses:
            await self.queues(queue.topic)
        if queue.broker_name in self._addresses:
            return self._addresses[queue.broker_name]
        raise NotFound(f"no broker {queue.broker_name!r} has the topic {queue.topic!r}")

    async def read(self, queue: MessageQueue, first: int, end: int, tags: str = "*") -> AsyncIterator[ReceivedMessage]:
        """The messages of a queue from one offset up to another."""
        if first >= end:
            return
        address = await self.address(queue)
        while first < end:
            answer = await self._directory.ask(
                address, pull_of(queue, first, min(end - first, AT_ONCE), tags), ok=GOES_ON
            )
            for message in split_records(answer.body, queue):
                if first <= message.queue_offset < end:
                    yield message
            following = number_in(answer, "nextBeginOffset")
            if following <= first or answer.code == ResponseCode.PULL_NOT_FOUND:
                return
            first = following


def pull_of(queue: MessageQueue, offset: int, count: int, tags: str = "*") -> PullMessage:
    """A question for messages that no group's progress hears of."""
    return PullMessage(
        group=TOOLS_GROUP, topic=queue.topic, queue_id=queue.queue_id, offset=offset, max_messages=count,
        flags=PULL_FLAGS, subscription=tags,
    )  # fmt: skip


def records_of(body: bytes, broker_name: str) -> list[ReceivedMessage]:
    """Decode messages of any queues: each record has its own queue."""
    messages = split_records(body, MessageQueue("", broker_name, 0))
    at = 0
    for message in messages:
        message.queue = MessageQueue(message.topic, broker_name, layout.queue_id_of(body, at))
        at += message.size
    return messages


def by_time(message: ReceivedMessage) -> tuple[float, str, int]:
    """For sorting: when it was stored, and within a millisecond where."""
    return message.stored_at, message.queue.broker_name, message.position
