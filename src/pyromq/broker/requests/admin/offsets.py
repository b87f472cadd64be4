"""The offsets of groups, over the network: shown, set back or forth, and copied.

A reset holds at once for the group. Consumers that are at work hear of it with their next pull (see `resets`); the
pulls that wait are made to look again, so that this is now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyromq.broker.state.clients import Consumers
from pyromq.broker.state.groups import Groups
from pyromq.broker.state.offsets import Progress
from pyromq.broker.state.resets import Resets
from pyromq.broker.state.topics import Topics
from pyromq.broker.statistics.traffic import Statistics
from pyromq.clock import Clock
from pyromq.config import BrokerConfig
from pyromq.errors import BadRequest, GroupNotFound, IllegalMessage, ServiceError
from pyromq.model import names
from pyromq.model.data_version import DataVersion
from pyromq.model.json_form import INT64_MAX, Json
from pyromq.model.topic import TopicConfig
from pyromq.net.peer import Peer
from pyromq.net.service import Handler
from pyromq.net.slices import sliced_body
from pyromq.store.message_store import MessageStore
from pyromq.store.tables import log_history
from pyromq.store.tables.log_history import LogHistory
from pyromq.store.tables.offset_files import DelayOffsets
from pyromq.wire.bodies.locks import MessageQueue
from pyromq.wire.bodies.offsets import (
    CHANGES,
    DELAY_CHANGES,
    IS_DELTA,
    all_offsets_pieces,
    encode_correction,
    encode_delay_offsets,
    encode_reset,
)
from pyromq.wire.bodies.stats import (
    ConsumeStats,
    QueueProgress,
    TimeSpan,
    broker_consume_stats_pieces,
    consume_stats_pieces,
    time_span_pieces,
)
from pyromq.wire.requests import admin as ask
from pyromq.wire.requests.client import Request
from pyromq.wire.responses import Response

log = logging.getLogger("pyromq.broker")

#: Makes pulls that wait at these queues look again.
Wake = Callable[[list[tuple[str, int]]], None]


class OffsetAdmin:
    """Handles the requests of admin tools about consumer progress."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        address: str,
        topics: Topics,
        groups: Groups,
        consumers: Consumers,
        progress: Progress,
        resets: Resets,
        store: MessageStore,
        statistics: Statistics,
        clock: Clock,
        *,
        wake: Wake,
        delays: DelayOffsets | None = None,
        delay_levels: int = 0,
    ) -> None:
        self._config = config
        self._address = address
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._progress = progress
        self._resets = resets
        self._store = store
        self._statistics = statistics
        self._clock = clock
        self._wake = wake
        self._delays = delays
        self._delay_levels = delay_levels

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {
            ask.GetConsumeStats: self.consume_stats,
            ask.GetBrokerConsumeStats: self.broker_consume_stats,
            ask.QueryTimeSpan: self.time_span,
            ask.GetAllOffsets: self.all_offsets,
            ask.GetAllDelayOffsets: self.all_delay_offsets,
            ask.ResetOffset: self.reset,
            ask.QueryCorrectionOffset: self.correction,
            ask.CloneOffsets: self.clone,
        }

    # --- how far -----------------------------------------------------------------------------------------------------

    async def consume_stats(self, request: ask.GetConsumeStats, peer: Peer) -> Response:
        group = request.group
        asked = dict.fromkeys(name for name in (request.topics or "").split(";") if name)
        wanted = asked or [
            name
            for name in ([request.topic] if request.topic else sorted(self._progress.offsets.topics_of(group)))
            if self._is_wanted(group, name)
        ]
        topics = [topic for name in wanted if (topic := self._topics.get(name)) is not None]
        tps = sum(self._statistics.group_tps(group, topic.name) for topic in topics)
        queues = (one for topic in topics for one in self._queues_of(group, topic))
        return Response(body=await sliced_body(consume_stats_pieces(queues, tps), f"the progress of {group}"))

    async def broker_consume_stats(self, request: ask.GetBrokerConsumeStats, peer: Peer) -> Response:
        names_of_groups = [group.name for group in self._groups]
        groups = ((group, self._stats_of(group, only_ordered=request.only_ordered)) for group in names_of_groups)
        pieces = broker_consume_stats_pieces(self._address, groups)
        return Response(body=await sliced_body(pieces, "the progress of all groups"))

    def _stats_of(self, group: str, *, only_ordered: bool) -> Iterator[ConsumeStats]:
        for name in sorted(self._progress.offsets.topics_of(group)):
            topic = self._topics.get(name)
            if topic is not None and (topic.order or not only_ordered) and self._is_wanted(group, name):
                yield ConsumeStats(self._queues_of(group, topic), self._statistics.group_tps(group, name))

    def _queues_of(self, group: str, topic: TopicConfig) -> Iterator[tuple[MessageQueue, QueueProgress]]:
        broker = self._config().name
        for number in range(topic.read_queues):
            yield MessageQueue(topic.name, broker, number), self._progress_in(group, topic.name, number)

    def _is_wanted(self, group: str, topic: str) -> bool:
        """Return the topics of a group: its subscriptions if it is connected, else all that it ever consumed."""
        known = self._consumers.get(group)
        return known is None or not known.subscriptions or topic in known.subscriptions

    def _progress_in(self, group: str, topic: str, number: int) -> QueueProgress:
        offset = self._progress.offset_of(group, topic, number) or 0
        last_ms = self._stored_ms(topic, number, offset - 1)
        return QueueProgress(self._store.max_offset(topic, number), offset, offset, last_ms or 0)

    def _stored_ms(self, topic: str, number: int, offset: int) -> int | None:
        """Return the store time of a message; None if it is not there any more or not yet."""
        queue = self._store.queue(topic, number)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        return self._store.store_time(queue, offset)

    async def time_span(self, request: ask.QueryTimeSpan, peer: Peer) -> Response:
        topic = self._topics.require(request.topic)
        spans = (self._span_of(request.group, topic.name, number) for number in range(topic.write_queues))
        return Response(body=await sliced_body(time_span_pieces(spans), f"the times of {topic.name}"))

    def _span_of(self, group: str, topic: str, number: int) -> TimeSpan:
        smallest, largest = self._store.min_offset(topic, number), self._store.max_offset(topic, number)
        oldest_ms = self._stored_ms(topic, number, smallest)
        newest_ms = self._stored_ms(topic, number, largest - 1)
        done = self._progress.offset_of(group, topic, number) or 0
        consumed_ms = self._stored_ms(topic, number, done - 1) if done > 0 else oldest_ms
        next_ms = self._stored_ms(topic, number, max(done, smallest))
        return TimeSpan(
            MessageQueue(topic, self._config().name, number),
            -1 if oldest_ms is None else oldest_ms,
            -1 if newest_ms is None else newest_ms,
            -1 if consumed_ms is None else consumed_ms,
            0 if next_ms is None else max(0, self._clock.now_ms() - next_ms),
        )

    async def all_offsets(self, request: ask.GetAllOffsets, peer: Peer) -> Response:
        """All of one moment, written in slices after it.

        A slave of ours asks each second, and hears what changed since; a topic and group that are gone are empty.
        """
        offsets, delays = self._progress.offsets, self._delays
        changed, token = offsets.changed_since(request.changed_since), offsets.token
        found = offsets.all() if changed is None else {pair: offsets.offsets_of(pair[1], pair[0]) for pair in changed}
        is_ours = request.changed_since is not None  # and reads standard JSON, six times as fast
        table: dict[str, Mapping[Any, int]] = {
            f"{topic}@{group}": {str(queue): offset for queue, offset in queues.items()} if is_ours else queues
            for (topic, group), queues in found.items()
        }
        has_transactions = changed is None or any(group == names.TRANSACTION_GROUP for _, group in changed)
        version, tied = offsets.version, _tied(offsets.transactions()) if has_transactions else {}
        body = await sliced_body(all_offsets_pieces(version, table, tied), "the progress of all groups")
        more = {
            CHANGES: token,
            IS_DELTA: str(changed is not None).lower(),
            DELAY_CHANGES: f"{token.partition(':')[0]}:{delays.changes if delays is not None else 0}",
        }
        return Response(body=body, more=more)

    def all_delay_offsets(self, request: ask.GetAllDelayOffsets, peer: Peer) -> Response:
        delays = self._delays
        if delays is None:
            return Response(body=encode_delay_offsets(DataVersion(), {}))
        levels = range(1, self._delay_levels + 1)
        offsets = {level: offset for level in levels if (offset := delays.offset_of(level)) is not None}
        return Response(
            body=encode_delay_offsets(delays.version, offsets, _tied(delays.history()) if offsets else None)
        )

    # --- set ---------------------------------------------------------------------------------------------------------

    def reset(self, request: ask.ResetOffset, peer: Peer) -> Response:
        """Raises TopicNotFound, GroupNotFound, BadRequest."""
        topic = self._topics.require(request.topic)
        if self._groups.get(request.group) is None:
            raise GroupNotFound(f"the group {request.group} does not exist on this broker")
        offsets = dict(self._wanted(request, topic))
        if not offsets:
            raise ServiceError(f"the topic {topic.name} has no queues to read: nothing can be reset")
        log.warning("%s reset %s in %s to %s", peer.address, request.group, topic.name, offsets)
        for number, offset in offsets.items():
            self._set(request.group, topic.name, number, offset)
        self._wake([(topic.name, number) for number in offsets])
        broker = self._config().name
        return Response(body=encode_reset((MessageQueue(topic.name, broker, n), to) for n, to in offsets.items()))

    def _wanted(self, request: ask.ResetOffset, topic: TopicConfig) -> Iterator[tuple[int, int]]:
        """Queues and where they are to be."""
        if request.queue_id >= topic.read_queues:
            raise BadRequest(f"the topic {topic.name} has {topic.read_queues} queues to read, not {request.queue_id}")
        if request.queue_id >= 0 and request.offset >= 0:
            yield request.queue_id, self._in_queue(topic.name, request.queue_id, request.offset)
            return
        one = (request.queue_id,) if request.queue_id >= 0 else None
        for number in one or range(topic.read_queues):
            target = self._at_time(topic.name, number, request.timestamp_ms)
            known = self._progress.offset_of(request.group, topic.name, number)
            is_kept = one is None and not request.force and known is not None and target > known
            yield number, known if is_kept and known is not None else target

    def _in_queue(self, topic: str, number: int, offset: int) -> int:
        smallest, largest = self._store.min_offset(topic, number), self._store.max_offset(topic, number)
        if not smallest <= offset <= largest:
            raise ServiceError(f"Target offset {offset} not in consume queue range [{smallest}-{largest}]")
        return offset

    def _at_time(self, topic: str, number: int, timestamp_ms: int) -> int:
        if timestamp_ms < 0:
            return self._store.max_offset(topic, number)
        return self._store.offset_at(topic, number, timestamp_ms)

    def _set(self, group: str, topic: str, number: int, offset: int) -> None:
        self._progress.set(group, topic, number, offset)
        consumers = self._consumers.get(group)
        if consumers is not None and consumers.members:
            self._resets.note(group, topic, number, offset)

    # --- compared and copied -----------------------------------------------------------------------------------------

    def correction(self, request: ask.QueryCorrectionOffset, peer: Peer) -> Response:
        """The smallest offset of all groups by queue; the largest number there is where the compared one is behind."""
        offsets = self._progress.offsets
        left_out = set((request.filter_groups or "").split(","))
        smallest: dict[int, int] = {}
        for group in offsets.groups_of(request.topic) - left_out:
            for number, offset in offsets.offsets_of(group, request.topic).items():
                if offset >= self._store.min_offset(request.topic, number):
                    smallest[number] = min(offset, smallest.get(number, INT64_MAX))
        for number, offset in offsets.offsets_of(request.compare_group, request.topic).items():
            if smallest.get(number, INT64_MAX) > offset:
                smallest[number] = INT64_MAX
        return Response(body=encode_correction(smallest))

    def clone(self, request: ask.CloneOffsets, peer: Peer) -> Response:
        """Copy the offsets of one group to another."""
        try:
            names.check_group(request.target)
        except IllegalMessage as problem:
            raise BadRequest(str(problem)) from None
        offsets = self._progress.offsets
        topics = {request.topic} if request.topic else offsets.topics_of(request.source)
        for topic in topics:
            if self._topics.get(topic) is None or not (request.offline or self._is_wanted(request.source, topic)):
                continue
            log.warning("%s set %s in %s to where %r is", peer.address, request.target, topic, request.source[:300])
            for number, offset in offsets.offsets_of(request.source, topic).items():
                self._set(request.target, topic, number, offset)
        return Response()


def _tied(history: LogHistory) -> dict[str, Json]:
    """The positions with the log ends they depend on, for slaves and backups of ours."""
    return {log_history.FIELD: log_history.to_json(history)} if history.entries else {}
