"""Messages that are delivered only if something else was done too: a row written, an order paid.

    async with TransactionProducer("localhost:9876", group="orders", check=look_up) as producer:
        await producer.send_in_transaction(message, pay)         # `pay` does the work and returns a Decision

        async with producer.transaction(message):                # or: a block that ends well commits
            await database.pay(order)

The broker takes the message first, as a half that no consumer sees; then the local work is done; then the broker is
told what became of it. When it is not told, because this process died or the network failed, it asks any producer of
the group later: `check` answers from what the local work left behind.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from enum import Enum
from typing import Any

from pyromq.client.message import Message
from pyromq.client.producer import Producer
from pyromq.client.received import ReceivedMessage, split_records
from pyromq.client.sending.receipt import SendReceipt
from pyromq.errors import IllegalMessage, PyroMQError, SendUnknown
from pyromq.model.queue import MessageQueue
from pyromq.net.peer import Peer
from pyromq.records import property_names as names
from pyromq.records.layout import FLAG_COMMITTED, FLAG_PREPARED, FLAG_ROLLED_BACK
from pyromq.records.message_id import decode_message_id
from pyromq.wire.requests.client import CheckTransaction, EndTransaction

log = logging.getLogger("pyromq.client")

#: The end of a transaction waits this long for the broker's connection.
TELL_SECONDS = 0.2


class Decision(Enum):
    """The fate of a message. The value is the wire's."""

    COMMIT = FLAG_COMMITTED
    ROLLBACK = FLAG_ROLLED_BACK
    #: Not known yet: the broker asks later.
    UNKNOWN = 0


Local = Callable[[Message], Decision | Awaitable[Decision]]
Check = Callable[[ReceivedMessage], Decision | Awaitable[Decision]]


class Transaction:
    """A message whose half the broker has. `decision` is sent to the broker when the block ends well."""

    def __init__(self, message: Message, receipt: SendReceipt) -> None:
        self.message = message
        self.receipt = receipt
        self.decision = Decision.COMMIT

    @property
    def transaction_id(self) -> str:
        """The transaction id, which `check` gets too: keep it with the local work."""
        return self.receipt.transaction_id or self.receipt.message_id

    def roll_back(self) -> None:
        self.decision = Decision.ROLLBACK


class TransactionProducer(Producer):
    """A producer that sends in transactions as well. `check(message)` says what became of one whose end was lost."""

    def __init__(self, name_servers: str | Sequence[str], *, group: str, check: Check, **settings: Any) -> None:
        super().__init__(name_servers, group=group, **settings)
        self._check = check
        self._session.on(CheckTransaction, self._asked)

    async def send_in_transaction(
        self, message: Message, local: Local, *, timeout_s: float | None = None
    ) -> tuple[SendReceipt, Decision]:
        """Send the half, do the local work, send the decision. Returns the receipt of the half and the decision.

        If `local` raises, its progress is unknown: the broker gets "unknown" and asks `check`
        later, and the error is raised. Raises the errors of a send; `local` is not called then.
        """
        receipt = await self._send_half(message, timeout_s)
        decision = Decision.UNKNOWN
        try:
            decision = await _decided(local, message)
        finally:
            await self._end(message, receipt, decision)
        return receipt, decision

    @asynccontextmanager
    async def transaction(self, message: Message, *, timeout_s: float | None = None) -> AsyncIterator[Transaction]:
        """A block of local work: leaving it normally commits, an exception rolls back and is raised.

        For work that is undone when the block raises, as a database transaction inside of it is.
        """
        begun = Transaction(message, await self._send_half(message, timeout_s))
        try:
            yield begun
        except Exception:
            begun.decision = Decision.ROLLBACK
            raise
        except BaseException:  # cancelled: how far the work came is not known
            begun.decision = Decision.UNKNOWN
            raise
        finally:
            await self._end(message, begun.receipt, begun.decision)

    # --- the half ----------------------------------------------------------------------------------------------------

    async def _send_half(self, message: Message, timeout_s: float | None) -> SendReceipt:
        if message.delay_level or message.deliver_at is not None or message.deliver_after is not None:
            raise IllegalMessage("a message of a transaction cannot be held back: its time begins with the commit")
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        began = self._clock.monotonic()
        await self._introduce_soon(message.topic, limit_s / 2)
        left_s = max(limit_s - (self._clock.monotonic() - began), 0.0)
        carried = {names.TRANSACTION_PREPARED: "true", names.PRODUCER_GROUP: self.group}
        try:
            return await self._send_hooked(message, timeout_s=left_s, extra=carried, flags=FLAG_PREPARED)
        except SendUnknown as unknown:
            if isinstance(unknown.receipt, SendReceipt):  # the half is there, but not safe: nothing was done for it
                await self._end(message, unknown.receipt, Decision.ROLLBACK)
            raise

    async def _introduce_soon(self, topic: str, limit_s: float) -> None:
        """Register with reachable brokers before the first half. An unreachable one delays the send only once."""
        introducing = self._session.spawn(self._try_to_introduce(topic))
        await asyncio.wait([introducing], timeout=limit_s)

    async def _try_to_introduce(self, topic: str) -> None:
        with suppress(PyroMQError):  # the send itself reports the error
            await self._introduce(topic)

    async def _end(self, message: Message, receipt: SendReceipt, decision: Decision) -> None:
        """Send the decision; in the background if it takes longer. A failure is no error: the broker asks."""
        telling = self._session.spawn(self._tell_end(message, receipt, decision))
        await asyncio.wait([telling], timeout=TELL_SECONDS)

    async def _tell_end(self, message: Message, receipt: SendReceipt, decision: Decision) -> None:
        try:
            _, position = decode_message_id(receipt.offset_message_id)
            request = EndTransaction(
                topic=message.topic,
                producer_group=self.group,
                half_offset=receipt.queue_offset,
                half_position=position,
                decision=decision.value,
                message_id=receipt.message_id,
                transaction_id=receipt.transaction_id,
            )
            await self._delivery.at_master(
                receipt.queue, lambda address: self._session.tell(address, request), self._timeout_s
            )
        except PyroMQError as error:
            name = receipt.queue.broker_name
            log.warning("%s was not told the end of the transaction %s: %s", name, receipt.message_id, error)

    # --- being asked -------------------------------------------------------------------------------------------------

    def _asked(self, request: CheckTransaction, peer: Peer) -> None:
        """A broker checks a half. The request has no answer: the decision is sent as usual."""
        queue = MessageQueue(request.topic or "", request.broker_name or "", 0)
        (message,) = split_records(request.body, queue)
        if message.get_property(names.PRODUCER_GROUP) in (None, self.group):
            self._session.spawn(self._answer_check(request, message, peer))

    async def _answer_check(self, request: CheckTransaction, message: ReceivedMessage, peer: Peer) -> None:
        try:
            decision = await _decided(self._check, message)
        except Exception:
            log.exception("the check of the transaction %s failed; the broker asks again", message.message_id)
            decision = Decision.UNKNOWN
        peer.tell(
            EndTransaction(
                topic=request.topic,
                producer_group=self.group,
                half_offset=request.half_offset,
                half_position=request.half_position,
                decision=decision.value,
                from_check=True,
                message_id=message.message_id,
                transaction_id=request.transaction_id,
            )
        )


async def _decided(decide: Callable[[Any], Decision | Awaitable[Decision]], message: Message) -> Decision:
    """Call the program's own check function. A plain `def` may block: it runs in a thread."""
    given = decide(message) if inspect.iscoroutinefunction(decide) else await asyncio.to_thread(decide, message)
    decision = await given if inspect.isawaitable(given) else given
    if not isinstance(decision, Decision):
        raise TypeError(f"a transaction ends with a Decision (COMMIT, ROLLBACK or UNKNOWN), not with {decision!r}")
    return decision
