"""The worker of one queue: its fetched messages, and the task that fetches more.

The task pulls the next messages, and the broker holds the pull while there are none (long poll). It pauses
while the buffer is full, while the queue is paused, and, in ordered mode, while another member
may have the queue's lock. Failures are retried after a growing pause; the task ends only with
the worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto

from pyromq.client.consuming.process_queue import Allowance, ProcessQueue, Run
from pyromq.client.consuming.settings import ConsumerSettings
from pyromq.client.received import ReceivedMessage, split_records
from pyromq.client.session import Session
from pyromq.errors import (
    CallFailed,
    IllegalMessage,
    NotNow,
    PyroMQError,
    SubscriptionNotFound,
    SubscriptionNotLatest,
    SystemBusy,
    TopicNotFound,
    Unreachable,
)
from pyromq.filters.subscription import SQL92, Subscription, TagFilter
from pyromq.model.queue import MessageQueue
from pyromq.net.connection import Connection
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.fields import read_fields
from pyromq.wire.requests.client import PullMessage
from pyromq.wire.responses import PullResult

log = logging.getLogger("pyromq.client")

HAS_COMMIT = 1
MAY_HOLD = 2
HAS_SUBSCRIPTION = 4

MASTER = 0
#: The answers that a fetch knows what to do with; any other is an error.
EXPECTED = frozenset({
    ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
})  # fmt: skip
#: Wait this much longer for an answer than the broker may hold the pull.
PATIENCE_SECONDS = 15.0
#: The pause after something went wrong doubles from the first to the last of these.
FIRST_PAUSE_SECONDS = 0.1
LAST_PAUSE_SECONDS = 1.0
#: Avoid an address that did not answer for this long, if there is another replica.
ELSEWHERE_SECONDS = 3.0
#: The same after an answer that makes no sense: the next one will hardly be better.
MISREAD_PAUSE_SECONDS = 3.0
#: A move of the offset this soon after another one is followed by a pause, doubled for each: a broker whose answers
#: lead to and fro must not be asked without end.
MOVED_AGAIN_SECONDS = 10.0
#: The smallest fetch when many queues share the buffer.
LEAST_FETCH_BYTES = 64 << 10


class LockState(Enum):
    """The lock in ordered mode. After a lost lock the worker must read its offset again."""

    NOT_NEEDED = auto()
    #: It will be asked for when the group has calmed down.
    NOT_YET = auto()
    WANTED = auto()
    HELD = auto()


@dataclass(slots=True)
class Fetching:
    """The shared part of all queue workers of a consumer."""

    session: Session
    settings: ConsumerSettings
    allowance: Allowance
    #: Called with messages to handle.
    arrived: Callable[[Lane, Run], None]
    #: Called when a broker cannot be reached, or has forgotten this client.
    lost: Callable[[PyroMQError], Awaitable[None]]
    #: Send the subscription with each fetch: then the heartbeat need not have told it.
    tells_subscription: bool = False
    #: Commit along with fetches.
    tells_progress: bool = True


class Lane:
    """See the module."""

    def __init__(self, fetching: Fetching, subscription: Subscription, queue: MessageQueue) -> None:
        self._fetching = fetching
        self._session = fetching.session
        self.subscription = subscription
        self.queue = queue
        self.process_queue = ProcessQueue(queue, 0, fetching.allowance, self.stir)
        #: Set when it is known where to begin.
        self.placed = asyncio.Event()
        #: The progress that the group's brokers or file were told of; None: nothing yet.
        self.committed: int | None = None
        #: The last committed offset of this queue: only higher ones are committed, or the group's offset would fall.
        self.reached: int | None = None
        #: The group's progress is to be what this lane says, also when that is less than before.
        self.may_go_back = False
        self.is_paused = False
        self.lock_state = LockState.NOT_YET if fetching.settings.needs_locks else LockState.NOT_NEEDED
        #: The monotonic time of the last renewal of the lock.
        self.locked_at = 0.0
        #: The connection that it was renewed on.
        self.locked_on: Connection | None = None
        #: Ordered mode: a message is being handled.
        self.is_busy = False
        #: It is being handed over: nothing new is begun.
        self.is_leaving = False
        self.fetched = 0
        self.fetched_ms = 0
        self.handled_ms = 0
        #: The end of the queue, as the last answer told it.
        self.end = 0
        self._stirred = asyncio.Event()
        self._broker_id = MASTER
        #: The address that was asked last, the one that did not answer, and until when it is left alone.
        self._asked_address = self._lost_address = ""
        self._lost_until = 0.0
        self._pause_s = FIRST_PAUSE_SECONDS
        self._wanted_tags = _tags_to_check(subscription)
        #: The time of the broker's last offset correction, and the number of corrections in quick succession.
        self._moved_at = -MOVED_AGAIN_SECONDS
        self._moves = 0
        #: Grows with each seek: an answer to a question of before it is not for us.
        self.generation = 0
        #: Made due to give up the fetch that the broker may hold; None while there is none.
        self._fetch_in_flight: asyncio.Timeout | None = None

    @property
    def is_placed(self) -> bool:
        return self.placed.is_set()

    @property
    def is_dropped(self) -> bool:
        return self.process_queue.is_dropped

    def stir(self) -> None:
        """Something is different: look again whether to fetch."""
        self._stirred.set()

    def seek(self, offset: int, *, on_purpose: bool = True) -> None:
        """Continue at another offset. Running handlers end and do not count."""
        self.generation += 1
        self.process_queue.seek(offset)
        self.committed = self.reached = None
        self.may_go_back = on_purpose
        self.placed.set()
        self._give_up_fetch()
        self.stir()

    def return_to(self, master: str) -> None:
        """A master leads there now: what another copy may hold for long is asked of it instead."""
        self._lost_address, self._broker_id = "", MASTER
        if self._asked_address != master:
            self._give_up_fetch()

    def _give_up_fetch(self) -> None:
        if self._fetch_in_flight is not None:
            self._fetch_in_flight.reschedule(asyncio.get_running_loop().time())

    @property
    def committable(self) -> int | None:
        """Return the committable offset; None while the start is unknown."""
        return self.process_queue.committable if self.is_placed else None

    def to_tell(self) -> int | None:
        """The progress that may be told; None when there is none, or none of our own."""
        committable = self.committable
        if committable is None or (self.reached is not None and committable <= self.reached):
            return None
        return committable

    # --- the task ----------------------------------------------------------------------------------------------------

    async def fetch_forever(self) -> None:
        while not self.is_dropped:
            if not self._may_fetch():
                self._stirred.clear()
                await self._stirred.wait()
                continue
            try:
                await self._fetch()
                self._pause_s = FIRST_PAUSE_SECONDS
            except PyroMQError as error:
                await self._went_wrong(error)
            except Exception:
                log.exception("fetching from %s/%d failed", self.queue.topic, self.queue.queue_id)
                await asyncio.sleep(MISREAD_PAUSE_SECONDS)

    def _may_fetch(self) -> bool:
        return (
            self.is_placed
            and not self.is_paused
            and self.lock_state in (LockState.HELD, LockState.NOT_NEEDED)
            and self.process_queue.has_room
        )

    async def _fetch(self) -> None:
        address = self._address()
        generation = self.generation
        limit_s = self._fetching.settings.hold_s + PATIENCE_SECONDS
        asked_for, asked_at = self.process_queue.next_offset, self._session.clock.monotonic()
        try:
            async with asyncio.timeout(None) as self._fetch_in_flight:
                answer = await self._session.ask(address, self._question(), limit_s, ok=EXPECTED)
        except TimeoutError:
            return  # a seek or another broker: this pull is obsolete
        finally:
            self._fetch_in_flight = None
        if generation != self.generation or self.is_dropped or self.is_paused:
            return  # obsolete now; it is fetched again
        self._take(answer)
        if answer.code == ResponseCode.PULL_OFFSET_MOVED and self._moves > 1:
            await asyncio.sleep(min(FIRST_PAUSE_SECONDS * 2 ** min(self._moves - 2, 10), MISREAD_PAUSE_SECONDS))
        elif asked_for == self.process_queue.next_offset:
            # A broker that cannot hold a fetch answers at once: then it is not asked without a pause.
            too_soon_s = FIRST_PAUSE_SECONDS - (self._session.clock.monotonic() - asked_at)
            if too_soon_s > 0:
                await asyncio.sleep(too_soon_s)

    def _address(self) -> str:
        """Of the copy that the broker advises, or of the next one while that does not answer."""
        addresses = self._session.routes.addresses(self.queue.broker_name)
        if not addresses:
            raise Unreachable(f"the name servers know no address of the broker {self.queue.broker_name}")
        if self._broker_id not in addresses:
            self._broker_id = min(addresses)
        if addresses[self._broker_id] == self._lost_address and self._session.clock.monotonic() < self._lost_until:
            others = (one for one in sorted(addresses) if addresses[one] != self._lost_address)
            self._broker_id = next(others, self._broker_id)
        self._asked_address = addresses[self._broker_id]
        return self._asked_address

    def _question(self) -> PullMessage:
        settings, subscription, fetching = self._fetching.settings, self.subscription, self._fetching
        may_tell = fetching.tells_progress and self._broker_id == MASTER and not settings.broadcast
        commit = self.to_tell() if may_tell else None
        if commit is not None:
            self.committed = commit
        tells = fetching.tells_subscription
        return PullMessage(
            group=settings.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            offset=self.process_queue.next_offset,
            max_messages=settings.fetch_messages,
            flags=MAY_HOLD | (0 if commit is None else HAS_COMMIT) | (HAS_SUBSCRIPTION if tells else 0),
            commit_offset=commit or 0,
            suspend_ms=int(settings.hold_s * 1000),
            subscription=subscription.expression if tells else None,
            subscription_version=subscription.version,
            expression_type=subscription.kind,
            max_bytes=min(settings.fetch_bytes, max(LEAST_FETCH_BYTES, fetching.allowance.bytes_each)),
        )

    # --- answers -----------------------------------------------------------------------------------------------------

    def _take(self, answer: Command) -> None:
        if "nextBeginOffset" not in answer.fields:
            raise IllegalMessage("the answer to a fetch does not say where to go on")
        result = PullResult(**read_fields(PullResult, answer.fields))
        self.fetched_ms = self._session.clock.now_ms()
        self.end = result.max_offset
        self._broker_id = result.suggested_broker_id
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            self._moved(result)
            return
        messages = split_records(answer.body, self.queue)
        behind = messages[-1].queue_offset + 1 if messages else 0
        next_offset = max(result.next_offset, self.process_queue.next_offset, behind)
        messages = self._wanted(messages)
        self.fetched += len(messages)
        run = self.process_queue.add(messages, next_offset, len(answer.body))
        if run is not None:
            self._fetching.arrived(self, run)

    def _wanted(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Without those whose tag only looks like one that is wanted, to a broker that compares hashes."""
        tags = self._wanted_tags
        return messages if tags is None else [message for message in messages if message.tags in tags]

    def _moved(self, result: PullResult) -> None:
        """The offset is out of range, or the group was reset. The broker returns the next offset."""
        now = self._session.clock.monotonic()
        self._moves = self._moves + 1 if now - self._moved_at < MOVED_AGAIN_SECONDS else 1
        self._moved_at = now
        level = logging.WARNING if self._moves <= 2 else logging.DEBUG
        log.log(
            level,
            "%s goes on at %d in %s/%d of %s instead of %d: that is what the broker says, which has %d to %d",
            self._fetching.settings.group, result.next_offset, self.queue.topic, self.queue.queue_id,
            self.queue.broker_name, self.process_queue.next_offset, result.min_offset, result.max_offset,
        )  # fmt: skip
        if result.next_offset >= self.process_queue.next_offset:
            self.process_queue.add((), result.next_offset, 0)  # earlier messages are handled, and count
        else:
            # Not past anything that is not handled: what the broker lost may be here, but what it has comes again.
            self.seek(min(result.next_offset, self.process_queue.committable))

    # --- what went wrong ---------------------------------------------------------------------------------------------

    async def _went_wrong(self, error: PyroMQError) -> None:
        """Wait, and refresh the route before the next try."""
        is_news = self._pause_s == FIRST_PAUSE_SECONDS and not isinstance(error, SystemBusy)
        level = logging.WARNING if is_news else logging.DEBUG
        log.log(level, "nothing can be fetched from %s/%d now: %s", self.queue.topic, self.queue.queue_id, error)
        self._broker_id = MASTER
        if isinstance(error, CallFailed | NotNow):
            self._lost_address = self._asked_address
            self._lost_until = self._session.clock.monotonic() + ELSEWHERE_SECONDS
            self._session.watch_route(self.queue.topic)
        self.committed = None  # the commit in the fetch may be lost
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, LAST_PAUSE_SECONDS)
        if isinstance(error, CallFailed | SubscriptionNotFound | SubscriptionNotLatest):
            await self._fetching.lost(error)
        await asyncio.sleep(MISREAD_PAUSE_SECONDS if isinstance(error, IllegalMessage) else pause_s)
        if isinstance(error, CallFailed | NotNow | TopicNotFound):
            await self._session.routes.look_again(self.queue.topic)


def _tags_to_check(subscription: Subscription) -> frozenset[str] | None:
    """None: the broker's choice stands."""
    by_tag = subscription.filter
    if subscription.kind == SQL92 or not isinstance(by_tag, TagFilter) or by_tag.codes is None:
        return None
    return by_tag.tags
