"""A consumer that calls handlers: messages are fetched ahead, handed to them, and acknowledged when they return.

    consumer = PushConsumer("localhost:9876", group="mailer")

    @consumer.on("users", tags="registered || invited")
    async def welcome(message: ReceivedMessage) -> None:
        ...                                  # returning acknowledges; raising asks for redelivery later

    asyncio.run(consumer.run())              # or `async with consumer:` inside a program that does more

Members of a group share the queues of their topics. A message is delivered at least once: again when its handler
raised, and when a member went away before it told its progress. Handlers run on the loop that started the consumer; one
that is a plain `def` runs on a thread, and may block. Nothing here is global, and no signal is touched but by `run`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Self, TypeVar

from pyromq.client.consuming.listeners import Handler, Listeners, ready
from pyromq.client.consuming.ordered import OrderedHandling
from pyromq.client.consuming.process_queue import Run
from pyromq.client.consuming.queue_worker import Lane
from pyromq.client.consuming.sending_back import SendingBack
from pyromq.client.consuming.settings import ConsumerSettings, RetryDelay
from pyromq.client.consuming.tracing import ConsumerTrace
from pyromq.client.consuming.workers import Workers
from pyromq.client.group.member import Member
from pyromq.client.group.questions import Questions
from pyromq.client.group.starting_point import ConsumeFrom, Start, checked
from pyromq.client.group.statistics import ConsumerStatistics, queue_statistics
from pyromq.client.group.strategies import Strategy, average
from pyromq.client.hooks import Hook, Hooks
from pyromq.client.options import ClientOptions, Credentials, parse_name_servers
from pyromq.client.received import ReceivedMessage
from pyromq.client.session import Session
from pyromq.errors import ClientClosed, ClientError, ConfigError, PyroMQError
from pyromq.filters.subscription import SQL92, TAG, Subscription, build
from pyromq.model.names import retry_topic
from pyromq.model.queue import MessageQueue

log = logging.getLogger("pyromq.client")

AnyHandler = TypeVar("AnyHandler", bound=Handler)


class PushConsumer:
    """Calls handlers with the messages of topics, as a member of a group.

        @consumer.on("users", tags="registered || invited")
        async def welcome(message: ReceivedMessage) -> None: ...

    Returning acknowledges a message, raising asks for redelivery later. It works within `async with`, or in `run`,
    which runs until Ctrl-C; `statistics()` returns its counters.
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
        concurrency: int = 20,
        ordered: bool = False,
        broadcast: bool = False,
        consume_from: Start = ConsumeFrom.LAST,
        max_attempts: int | None = None,
        retry_delay: RetryDelay = 0,
        pause_s: float = 1.0,
        fetch_messages: int = 1024,
        fetch_bytes: int = 1 << 20,
        hold_s: float = 15.0,
        max_buffered_messages: int = 20_000,
        max_buffered_bytes: int = 64 << 20,
        commit_every_s: float = 5.0,
        stop_grace_s: float = 10.0,
        offsets_dir: str | PathLike[str] | None = None,
        hooks: Iterable[Hook] = (),
        trace: bool = False,
    ) -> None:
        """A new group begins at `consume_from`. `concurrency` handlers work at a time; with `ordered` there is one
        for each queue. With `broadcast` each member gets everything, and keeps its progress in `offsets_dir`.

        A message whose handler raised comes again after `retry_delay`, which is a delay level or a function that
        chooses one (0: the broker chooses), and after `max_attempts` deliveries (16) it is a dead letter. Where order
        matters it is tried again in its place after `pause_s`, without an end unless `max_attempts` is given.

        A fetch has up to `fetch_messages` and `fetch_bytes`, and waits for `hold_s` at the broker when there is
        nothing; at most `max_buffered_messages` and `max_buffered_bytes` wait for handlers. Offsets are committed every
        `commit_every_s`. At the end handlers have `stop_grace_s` for fetched messages. `trace` writes RocketMQ's
        message trace. Raises ConfigError.
        """
        self.settings = ConsumerSettings(
            group=group,
            strategy=strategy,
            consume_from=checked(consume_from),
            concurrency=concurrency,
            ordered=ordered,
            broadcast=broadcast,
            max_attempts=max_attempts,
            retry_delay=retry_delay,
            pause_s=pause_s,
            fetch_messages=fetch_messages,
            fetch_bytes=fetch_bytes,
            hold_s=hold_s,
            max_buffered_messages=max_buffered_messages,
            max_buffered_bytes=max_buffered_bytes,
            commit_every_s=commit_every_s,
            stop_grace_s=stop_grace_s,
            offsets_dir=None if offsets_dir is None else Path(offsets_dir),
        )
        self._name_servers = parse_name_servers(name_servers)
        self._session = Session(self._name_servers, tls=tls, credentials=credentials, options=options)
        self._trace = ConsumerTrace(self._name_servers, tls, credentials, options) if trace else None
        self._hooks = Hooks([*hooks, self._trace.hook] if self._trace else hooks)
        self._subscriptions: dict[str, Subscription] = {}
        self._listeners = Listeners()
        self._threads: ThreadPoolExecutor | None = None
        #: None before the start and after the stop.
        self._member: Member | None = None
        self._handling: Workers | OrderedHandling | None = None
        #: Set when the stop is over.
        self._is_over = asyncio.Event()

    @property
    def group(self) -> str:
        return self.settings.group

    @property
    def client_id(self) -> str:
        """Under which name brokers know this consumer."""
        return self._session.client_id

    # --- subscribing -------------------------------------------------------------------------------------------------

    def on(
        self, topic: str, *, tags: str | None = None, sql: str | None = None, batch: int = 0
    ) -> Callable[[AnyHandler], AnyHandler]:
        """Decorates the handler of a topic; see `subscribe`."""

        def decorate(handler: AnyHandler) -> AnyHandler:
            self.subscribe(topic, handler, tags=tags, sql=sql, batch=batch)
            return handler

        return decorate

    def subscribe(
        self, topic: str, handler: Handler, *, tags: str | None = None, sql: str | None = None, batch: int = 0
    ) -> None:
        """Have `handler` called with every message of a topic, or those that `tags` ("a || b") or `sql` choose.

        With `batch`, it is called with a list of at most that many; when it raises, all of them come again. All members
        of a group must subscribe to the same. Raises ConfigError, FilterSyntaxError.
        """
        if batch < 0 or (batch and self.settings.ordered):
            raise ConfigError("batch is 0 for one message at a time; where order matters there are no batches", "batch")
        if tags is not None and sql is not None:
            raise ConfigError("messages are chosen by tags or by sql, not by both")
        kind, expression = (SQL92, sql) if sql is not None else (TAG, tags)
        session = self._session
        self._subscriptions[topic] = build(topic, expression, kind, session.clock.now_ms())
        self._listeners.put(topic, ready(handler, batch, self._hooks, self.group, session.clock, self._executor))
        self._subscriptions_changed()

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic. Running handlers of it end."""
        if self._subscriptions.pop(topic, None) is not None and self._member is not None:
            self._member.drop_topic(topic)
            self._subscriptions_changed()

    def _subscriptions_changed(self) -> None:
        member = self._member
        if member is None:
            return  # the start tells them all
        changed = [topic for topic, one in self._subscriptions.items() if member.subscriptions.get(topic) != one]
        for topic in changed:
            if topic in member.subscriptions:
                member.drop_topic(topic)
            member.subscriptions[topic] = self._subscriptions[topic]
        self._session.spawn(self._tell_subscriptions(member))

    async def _tell_subscriptions(self, member: Member) -> None:
        for topic in tuple(member.subscriptions):
            try:
                await self._session.routes.of(topic)
            except PyroMQError as error:
                log.debug("no route of %s yet: %s", topic, error)
        await self._session.heartbeat()
        member.look_soon()

    def _executor(self) -> Executor:
        if self._threads is None:
            name = f"pyromq-{self.group}"
            self._threads = ThreadPoolExecutor(self.settings.concurrency, thread_name_prefix=name)
        return self._threads

    # --- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Join the group; from now on handlers are called.

        Raises Unreachable when no name server answers, NoPermission when no broker accepts this client's keys.
        """
        if self._member is not None:
            raise ClientClosed("this consumer is running already")
        if not self._subscriptions:
            raise ConfigError("this consumer has no handler: give it one with `@consumer.on(topic)`")
        self._session.start()
        self._is_over = asyncio.Event()
        member = self._member = Member(self._session, self.settings, self._arrived)
        member.subscriptions.update(self._subscriptions)
        if not self.settings.broadcast:
            retries = retry_topic(self.group)
            member.subscriptions[retries] = build(retries, "*", TAG, self._session.clock.now_ms())
        self._handling = self._new_handling(member)
        Questions(member, self._name_servers, self._handle_directly).listen()
        try:
            if self._trace is not None:
                await self._trace.start()
                self._session.spawn(self._trace.hook.run())
            self._handling.start()
            await member.join()
        except BaseException:
            await self.close()
            raise

    def _new_handling(self, member: Member) -> Workers | OrderedHandling:
        sending_back = SendingBack(self._session, self.settings)
        if not self.settings.ordered:
            return Workers(self._session, self.settings, self._listeners, sending_back)
        ordered = OrderedHandling(self._session, self.settings, self._listeners, sending_back, member.locks)
        member.on_lanes_changed.append(ordered.forget_dropped)
        return ordered

    def _arrived(self, lane: Lane, run: Run) -> None:
        assert self._handling is not None
        self._handling.arrived(lane, run)

    async def _handle_directly(self, message: ReceivedMessage) -> None:
        await self._listeners.of(message.topic).handle(message)

    async def close(self) -> None:
        """Let handlers end, commit offsets, leave the group. A second call waits for the same end.

        A handler that wants the end makes a task of this: it cannot wait for itself.
        """
        if self._handling is not None and self._handling.runs(asyncio.current_task()):
            raise ClientError("a handler cannot wait for its own end: use asyncio.create_task(consumer.close())")
        member, self._member = self._member, None
        if member is None or self._handling is None:
            if self._handling is not None:
                await self._is_over.wait()
            return
        try:
            member.stop_fetching()
            await self._handling.stop()
            await member.leave()
        finally:
            await self._close()

    async def _close(self) -> None:
        try:
            await self._session.close()
            if self._trace is not None:
                await self._trace.stop()
        finally:
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)
                self._threads = None
            self._is_over.set()

    async def run(self) -> None:
        """Start, and go on until stopped or cancelled; or until Ctrl-C or SIGTERM, where the program's main thread runs
        this."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        for one in signals:
            loop.add_signal_handler(one, ended.set)
        try:
            async with self:
                await _first_of(ended, self._is_over)
        finally:
            for one in signals:
                loop.remove_signal_handler(one)

    # --- while it runs -----------------------------------------------------------------------------------------------

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """Those of its topics that are this member's now."""
        return frozenset(queue for queue in self._running().lanes if queue.topic in self._subscriptions)

    def pause(self, what: str | Collection[MessageQueue] | None = None) -> None:
        """Fetch no more of a topic, of some queues, or of all; messages already fetched are still handled."""
        self._running().pause(what, is_paused=True)

    def resume(self, what: str | Collection[MessageQueue] | None = None) -> None:
        self._running().pause(what, is_paused=False)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on from another place in a queue that is this member's. Raises ConfigError for another one."""
        member = self._running()
        if queue not in member.lanes:
            raise ConfigError(f"{queue} is not this consumer's now, so it cannot go to another place in it")
        await member.seek(queue, offset)

    async def seek_to_time(self, queue: MessageQueue, when: datetime | float) -> None:
        """Go on from the first message that was stored then or later."""
        seconds = when.timestamp() if isinstance(when, datetime) else when
        await self.seek(queue, await self._running().places.at_time(queue, seconds))

    async def commit(self) -> None:
        """Commit the offsets now; they are committed every few seconds anyway."""
        await self._running().commit()

    def statistics(self) -> ConsumerStatistics:
        """Return the current counters."""
        member, handling = self._running(), self._handling
        queues = queue_statistics(member.lanes.values())
        return ConsumerStatistics(
            group=self.group,
            client_id=self.client_id,
            queues=queues,
            fetched=sum(queue.fetched for queue in queues),
            failed=0 if handling is None else handling.failed,
        )

    def _running(self) -> Member:
        if self._member is None:
            raise ClientClosed("this consumer is not running: use it within `async with`, or start it first")
        return self._member


async def _first_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()
