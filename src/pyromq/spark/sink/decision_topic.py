"""The topic of decisions: written so that a decision is there for good, read so that none is overlooked.

It is on one broker, so that the messages of a query are in one queue whatever happens to the cluster: it is made with
`QUEUES` queues on the first broker by name when it is needed first. Only the master is asked: a slave may not know the
newest decision yet.

A query's newest decision is near the end of its queue. It is looked for from there backwards, in steps that grow, and
the broker leaves out the messages of other queries by their tag: finding that a query has none costs a request for
every few thousand messages of the queue. Read decisions are cached, so the next look reads only new messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace

from pyromq.admin.directory import Directory
from pyromq.admin.messages import GOES_ON, pull_of
from pyromq.admin.reading import number_in
from pyromq.admin.topics import Topics
from pyromq.client.received import ReceivedMessage, split_records
from pyromq.client.sending.parcel import Parcel
from pyromq.errors import NotNow, TopicExists, TopicNotFound, Unreachable
from pyromq.model.queue import MessageQueue
from pyromq.records import property_names as names
from pyromq.records.properties import encode_properties
from pyromq.spark.sink.decisions import (
    QUEUES,
    TOPIC,
    BatchDecision,
    Layout,
    View,
    decode,
    decode_layout,
    encode,
    encode_layout,
    key_of,
    queue_of,
    tag_of,
)
from pyromq.spark.sink.outlet import Outlet, Patience, deliver
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import GetMaxOffset, GetMinOffset

#: Messages that are asked for at once, and how far the first look back goes.
AT_ONCE = 512
FIRST_STEP = 256
#: Decisions of a query that are kept in memory.
KEEP = 64
#: A broker knows a moment later in which queue a message is.
INDEXED_SECONDS = 30.0
LOOK_AGAIN_SECONDS = 0.01
#: A layout is written again when it is so old: messages are deleted after some days.
LAYOUT_SECONDS = 12 * 3600.0
GONE = (
    f"the topic {TOPIC} is not there: somebody deleted it while queries were writing. It is made again when the query "
    "is started again; rows of its last batch may then be there twice, or not at all"
)


class DecisionTopic:
    """`now_ms` tells the time; all else goes through the outlet's session."""

    def __init__(self, outlet: Outlet, patience: Patience, now_ms: Callable[[], int]) -> None:
        self._outlet = outlet
        self._session = outlet.session
        self._patience = patience
        self._now_ms = now_ms
        #: Its broker said so: a route may be older.
        self._is_gone = False
        self._views: dict[str, View] = {}
        self._looking: dict[str, asyncio.Lock] = {}
        #: The time and the result of the last look.
        self._layouts: dict[tuple[str, str], tuple[float, tuple[MessageQueue, ...]]] = {}

    # --- where it is -------------------------------------------------------------------------------------------------

    async def ensure(self, name_servers: tuple[str, ...]) -> None:
        """Make the topic if it is not there. Raises NotNow when it is on several brokers."""
        try:
            await self.queue("")
        except TopicNotFound:
            directory = Directory(self._session, name_servers)
            first = min(master.name for master in await directory.masters())
            with suppress(TopicExists):  # another process was first
                await Topics(directory).create(TOPIC, queues=QUEUES, broker=first)
            await self._session.routes.refresh(TOPIC)
            self._is_gone = False
            await self.queue("")

    async def queue(self, query: str) -> MessageQueue:
        """The queue of a query. Raises TopicNotFound, NotNow."""
        if self._is_gone:
            raise TopicNotFound(GONE)
        route = await self._session.routes.of(TOPIC)
        brokers = sorted({queues.broker_name for queues in route.queues})
        if len(brokers) != 1 or route.queues[0].read_queues < QUEUES:
            raise NotNow(
                f"the topic {TOPIC} must be on one broker with {QUEUES} queues, and is on {', '.join(brokers)}: a "
                "decision could be overlooked; delete it where it holds no messages"
            )
        return MessageQueue(TOPIC, brokers[0], queue_of(query))

    def _address(self, queue: MessageQueue) -> str:
        address = self._session.routes.address(queue.broker_name)
        if address is None:
            raise Unreachable(f"no route names a master of the broker {queue.broker_name!r}, which has the decisions")
        return address

    # --- decisions ---------------------------------------------------------------------------------------------------

    async def view(self, query: str, batch: int) -> View:
        """All that there is to know of a batch and of later ones, as of now. Raises what a call raises."""
        queue = await self.queue(query)
        asked = asyncio.get_running_loop().time()
        async with self._looking.setdefault(query, asyncio.Lock()):
            known = self._views.get(query)
            if known is None or known.fresh < asked or not known.is_enough(batch):
                known = await self._look(queue, query, batch, known)
            known.forget(KEEP)
            return known

    async def _look(self, queue: MessageQueue, query: str, batch: int, known: View | None) -> View:
        began = asyncio.get_running_loop().time()
        low, high = await self._bounds(queue)
        view = known if known is not None and low <= known.end <= high else View(high)
        await self._read_into(view, queue, query, view.end, high)
        view.end = high
        step = FIRST_STEP
        while view.start > low and not view.is_enough(batch):
            start = max(view.start - step, low)
            await self._read_into(view, queue, query, start, view.start)
            view.start, step = start, step * 4
        view.fresh = began
        self._views[query] = view
        return view

    async def _read_into(self, view: View, queue: MessageQueue, query: str, first: int, end: int) -> None:
        async for message in self._read(queue, first, end, tag_of(query)):
            decision = decode(message.body, message.queue_offset)
            if decision is not None and decision.query == query:
                view.add(decision)

    async def decide(self, query: str, batch: int, decision: BatchDecision) -> BatchDecision:
        """Write a decision, and return the one that counts: this one, or an earlier one of another driver.

        The decision is acknowledged on return. Raises SendFailed, SendUnknown: then it may be stored all the same,
        and must not be undone.
        """
        queue = await self.queue(query)
        found = await self.view(query, batch)
        if found.of(batch) is None:
            written = replace(decision, after=found.end)
            await self._write(queue, query, key_of(query, batch), encode(written))
            found = await self.view(query, batch)
        counts = found.of(batch)
        if counts is None:
            raise NotNow(f"the decision for batch {batch} of {query} was written and cannot be found in {TOPIC}")
        return counts

    async def _write(self, queue: MessageQueue, query: str, key: str, body: bytes) -> int:
        """Returns when others can read it; its offset."""
        properties = encode_properties({
            names.UNIQUE_KEY: f"{key}:{self._now_ms():x}", names.WAIT: "true", names.TAGS: tag_of(query),
            names.KEYS: key,
        }).decode()  # fmt: skip
        parcel = Parcel(TOPIC, body, properties, (), self._now_ms())
        try:
            answer = await deliver(self._outlet, lambda _: parcel, queue, self._patience)
        except TopicNotFound:
            self._is_gone = True
            raise TopicNotFound(GONE) from None
        offset = number_in(answer, "queueOffset")
        try:
            async with asyncio.timeout(INDEXED_SECONDS):
                while (await self._bounds(queue))[1] <= offset:  # noqa: ASYNC110  the broker sends no event for it
                    await asyncio.sleep(LOOK_AGAIN_SECONDS)
        except TimeoutError:
            raise NotNow(f"the broker {queue.broker_name!r} stored a decision that cannot be read yet") from None
        return offset

    # --- layouts -----------------------------------------------------------------------------------------------------

    async def layout(self, query: str, topic: str, now: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
        """The queues that this query writes to in a topic: those of its first batch, which are `now` if this is it."""
        time = asyncio.get_running_loop().time()
        known = self._layouts.get((query, topic))
        if known is None or time - known[0] > LAYOUT_SECONDS / 2:
            known = self._layouts[query, topic] = (time, await self._find_layout(query, topic, now))
        return known[1]

    async def _find_layout(self, query: str, topic: str, now: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
        queue = await self.queue(query)
        low, high = await self._bounds(queue)
        first, last_ms = await self._first_layout(queue, query, topic, low, high)
        if first is None or self._now_ms() - last_ms > LAYOUT_SECONDS * 1000:
            queues = tuple((one.broker_name, one.queue_id) for one in now)
            body = encode_layout(first or Layout(query, topic, queues))
            offset = await self._write(queue, query, key_of(query, -1), body)
            if first is None:
                first, _ = await self._first_layout(queue, query, topic, high, offset + 1)
        assert first is not None
        return tuple(MessageQueue(topic, broker, queue_id) for broker, queue_id in first.queues)

    async def _first_layout(
        self, queue: MessageQueue, query: str, topic: str, low: int, high: int
    ) -> tuple[Layout | None, float]:
        """The one that counts, and when it was written last."""
        first, last_ms = None, 0.0
        async for message in self._read(queue, low, high, tag_of(query)):
            layout = decode_layout(message.body, message.queue_offset)
            if layout is not None and (layout.query, layout.topic) == (query, topic):
                first, last_ms = first or layout, message.stored_at * 1000
        return first, last_ms

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _bounds(self, queue: MessageQueue) -> tuple[int, int]:
        address = self._address(queue)
        low = await self._session.ask(address, GetMinOffset(topic=TOPIC, queue_id=queue.queue_id))
        high = await self._session.ask(address, GetMaxOffset(topic=TOPIC, queue_id=queue.queue_id))
        return max(number_in(low, "offset"), 0), max(number_in(high, "offset"), 0)

    async def _read(self, queue: MessageQueue, first: int, end: int, tag: str) -> AsyncIterator[ReceivedMessage]:
        """The messages with a tag, from one offset up to another: all of them, or an error."""
        while first < end:
            request = pull_of(queue, first, min(end - first, AT_ONCE), tag)
            answer = await self._session.ask(self._address(queue), request, ok=GOES_ON)
            for message in split_records(answer.body, queue):
                if first <= message.queue_offset < end:
                    yield message
            following = number_in(answer, "nextBeginOffset")
            if following <= first:
                if answer.code == ResponseCode.PULL_NOT_FOUND:
                    raise NotNow(f"{TOPIC}: messages from offset {first} on cannot be read yet; they go up to {end}")
                raise NotNow(f"{TOPIC}: the broker does not tell what follows offset {first}")
            first = following
