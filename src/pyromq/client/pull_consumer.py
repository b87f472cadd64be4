"""A consumer that is asked for messages: by programs with a rhythm of their own, jobs and stream processors.

    async with PullConsumer("localhost:9876", group="reports") as consumer:
        await consumer.subscribe("orders")
        async for message in consumer:
            ...                              # asking for the next one acknowledges this one

`subscribe` shares the queues of a topic with the other members of the group; `assign` takes certain queues, even if
others read them. Messages are fetched ahead. Messages of a `poll` count as handled at the next `poll` or
`commit`; with `auto_commit` offsets are committed every few seconds, and when the `async with` ends without an
error.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from datetime import datetime
from typing import Self

from pyromq.client.consuming.polled import Polled
from pyromq.client.consuming.settings import ConsumerSettings
from pyromq.client.group.member import Member
from pyromq.client.group.questions import Questions
from pyromq.client.group.starting_point import ConsumeFrom, Start, checked
from pyromq.client.group.statistics import ConsumerStatistics, queue_statistics
from pyromq.client.group.strategies import Strategy, average
from pyromq.client.options import ClientOptions, Credentials, parse_name_servers
from pyromq.client.received import ReceivedMessage
from pyromq.client.session import Session
from pyromq.errors import ClientClosed, ClientError, ConfigError, TopicNotFound
from pyromq.filters.subscription import SQL92, TAG, Subscription, build
from pyromq.model.queue import MessageQueue


class PullConsumer:
    """Gives messages to those who ask, as a member of a group.

        await consumer.subscribe("orders")
        async for message in consumer: ...

    Asking for the next one acknowledges this one. It works within `async with`; `subscribe` shares topics with the
    group, `assign` takes the queues that you name, `poll` gives many at once.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        group: str,
        tls: ssl.SSLContext | bool | None = None,
        credentials: Credentials | None = None,
        options: ClientOptions | None = None,
        strategy: Strategy = average,
        consume_from: Start = ConsumeFrom.LAST,
        auto_commit: bool = True,
        commit_every_s: float = 5.0,
        fetch_messages: int = 1024,
        fetch_bytes: int = 1 << 20,
        hold_s: float = 15.0,
        max_buffered_messages: int = 20_000,
        max_buffered_bytes: int = 64 << 20,
    ) -> None:
        """A new group begins at `consume_from`. With `auto_commit` offsets of handled messages are committed every
        `commit_every_s`, without it by `commit` alone. A fetch has up to `fetch_messages` and `fetch_bytes`, and waits
        for `hold_s` at the broker when there is nothing; no more than `max_buffered_messages` and `max_buffered_bytes`
        are fetched ahead. Raises ConfigError.
        """
        self.settings = ConsumerSettings(
            group=group,
            strategy=strategy,
            consume_from=checked(consume_from),
            commit_every_s=commit_every_s,
            fetch_messages=fetch_messages,
            fetch_bytes=fetch_bytes,
            hold_s=hold_s,
            max_buffered_messages=max_buffered_messages,
            max_buffered_bytes=max_buffered_bytes,
        )
        self._name_servers = parse_name_servers(name_servers)
        self._session = Session(self._name_servers, tls=tls, credentials=credentials, options=options)
        self._auto_commit = auto_commit
        self._polled = Polled()
        #: None before the start and after the stop.
        self._member: Member | None = None

    @property
    def group(self) -> str:
        return self.settings.group

    @property
    def client_id(self) -> str:
        """Under which name brokers know this consumer."""
        return self._session.client_id

    # --- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._auto_commit:
            self._polled.acknowledge()
        await self.close()

    async def start(self) -> None:
        if self._member is not None:
            raise ClientClosed("this consumer is running already")
        self._session.start()
        self._polled = Polled()
        self._member = Member(
            self._session,
            self.settings,
            self._polled.arrived,
            consume_type="CONSUME_ACTIVELY",
            tells_subscription=True,
            tells_progress=self._auto_commit,
        )
        Questions(self._member, self._name_servers).listen()
        try:
            await self._member.join()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Commit the handled offsets and leave the group. Stopping twice is fine."""
        member, self._member = self._member, None
        if member is None:
            return
        self._polled.wake()
        try:
            member.stop_fetching()
            await member.leave()
        finally:
            await self._session.close()

    # --- which queues ------------------------------------------------------------------------------------------------

    async def subscribe(self, topic: str, *, tags: str | None = None, sql: str | None = None) -> None:
        """Share the queues of a topic with the group; one that is not there yet is waited for.

        All members of a group must subscribe to the same. Raises ConfigError, FilterSyntaxError; NoPermission when no
        broker accepts this client's keys.
        """
        member = self._running()
        if member.is_assigned:
            raise ConfigError("this consumer was assigned queues: it cannot share topics as well")
        if topic in member.subscriptions:
            member.drop_topic(topic)
        member.subscriptions[topic] = self._subscription(topic, tags, sql)
        with contextlib.suppress(TopicNotFound):
            await self._session.routes.of(topic)
        await self._session.heartbeat()
        self._session.check_welcome()
        await member.look([topic])
        member.look_soon()
        await member.placed(self._session.options.call_timeout_s)

    async def assign(self, queues: Iterable[MessageQueue], *, tags: str | None = None, sql: str | None = None) -> None:
        """Read exactly these queues, and no others. Use a group without subscribers.

        Raises TopicNotFound; NoPermission when no broker accepts this client's keys.
        """
        member, wanted = self._running(), tuple(queues)
        for topic in sorted({queue.topic for queue in wanted}):
            await self._session.routes.of(topic)
        member.assign(wanted, lambda topic: self._subscription(topic, tags, sql))
        await self._session.heartbeat()
        self._session.check_welcome()
        await member.placed(self._session.options.call_timeout_s)

    def unsubscribe(self, topic: str) -> None:
        """Want no more of a topic."""
        self._running().drop_topic(topic)

    def _subscription(self, topic: str, tags: str | None, sql: str | None) -> Subscription:
        if tags is not None and sql is not None:
            raise ConfigError("messages are chosen by tags or by sql, not by both")
        kind, expression = (SQL92, sql) if sql is not None else (TAG, tags)
        return build(topic, expression, kind, self._session.clock.now_ms())

    @property
    def assigned(self) -> frozenset[MessageQueue]:
        """The queues that are this consumer's now."""
        return frozenset(self._running().lanes)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """All queues of a topic. Raises TopicNotFound."""
        self._running()
        return await self._session.routes.readable(topic)

    # --- messages ----------------------------------------------------------------------------------------------------

    async def poll(self, max_messages: int = 500, timeout_s: float | None = 1.0) -> list[ReceivedMessage]:
        """Return fetched messages, at most `max_messages`. Without any it waits for `timeout_s` and returns an empty
        list; None waits for ever.

        The messages of the last call count as handled now, so one task polls at a time. Raises ClientClosed when the
        consumer is stopped during the wait.
        """
        self._running()
        if max_messages < 1:
            raise ConfigError("a poll is for 1 message at least", "max_messages")
        if self._polled.is_waited_for:
            raise ClientError(
                "another task waits in poll() of this consumer: what it is given would not be counted right"
            )
        self._polled.acknowledge()
        messages = self._polled.take(max_messages)
        while not messages:
            before = self._session.clock.monotonic()
            await self._polled.wait(timeout_s)
            self._running()
            messages = self._polled.take(max_messages)
            if timeout_s is not None:
                timeout_s -= self._session.clock.monotonic() - before
                if timeout_s <= 0:
                    break
        return messages

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Until the consumer is stopped."""
        self._running()
        while self._member is not None:
            with contextlib.suppress(ClientClosed):
                for message in await self.poll(1, None):
                    yield message

    async def commit(self) -> None:
        """All that was polled is handled: tell the brokers."""
        self._polled.acknowledge()
        await self._running().commit()

    # --- places ------------------------------------------------------------------------------------------------------

    def position(self, queue: MessageQueue) -> int:
        """The offset from which the next message of a queue comes. Raises ConfigError when it is not ours."""
        lane = self._mine(queue).lanes[queue]
        return self._polled.positions.get(queue, lane.process_queue.committable)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset on the broker; None if it has none."""
        return await self._running().places.committed(queue, self.group)

    async def begin_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message."""
        return await self._running().places.begin(queue)

    async def end_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will have."""
        return await self._running().places.end(queue)

    async def offset_for_time(self, queue: MessageQueue, when: datetime | float) -> int:
        """The offset of the first message that was stored then or later."""
        seconds = when.timestamp() if isinstance(when, datetime) else when
        return await self._running().places.at_time(queue, seconds)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on from another place. Raises ConfigError when the queue is not ours."""
        member = self._mine(queue)
        self._polled.forget(queue)
        await member.seek(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        await self.seek(queue, await self.begin_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        await self.seek(queue, await self.end_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, when: datetime | float) -> None:
        await self.seek(queue, await self.offset_for_time(queue, when))

    def pause(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Fetch no more of these queues, or of all. Messages already fetched are still returned."""
        self._running().pause(queues, is_paused=True)

    def resume(self, queues: Collection[MessageQueue] | None = None) -> None:
        self._running().pause(queues, is_paused=False)

    def statistics(self) -> ConsumerStatistics:
        """Return the current counters."""
        queues = queue_statistics(self._running().lanes.values())
        return ConsumerStatistics(
            group=self.group,
            client_id=self.client_id,
            queues=queues,
            fetched=sum(queue.fetched for queue in queues),
            failed=0,
        )

    def _mine(self, queue: MessageQueue) -> Member:
        member = self._running()
        if queue not in member.lanes:
            raise ConfigError(f"{queue} is not this consumer's now: subscribe to its topic, or have it assigned")
        return member

    def _running(self) -> Member:
        if self._member is None:
            raise ClientClosed("this consumer is not running: use it within `async with`, or start it first")
        return self._member
