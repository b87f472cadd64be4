"""The locks of queues whose order matters: taken at the broker, renewed before they run out, given back at the end.

Only the member that has the lock handles a queue's messages. A member that could not renew it in time stops well
before the broker would give the lock to another; so does one whose connection to the broker broke, because the broker
may have forgotten the lock. When it has the lock again it first reads the offset another member may have committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from pyromq.client.consuming.queue_worker import Lane, LockState
from pyromq.client.group.places import Places
from pyromq.client.session import Session
from pyromq.errors import PyroMQError
from pyromq.net.connection import Connection
from pyromq.wire.bodies.locks import decode_locked, encode_lock_request
from pyromq.wire.requests.client import LockQueues, UnlockQueues

log = logging.getLogger("pyromq.client")

RENEW_SECONDS = 20.0
#: A lock that was not renewed for this long is void. Brokers wait twice that time before they give it to another.
EXPIRY_SECONDS = 30.0
#: Retry interval for a lock that another member still has.
ASK_AGAIN_SECONDS = 0.5


class QueueLocks:
    """Of one consumer."""

    def __init__(
        self,
        session: Session,
        group: str,
        lanes: Callable[[], Iterable[Lane]],
        place: Callable[[Lane], Awaitable[bool]],
    ) -> None:
        self._session = session
        self._places = Places(session)
        self._group = group
        self._lanes = lanes
        #: Finds the offset at which a queue continues; False if it is unknown now.
        self._place = place
        self._stirred = asyncio.Event()
        self._renewed_at = 0.0

    def stir(self) -> None:
        """There is something to do before the next round."""
        self._stirred.set()

    def want(self, lane: Lane) -> None:
        lane.lock_state = LockState.WANTED
        self.stir()

    def renew_soon(self) -> None:
        """A broker may have forgotten who has which lock."""
        self._renewed_at = 0.0
        self.stir()

    def holds(self, lane: Lane) -> bool:
        """Return whether a message of this queue may be handled now."""
        if lane.lock_state is LockState.NOT_NEEDED:
            return True
        if lane.lock_state is LockState.HELD and self._now() - lane.locked_at > EXPIRY_SECONDS:
            log.warning("the lock of %s/%d could not be renewed in time", lane.queue.topic, lane.queue.queue_id)
            self.want(lane)
        elif lane.lock_state is LockState.HELD and not _is_open(lane.locked_on):
            self.want(lane)  # a restarted broker has no locks, and gives them to the first member that requests them
        return lane.lock_state is LockState.HELD

    def _now(self) -> float:
        return self._session.clock.monotonic()

    async def keep(self) -> None:
        """Take wanted locks and renew held ones, for as long as the consumer runs."""
        while True:
            lanes = list(self._lanes())
            is_due = self._now() - self._renewed_at >= RENEW_SECONDS
            if is_due:
                self._renewed_at = self._now()
            wanted = (LockState.WANTED, LockState.HELD) if is_due else (LockState.WANTED,)
            await self._lock([lane for lane in lanes if lane.lock_state in wanted])
            is_waiting = any(lane.lock_state is LockState.WANTED for lane in self._lanes())
            await self._wait(ASK_AGAIN_SECONDS if is_waiting else RENEW_SECONDS)

    async def _wait(self, seconds: float) -> None:
        left_s = RENEW_SECONDS - (self._now() - self._renewed_at)
        try:
            async with asyncio.timeout(max(min(seconds, left_s), 0.01)):
                await self._stirred.wait()
        except TimeoutError:
            pass
        self._stirred.clear()

    async def _lock(self, lanes: Sequence[Lane]) -> None:
        by_broker: dict[str, list[Lane]] = {}
        for lane in lanes:
            by_broker.setdefault(lane.queue.broker_name, []).append(lane)
        await asyncio.gather(*(self._lock_at_broker(some) for some in by_broker.values()))

    async def _lock_at_broker(self, lanes: Sequence[Lane]) -> None:
        asked_at = self._now()
        try:
            address = self._places.address_of(lanes[0].queue)
            answer = await self._session.ask(address, LockQueues(body=self._body(lanes)))
            connection = self._session.connected(address)
            locked = decode_locked(answer.body)
        except PyroMQError as error:
            log.warning("the queues of %s were not locked: %s", lanes[0].queue.broker_name, error)
            # Without a lock there is no fetch, so only this request would notice a new master.
            for topic in {lane.queue.topic for lane in lanes}:
                self._session.watch_route(topic)
            return
        for lane in lanes:
            if lane.queue in locked:
                await self._got(lane, asked_at, connection)
            elif lane.lock_state is LockState.HELD:
                log.warning("another member has the lock of %s/%d now", lane.queue.topic, lane.queue.queue_id)
                lane.lock_state = LockState.WANTED

    async def _got(self, lane: Lane, asked_at: float, connection: Connection | None) -> None:
        if lane.lock_state is LockState.HELD and lane.locked_on is not connection:
            lane.lock_state = LockState.WANTED  # another member may have had it since
        lane.locked_at, lane.locked_on = asked_at, connection
        if lane.lock_state is LockState.WANTED and (lane.is_leaving or await self._place(lane)):
            lane.lock_state = LockState.HELD
            lane.stir()

    async def give_back(self, lanes: Sequence[Lane]) -> None:
        by_broker: dict[str, list[Lane]] = {}
        for lane in lanes:
            if lane.lock_state in (LockState.WANTED, LockState.HELD):
                by_broker.setdefault(lane.queue.broker_name, []).append(lane)
        for some in by_broker.values():
            try:
                await self._session.ask(self._places.address_of(some[0].queue), UnlockQueues(body=self._body(some)))
            except PyroMQError as error:
                log.warning("locks of %s run out by themselves: %s", some[0].queue.broker_name, error)

    def _body(self, lanes: Sequence[Lane]) -> bytes:
        return encode_lock_request(self._group, self._session.client_id, (lane.queue for lane in lanes))


def _is_open(connection: Connection | None) -> bool:
    return connection is not None and connection.is_open
