"""This client as a member of its group: the queues it owns, its progress in them, coming and going.

Queues are handed over so that nothing is lost and little is handled twice. The old owner starts no more handlers of
its messages, gives running handlers a short time, commits, and forgets it. The new owner waits longer than that time
before it reads the offset. Handlers that end later do not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from pyromq.client.consuming.process_queue import Allowance, Run
from pyromq.client.consuming.queue_worker import Fetching, Lane
from pyromq.client.consuming.settings import ConsumerSettings
from pyromq.client.group.assignment import Assignment, Share
from pyromq.client.group.places import Places
from pyromq.client.group.progress import BrokerProgress, FileProgress, Progress
from pyromq.client.group.queue_locks import QueueLocks
from pyromq.client.group.starting_point import ConsumeFrom, first_offset, name_of
from pyromq.client.session import Session
from pyromq.errors import CallFailed, PyroMQError, TopicNotFound
from pyromq.filters.subscription import Subscription
from pyromq.model.queue import MessageQueue
from pyromq.net.peer import Peer
from pyromq.wire.bodies.heartbeat import ConsumerData, SubscriptionData
from pyromq.wire.requests.client import NotifyMembersChanged

log = logging.getLogger("pyromq.client")

#: Brokers notify members of changes; this interval covers lost notifications.
LOOK_SECONDS = 20.0
#: Retry interval for a topic that does not exist yet, or whose members are unknown.
AGAIN_SECONDS = 1.0
#: The time handlers have when their queue is handed over, and the time the next owner waits.
HAND_OVER_SECONDS = 0.3
TAKE_OVER_SECONDS = 0.5
#: The stop waits this long for queues that are handed over.
FAREWELL_SECONDS = 5.0
#: The time after a broker's failure until all members have sent heartbeats.
CALM_SECONDS = 3.0
#: The pause before it is asked again where to begin.
ASK_AGAIN_SECONDS = 1.0


class Member:
    """Owns the lanes. `arrived` is called with every run of messages."""

    def __init__(
        self,
        session: Session,
        settings: ConsumerSettings,
        arrived: Callable[[Lane, Run], None],
        *,
        consume_type: str = "CONSUME_PASSIVELY",
        tells_subscription: bool = False,
        tells_progress: bool = True,
    ) -> None:
        self.session = session
        self.settings = settings
        self.subscriptions: dict[str, Subscription] = {}
        self.places = Places(session)
        self.lanes: dict[MessageQueue, Lane] = {}
        self._consume_type = consume_type
        allowance = Allowance(settings.max_buffered_messages, settings.max_buffered_bytes)
        self._fetching = Fetching(
            session, settings, allowance, arrived, self._broker_lost, tells_subscription, tells_progress
        )
        self._assignment = Assignment(session, settings)
        self._progress = self._new_progress()
        self.locks = QueueLocks(session, settings.group, self._lanes_to_lock, self._place)
        self._tasks: dict[MessageQueue, asyncio.Task[Any]] = {}
        #: Lanes that are being handed over, and the tasks that do it.
        self._leaving: dict[MessageQueue, Lane] = {}
        self._farewells: set[asyncio.Task[Any]] = set()
        self._look_is_due = asyncio.Event()
        #: Until when no queue is begun, because brokers may not know all members.
        self._calm_at = 0.0
        self._introducing: asyncio.Task[Any] | None = None
        #: Topics whose queues could not be shared out when that was tried last.
        self._unsure: set[str] = set()
        self._looking = asyncio.Lock()
        #: Queues assigned by hand: then they are not shared.
        self._assigned: frozenset[MessageQueue] | None = None
        #: Pauses and resumes by hand, the last one last: a topic, a queue, or None for all. Queues that come
        #: later are not left out.
        self._pauses: dict[str | MessageQueue | None, bool] = {}
        #: Background tasks for the time of the membership.
        self._services: list[asyncio.Task[Any]] = []
        self.on_lanes_changed: list[Callable[[], None]] = []

    def _new_progress(self) -> Progress:
        settings = self.settings
        if settings.broadcast:
            return FileProgress(settings.offsets_dir or Path.home() / ".pyromq" / "offsets", settings.group)
        return BrokerProgress(self.places, settings.group, zero_if_near=settings.consume_from is ConsumeFrom.LAST)

    # --- coming ------------------------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Send heartbeats and take this member's queues: messages sent from now on are received.

        Raises Unreachable when no name server answers, NoPermission when no broker wants this client.
        """
        self.session.consumers[self.settings.group] = self.describe
        self.session.last_words.append(self._last_words)
        self.session.on(NotifyMembersChanged, self._members_changed)
        self.session.routes.on_change.append(self._route_changed)
        self.session.routes.on_master.append(self._master_changed)
        for topic in tuple(self.subscriptions):
            try:
                await self.session.routes.of(topic)
            except TopicNotFound:
                log.debug("%s is not there yet", topic)
        await self.session.heartbeat()
        self.session.check_welcome()
        await self.look()
        self._services = [self.session.spawn(self._look_forever()), self.session.spawn(self._commit_forever())]
        if self.settings.needs_locks:
            self._services.append(self.session.spawn(self.locks.keep()))
        await self.placed(self.session.options.call_timeout_s)

    def describe(self) -> ConsumerData:
        """Return this member's part of the heartbeat."""
        return ConsumerData(
            group=self.settings.group,
            consume_type=self._consume_type,
            message_model=self.settings.model,
            consume_from=name_of(self.settings.consume_from),
            subscriptions=tuple(
                SubscriptionData(one.topic, one.expression, one.kind, one.version)
                for one in self.subscriptions.values()
            ),
        )

    def _members_changed(self, request: NotifyMembersChanged, peer: Peer) -> None:
        if request.group == self.settings.group:
            self.look_soon()

    def _route_changed(self, topic: str) -> None:
        if topic in self.subscriptions:
            self.look_soon()

    def _master_changed(self, broker_name: str, address: str) -> None:
        for queue, lane in self.lanes.items():
            if queue.broker_name == broker_name:
                lane.return_to(address)

    async def _broker_lost(self, error: PyroMQError) -> None:
        """Handle a broker that is unreachable, or restarted without its clients.

        Other members may send their heartbeats later than this one: until then their queues look unowned,
        and must not be taken.
        """
        self._calm_at = self.session.clock.monotonic() + CALM_SECONDS
        if isinstance(error, CallFailed):
            return
        if self._introducing is None or self._introducing.done():
            self._introducing = self.session.spawn(self.session.heartbeat())
            self.locks.renew_soon()
        await asyncio.shield(self._introducing)

    # --- this member's queues ----------------------------------------------------------------------------------------

    def look_soon(self) -> None:
        """Something may have changed."""
        self._look_is_due.set()

    async def _look_forever(self) -> None:
        looked_at = self.session.clock.monotonic()
        while True:
            is_waiting = bool(self._unsure or self._assignment.missing)
            try:
                async with asyncio.timeout(AGAIN_SECONDS if is_waiting else LOOK_SECONDS):
                    await self._look_is_due.wait()
            except TimeoutError:
                pass
            now = self.session.clock.monotonic()
            is_due = self._look_is_due.is_set() or now - looked_at >= LOOK_SECONDS
            if is_due:
                self._look_is_due.clear()
                looked_at = now
            try:
                await (self.look() if is_due else self._look_for_missing())
            except Exception:  # a strategy is the program's own, and may raise anything
                log.exception("the queues of %s were not shared out anew", self.settings.group)

    async def _look_for_missing(self) -> None:
        missing = set(self._assignment.missing)
        await self.look(missing | self._unsure)
        found = missing - self._assignment.missing
        if found:
            await self.session.heartbeat()  # brokers that were not known before hear of us now
            await self.look(found)

    async def look(self, topics: Iterable[str] | None = None) -> None:
        """Find out which queues are ours, and give up and take accordingly."""
        if self._assigned is not None:
            return
        async with self._looking:
            for topic in tuple(self.subscriptions if topics is None else topics):
                share = await self._assignment.share_of(topic)
                if share is None:
                    self._unsure.add(topic)
                    continue
                self._unsure.discard(topic)
                if topic in self.subscriptions:
                    self._change(topic, share)

    def _change(self, topic: str, share: Share) -> None:
        owned = {queue for queue in self.lanes if queue.topic == topic}
        for queue in owned - share.queues:
            self._give_up(queue)
        for queue in sorted(share.queues - owned):
            if queue not in self._leaving:  # taken again once the hand-over is done
                self._take(queue, TAKE_OVER_SECONDS if share.has_others else 0.0)
        if owned != share.queues:
            log.info("%s has %d queues of %s now", self.settings.group, len(share.queues), topic)
            self._lanes_changed()

    def _lanes_changed(self) -> None:
        self._fetching.allowance.queues = max(len(self.lanes), 1)
        for notice in self.on_lanes_changed:
            notice()

    def assign(self, queues: Iterable[MessageQueue], subscription_of: Callable[[str], Subscription]) -> None:
        """Take exactly these, even if other members read them."""
        self._assigned = frozenset(queues)
        for queue in set(self.lanes) - self._assigned:
            self._give_up(queue)
        for queue in sorted(self._assigned - set(self.lanes)):
            self.subscriptions.setdefault(queue.topic, subscription_of(queue.topic))
            self._leaving.pop(queue, None)
            self._take(queue, 0.0)
        self._lanes_changed()

    @property
    def is_assigned(self) -> bool:
        return self._assigned is not None

    def pause(self, what: str | Collection[MessageQueue] | None, *, is_paused: bool) -> None:
        """Fetch no more of a topic, of some queues, or of all; or go on."""
        if what is None:
            self._pauses.clear()
        for one in (what,) if what is None or isinstance(what, str) else tuple(what):
            self._pauses.pop(one, None)
            self._pauses[one] = is_paused
        for queue, lane in self.lanes.items():
            lane.is_paused = self._is_paused(queue)
            lane.stir()

    def _is_paused(self, queue: MessageQueue) -> bool:
        said = [is_paused for what, is_paused in self._pauses.items() if what in (None, queue.topic, queue)]
        return bool(said) and said[-1]

    def drop_topic(self, topic: str) -> None:
        """Drop the queue."""
        self.subscriptions.pop(topic, None)
        self._assignment.missing.discard(topic)
        self._unsure.discard(topic)
        for queue in [queue for queue in self.lanes if queue.topic == topic]:
            self._give_up(queue)
        self._lanes_changed()

    def _take(self, queue: MessageQueue, wait_s: float) -> None:
        lane = self.lanes[queue] = Lane(self._fetching, self.subscriptions[queue.topic], queue)
        lane.is_paused = self._is_paused(queue)
        self._tasks[queue] = self.session.spawn(self._tend(lane, wait_s))

    async def _tend(self, lane: Lane, wait_s: float) -> None:
        if self.settings.needs_locks:
            await self._calm()
            self.locks.want(lane)  # the old owner unlocks when it is done: no further wait
        else:
            await asyncio.sleep(wait_s)
            await self._calm()
            while not lane.is_placed and not await self._place(lane):  # noqa: ASYNC110  brokers send no event for it
                await asyncio.sleep(ASK_AGAIN_SECONDS)
        await lane.fetch_forever()

    async def _calm(self) -> None:
        """Wait until brokers should know all members."""
        while (left_s := self._calm_at - self.session.clock.monotonic()) > 0:  # noqa: ASYNC110  it may be put off
            await asyncio.sleep(left_s)

    async def _place(self, lane: Lane) -> bool:
        """Find out where the group is in this queue, and go on there. False: it cannot be told now."""
        generation = lane.generation
        try:
            offset = stored = await self._progress.read(lane.queue)
            if offset is None:
                is_late = lane.queue.topic in self._assignment.late
                start = ConsumeFrom.FIRST if is_late else self.settings.consume_from
                first = await first_offset(self.places, lane.queue, start)
                # Once more: the first message of a new queue may have come between the two questions.
                stored = await self._progress.read(lane.queue)
                offset = first if stored is None else stored
        except PyroMQError as error:
            log.warning("where to begin in %s/%d is not known: %s", lane.queue.topic, lane.queue.queue_id, error)
            return False
        known = lane.committable
        if generation == lane.generation and (known is None or offset > known):  # else a seek happened since
            lane.seek(offset, on_purpose=False)
            lane.reached = stored or None
        return True

    async def placed(self, timeout_s: float) -> None:
        """Wait until every queue of ours knows its place, but not longer than this."""
        try:
            async with asyncio.timeout(timeout_s):
                for lane in tuple(self.lanes.values()):
                    await lane.placed.wait()
        except TimeoutError:
            log.info("%s does not know its place in every queue yet", self.settings.group)

    # --- giving up ---------------------------------------------------------------------------------------------------

    def _lanes_to_lock(self) -> list[Lane]:
        return [*self.lanes.values(), *self._leaving.values()]

    def _give_up(self, queue: MessageQueue) -> None:
        lane = self.lanes.pop(queue)
        self._stop_fetching(lane)
        self._leaving[queue] = lane
        task = self.session.spawn(self._hand_over(lane))
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)

    def _stop_fetching(self, lane: Lane) -> None:
        lane.is_leaving = True
        lane.process_queue.withdraw()
        task = self._tasks.pop(lane.queue, None)
        if task is not None:
            task.cancel()

    async def _hand_over(self, lane: Lane) -> None:
        await self._quiet(lane, None if self.settings.needs_locks else HAND_OVER_SECONDS)
        if self._fetching.tells_progress:
            await self._write([lane])
        lane.process_queue.drop()
        await self.locks.give_back([lane])
        if self._leaving.get(lane.queue) is lane:
            del self._leaving[lane.queue]
        self.look_soon()

    async def _quiet(self, lane: Lane, limit_s: float | None) -> None:
        """Wait until nothing of it is being handled; where order matters, however long that takes."""
        end = None if limit_s is None else self.session.clock.monotonic() + limit_s
        # Looked at now and then: an event would cost something for every message that is handled.
        while lane.is_busy or (not self.settings.ordered and lane.process_queue.in_hand):
            if end is not None and self.session.clock.monotonic() >= end:
                return
            await asyncio.sleep(0.01)

    # --- progress ----------------------------------------------------------------------------------------------------

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.commit_every_s)
            if self._fetching.tells_progress:
                await self.commit()

    async def commit(self) -> None:
        """Tell the progress of every queue that moved."""
        await self._write([lane for lane in self.lanes.values() if lane.committable != lane.committed])

    async def _write(self, lanes: Iterable[Lane]) -> None:
        telling = {lane.queue: lane for lane in lanes if lane.to_tell() is not None}
        if not telling:
            return
        back = {queue for queue, lane in telling.items() if lane.may_go_back}
        offsets = {queue: lane.to_tell for queue, lane in telling.items()}
        for queue, at in (await self._progress.write(offsets, may_go_back=back)).items():
            lane = telling[queue]
            lane.may_go_back = False
            if lane.committed is None or lane.committed < at:
                lane.committed = at

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of a queue, from the brokers or the file. Raises PyroMQError."""
        return await self._progress.read(queue)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on from another place, back or forward, and tell it. Raises KeyError when the queue is not ours."""
        lane = self.lanes[queue]
        lane.seek(offset)
        if self._fetching.tells_progress:
            await self._write([lane])

    # --- going -------------------------------------------------------------------------------------------------------

    def stop_fetching(self) -> None:
        """Start no more handlers; running ones continue."""
        for service in self._services[:2]:
            service.cancel()
        for lane in self.lanes.values():
            self._stop_fetching(lane)

    async def _last_words(self) -> None:
        """For an interrupted stop: otherwise the queues would stay locked for a minute."""
        await self._let_go(self._lanes_to_lock())

    async def _let_go(self, lanes: list[Lane]) -> None:
        if self._fetching.tells_progress:
            await self._write(lanes)
        for lane in lanes:
            lane.process_queue.drop()
        # A handler that will not end keeps its lock, until the broker takes it away.
        await self.locks.give_back([lane for lane in lanes if not lane.is_busy])

    async def leave(self) -> None:
        """Commit and release the locks. Handlers that end later do not count."""
        if self._farewells:  # a handler that will not end may hold one up
            await asyncio.wait(tuple(self._farewells), timeout=FAREWELL_SECONDS)
        await self._let_go(list(self.lanes.values()))
        self.lanes.clear()
        for service in self._services:
            service.cancel()
        with contextlib.suppress(ValueError):  # it was never there: joining failed before
            self.session.routes.on_change.remove(self._route_changed)
            self.session.routes.on_master.remove(self._master_changed)
        self._lanes_changed()
