"""Sending back: a consumer could not handle a message, and its group gets it again later, or never.

The message is stored once more, for the retry topic of the group, with a delay that grows from attempt to attempt; when
the group's limit is reached, for its dead letters instead. The answer leaves when it is acknowledged.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import replace

from pyromq.broker.delivery import properties
from pyromq.broker.delivery.append import Writer
from pyromq.broker.delivery.properties import get, put, put_if_absent, remove
from pyromq.broker.delivery.redraft import draft_of
from pyromq.broker.overload import Overload
from pyromq.broker.requests.send import retry_limit
from pyromq.broker.state.groups import Groups
from pyromq.broker.state.topics import Topics
from pyromq.broker.statistics.traffic import Statistics
from pyromq.config import BrokerConfig
from pyromq.config.broker import WRITE
from pyromq.errors import NoPermission, OffsetNotFound, ServiceError, SlavesLate
from pyromq.model import names
from pyromq.model.group import GroupConfig
from pyromq.model.ids import LogPosition
from pyromq.model.message import Draft, PackedHost
from pyromq.model.topic import TopicConfig
from pyromq.net.peer import Peer
from pyromq.records.layout import has_queue_offset
from pyromq.records.message_id import encode_message_id
from pyromq.store.message_store import MessageStore
from pyromq.wire.requests.client import SendBack
from pyromq.wire.responses import Response

log = logging.getLogger("pyromq.broker")

#: The delay level of the first retry (10 s); the next attempt takes the next level.
FIRST_RETRY_LEVEL = 3
#: The topics of halves and of their ends. They have no consumers; a retry would show uncommitted messages.
_HALVES = frozenset(name.encode() for name in (names.HALF_TOPIC, names.HALF_DONE_TOPIC, names.CHECKED_TOO_OFTEN_TOPIC))


class SendBackProcessor:
    """Handles `SendBack`."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        topics: Topics,
        groups: Groups,
        writer: Writer,
        overload: Overload,
        store: MessageStore,
        store_host: PackedHost,
        statistics: Statistics,
        *,
        delay: Callable[[Draft], Draft],
        rng: random.Random,
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._writer = writer
        self._overload = overload
        self._store = store
        self._store_host = store_host
        self._statistics = statistics
        self._delay = delay
        self._rng = rng

    async def send_back(self, request: SendBack, peer: Peer) -> Response:
        """Raises what the checks find; nothing is stored then."""
        self._overload.check()
        group = self._groups.require(request.group)
        config = self._config()
        if not config.permission & WRITE:
            raise NoPermission(f"the broker {config.name} takes no messages at present (brokerPermission)")
        if group.retry_queues <= 0:
            return Response()  # this group wants nothing again
        topic = self._topics.derived(names.retry_topic(group.name), group.retry_queues)
        if not topic.writable:
            raise NoPermission(f"the topic {topic.name} may not be written to (its permission is {topic.permission})")
        draft = marked(await self._message(request.position), LogPosition(request.position))
        level = retry_level(request, group, draft.reconsume_times)
        again = self._dead(draft, group) if level is None else self._later(draft, group, topic, level)
        again = replace(again, store_host=self._store_host, reconsume_times=draft.reconsume_times + 1)
        (receipt,) = self._writer.append([self._delay(again)])
        self._statistics.sent_back(group.name, draft.topic.decode(), 1)
        try:
            await self._writer.acknowledged(receipt)
        except SlavesLate as late:  # a consumer that hears of a failure stores it once more
            return Response(reason=str(late))
        return Response()

    async def _message(self, position: int) -> Draft:
        """Return the failed message. Raises ServiceError: the client then sends it to the retry topic on its own."""
        try:
            draft = draft_of(await self._store.message_soon(position))
        except OffsetNotFound as missing:
            raise ServiceError(f"look message by offset failed, {position}: {missing}") from None
        if draft.topic in _HALVES or not has_queue_offset(draft.storage_flags):
            raise ServiceError(f"look message by offset failed, {position}: it is a half of a transaction")
        return draft

    def _later(self, draft: Draft, group: GroupConfig, topic: TopicConfig, level: int) -> Draft:
        queues = min(group.retry_queues, topic.write_queues)
        return replace(
            draft,
            topic=topic.name.encode(),
            queue_id=self._rng.randrange(max(queues, 1)),
            properties=put(draft.properties, properties.DELAY, b"%d" % level),
        )

    def _dead(self, draft: Draft, group: GroupConfig) -> Draft:
        topic = self._topics.derived(names.dead_letter_topic(group.name), 1)
        log.info("a message that %s could not consume goes to its dead letters", group.name)
        return replace(draft, topic=topic.name.encode(), queue_id=0, properties=_of_dead_letter(draft.properties))


def retry_level(request: SendBack, group: GroupConfig, reconsume_times: int) -> int | None:
    """The delay level of the next attempt; None when there is none, and the message is a dead letter."""
    if request.delay_level < 0 or reconsume_times >= retry_limit(request, group):
        return None
    return request.delay_level or FIRST_RETRY_LEVEL + reconsume_times


def marked(draft: Draft, position: LogPosition) -> Draft:
    """With what every message on its way to a retry says: where it was first, and which it was there."""
    message_id = encode_message_id(draft.store_host, position).encode()
    changed = put_if_absent(draft.properties, properties.RETRY_TOPIC, draft.topic)
    changed = put_if_absent(changed, properties.ORIGIN_MESSAGE_ID, message_id)
    changed = put(changed, properties.WAIT_FOR_DISK, b"false")
    return replace(draft, properties=changed, prepared_position=0)


def _of_dead_letter(found: bytes) -> bytes:
    """RocketMQ's names for where a dead letter comes from: its proxy shows them."""
    topic, message_id = get(found, properties.RETRY_TOPIC), get(found, properties.ORIGIN_MESSAGE_ID)
    assert topic is not None, "a message that is sent back says where it was first"
    assert message_id is not None
    changed = put(remove(found, properties.DELAY), properties.DEAD_LETTER_OF, topic)
    return put(changed, properties.DEAD_LETTER_OF_ID, message_id)
