"""Commits the offsets of a Spark query to the brokers as those of a consumer group, and computes its lag.

    report_progress(cluster, "reports", {MessageQueue("orders", "broker-a", 0): 17})

A group only goes forward: what a broker knows of it already is asked for first. Whatever goes wrong is logged once, and
tried again with the next news; it never reaches the query, and a cluster that does not answer is not waited for.

A source calls `report_progress` with the `start` of `latestOffset`: Spark asks for the next batch when the one before
is done, the last one of an `availableNow` included, while its `commit` comes a batch later or never.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock

from pyromq.client.group.places import Places
from pyromq.client.session import Session
from pyromq.clock import Clock, SystemClock
from pyromq.errors import GroupNotFound, PyroMQError
from pyromq.model.group import GroupConfig
from pyromq.model.queue import MessageQueue
from pyromq.spark.connecting import Cluster, session_of
from pyromq.wire.bodies.topics_and_groups import encode_group
from pyromq.wire.requests.admin import UpdateGroup

log = logging.getLogger("pyromq.spark")

#: Requests under way at the same time: enough to hide the way to the broker, too few to be a burden.
MOST_AT_ONCE = 32
#: For one round of all queues.
ROUND_SECONDS = 10.0
#: Wait this long for a cluster that answered last time; do not wait for one that did not.
PATIENCE_SECONDS = 0.5

Offsets = Mapping[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class QueueStand:
    """A query's offset in one queue, and the queue's end offset."""

    at_ms: int
    query: str
    group: str
    queue: MessageQueue
    #: The offset of the next message that the query wants.
    committed: int
    #: The offset that the next message of the queue will have, asked of the broker after the batch.
    end: int

    @property
    def lag(self) -> int:
        return max(self.end - self.committed, 0)


Heard = Callable[[Sequence[QueueStand]], None]


class GroupTeller:
    """Tells the brokers of one cluster how far one group is. Lives on the loop of its session."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._places = Places(session)
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)
        #: Offsets of the group that each broker has at least.
        self._known: dict[MessageQueue, int] = {}

    async def tell(self, offsets: Offsets) -> list[PyroMQError | TimeoutError]:
        """Commit offsets that advanced; return the errors of the queues that failed."""
        done = await asyncio.gather(*(self._trying(partial(self._tell, *one)) for one in offsets.items()))
        return [one for one in done if isinstance(one, Exception)]

    async def ends(self, offsets: Offsets) -> dict[MessageQueue, int]:
        """Return the end offsets; queues whose broker does not answer are left out."""
        found = await asyncio.gather(*(self._trying(partial(self._places.end, queue)) for queue in offsets))
        return {queue: end for queue, end in zip(offsets, found, strict=True) if isinstance(end, int)}

    async def _trying(self, question: Callable[[], Awaitable[int]]) -> int | PyroMQError | TimeoutError:
        try:
            async with self._turns:
                return await question()
        except (PyroMQError, TimeoutError) as error:
            return error

    async def _tell(self, queue: MessageQueue, offset: int) -> int:
        if queue not in self._known:
            self._known[queue] = await self._places.committed(queue, self._group) or 0
        if offset > self._known[queue]:
            await self._commit(queue, offset)
            self._known[queue] = offset
        return self._known[queue]

    async def _commit(self, queue: MessageQueue, offset: int) -> None:
        try:
            await self._places.commit(queue, self._group, offset)
        except GroupNotFound:  # no consumer has created it
            made = UpdateGroup(body=encode_group(GroupConfig(self._group)))
            await self._session.ask(self._places.address_of(queue), made)
            await self._places.commit(queue, self._group, offset)


class Courier:
    """Reports queries to a cluster in the background: of each query, the newest state."""

    def __init__(self, cluster: Cluster, group: str, heard: Heard | None = None, clock: Clock | None = None) -> None:
        self._cluster = cluster
        self._group = group
        self._heard = heard
        self._clock = clock or SystemClock()
        self._teller: GroupTeller | None = None
        self._waiting: dict[str, Offsets] = {}
        self._work: asyncio.Task[None] | None = None
        #: The last round went well; or there was none.
        self.is_well = True

    def offer(self, query: str, offsets: Offsets) -> None:
        """Take news, from any thread, and return at once."""
        portal, session = session_of(self._cluster)
        portal.call(partial(self._take, session, query, dict(offsets)))

    def flush(self, seconds: float) -> bool:
        """Wait until every report is sent; False after the timeout."""
        portal, _ = session_of(self._cluster)
        return portal.wait(self._told_within(seconds))

    def _take(self, session: Session, query: str, offsets: Offsets) -> None:
        self._waiting[query] = offsets
        self._teller = self._teller or GroupTeller(session, self._group)
        if self._work is None or self._work.done():
            self._work = session.spawn(self._deliver(self._teller))

    async def _told_within(self, seconds: float) -> bool:
        if self._work is None:
            return True
        done, _ = await asyncio.wait([self._work], timeout=seconds)
        return bool(done)

    async def _deliver(self, teller: GroupTeller) -> None:
        while self._waiting:
            query = next(iter(self._waiting))
            offsets = self._waiting.pop(query)
            try:
                async with asyncio.timeout(ROUND_SECONDS):
                    errors: Sequence[Exception] = await teller.tell(offsets)
                    stands = await self._stands(teller, query, offsets) if self._heard else ()
            except TimeoutError:
                errors, stands = [TimeoutError(f"no answer within {ROUND_SECONDS:.0f} s")], ()
            self._note(errors)
            if stands:
                await asyncio.to_thread(self._hand_over, stands)

    async def _stands(self, teller: GroupTeller, query: str, offsets: Offsets) -> list[QueueStand]:
        ends = await teller.ends(offsets)
        at_ms = self._clock.now_ms()
        return [
            QueueStand(at_ms, query, self._group, queue, offsets[queue], end) for queue, end in sorted(ends.items())
        ]

    def _hand_over(self, stands: Sequence[QueueStand]) -> None:
        assert self._heard is not None
        try:
            self._heard(stands)
        except Exception:  # an error of the callback, or a full disk: the query continues
            log.exception("what was heard of the group %s could not be handed over", self._group)

    def _note(self, errors: Sequence[Exception]) -> None:
        if errors and self.is_well:
            log.warning(
                "the progress of the group %s could not be told everywhere, and is with the next batch: %s",
                self._group,
                errors[0],
            )
        self.is_well = not errors


_couriers: dict[tuple[int, Cluster, str], Courier] = {}
_lock = Lock()


def report_progress(cluster: Cluster, group: str, offsets: Offsets, query: str = "") -> None:
    """Tell how far a group is. Raises nothing, and waits for a moment only where that is likely to help."""
    try:
        courier = _courier_of(cluster, group)
        courier.offer(query, offsets)
        if courier.is_well:
            courier.flush(PATIENCE_SECONDS)
    except Exception:
        log.exception("the progress of the group %s could not be told", group)


def _courier_of(cluster: Cluster, group: str) -> Courier:
    with _lock:
        key = (os.getpid(), cluster, group)  # a forked worker has connections of its own
        if key not in _couriers:
            _couriers[key] = Courier(cluster, group)
        return _couriers[key]
