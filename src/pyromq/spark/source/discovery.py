"""The driver's requests to a cluster: queues, their first and end offsets, and the offsets of a group.

No message is read here. A failed request is retried as often as the options say; then its error is
raised, and Spark shows it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from typing import Any, NamedTuple, TypeVar

from pyromq.client.group.places import Places
from pyromq.client.session import Session
from pyromq.errors import CallFailed, NotNow, SystemBusy, TopicNotFound
from pyromq.model.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic
from pyromq.model.queue import MessageQueue
from pyromq.spark.connecting import session_of
from pyromq.spark.source.options import Selection, SourceOptions, Start, Where
from pyromq.spark.source.pulls import MASTER, size_of_messages
from pyromq.spark.source.queue_json import Kind, Placed, found_for, is_assigned
from pyromq.wire.bodies.routes import ClusterInfo, TopicList
from pyromq.wire.requests.nameserver import GetClusterInfo, GetSystemTopics, GetTopicList

log = logging.getLogger("pyromq.spark")

T = TypeVar("T")

#: Questions on their way at the same time.
AT_ONCE = 64
#: Transient errors: a broker restarts, or has not registered a topic yet.
PASSING = (CallFailed, SystemBusy, NotNow)


class Bounds(NamedTuple):
    """The oldest message of a queue, and the offset that the next one will have. All before that is confirmed."""

    first: int
    end: int
    #: By the master's account; a copy may be behind.
    is_certain: bool = True


class Survey:
    """Asks the cluster of a source, and waits for the answers."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._portal, self._session = session_of(options.cluster)
        self._places = Places(self._session)

    @property
    def now_s(self) -> float:
        return self._session.clock.monotonic()

    def queues(self) -> list[MessageQueue]:
        """Those that the options name and that can be read now. Raises TopicNotFound, CallFailed."""
        return self._wait(lambda: _queues(self._session, self._options.selection))

    def bounds(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, Bounds]:
        return self._of_each(queues, self._bounds)

    async def _bounds(self, queue: MessageQueue) -> Bounds:
        first, end = await asyncio.gather(self._places.begin(queue), self._places.end(queue))
        is_certain = MASTER in self._session.routes.addresses(queue.broker_name)
        return Bounds(max(first, 0), max(first, end, 0), is_certain)

    def places(self, where: Where, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """The offset in each queue that is meant."""
        return self._of_each(queues, lambda queue: self._place(where, queue))

    async def _place(self, where: Where, queue: MessageQueue) -> int:
        bounds = await self._bounds(queue)
        if where.start is Start.GROUP:
            assert self._options.group is not None
            committed = await self._places.committed(queue, self._options.group)
            return committed if committed is not None and committed >= 0 else self._new_place(bounds)
        return await self._at(_placed(where, queue), queue, bounds)

    async def _at(self, placed: Placed | None, queue: MessageQueue, bounds: Bounds) -> int:
        if placed is None:
            return self._new_place(bounds)
        if placed.kind is Kind.TIME:
            offset = await self._places.at_time(queue, placed.value / 1000)
            return min(max(offset, bounds.first), bounds.end)
        if placed.kind is Kind.OFFSET:
            return placed.value
        return bounds.first if placed.kind is Kind.EARLIEST else bounds.end

    def _new_place(self, bounds: Bounds) -> int:
        return bounds.first if self._options.new_queues is Start.EARLIEST else bounds.end

    def message_sizes(self, offsets: Iterable[tuple[MessageQueue, int]]) -> dict[MessageQueue, float]:
        """Return the mean size of some messages from these offsets on."""
        where = dict(offsets)
        return self._of_each(
            where, lambda queue: size_of_messages(self._session, self._options.pulling, queue, where[queue])
        )

    def brokers(self) -> set[str]:
        """The names of all brokers that are there now."""
        answer = self._wait(lambda: self._session.routes.call_name_server(GetClusterInfo()))
        return set(ClusterInfo.decode(answer.body).brokers)

    def pause(self) -> None:
        """For as long as one waits before asking again."""
        self._portal.wait(asyncio.sleep(self._options.question_pause_s))

    # --- asking ------------------------------------------------------------------------------------------------------

    def _of_each(
        self, queues: Iterable[MessageQueue], ask: Callable[[MessageQueue], Awaitable[T]]
    ) -> dict[MessageQueue, T]:
        return self._wait(lambda: _of_each(list(queues), ask))

    def _wait(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._portal.wait(self._patiently(ask))

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        for retries in range(self._options.question_retries, -1, -1):
            try:
                return await ask()
            except PASSING as error:
                if retries == 0:
                    raise
                log.info("%s; asked again in %g s", error, self._options.question_pause_s)
                await asyncio.sleep(self._options.question_pause_s)
                await self._session.routes.refresh_all()
        raise AssertionError("the last try returns or raises")


def _placed(where: Where, queue: MessageQueue) -> Placed | None:
    """None: as a queue that is new."""
    if where.start is Start.NAMED:
        return found_for(queue, where.named or {})
    if where.start is Start.TIME:
        return Placed(Kind.TIME, where.timestamp_ms)
    return Placed(Kind.LATEST if where.start is Start.LATEST else Kind.EARLIEST)


async def _of_each(queues: list[MessageQueue], ask: Callable[[MessageQueue], Awaitable[T]]) -> dict[MessageQueue, T]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def asked(queue: MessageQueue) -> T:
        async with gate:
            return await ask(queue)

    return dict(zip(queues, await asyncio.gather(*map(asked, queues)), strict=True))


async def _queues(session: Session, selection: Selection) -> list[MessageQueue]:
    topics = await _topics(session, selection)
    found = [queue for queues in await asyncio.gather(*(_readable(session, one) for one in topics)) for queue in queues]
    if selection.assigned:
        found = [queue for queue in found if is_assigned(queue, selection.assigned)]
    return sorted(found)


async def _readable(session: Session, topic: str) -> tuple[MessageQueue, ...]:
    """None of a topic that is not there."""
    try:
        await session.routes.refresh(topic)
    except TopicNotFound:
        return ()
    return await session.routes.readable(topic)


async def _topics(session: Session, selection: Selection) -> Collection[str]:
    if selection.pattern is None:
        return selection.topics or {queue.topic for queue in selection.assigned}
    every = TopicList.decode((await session.routes.call_name_server(GetTopicList())).body).topics
    own = TopicList.decode((await session.routes.call_name_server(GetSystemTopics())).body).topics
    return [topic for topic in matching(selection.pattern, every) if topic not in own]


def matching(pattern: str, topics: Iterable[str]) -> list[str]:
    """The topics that a pattern means: those of people, and of retries and dead letters when it has their % in it."""
    found = sorted(topic for topic in topics if re.fullmatch(pattern, topic) and not is_system_topic(topic))
    return found if "%" in pattern else [one for one in found if not one.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))]
