"""Clients: heartbeats, goodbyes, who is in a group, and the locks of those who consume in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass

import orjson

from pyromq.broker.state.clients import ConsumerGroup, Consumers, ConsumerSeen, Member, Producers
from pyromq.broker.state.groups import Groups
from pyromq.broker.state.locks import QueueLocks
from pyromq.broker.state.topics import Topics
from pyromq.clock import Clock
from pyromq.config import BrokerConfig
from pyromq.errors import (
    BadRequest,
    FilterSyntaxError,
    GroupNotFound,
    IllegalMessage,
    NotJson,
    ServiceError,
    WrongShape,
)
from pyromq.filters.subscription import SQL92, Subscription, build
from pyromq.model import names
from pyromq.model.ids import QueueId
from pyromq.model.json_form import from_json
from pyromq.model.lenient_json import loads
from pyromq.net.peer import Peer
from pyromq.net.slices import job
from pyromq.wire.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData, decode_heartbeat
from pyromq.wire.bodies.locks import LockRequest, MessageQueue, decode_lock_request, encode_locked
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import (
    CheckClientConfig,
    GetConsumerList,
    Heartbeat,
    LockQueues,
    NotifyMembersChanged,
    UnlockQueues,
    UnregisterClient,
)
from pyromq.wire.responses import HeartbeatAnswer, Response

log = logging.getLogger("pyromq.broker")

#: Up to this many members each change is announced at once: the cost grows with the square of the members.
SMALL_GROUP = 64
#: Of larger groups, how long changes are gathered. Members look by themselves every 20 s.
SECONDS_PER_MEMBER = 0.001
MAX_NOTICE_SECONDS = 5.0
#: Groups, subscriptions or queues of one request that are looked at in one go, some 20 us each; more take several turns
#: of the loop.
MANY_STEPS = 200
#: Of what members want, how much a line of the log repeats.
SHOWN_WISHES = 10


class MemberProcessor:
    """Handles heartbeats, and notifies groups when a member joins or leaves."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        topics: Topics,
        groups: Groups,
        producers: Producers,
        consumers: Consumers,
        locks: QueueLocks,
        clock: Clock,
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._producers = producers
        self._consumers = consumers
        self._locks = locks
        self._clock = clock
        #: Groups whose members are known to want different things: said once, not with every heartbeat.
        self._warned: set[str] = set()
        #: Large groups of which a change will be told soon.
        self._to_be_told: set[str] = set()

    # --- coming and going --------------------------------------------------------------------------------------------

    def heartbeat(self, request: Heartbeat, peer: Peer) -> Awaitable[Response] | Response:
        """Raises FilterSyntaxError, BadRequest."""
        data = decode_heartbeat(request.body)
        now_ms = self._clock.now_ms()
        assert request.command is not None
        member = Member(peer, data.client_id, request.command.language, request.command.version, now_ms)
        seen = _Seen(is_to_tell_all=data.fingerprint == 0)
        steps = self._seen(data, member, seen)
        if _steps_of(data) > MANY_STEPS:
            return self._in_slices(steps, seen, peer)
        for _ in steps:
            pass
        return seen.answer()

    async def _in_slices(self, steps: Iterator[None], seen: _Seen, peer: Peer) -> Response:
        async with job() as work:
            for _ in steps:
                await work.pause()
                if not peer.is_open:
                    break  # a member that has left must not be added again by an older heartbeat
        return seen.answer()

    def _seen(self, data: HeartbeatData, member: Member, seen: _Seen) -> Iterator[None]:
        """Note each group separately: a problem with one is no reason to forget the rest."""
        for group in data.producer_groups:
            yield
            try:
                self._producers.seen(group, member)
            except BadRequest as problem:
                seen.wrong = problem
        for consumer in data.consumers:
            yield
            # The first form of the heartbeat brings the subscriptions each time, and is answered to keep doing so.
            seen.is_to_tell_all |= self._is_news(data, consumer)
            try:
                yield from self._consumer_seen(data, consumer, member)
            except (FilterSyntaxError, BadRequest) as problem:
                seen.wrong = problem
            except (GroupNotFound, IllegalMessage) as problem:  # its pulls are refused with the same reason
                log.warning(
                    "%s (%s) is no member of %s: %s", data.client_id, member.peer.address, consumer.group, problem
                )

    def _is_news(self, data: HeartbeatData, consumer: ConsumerData) -> bool:
        """Must the client tell its subscriptions again next time, because these are not what the group has here?

        The number in the heartbeat stands for them. If the number differs, another member of the group sent other
        subscriptions, and members keep sending theirs until they are the same.
        """
        known = self._consumers.get(consumer.group)
        fingerprint = None if known is None else known.fingerprint
        if fingerprint is None:
            return data.without_subscriptions
        return fingerprint != data.fingerprint

    def _consumer_seen(self, data: HeartbeatData, consumer: ConsumerData, member: Member) -> Iterator[None]:
        group = self._groups.require(consumer.group)
        known = self._consumers.get(group.name)
        subscriptions = None
        if not data.without_subscriptions:
            subscriptions = yield from _built(consumer, {} if known is None else known.subscriptions)
        self._topics.derived(names.retry_topic(group.name), group.retry_queues)
        what = ConsumerSeen(
            consumer.group, consumer.consume_type, consumer.message_model, consumer.consume_from, subscriptions,
            data.fingerprint,
        )  # fmt: skip
        if self._consumers.seen(what, member, member.last_seen_ms):
            log.info("the consumers of %s changed: %s", group.name, member.client_id)
            self._tell_members(group.name)
        self._warn_of_disagreement(group.name, member)

    def _warn_of_disagreement(self, group_name: str, member: Member) -> None:
        group = self._consumers.get(group_name)
        if group is None or not group.disagrees:
            self._warned.discard(group_name)
        elif group_name not in self._warned:
            self._warned.add(group_name)
            log.warning(
                "the members of the group %s do not subscribe to the same: %s. Each of them is given queues of topics "
                "that it did not ask for, or messages are filtered for another one, and they are LOST for the group. "
                "Give all members the same subscriptions, or another group to those that want something else",
                group_name, _difference(group, member),
            )  # fmt: skip

    def unregister(self, request: UnregisterClient, peer: Peer) -> Response:
        if request.producer_group:
            self._producers.left(request.producer_group, peer)
        if request.consumer_group and self._consumers.left(request.consumer_group, peer):
            self._gone(request.consumer_group)
        return Response()

    def disconnected(self, peer: Peer) -> None:
        """Its connection ended."""
        self._producers.disconnected(peer)
        for group in self._consumers.disconnected(peer):
            self._gone(group)

    def expire(self) -> None:
        """Forget clients that have been silent for too long, and locks that ran out."""
        config = self._config()
        before_ms = self._clock.now_ms() - config.client_expiry_ms
        self._producers.expire(before_ms)
        late = self._consumers.expire(before_ms)
        for group, member in late:
            log.info("%s of %s was not heard for %d ms", member.client_id, group, config.client_expiry_ms)
        for group in {group for group, _ in late}:
            self._gone(group)
        self._locks.forget_expired(self._lock_time_ms(), config.queue_lock_expiry_ms)

    def _gone(self, group_name: str) -> None:
        """A client left the group."""
        group = self._consumers.get(group_name)
        if group is None or not group.disagrees:
            self._warned.discard(group_name)
        self._tell_members(group_name)

    def _tell_members(self, group_name: str) -> None:
        """Rebalance now rather than at the next round. Who gets every message anyway has nothing to share out.

        In a large group many come at once, when it starts or the broker does: what happens within a while is one
        notice.
        """
        group, settings = self._consumers.get(group_name), self._groups.get(group_name)
        if group is None or group.is_broadcast or not self._config().notify_members:
            return
        if settings is not None and not settings.notify_members:
            return
        if len(group.members) <= SMALL_GROUP:
            _tell(group)
        elif group_name not in self._to_be_told:
            self._to_be_told.add(group_name)
            seconds = min(len(group.members) * SECONDS_PER_MEMBER, MAX_NOTICE_SECONDS)
            asyncio.get_running_loop().call_later(seconds, self._tell_later, group_name)

    def _tell_later(self, group_name: str) -> None:
        self._to_be_told.discard(group_name)
        group = self._consumers.get(group_name)
        if group is not None:
            _tell(group)

    # --- questions ---------------------------------------------------------------------------------------------------

    def consumer_list(self, request: GetConsumerList, peer: Peer) -> Response:
        group = self._consumers.get(request.group)
        if group is None or not group.members:
            return Response(code=ResponseCode.SYSTEM_ERROR, reason=f"no consumer for this group, {request.group}")
        return Response(body=orjson.dumps({"consumerIdList": group.client_ids()}))

    def check_config(self, request: CheckClientConfig, peer: Peer) -> Response:
        """Would this subscription be understood? Raises FilterSyntaxError, ServiceError, BadRequest."""
        data = _subscription_to_check(request.body)
        if data is not None and data.kind == SQL92 and not self._config().sql_filters:
            raise ServiceError("The broker does not support consumer to filter message by SQL92: it is switched off")
        if data is not None:
            build(data.topic, data.expression, data.kind, data.version)
        return Response()

    # --- locks -------------------------------------------------------------------------------------------------------

    def lock(self, request: LockQueues, peer: Peer) -> Awaitable[Response] | Response:
        """A queue that is not here is not among those that were locked. Raises BadRequest, GroupNotFound."""
        wanted = decode_lock_request(request.body)
        self._groups.require(wanted.group)
        if len(wanted.queues) > MANY_STEPS:
            return self._lock_in_slices(wanted)
        return Response(body=encode_locked([queue for queue in wanted.queues if self._lock(wanted, queue)]))

    async def _lock_in_slices(self, wanted: LockRequest) -> Response:
        got = []
        async with job() as work:
            for queue in wanted.queues:
                if self._lock(wanted, queue):
                    got.append(queue)
                await work.pause()
        return Response(body=encode_locked(got))

    def _lock(self, wanted: LockRequest, queue: MessageQueue) -> bool:
        place = self._place(queue)
        expiry_ms = self._config().queue_lock_expiry_ms
        return place is not None and self._locks.lock(
            wanted.group, place, wanted.client_id, self._lock_time_ms(), expiry_ms
        )

    def _place(self, queue: MessageQueue) -> QueueId | None:
        """None: there is no such queue here."""
        topic = self._topics.get(queue.topic)
        if topic is None or not 0 <= queue.queue_id < max(topic.read_queues, topic.write_queues):
            return None
        return QueueId(topic.name, queue.queue_id)

    def unlock(self, request: UnlockQueues, peer: Peer) -> Awaitable[Response] | Response:
        wanted = decode_lock_request(request.body)
        if len(wanted.queues) > MANY_STEPS:
            return self._unlock_in_slices(wanted)
        for queue in wanted.queues:
            self._locks.unlock(wanted.group, QueueId(queue.topic, queue.queue_id), wanted.client_id)
        return Response()

    async def _unlock_in_slices(self, wanted: LockRequest) -> Response:
        async with job() as work:
            for queue in wanted.queues:
                self._locks.unlock(wanted.group, QueueId(queue.topic, queue.queue_id), wanted.client_id)
                await work.pause()
        return Response()

    def _lock_time_ms(self) -> int:
        """Not the time of day: a clock that is set would end locks, or make them last."""
        return int(self._clock.monotonic() * 1000)


def _tell(group: ConsumerGroup) -> None:
    for member in list(group.members.values()):
        member.peer.tell(NotifyMembersChanged(group=group.name))


@dataclass(slots=True)
class _Seen:
    """The answer to a heartbeat."""

    #: The client tells its subscriptions again next time.
    is_to_tell_all: bool
    wrong: FilterSyntaxError | BadRequest | None = None

    def answer(self) -> Response:
        if self.wrong is not None:
            raise self.wrong
        return HeartbeatAnswer(subscription_changed=self.is_to_tell_all)


def _steps_of(data: HeartbeatData) -> int:
    subscriptions = sum(len(consumer.subscriptions) for consumer in data.consumers)
    return len(data.producer_groups) + len(data.consumers) + subscriptions


def _built(data: ConsumerData, known: Mapping[str, Subscription]) -> Generator[None, None, dict[str, Subscription]]:
    """By topic. One that is known already is not parsed again: heartbeats repeat them every half minute."""
    built: dict[str, Subscription] = {}
    for one in data.subscriptions:
        yield
        same = known.get(one.topic)
        if same is None or (same.expression, same.kind, same.version) != (one.expression, one.kind, one.version):
            same = build(one.topic, one.expression, one.kind, one.version)
        built[one.topic] = same
    return built


def _difference(group: ConsumerGroup, member: Member) -> str:
    """Return the difference between the subscriptions of two members, for people."""
    mine = group.wishes.get(member.peer, frozenset())
    for peer, wish in group.wishes.items():
        if wish != mine:
            other = group.members[peer].client_id
            return f"{member.client_id} wants {_shown(mine - wish)} where {other} wants {_shown(wish - mine)}"
    return "some of them want something else"


def _shown(wishes: frozenset[tuple[str, str, str]]) -> str:
    first = sorted(wishes)[:SHOWN_WISHES]
    shown = [f"{topic[:255]} ({kind} {expression[:80]!r})" for topic, kind, expression in first]
    if len(wishes) > len(first):
        shown.append(f"and {len(wishes) - len(first)} more")
    return ", ".join(shown) or "nothing"


def _subscription_to_check(body: bytes) -> SubscriptionData | None:
    try:
        whole = loads(body)
        found = whole.get("subscriptionData") if isinstance(whole, dict) else None
        return None if found is None else from_json(SubscriptionData, found)
    except (NotJson, WrongShape) as problem:
        raise BadRequest(f"the subscription to check cannot be read: {problem}") from None
