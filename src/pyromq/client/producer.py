"""Sending messages.

    async with Producer("localhost:9876", group="signup") as producer:
        receipt = await producer.send(Message("users", b"...", tags="registered", keys=["u-17"]))
        await producer.send("users", b"...")

A send returns when the broker keeps the message as it promises to. It raises `IllegalMessage` before anything is sent,
`SendFailed` when the message is certainly not stored, `SendUnknown` when that is unknown: a timeout, a connection that
broke, a disk or a slave that did not confirm in time.

Messages that must stay in order have one sharding key, and each is sent when the one before it has been acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Self, Unpack, overload

from pyromq.auth.signature import Credentials
from pyromq.client.hooks import Hook, Hooks, Sending
from pyromq.client.message import Message, MessageFields
from pyromq.client.options import ClientOptions
from pyromq.client.received import ReceivedMessage
from pyromq.client.request_reply import Replies, reply_to, request_properties
from pyromq.client.sending.auto_batch import AutoBatch, Place, Waiting
from pyromq.client.sending.batching import BatchOptions, Gathered
from pyromq.client.sending.delivery import Choice, Delivery
from pyromq.client.sending.fault_backoff import FaultBackoff
from pyromq.client.sending.frames import SendFrames
from pyromq.client.sending.outcomes import receipt_of, receipts_of_batch
from pyromq.client.sending.parcel import Packing, Parcel, join, split_by_size
from pyromq.client.sending.publish_routes import PublishRoutes
from pyromq.client.sending.queue_choice import Pick, Selector, TurnTaking, only_once, queue_of_key
from pyromq.client.sending.receipt import SendReceipt, SendStatus
from pyromq.client.sending.steady_queues import Queues
from pyromq.client.sending.unique_ids import UniqueIds
from pyromq.client.session import Session
from pyromq.client.trace import MessageTrace
from pyromq.errors import (
    ClientClosed,
    ConfigError,
    IllegalMessage,
    NoMaster,
    NoReply,
    PyroMQError,
    SendFailed,
    SendUnknown,
    Unreachable,
)
from pyromq.model.names import check_group
from pyromq.model.queue import MessageQueue
from pyromq.net.peer import Peer
from pyromq.records.compression import CompressionName, check_compression
from pyromq.wire.command import Command
from pyromq.wire.requests.client import PushReply, SendReply
from pyromq.wire.responses import Response

_NOTHING: Mapping[str, str] = {}


class Producer:
    """Sends messages. Use it with `async with`; any number of tasks may send at the same time."""

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        group: str,
        tls: ssl.SSLContext | bool | None = None,
        credentials: Credentials | None = None,
        options: ClientOptions | None = None,
        attempts: int = 3,
        timeout_s: float = 3.0,
        compress_above: int | None = 4096,
        compression: CompressionName = "zlib",
        max_message_bytes: int = 4 << 20,
        auto_batch: bool | BatchOptions = False,
        topic_queues: int = 4,
        hooks: Iterable[Hook] = (),
        trace: bool = False,
    ) -> None:
        """`timeout_s` is for a send with all its tries: those that may have stored the message, of which there are
        `attempts`, and those that a broker refused which is busy, restarts or changes hands, for which there is no
        other limit. Bodies of `compress_above` bytes and more are compressed;
        a topic that comes into being with its first message gets `topic_queues` queues."""
        _check(group, attempts, timeout_s, max_message_bytes, topic_queues)
        check_compression(compression)
        self.group = group
        self._session = Session(name_servers, tls=tls, credentials=credentials, options=options)
        self._session.producer_groups.add(group)
        self._session.on(PushReply, self._take_reply)
        self._attempts = attempts
        self._timeout_s = timeout_s
        self._packing = Packing(max_message_bytes, compress_above, compression)
        self._max_bytes = max_message_bytes
        #: Bodies of this size are to be compressed, which they cannot be in a batch.
        self._alone_from = max_message_bytes + 1 if compress_above is None else compress_above
        self._clock = self._session.clock
        self._ids = self._new_ids()
        self._routes = PublishRoutes(self._session, topic_queues)
        self._backoff = FaultBackoff(self._clock)
        self._turns = TurnTaking(self._backoff, int.from_bytes(os.urandom(2), "big"))
        self._frames = SendFrames(group, topic_queues)
        signed = credentials is not None
        self._delivery = Delivery(self._session, self._frames, self._backoff, self._routes, signed=signed)
        self._session.routes.on_master.append(lambda broker_name, _: self._backoff.replaced(broker_name))
        self._replies = Replies()
        self._batch_options = BatchOptions() if auto_batch is True else auto_batch or None
        self._auto_batch: AutoBatch | None = None
        self._trace = self._new_trace() if trace else None
        self._hooks = Hooks([*hooks, self._trace] if self._trace else hooks)
        self._is_hooked = bool(self._hooks)

    # --- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Nothing is connected yet: that happens with the first message."""
        self._session.start()
        self._ids = self._new_ids()  # after a fork, two processes have this object
        if self._batch_options is not None:
            self._auto_batch = AutoBatch(self._batch_options, self._deliver_gathered, self._session.spawn)
        if self._trace is not None:
            self._session.spawn(self._trace.run())

    async def close(self) -> None:
        """Send the waiting messages, unregister from the brokers and close. Closing twice is fine."""
        if self._auto_batch is not None:
            await self._auto_batch.finish()
            self._auto_batch = None
        if self._trace is not None and self._session.is_open:
            await self._trace.finish()
        await self._session.close()

    @property
    def client_id(self) -> str:
        """Under which name brokers know this producer."""
        return self._session.client_id

    async def queues(self, topic: str) -> Queues:
        """The queues that messages of a topic can be sent to. Raises TopicNotFound, Unreachable."""
        return self._routes.known.get(topic) or await self._routes.find(topic)

    # --- sending -----------------------------------------------------------------------------------------------------

    @overload
    async def send(
        self,
        message: Message,
        /,
        *,
        queue: MessageQueue | None = None,
        select: Selector | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt: ...

    @overload
    async def send(
        self,
        topic: str,
        body: bytes | bytearray | memoryview | str,
        /,
        *,
        queue: MessageQueue | None = None,
        select: Selector | None = None,
        timeout_s: float | None = None,
        **fields: Unpack[MessageFields],
    ) -> SendReceipt: ...

    async def send(
        self,
        message: Message | str,
        body: bytes | bytearray | memoryview | str = b"",
        /,
        *,
        queue: MessageQueue | None = None,
        select: Selector | None = None,
        timeout_s: float | None = None,
        **fields: Unpack[MessageFields],
    ) -> SendReceipt:
        """Send one message: a `Message`, or topic and body and what else a `Message` is made of.

        `queue` names the queue it goes to; `select` chooses one of all. Raises SendFailed, SendUnknown, IllegalMessage,
        TopicNotFound, NoPermission, TlsFailed, and what else a broker says of a message that no other try would help.
        """
        if isinstance(message, str):
            message = Message(message, body, **fields)
        elif fields or body:
            raise TypeError("send() takes a Message, or a topic and a body with the fields of a Message, not both")
        if self._is_hooked:
            return await self._send_hooked(message, queue, select, timeout_s)
        return await self._submit(message, queue, select, timeout_s)

    async def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> list[SendReceipt]:
        """Send messages of one topic to one queue with as few requests as the size limit allows; a receipt for each.

        Each request is stored as a whole or not at all; when one fails, those before it are stored. Then it raises
        SendUnknown, with the receipts of those that are.
        """
        now_ms = self._clock.now_ms()
        sendings = [Sending(message, self.group, self._ids.next(now_ms)) for message in messages]
        _check_batch([sending.message for sending in sendings])
        receipts: list[SendReceipt] = []
        with self._hooked(sendings):
            try:
                async for some in self._send_in_parts(sendings, queue, timeout_s, now_ms):
                    receipts += some
            except PyroMQError as error:
                if not receipts:
                    raise
                said = f"{len(receipts)} of {len(sendings)} messages are stored, then this happened: {error}"
                raise SendUnknown(said, [error], receipts) from error
        return receipts

    async def _send_in_parts(
        self, sendings: list[Sending], queue: MessageQueue | None, timeout_s: float | None, now_ms: int
    ) -> AsyncIterator[list[SendReceipt]]:
        deadline = self._clock.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        entries = [self._packing.batch_entry(one.message, one.message_id, one.properties) for one in sendings]
        for part in split_by_size(entries, self._max_bytes):
            first, ids = sendings[part.start].message, [one.message_id for one in sendings[part]]
            parcel = join(first.topic, entries[part], ids, now_ms)
            choice = self._choice(first, queue, None)
            left_s = max(deadline - self._clock.monotonic(), 0.0)
            receipts = await self._deliver_batch(parcel, choice, left_s)
            for sending, receipt in zip(sendings[part], receipts, strict=True):
                sending.receipt = receipt
            # The first part decides the queue of the rest: they stay together.
            queue = receipts[0].queue
            yield receipts

    async def send_one_way(
        self, message: Message, *, queue: MessageQueue | None = None, select: Selector | None = None
    ) -> None:
        """Hand a message to the network, and know nothing of what becomes of it. Raises Unreachable when no broker is
        there to take it in time, and what else a route is refused with."""
        now_ms = self._clock.now_ms()
        sending = Sending(message, self.group, self._ids.next(now_ms))
        try:
            with self._hooked([sending]):
                parcel = self._packing.pack(message, sending.message_id, now_ms, sending.properties)
                async with asyncio.timeout(self._timeout_s):
                    chosen = self._choice(message, queue, select).choose(())
                    await self._delivery.tell(parcel, chosen if isinstance(chosen, MessageQueue) else await chosen)
        except TimeoutError:
            raise Unreachable(
                f"the message to {message.topic!r} could not leave within {self._timeout_s:g} s"
            ) from None

    # --- request and reply -------------------------------------------------------------------------------------------

    async def request(self, message: Message, timeout_s: float = 3.0) -> ReceivedMessage:
        """Send a message that asks for a reply, and wait for it. Raises NoReply, and what a send raises."""
        correlation_id = str(uuid.uuid4())
        extra = request_properties(correlation_id, self.client_id, timeout_s)
        with self._replies.expected(correlation_id) as reply:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._introduce(message.topic)
                    await self._send_hooked(message, timeout_s=timeout_s, extra=extra)
                    await self._session.introduce()  # the master that took it may be another one by now
                    return await reply
            except TimeoutError:
                raise NoReply(f"nobody replied to the request to {message.topic!r} within {timeout_s:g} s") from None

    async def reply(self, request: ReceivedMessage, body: bytes | str, *, timeout_s: float | None = None) -> None:
        """Answer a message that was sent with `request`. Raises IllegalMessage, and what a call raises."""
        message, carried = reply_to(request, body)
        if self._session.routes.address(request.queue.broker_name) is None:
            with suppress(NoMaster):
                await self._routes.find(request.queue.topic)
        now_ms = self._clock.now_ms()
        parcel = self._packing.pack(message, self._ids.next(now_ms), now_ms, carried)
        reply = self._frames.request(parcel, 0, SendReply)
        limit_s = self._session.options.call_timeout_s if timeout_s is None else timeout_s
        # To the broker of the request: it has the connection of the requester.
        await self._delivery.at_master(
            request.queue, lambda address: self._session.ask(address, reply, timeout_s), limit_s
        )

    async def _introduce(self, topic: str) -> None:
        """Brokers bring replies to clients that they have heard of."""
        if topic not in self._routes.known:
            with suppress(NoMaster):  # the send waits for it
                await self._routes.find(topic)
        await self._session.introduce()

    def _take_reply(self, pushed: PushReply, peer: Peer) -> Response:
        return self._replies.take(pushed, peer)

    # --- one by one --------------------------------------------------------------------------------------------------

    def _submit(
        self,
        message: Message,
        queue: MessageQueue | None,
        select: Selector | None,
        timeout_s: float | None,
        extra: Mapping[str, str] = _NOTHING,
        message_id: str = "",
    ) -> Awaitable[SendReceipt]:
        """Alone, or in a batch where this producer makes some and the message can be in one."""
        gathering = self._auto_batch
        if (
            gathering is None
            or select is not None
            or timeout_s is not None
            or len(message.body) >= self._alone_from
            or message.delay_level
            or message.deliver_at is not None
            or message.deliver_after is not None
        ):
            return self._send(message, queue, select, timeout_s, extra, message_id)
        if gathering.is_full or message.sharding_key is not None:
            return self._gather_later(gathering, message, queue, extra, message_id)
        return self._gather(gathering, message, queue, extra, message_id)

    async def _send(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        select: Selector | None = None,
        timeout_s: float | None = None,
        extra: Mapping[str, str] = _NOTHING,
        message_id: str = "",
        flags: int = 0,
    ) -> SendReceipt:
        now_ms = self._clock.now_ms()
        message_id = message_id or self._ids.next(now_ms)
        parcel = self._packing.pack(message, message_id, now_ms, extra, flags)
        answer, where = await self._deliver(parcel, self._choice(message, queue, select), timeout_s)
        return _kept(receipt_of(answer, where, message_id))

    async def _send_hooked(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        select: Selector | None = None,
        timeout_s: float | None = None,
        extra: Mapping[str, str] = _NOTHING,
        flags: int = 0,
    ) -> SendReceipt:
        """Any send, with the hooks around it."""
        sending = Sending(message, self.group, self._ids.next(self._clock.now_ms()), is_half=bool(flags))
        with self._hooked([sending]):
            more = {**sending.properties, **extra}
            if flags or extra:
                receipt = await self._send(message, queue, select, timeout_s, more, sending.message_id, flags)
            else:
                receipt = await self._submit(message, queue, select, timeout_s, more, sending.message_id)
            sending.receipt = receipt
        return receipt

    @contextmanager
    def _hooked(self, sendings: Sequence[Sending]) -> Iterator[None]:
        """The hooks before and after what sends these."""
        for sending in sendings:
            self._hooks.before_send(sending)
        began = self._clock.monotonic()
        try:
            yield
        except BaseException as error:
            for sending in sendings:
                sending.failed(error)
            raise
        finally:
            for sending in sendings:
                sending.duration_s = self._clock.monotonic() - began
                self._hooks.after_send(sending)

    async def _deliver(self, parcel: Parcel, choice: Choice, timeout_s: float | None) -> tuple[Command, MessageQueue]:
        if not self._session.is_open:
            raise ClientClosed("this producer is not running: use it within `async with`, or start it first")
        limit = self._timeout_s if timeout_s is None else timeout_s
        return await self._delivery.deliver(parcel, choice, limit, self._attempts)

    # --- where to ----------------------------------------------------------------------------------------------------

    def _choice(self, message: Message, queue: MessageQueue | None, select: Selector | None) -> Choice:
        if queue is not None:
            if queue.topic != message.topic:
                raise IllegalMessage(f"the queue is one of {queue.topic!r}, the message of {message.topic!r}")
            return self._this_queue(queue)
        if select is not None:
            pick = only_once(lambda queues: select(queues, message))
        elif message.sharding_key is not None:
            key = message.sharding_key
            pick = only_once(lambda queues: queue_of_key(queues, key))
        else:
            return self._any_queue(message.topic)
        return Choice(partial(self._choose_steadily, message.topic, pick), is_bound=True)

    def _this_queue(self, queue: MessageQueue) -> Choice:
        return Choice(partial(self._certain_queue, queue), is_bound=True)

    def _any_queue(self, topic: str) -> Choice:
        return Choice(partial(self._choose, topic, self._turns.next), is_bound=False)

    def _choose(self, topic: str, pick: Pick, failed_brokers: Sequence[str]) -> MessageQueue | Awaitable[MessageQueue]:
        queues = self._routes.known.get(topic)
        return pick(queues, failed_brokers) if queues else self._find_and_choose(topic, pick, failed_brokers)

    async def _find_and_choose(self, topic: str, pick: Pick, failed_brokers: Sequence[str]) -> MessageQueue:
        return pick(await self._routes.find(topic), failed_brokers)

    def _choose_steadily(self, topic: str, pick: Pick, _: Sequence[str]) -> MessageQueue | Awaitable[MessageQueue]:
        queues = self._routes.steady(topic)
        return pick(queues, ()) if queues else self._find_and_choose_steadily(topic, pick)

    async def _find_and_choose_steadily(self, topic: str, pick: Pick) -> MessageQueue:
        return pick(await self._routes.find_steady(topic), ())

    def _certain_queue(self, queue: MessageQueue, _: Sequence[str]) -> MessageQueue | Awaitable[MessageQueue]:
        return queue if queue.topic in self._routes.known else self._find_certain(queue)

    async def _find_certain(self, queue: MessageQueue) -> MessageQueue:
        await self._routes.find_steady(queue.topic)
        return queue

    # --- batches -----------------------------------------------------------------------------------------------------

    def _gather(
        self,
        gathering: AutoBatch,
        message: Message,
        queue: MessageQueue | None,
        extra: Mapping[str, str],
        own_id: str,
    ) -> Waiting:
        message_id = own_id or self._ids.next(self._clock.now_ms())
        entry = self._packing.batch_entry(message, message_id, extra)
        return gathering.add((message.topic, queue), entry, message_id)

    async def _gather_later(
        self,
        gathering: AutoBatch,
        message: Message,
        queue: MessageQueue | None,
        extra: Mapping[str, str],
        own_id: str,
    ) -> SendReceipt:
        """The way for a send that has to wait: for room, or for the route of its key."""
        is_handed_over = False
        try:
            async with asyncio.timeout(self._timeout_s):
                if gathering.is_full:
                    await gathering.wait_for_room()
                if message.sharding_key is not None and queue is None:
                    topic = message.topic
                    queues = self._routes.steady(topic) or await self._routes.find_steady(topic)
                    queue = queue_of_key(queues, message.sharding_key)
                waiting = self._gather(gathering, message, queue, extra, own_id)
                is_handed_over = True
                return await waiting
        except TimeoutError:
            said = f"within {self._timeout_s:g} s, with as many messages waiting as may wait"
            if is_handed_over:
                raise SendUnknown(f"the message to {message.topic!r} was not acknowledged {said}") from None
            raise SendFailed(f"the message to {message.topic!r} did not leave {said}") from None

    async def _deliver_gathered(self, place: Place, batch: Gathered[Waiting]) -> list[SendReceipt]:
        topic, queue = place
        parcel = join(topic, batch.entries, batch.message_ids, self._clock.now_ms())
        choice = self._any_queue(topic) if queue is None else self._this_queue(queue)
        waited_s = asyncio.get_running_loop().time() - batch.since
        left_s = max(self._timeout_s - waited_s, 0.0)
        return await self._deliver_batch(parcel, choice, left_s)

    async def _deliver_batch(self, parcel: Parcel, choice: Choice, timeout_s: float) -> list[SendReceipt]:
        answer, where = await self._deliver(parcel, choice, timeout_s)
        receipts = receipts_of_batch(answer, where, parcel.message_ids)
        _kept(receipts[0])
        return receipts

    # --- traces ------------------------------------------------------------------------------------------------------

    def _new_trace(self) -> MessageTrace:
        return MessageTrace(
            self._send,
            self._clock,
            lambda now_ms: self._ids.next(now_ms),
            self._session.routes.address,
        )

    def _new_ids(self) -> UniqueIds:
        return UniqueIds(_host_of(self.client_id), os.getpid(), os.urandom)


#: Reasons for a weaker acknowledgement than configured, and the advice for each.
NOT_SAFE = {
    SendStatus.FLUSH_DISK_TIMEOUT: "its disk did not confirm it in time: `pyromq broker status` shows how long flushes "
    "take",
    SendStatus.FLUSH_SLAVE_TIMEOUT: "no slave confirmed it in time: `pyromq cluster` shows how far they are behind",
    SendStatus.SLAVE_NOT_AVAILABLE: "too few slaves are connected: `pyromq cluster` shows who is, and a slave that "
    "comes gets it",
}


def _kept(receipt: SendReceipt) -> SendReceipt:
    """Raises SendUnknown when the broker has the message but not as safe as it promises."""
    if receipt.status is SendStatus.OK:
        return receipt
    raise SendUnknown(
        f"the broker {receipt.queue.broker_name!r} has the message, but {NOT_SAFE[receipt.status]} "
        f"({receipt.status.name}): it may be lost if the broker fails now",
        receipt=receipt,
    )


def _host_of(client_id: str) -> str:
    return client_id.partition("@")[0]


def _check_batch(messages: Sequence[Message]) -> None:
    if len({message.topic for message in messages}) > 1:
        raise IllegalMessage("the messages of a batch must have one topic: send one batch for each")
    if len({message.sharding_key for message in messages}) > 1:
        raise IllegalMessage("a batch goes to one queue: its messages must have the same sharding key, or all none")


def _check(group: str, attempts: int, timeout_s: float, max_message_bytes: int, topic_queues: int) -> None:
    if not group.strip():
        raise ConfigError("a producer needs the name of a group", "group")
    check_group(group)
    if not timeout_s > 0:
        raise ConfigError("timeout_s must be above 0", "timeout_s")
    for name, value in (
        ("attempts", attempts), ("max_message_bytes", max_message_bytes), ("topic_queues", topic_queues),
    ):  # fmt: skip
        if value < 1:
            raise ConfigError(f"{name} must be at least 1", name)
