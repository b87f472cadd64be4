"""Pulling: messages of a queue from an offset on, filtered by the group's subscription; held while there are none.

The answer to a pull that found messages is made in this turn of the loop when they are in memory; cold ones are fetched
by a thread first. However much of a queue a filter leaves out, one pull looks at a limited part of it, and tells the
client where to go on.

A slave may be behind its master, and may have less of the past: an offset that it does not have is none that it puts
right. It waits for it, and the reader's next question goes to the master, if there is one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from typing import Any

from pyromq.broker.delivery.long_polls import Holds
from pyromq.broker.failover.read_routing import ReadAdvice
from pyromq.broker.state.clients import Consumers
from pyromq.broker.state.groups import Groups
from pyromq.broker.state.offsets import Progress
from pyromq.broker.state.resets import Resets
from pyromq.broker.state.topics import Topics
from pyromq.broker.statistics.traffic import Statistics
from pyromq.clock import cpu_seconds
from pyromq.config import BrokerConfig
from pyromq.config.broker import READ
from pyromq.errors import (
    BadRequest,
    FilterSyntaxError,
    IllegalOffset,
    NoPermission,
    ServiceError,
    SubscriptionNotFound,
    SubscriptionNotLatest,
    SystemBusy,
)
from pyromq.filters.subscription import SQL92, MessageFilter, Subscription, build
from pyromq.model.group import GroupConfig
from pyromq.model.topic import TopicConfig
from pyromq.net.peer import Peer
from pyromq.net.service import NEXT_TURN
from pyromq.net.slices import job
from pyromq.records import layout, record
from pyromq.records.properties import decode_properties
from pyromq.store.message_store import MessageStore
from pyromq.store.queues.queue_reader import ReadResult, ReadStatus
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import PullMessage
from pyromq.wire.responses import PullResult, Response

log = logging.getLogger("pyromq.broker")

HAS_COMMIT = 1
MAY_HOLD = 2
HAS_SUBSCRIPTION = 4
HAS_CLASS_FILTER = 8

#: The size of one answer unless the client asks for another amount: RocketMQ's own figure.
USUAL_BYTES = 256 * 1024
#: Of a pull by expression, how many messages and bytes are looked at before the client is asked to come again: to read
#: the properties of one and evaluate the expression takes about ten microseconds. A long expression ends sooner, when
#: this much CPU time is used up.
FILTER_MESSAGES = 256
FILTER_BYTES = 1 << 20
FILTER_SECONDS = 0.005
#: A hold longer than this is cut: clients ask for 15 to 20 s.
MAX_HOLD_SECONDS = 60.0
#: A held pull that saw only messages for others tells its client so after this time.
TELL_SECONDS = 5.0
#: Expressions that come with the pull itself are kept so that the next pull finds them ready: many short ones, and a
#: few of those that may be large, because any client can fill the cache.
KEPT_EXPRESSIONS = 512
SHORT_EXPRESSION = 4096
KEPT_LONG_EXPRESSIONS = 16
#: RocketMQ notes what a group is forbidden to do with a topic in the same bits as permissions.
READ_FORBIDDEN = READ

#: The client's next step, by the result of the read; and RocketMQ's word for it.
OUTCOMES = {
    ReadStatus.FOUND: (ResponseCode.SUCCESS, None),
    ReadStatus.NO_MATCH: (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"),
    ReadStatus.AT_END: (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE"),
    ReadStatus.TOO_SMALL: (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL"),
    ReadStatus.TOO_LARGE: (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY"),
    ReadStatus.NO_QUEUE: (ResponseCode.PULL_NOT_FOUND, "NO_MATCHED_LOGIC_QUEUE"),
}


OUT_OF_RANGE = (ReadStatus.TOO_LARGE, ReadStatus.TOO_SMALL)


class Forbidden(IntEnum):
    """Why a pull was not permitted, in RocketMQ's numbers."""

    BROKER = 1
    GROUP = 2
    TOPIC = 3
    BROADCASTING = 4
    SUBSCRIPTION = 5


class _PullForbidden(NoPermission):
    def __init__(self, why: Forbidden, message: str) -> None:
        self.why = why
        super().__init__(message)


@dataclass(slots=True)
class Plan:
    """A pull that passed the checks."""

    group: GroupConfig
    topic: TopicConfig
    wanted: MessageFilter
    max_messages: int
    max_bytes: int


class PullProcessor:
    """Handles `PullMessage`."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        topics: Topics,
        groups: Groups,
        consumers: Consumers,
        progress: Progress,
        store: MessageStore,
        holds: Holds,
        resets: Resets,
        statistics: Statistics,
        advice: ReadAdvice,
    ) -> None:
        self._config = config
        self._advice = advice
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._progress = progress
        self._store = store
        self._holds = holds
        self._resets = resets
        self._statistics = statistics

    def pull(self, request: PullMessage, peer: Peer) -> Awaitable[Response] | Response:
        """Raises what the checks find."""
        try:
            plan = self.plan(request)
        except _PullForbidden as refused:
            return Response(code=refused.code, reason=str(refused), more={"forbiddenType": str(refused.why.value)})
        if request.flags & HAS_COMMIT:
            self._commit(request, peer)
        answer = self._reset(request, plan)
        if answer is not None:
            return answer
        plan.max_bytes = min(plan.max_bytes, peer.answer_room)
        if self._store.is_cold(request.topic, request.queue_id, request.offset):
            return self._pull_cold(request, plan, peer)
        found = _filtered(self._read(request, plan), plan)
        if found.size > peer.answer_room and not peer.has_turn:
            return NEXT_TURN
        answer = self._answer(request, plan, found)
        return answer if answer.code != ResponseCode.PULL_NOT_FOUND else self._hold(request, answer, peer)

    def _commit(self, request: PullMessage, peer: Peer) -> None:
        """An offset that cannot be is no reason to give no messages: the answer is what puts its client right."""
        if self._resets.is_pending(request.group, request.topic, request.queue_id):
            return  # it does not know yet where it is to go on
        try:
            self._progress.advance(request.group, request.topic, request.queue_id, request.commit_offset)
        except (IllegalOffset, SystemBusy) as refused:
            log.warning("%s told its progress along with a pull, and it is not kept: %s", peer.address, refused)

    async def _pull_cold(self, request: PullMessage, plan: Plan, peer: Peer) -> Response:
        found = await self._store.read_soon(request.topic, request.queue_id, request.offset, **_limits(plan))
        answer = self._answer(request, plan, _filtered(found, plan))
        # What is held must have looked in this very turn, and it has: nothing was awaited since.
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return await _settled(self._hold(request, answer, peer))
        return answer if answer.body_bytes <= peer.answer_room else await _in_turn(answer)

    def _hold(self, request: PullMessage, answer: PullResult, peer: Peer) -> Awaitable[Response] | Response:
        if not request.flags & MAY_HOLD or self._holds.is_full:
            return answer
        waiting = _Waiting(self, request, peer, answer)
        waiting.held = self._holds.hold(
            request.topic, request.queue_id, waiting.look, self._hold_seconds(request), waiting.end
        )
        return waiting.held

    def _hold_seconds(self, request: PullMessage) -> float:
        config = self._config()
        wanted_ms = request.suspend_ms if config.long_polling else config.short_poll_ms
        return min(max(wanted_ms, 0) / 1000, MAX_HOLD_SECONDS)

    # --- checks ------------------------------------------------------------------------------------------------------

    def plan(self, request: PullMessage) -> Plan:
        """Return the plan for every pull like this one. Raises the errors of its checks."""
        config = self._config()
        if not config.permission & READ:
            raise _PullForbidden(Forbidden.BROKER, f"the broker[{config.name}] pulling message is forbidden")
        group = self._groups.require(request.group)
        if not group.consume_enabled:
            raise _PullForbidden(
                Forbidden.GROUP, f"subscription group no permission, {group.name}: consuming is switched off"
            )
        topic = self._topics.require(request.topic)
        self._check_topic(request, topic)
        return Plan(
            group,
            topic,
            self._filter(request, group, config),
            max(1, min(request.max_messages, config.max_pull_messages)),
            min(request.max_bytes or USUAL_BYTES, config.max_pull_bytes),
        )

    def _check_topic(self, request: PullMessage, topic: TopicConfig) -> None:
        if not topic.permission & READ:
            raise _PullForbidden(Forbidden.TOPIC, f"the topic[{topic.name}] pulling message is forbidden")
        if not 0 <= request.queue_id < topic.read_queues:
            raise BadRequest(
                f"queueId[{request.queue_id}] is illegal: the topic {topic.name} has {topic.read_queues} queues to read"
            )
        if self._may_not_read(request.group, topic.name):
            raise _PullForbidden(
                Forbidden.SUBSCRIPTION, f"the consumer group[{request.group}] is forbidden for topic[{topic.name}]"
            )

    def _may_not_read(self, group: str, topic: str) -> bool:
        topics = self._groups.table.forbidden.get(group)
        bits = topics.get(topic) if isinstance(topics, dict) else None
        return isinstance(bits, int) and bits > 0 and bool(bits & READ_FORBIDDEN)

    def _filter(self, request: PullMessage, group: GroupConfig, config: BrokerConfig) -> MessageFilter:
        """Return the group's subscription to the topic, from this request or its heartbeat."""
        if request.flags & HAS_CLASS_FILTER:
            raise FilterSyntaxError(0, "filtering by a Java class is not supported: use tags or SQL92")
        if request.flags & HAS_SUBSCRIPTION:
            subscription = _built(request.subscription, request.expression_type)
        else:
            subscription = self._known(request, group)
        if subscription.kind == SQL92 and not config.sql_filters:
            raise ServiceError(
                "The broker does not support consumer to filter message by SQL92: it is switched off "
                "(sql_filters, enablePropertyFilter)"
            )
        return subscription.filter

    def _known(self, request: PullMessage, group: GroupConfig) -> Subscription:
        consumers = self._consumers.get(request.group)
        if consumers is None:
            raise SubscriptionNotFound(
                f"the consumer's group info not exist: no heartbeat of {request.group} was heard"
            )
        if not group.broadcast_enabled and consumers.is_broadcast:
            raise _PullForbidden(
                Forbidden.BROADCASTING, f"the consumer group[{group.name}] can not consume by broadcast way"
            )
        subscription = consumers.subscriptions.get(request.topic)
        if subscription is None:
            raise SubscriptionNotFound(
                f"the consumer's subscription not exist: {request.group} does not name {request.topic}"
            )
        if subscription.version < request.subscription_version:
            raise SubscriptionNotLatest(f"the subscription of {request.group} to {request.topic} is not the latest")
        return subscription

    # --- reading -----------------------------------------------------------------------------------------------------

    def _read(self, request: PullMessage, plan: Plan) -> ReadResult:
        return self._store.read(request.topic, request.queue_id, request.offset, **_limits(plan))

    def look_again(self, request: PullMessage, room: int) -> PullResult:
        """The same pull, later: all that was checked may be different by now. Raises what the checks find."""
        plan = self.plan(request)
        plan.max_bytes = min(plan.max_bytes, room)
        return self._reset(request, plan) or self._answer(request, plan, _filtered(self._read(request, plan), plan))

    def _reset(self, request: PullMessage, plan: Plan) -> PullResult | None:
        """Tell a consumer at work that its group was moved, or that the queue lost its tail at the last start."""
        where = (request.group, request.topic, request.queue_id, request.offset)
        offset = self._resets.take(*where)
        if offset is None:
            offset = self._progress.rejoin(*where)
        if offset is None:
            return None
        first = self._store.min_offset(request.topic, request.queue_id)
        last = self._store.max_offset(request.topic, request.queue_id)
        log.info("%s goes on at %d in %s/%d: it was reset", request.group, offset, request.topic, request.queue_id)
        return result(plan, ReadResult(ReadStatus.TOO_SMALL, offset, first, last), "OFFSET_RESET")

    def _was_shown(self, request: PullMessage, found: ReadResult) -> bool:
        """Return whether the pull is past the visible mark, and within the messages given out before a crash.

        A sync master that was killed hides for a moment the messages that no slave has confirmed since: a consumer that
        had read them waits, and does not read them twice.
        """
        return found.max_offset < request.offset <= self._store.given_out(request.topic, request.queue_id)

    def _answer(self, request: PullMessage, plan: Plan, found: ReadResult) -> PullResult:
        if found.records:
            self._statistics.got(request.group, request.topic, len(found.records), found.size)
        else:
            self._statistics.got_nothing()
        if found.status is ReadStatus.NO_QUEUE and request.offset != 0:
            found.status = ReadStatus.TOO_LARGE
        if found.status in OUT_OF_RANGE and (self._config().is_slave or self._was_shown(request, found)):
            found = ReadResult(ReadStatus.AT_END, request.offset, found.min_offset, found.max_offset)
        if found.status in OUT_OF_RANGE:
            log.info(
                "%s asks for offset %d of %s/%d, which has %d to %d: it is told to go on at %d",
                request.group, request.offset, request.topic, request.queue_id, found.min_offset, found.max_offset,
                found.next_offset,
            )  # fmt: skip
        position = layout.position_of(found.records[-1]) if found.records else None
        answer = result(plan, found)
        answer.suggested_broker_id = self._advice.broker_for(plan.group, position)
        return answer


@dataclass(slots=True, eq=False)
class _Waiting:
    """A held pull. What it looked at in vain it does not look at again."""

    processor: PullProcessor
    request: PullMessage
    peer: Peer
    #: The newest answer that says: nothing.
    nothing: PullResult
    held: asyncio.Future[Response] | None = None
    is_telling: bool = False

    def look(self) -> Response | None:
        found = self.processor.look_again(self.request, self.peer.answer_room)
        # With more to look at, the client comes again at once: what is for it may be among the rest.
        is_for_others = found.code == ResponseCode.PULL_RETRY_IMMEDIATELY and found.next_offset >= found.max_offset
        if found.code == ResponseCode.PULL_NOT_FOUND or is_for_others:
            self.request.offset = found.next_offset
            self.nothing = found
            if is_for_others and not self.is_telling:
                self.is_telling = True
                asyncio.get_running_loop().call_later(TELL_SECONDS, self.tell)
            return None
        return found

    def tell(self) -> None:
        """All that came was for others: the client hears how far it is, and does not count it as waiting for it."""
        if self.held is not None and not self.held.done():
            self.held.set_result(replace(self.nothing, code=ResponseCode.PULL_RETRY_IMMEDIATELY))

    def end(self) -> Response:
        return replace(self.nothing, code=ResponseCode.PULL_NOT_FOUND)


async def _in_turn(answer: Response) -> Response:
    """Return an answer that is larger than its share of a turn; at most one of them leaves per turn of the loop."""
    async with job():
        return answer


async def _settled(answer: Awaitable[Response] | Response) -> Response:
    return answer if isinstance(answer, Response) else await answer


def _limits(plan: Plan) -> dict[str, Any]:
    """Return the limits of a read for this pull."""
    if plan.wanted.needs_properties:
        return {"max_messages": FILTER_MESSAGES, "max_bytes": FILTER_BYTES}
    return {"max_messages": plan.max_messages, "max_bytes": plan.max_bytes, "tag_codes": plan.wanted.tag_codes}


def result(plan: Plan, found: ReadResult, why: str | None = None) -> PullResult:
    code, reason = OUTCOMES[found.status]
    return PullResult(
        code=code,
        reason=why or reason,
        body=found.records,
        next_offset=found.next_offset,
        min_offset=found.min_offset,
        max_offset=found.max_offset,
        topic_flags=plan.topic.system_flag,
        group_flags=plan.group.system_flag,
    )


def _filtered(found: ReadResult, plan: Plan) -> ReadResult:
    """Leave out the messages that the expression rejects, and those above the requested number."""
    if not plan.wanted.needs_properties or found.status is not ReadStatus.FOUND:
        return found
    kept: list[memoryview] = []
    size = 0
    deadline = cpu_seconds() + FILTER_SECONDS
    for number, view in enumerate(found.records):
        if number and cpu_seconds() > deadline:
            found.next_offset = layout.queue_offset_of(view)
            break
        if not plan.wanted.matches_properties(properties_of(view)):
            continue
        if kept and (len(kept) >= plan.max_messages or size + len(view) > plan.max_bytes):
            found.next_offset = layout.queue_offset_of(view)
            break
        kept.append(view)
        size += len(view)
    found.records = kept
    found.status = ReadStatus.FOUND if kept else ReadStatus.NO_MATCH
    return found


def _built(expression: str | None, kind: str | None) -> Subscription:
    is_short = expression is None or len(expression) <= SHORT_EXPRESSION
    return (_built_short if is_short else _built_long)(expression, kind)


@lru_cache(KEPT_EXPRESSIONS)
def _built_short(expression: str | None, kind: str | None) -> Subscription:
    return build("", expression, kind, 0)


@lru_cache(KEPT_LONG_EXPRESSIONS)
def _built_long(expression: str | None, kind: str | None) -> Subscription:
    return build("", expression, kind, 0)


def properties_of(view: memoryview) -> Mapping[str, str]:
    """The properties of a record that the store gave."""
    spans = record.spans_of(view, 0, len(view))
    assert not isinstance(spans, str)
    return decode_properties(bytes(view[spans.properties : spans.properties_end]))
