"""Dead letters: messages that a group failed to handle in all attempts. List, show and replay them.

A replay sends them to their original topic, or only to the group that failed. The brokers keep its position as the
offset of RocketMQ's tools group in the dead-letter topic: an interrupted replay continues there, from any machine.
Messages after the saved position are sent once more; their message id stays the same, for handlers that deduplicate.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass

from pyromq.admin.directory import MASTER, Directory, of_each
from pyromq.admin.messages import Messages
from pyromq.admin.reading import number_in, offset_or_none
from pyromq.admin.topics import Topic, Topics
from pyromq.client.received import ReceivedMessage
from pyromq.clock import Clock
from pyromq.errors import NoPermission, NotFound, OffsetNotFound, TopicNotFound
from pyromq.model import names
from pyromq.model.message import StoredMessage
from pyromq.model.queue import MessageQueue
from pyromq.model.topic import Permission
from pyromq.records import property_names
from pyromq.records.java_hash import java_hash
from pyromq.records.layout import FLAG_COMPRESSED
from pyromq.records.properties import encode_properties
from pyromq.records.record import decode
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import QueryConsumerOffset, SendMessage, UpdateConsumerOffset, ViewMessage

PRODUCER_GROUP = "TOOLS_PRODUCER"
#: Property of a replayed message: its dead-letter topic.
REPLAYED_FROM = "REPLAYED_FROM"
#: Save the position of a replay after this many messages.
NOTE_EVERY = 32
#: Of a message that was in a retry or dead-letter topic, what belongs to that and not to the message.
_OF_THE_WAY = property_names.RESERVED - {
    property_names.TAGS, property_names.KEYS, property_names.UNIQUE_KEY, property_names.SHARDING_KEY, "BUYER_ID",
    "INSTANCE_ID", "TRACE_CONTEXT",
}  # fmt: skip
#: Flags to keep: compression and multiple tags. The broker sets the others.
_FLAGS_OF_THE_BODY = FLAG_COMPRESSED | 2 | 7 << 8


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of one group."""

    group: str
    topic: str
    messages: int
    #: Those that no replay has sent yet.
    waiting: int
    last_ms: int
    readable: bool


@dataclass(frozen=True, slots=True)
class Replayed:
    """One message that was sent again."""

    message: ReceivedMessage
    topic: str
    queue: MessageQueue
    queue_offset: int


class DeadLetterDesk:
    def __init__(self, directory: Directory, topics: Topics, messages: Messages, clock: Clock) -> None:
        self._directory = directory
        self._topics = topics
        self._messages = messages
        self._clock = clock

    # --- looking -----------------------------------------------------------------------------------------------------

    async def list(self) -> Sequence[DeadLetters]:
        """Every group that has dead letters, by name."""
        topics = [one for one in await self._topics.list() if one.kind == "dead-letter"]
        return await of_each(topics, self._state)

    async def of(self, group: str) -> DeadLetters:
        """Raises NotFound when the group has none."""
        try:
            found = await self._topics.get(names.dead_letter_topic(group))
        except TopicNotFound:
            raise NotFound(f"the group {group!r} has no dead letters") from None
        return await self._state(found)

    async def _state(self, found: Topic) -> DeadLetters:
        stats = await self._topics.stats(found)
        waiting = 0
        for state in stats.queues:
            waiting += state.max_offset - max(await self._noted(state.queue) or 0, state.min_offset)
        readable = all(on.permission & Permission.READ for on in found.brokers)
        group = found.name.removeprefix(names.DEAD_LETTER_PREFIX)
        return DeadLetters(group, found.name, stats.messages, waiting, stats.last_ms, bool(readable))

    async def peek(self, group: str, *, count: int = 10, newest: bool = False) -> Sequence[ReceivedMessage]:
        """Some of a group's dead letters, by the time they became such. Raises NotFound when it has none."""
        await self._require_readable(group)
        return await self._messages.peek(names.dead_letter_topic(group), count=count, newest=newest)

    async def _require_readable(self, group: str) -> DeadLetters:
        found = await self.of(group)
        if not found.readable:
            raise NoPermission(
                f"the dead letters of {group!r} may not be read: allow it with `pyromq topic update {found.topic} "
                "--permission read-write`"
            )
        return found

    # --- sending again -----------------------------------------------------------------------------------------------

    async def replay(
        self,
        group: str,
        *,
        rate: float | None = None,
        most: int | None = None,
        again: bool = False,
        only_group: bool = False,
        to: str | None = None,
    ) -> AsyncGenerator[Replayed, None]:
        """Send the dead letters that wait, oldest first, and yield each when a broker has it.

        At most `rate` in a second, at most `most` in all; with `again`, also those that a replay has sent already.
        They go to the topic where they came from, or `to` another one; with `only_group` back to this group alone.
        """
        await self._require_readable(group)
        sending = _Sending(self._directory, group, only_group=only_group, to=to)
        pace = _Pace(rate, self._clock)
        left = itertools.count() if most is None else iter(range(most))
        for queue in await self._messages.queues(names.dead_letter_topic(group)):
            smallest, largest = await self._messages.bounds(queue)
            noted = max(await self._noted(queue) or 0, smallest)
            done = first = smallest if again else noted
            try:
                async for message in self._messages.read(queue, first, largest):
                    if next(left, None) is None:
                        return
                    await pace.wait()
                    one = await sending.send(message)
                    done = message.queue_offset + 1
                    if done - noted >= NOTE_EVERY:
                        await self._note(queue, done)
                        noted = done
                    yield one
            finally:
                if done > noted:  # save the position of the sent messages
                    await asyncio.shield(self._note(queue, done))

    async def replay_some(
        self,
        group: str,
        message_ids: Sequence[str],
        *,
        rate: float | None = None,
        only_group: bool = False,
        to: str | None = None,
    ) -> AsyncGenerator[Replayed, None]:
        """Send these dead letters again, whether or not they were before. Raises OffsetNotFound before any is sent."""
        letters = [await self.letter(group, message_id) for message_id in message_ids]
        sending = _Sending(self._directory, group, only_group=only_group, to=to)
        pace = _Pace(rate, self._clock)
        for message in letters:
            await pace.wait()
            yield await sending.send(message)

    async def letter(self, group: str, message_id: str) -> ReceivedMessage:
        """One dead letter by either of its ids. Raises OffsetNotFound."""
        topic = (await self._require_readable(group)).topic
        found = await self._messages.find(message_id, topic)
        if found.topic != topic:
            raise OffsetNotFound(f"the message {message_id} is in {found.topic!r}, which is not {topic!r}")
        return found

    # --- how far -----------------------------------------------------------------------------------------------------

    async def _noted(self, queue: MessageQueue) -> int | None:
        """Up to where replays have sent; None: there was none."""
        broker = await self._directory.broker(queue.broker_name)
        request = QueryConsumerOffset(
            group=names.TOOLS_GROUP, topic=queue.topic, queue_id=queue.queue_id, zero_if_not_found=False
        )
        ok = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        return offset_or_none(await self._directory.ask(broker.address, request, ok=ok))

    async def _note(self, queue: MessageQueue, offset: int) -> None:
        broker = await self._directory.broker(queue.broker_name)
        request = UpdateConsumerOffset(
            group=names.TOOLS_GROUP, topic=queue.topic, queue_id=queue.queue_id, offset=offset
        )
        await self._directory.ask(broker.address, request)


class _Sending:
    """One replay's way of sending: what it asks of name servers is asked once."""

    def __init__(self, directory: Directory, group: str, *, only_group: bool, to: str | None) -> None:
        self._directory = directory
        self._group = group
        self._only_group = only_group
        self._to = to
        self._queues: dict[str, list[tuple[MessageQueue, str]]] = {}
        self._brokers: dict[str, str] = {}

    async def send(self, message: ReceivedMessage) -> Replayed:
        raw = await self._record(message)
        topic, properties = self._new_form(message.message_id, raw.properties)
        queue, address = await self._queue_for(topic, message)
        request = SendMessage(
            producer_group=PRODUCER_GROUP,
            topic=topic,
            queue_id=queue.queue_id,
            storage_flags=raw.storage_flags & _FLAGS_OF_THE_BODY,
            born_timestamp_ms=raw.born_timestamp_ms,
            user_flag=raw.user_flag,
            properties=encode_properties(properties).decode(),
            body=raw.body,
        )
        answer = await self._directory.ask(address, request)
        return Replayed(message, topic, queue, number_in(answer, "queueOffset"))

    def _new_form(self, message_id: str, found: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """Return the target and the properties of a replayed message. Raises NotFound if its origin is unknown."""
        origin = found.get(property_names.DLQ_ORIGIN_TOPIC) or found.get(property_names.RETRY_TOPIC)
        topic = self._to or origin
        if topic is None:
            raise NotFound(f"the dead letter {message_id} does not say where it came from: give a topic (--to)")
        properties = kept_properties(found) | {REPLAYED_FROM: names.dead_letter_topic(self._group)}
        if self._only_group:
            properties[property_names.RETRY_TOPIC] = topic
            return names.retry_topic(self._group), properties
        return topic, properties

    async def _record(self, message: ReceivedMessage) -> StoredMessage:
        """A message as the log has it: its body stays packed as it is."""
        if not self._brokers:
            self._brokers = {one.name: one.address for one in await self._directory.readable()}
        address = self._brokers[message.queue.broker_name]
        return decode(memoryview((await self._directory.ask(address, ViewMessage(position=message.position))).body))

    async def _queue_for(self, topic: str, message: ReceivedMessage) -> tuple[MessageQueue, str]:
        """Messages of one sharding key stay in one queue, the others go round."""
        if topic not in self._queues:
            self._queues[topic] = await self._writable(topic)
        key = message.sharding_key
        number = message.queue_offset if key is None else abs(java_hash(key))
        return self._queues[topic][number % len(self._queues[topic])]

    async def _writable(self, topic: str) -> list[tuple[MessageQueue, str]]:
        try:
            route = await self._directory.route(topic)
        except TopicNotFound:
            if not self._only_group:
                raise
            raise TopicNotFound(
                f"the group {self._group!r} has no topic for what it tries again yet: start a consumer of it first"
            ) from None
        addresses = {one.name: one.addresses[MASTER] for one in route.brokers if MASTER in one.addresses}
        queues = [
            (MessageQueue(topic, data.broker_name, number), addresses[data.broker_name])
            for data in sorted(route.queues, key=lambda one: one.broker_name)
            if data.permission & Permission.WRITE and data.broker_name in addresses
            for number in range(data.write_queues)
        ]
        if not queues:
            raise NoPermission(f"the topic {topic!r} has no queue that may be written to now")
        return queues


def kept_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of the original message."""
    return {name: value for name, value in properties.items() if name not in _OF_THE_WAY}


class _Pace:
    """Limits a rate to this many per second, evenly; `None`: no limit."""

    def __init__(self, rate: float | None, clock: Clock) -> None:
        self._step = 0.0 if not rate else 1.0 / rate
        self._clock = clock
        self._next = clock.monotonic()

    async def wait(self) -> None:
        late = self._next - self._clock.monotonic()
        if late > 0:
            await asyncio.sleep(late)
        self._next = max(self._next, self._clock.monotonic() - self._step) + self._step
