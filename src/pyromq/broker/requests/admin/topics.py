"""Topics over the network: made, changed, removed, listed; and their queues looked at and cleaned up.

Topics that the broker needs for itself are neither changed nor removed. Every removal is logged with the address of the
client that asked for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial

from pyromq.broker.requests.admin.clients import subscription_form
from pyromq.broker.requests.admin.pages import page_of
from pyromq.broker.state.attributes import changed_topic_attributes, parse_changes
from pyromq.broker.state.clients import Consumers
from pyromq.broker.state.offsets import Progress
from pyromq.broker.state.resets import Resets
from pyromq.broker.state.topics import MAX_QUEUES, Topics
from pyromq.broker.statistics.traffic import Statistics
from pyromq.config import BrokerConfig
from pyromq.errors import BadRequest, IllegalMessage, NotFound, NotNow, ServiceError
from pyromq.files.platform import what_to_do
from pyromq.model import names
from pyromq.model.topic import Permission, TopicConfig
from pyromq.net.peer import Peer
from pyromq.net.service import Handler
from pyromq.net.slices import job, sliced_body
from pyromq.store.message_store import MessageStore
from pyromq.store.queues.queue_table import is_safe_topic
from pyromq.store.reader import to_bytes
from pyromq.wire.bodies.locks import MessageQueue
from pyromq.wire.bodies.routes import TopicConfigs, TopicList
from pyromq.wire.bodies.stats import QueueEntryInfo, QueueRange, encode_queue_entries, topic_stats_pieces
from pyromq.wire.bodies.topics_and_groups import encode_group_names, encode_topic, topics_in
from pyromq.wire.requests import admin as ask
from pyromq.wire.requests.client import Request
from pyromq.wire.responses import Response

log = logging.getLogger("pyromq.broker")

FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
ALL_PERMISSIONS = int(Permission.READ_WRITE | Permission.INHERIT)
#: Entries of a queue that one answer shows: some 100 KB.
MAX_ENTRIES = 1024


class TopicAdmin:
    """Handles the requests of admin tools about topics."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        address: str,
        topics: Topics,
        consumers: Consumers,
        progress: Progress,
        resets: Resets,
        store: MessageStore,
        statistics: Statistics,
        on_removal: Callable[[str], None] = lambda topic: None,
        all_visible: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        """`on_removal` is called in the turn of the loop that removes a topic; `all_visible` is entered first."""
        self._config = config
        self._address = address
        self._topics = topics
        self._consumers = consumers
        self._progress = progress
        self._resets = resets
        self._store = store
        self._statistics = statistics
        self._on_removal = on_removal
        self._nothing_hidden = all_visible

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {
            ask.UpdateTopic: self.update,
            ask.UpdateTopicList: self.update_list,
            ask.DeleteTopic: self.delete,
            ask.GetAllTopics: self.get_all,
            ask.GetTopic: self.get,
            ask.GetTopicStats: self.stats,
            ask.GetBrokerSystemTopics: self.system_topics,
            ask.QueryGroupsOfTopic: self.groups_of_topic,
            ask.QueryTopicsOfGroup: self.topics_of_group,
            ask.QueryQueue: self.query_queue,
            ask.CleanUnusedTopics: self.clean_unused,
        }

    # --- changing ----------------------------------------------------------------------------------------------------

    def update(self, request: ask.UpdateTopic, peer: Peer) -> Response:
        wanted = TopicConfig(
            request.topic, request.read_queues, request.write_queues, request.permission, request.filter_type,
            request.system_flag, request.order,
        )  # fmt: skip
        self._make([self._checked(wanted, parse_changes(request.attributes))], peer)
        return Response()

    async def update_list(self, request: ask.UpdateTopicList, peer: Peer) -> Response:
        """All of them or none."""
        async with job() as work:
            wanted = []
            for one in topics_in(request.body):
                wanted.append(self._checked(one, one.attributes))
                await work.pause()
            for topic in wanted:
                self._make([topic], peer)
                await work.pause()
        return Response()

    def _checked(self, wanted: TopicConfig, changes: Mapping[str, str]) -> TopicConfig:
        """The topic as it will be. Raises BadRequest."""
        self._refuse_system(wanted.name)
        _check_name(wanted.name)
        _check_queues(wanted)
        if not 0 <= wanted.permission <= ALL_PERMISSIONS:
            raise BadRequest(f"{wanted.permission} is no permission: 6 reads and writes, 4 reads, 2 writes")
        if wanted.filter_type not in FILTER_TYPES:
            raise BadRequest(f"{wanted.filter_type!r} is no filter type: it is {' or '.join(FILTER_TYPES)}")
        known = self._topics.get(wanted.name)
        attributes = changed_topic_attributes(None if known is None else known.attributes, changes)
        return replace(wanted, attributes=attributes, unknown={} if known is None else known.unknown)

    def _make(self, topics: list[TopicConfig], peer: Peer) -> None:
        for topic in topics:
            if self._topics.get(topic.name) != topic:
                log.info(
                    "%s set the topic %s: %d queues to read, %d to write, permission %d", peer.address, topic.name,
                    topic.read_queues, topic.write_queues, topic.permission,
                )  # fmt: skip
            self._topics.make(topic)

    async def delete(self, request: ask.DeleteTopic, peer: Peer) -> Response:
        """The topic, its queues, and how far groups are in it; and what groups took from it to try again by popping."""
        self._refuse_system(request.topic)
        if self._topics.get(request.topic) is None or not is_safe_topic(to_bytes(request.topic)):
            _check_name(request.topic)  # it names a directory
        for topic in [request.topic, *self._popped_from(request.topic)]:
            log.warning("%s removed the topic %s", peer.address, topic)
            await self._remove(topic)
        return Response()

    def _popped_from(self, topic: str) -> list[str]:
        """Return the retry topics of groups that pop, in RocketMQ's two forms of the name.

        The older one may be the retry topic of a group of that name: then it stays.
        """
        offsets = self._progress.offsets
        groups = sorted(offsets.groups_of(topic))
        newer = [f"{names.retry_topic(group)}+{topic}" for group in groups]
        older = [names.retry_topic(f"{group}_{topic}") for group in groups if not offsets.topics_of(f"{group}_{topic}")]
        return [name for name in newer + older if self._topics.get(name) is not None]

    async def _remove(self, topic: str) -> None:
        """Senders continue until its queues are taken; then all of it is gone at once, or they create it again."""
        async with self._nothing_hidden():
            await self._store.remove_topic(topic, lambda: self._forget(topic))
        try:
            await asyncio.to_thread(self._progress.offsets.save)
        except OSError as error:
            raise NotNow(f"progress cannot be written now, and is tried again: {what_to_do(error)}") from error

    def _forget(self, topic: str) -> bool:
        self._topics.remove(topic)
        self._progress.offsets.forget_topic(topic)
        self._resets.forget_topic(topic)
        self._statistics.forget_topic(topic)
        self._on_removal(topic)
        return True

    async def clean_unused(self, request: ask.CleanUnusedTopics, peer: Peer) -> Response:
        """Remove the queues of topics that are no longer there."""
        for topic in sorted({queue.id.topic for queue in self._store.queue_list()}):
            if self._is_unused(topic) and await self._remove_unused(topic):
                log.warning("%s had the queues of %s removed, which is no topic any more", peer.address, topic)
        return Response()

    async def _remove_unused(self, topic: str) -> bool:
        """Return False if a client has created the topic in the meantime."""
        async with self._nothing_hidden():
            return await self._store.remove_topic(topic, partial(self._is_unused, topic))

    def _is_unused(self, topic: str) -> bool:
        return self._topics.get(topic) is None and not self._is_system(topic)

    def _is_system(self, topic: str) -> bool:
        return names.is_system_topic(topic) or topic in self._own_topics()

    def _own_topics(self) -> set[str]:
        config = self._config()
        return {config.cluster, config.name, names.reply_topic(config.cluster), config.trace_topic}

    def _refuse_system(self, topic: str) -> None:
        if self._is_system(topic):
            raise BadRequest(f"The topic[{topic}] is conflict with system topic: the broker needs it as it is")

    # --- listing -----------------------------------------------------------------------------------------------------

    async def get_all(self, request: ask.GetAllTopics, peer: Peer) -> Response:
        table = self._topics.table
        total, version = len(table), table.version
        some = page_of(table, request, version)
        body = await sliced_body(TopicConfigs(version, tuple(some)).pieces(), "the list of all topics")
        return ask.AllTopicsAnswer(total=total, body=body)

    def get(self, request: ask.GetTopic, peer: Peer) -> Response:
        return Response(body=encode_topic(self._topics.require(request.topic)))

    def system_topics(self, request: ask.GetBrokerSystemTopics, peer: Peer) -> Response:
        return Response(body=TopicList(tuple(sorted(names.SYSTEM_TOPICS | self._own_topics()))).encode())

    def groups_of_topic(self, request: ask.QueryGroupsOfTopic, peer: Peer) -> Response:
        """Those that consume it now, and those that did."""
        groups = self._consumers.groups_of_topic(request.topic) | self._progress.offsets.groups_of(request.topic)
        return Response(body=encode_group_names(groups))

    def topics_of_group(self, request: ask.QueryTopicsOfGroup, peer: Peer) -> Response:
        topics = tuple(sorted(self._progress.offsets.topics_of(request.group)))
        return Response(body=TopicList(topics, self._address).encode())

    # --- queues ------------------------------------------------------------------------------------------------------

    async def stats(self, request: ask.GetTopicStats, peer: Peer) -> Response:
        topic = self._topics.require(request.topic)
        broker = self._config().name
        queues = (
            (MessageQueue(topic.name, broker, number), self._range_of(topic.name, number))
            for number in range(max(topic.read_queues, topic.write_queues))
        )
        pieces = topic_stats_pieces(queues, self._statistics.topic_tps(topic.name))
        return Response(body=await sliced_body(pieces, f"the queues of {topic.name}"))

    def _range_of(self, topic: str, number: int) -> QueueRange:
        queue = self._store.queue(topic, number)
        if queue is None:
            return QueueRange(0, 0, 0)
        last_ms = self._store.store_time(queue, queue.max_offset - 1) if queue.max_offset > queue.min_offset else None
        return QueueRange(queue.min_offset, queue.max_offset, last_ms or 0)

    def query_queue(self, request: ask.QueryQueue, peer: Peer) -> Response:
        queue = self._store.queue(request.topic, request.queue_id)
        if queue is None:
            raise ServiceError(f"{request.queue_id}@{request.topic} is not exist: the topic has no such queue here")
        first = max(request.first, 0)
        last = min(queue.max_offset, first + min(max(request.count, 0), MAX_ENTRIES))
        if not queue.min_offset <= first < max(queue.max_offset, 1):
            raise NotFound(f"the queue has offsets from {queue.min_offset} to {queue.max_offset}, {first} is not there")
        entries = [entry for offset in range(first, last) if (entry := queue.entry(offset)) is not None]
        shown = [QueueEntryInfo(entry.position, entry.size, entry.tag_code) for entry in entries]
        if request.group is None:
            return Response(body=encode_queue_entries(shown, queue.min_offset, queue.max_offset))
        form = subscription_form(self._consumers, request.group, request.topic)
        filter_data = f"{request.group}@{request.topic} is not online!" if form is None else "null"
        return Response(
            body=encode_queue_entries(
                shown, queue.min_offset, queue.max_offset, subscription=form, filter_data=filter_data
            )
        )


def _check_name(topic: str) -> None:
    try:
        names.check_topic(topic)
    except IllegalMessage as problem:
        raise BadRequest(str(problem)) from None


def _check_queues(topic: TopicConfig) -> None:
    if not (0 <= topic.read_queues <= MAX_QUEUES and 0 <= topic.write_queues <= MAX_QUEUES):
        raise BadRequest(
            f"a topic has 0 to {MAX_QUEUES} queues, {topic.read_queues} to read and {topic.write_queues} to write "
            "were asked for"
        )
