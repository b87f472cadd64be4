"""Replies: a consumer answers a request message, and the producer that waits for the answer gets it at once.

The producer is found by the client id that it put into its request, and that the consumer put into the reply. Where the
broker is set to, the reply is also stored in its topic; that it is stored or not changes nothing for the two of them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from pyromq.broker.delivery.append import Writer
from pyromq.broker.delivery.receipts import receipt_fields
from pyromq.broker.idempotence.sends import numbers_of
from pyromq.broker.requests.send import Sending, SendProcessor
from pyromq.broker.state.clients import Producers
from pyromq.clock import Clock
from pyromq.config import BrokerConfig
from pyromq.errors import CallFailed, IllegalMessage, PyroMQError
from pyromq.model.message import AppendedAt
from pyromq.net.peer import Peer
from pyromq.records.properties import decode_properties
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import PushReply, SendReply
from pyromq.wire.responses import Response, SendReceipt

log = logging.getLogger("pyromq.broker")

#: The timeout of the producer for confirming the reply.
PUSH_SECONDS = 10.0

REPLY_TO = "REPLY_TO_CLIENT"
PUSHED_AT = "PUSH_REPLY_TIME"


class ReplyProcessor:
    """Handles `SendReply`."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        send: SendProcessor,
        producers: Producers,
        writer: Writer,
        store_address: str,
        clock: Clock,
    ) -> None:
        self._config = config
        self._send = send
        self._producers = producers
        self._writer = writer
        self._store_address = store_address
        self._clock = clock

    def reply(self, request: SendReply, peer: Peer) -> Awaitable[Response]:
        """Raises what the checks of a send find."""
        sending = self._send.prepare(request, peer)
        if numbers_of(sending.draft.topic, [sending.draft]) is not None:
            raise IllegalMessage("a reply cannot be numbered: PYROMQ_WRITER is reserved for idempotent writers")
        return self._reply(request, sending, peer)

    async def _reply(self, request: SendReply, sending: Sending, peer: Peer) -> Response:
        stored = self._store(sending) if self._config().store_replies else None
        problem = await self._push(request, peer)
        if stored is not None:
            await self._settled(stored)
        return self._answer(sending, stored, problem)

    def _answer(self, sending: Sending, stored: AppendedAt | None, problem: str | None) -> Response:
        if stored is not None:
            answer = self._send.receipt(sending, [stored])
        else:
            # Clients cannot read a receipt without these.
            more = receipt_fields(self._config())
            answer = SendReceipt(message_id="0", queue_id=sending.draft.queue_id, queue_offset=0, more=more)
        if problem is not None:
            log.warning("a reply did not reach the one who asked: %s", problem)
            answer.code, answer.reason = ResponseCode.SYSTEM_ERROR, problem
        return answer

    # --- to the producer ---------------------------------------------------------------------------------------------

    async def _push(self, request: SendReply, peer: Peer) -> str | None:
        """Hand the reply to the producer that waits for it; what went wrong, or None."""
        client_id = decode_properties(request.properties.encode("utf-8", "replace")).get(REPLY_TO)
        if client_id is None:
            return f"reply message properties[{REPLY_TO}] is null: nobody can be found who waits for it"
        producer = self._producers.find_client(client_id)
        if producer is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        try:
            answer = await producer.peer.call(self._pushed(request, peer), PUSH_SECONDS)
        except CallFailed as failed:
            return f"push reply message to {client_id} fail: {failed}"
        if answer.code == ResponseCode.SUCCESS:
            return None
        return f"push reply message to {client_id} fail: it answered {answer.code} {answer.reason or ''}"

    def _pushed(self, request: SendReply, peer: Peer) -> PushReply:
        now_ms = self._clock.now_ms()
        between = "" if not request.properties or request.properties.endswith("\x02") else "\x02"
        return PushReply(
            producer_group=request.producer_group,
            topic=request.topic,
            default_topic=request.default_topic,
            default_topic_queues=request.default_topic_queues,
            queue_id=request.queue_id,
            storage_flags=request.storage_flags,
            born_timestamp_ms=request.born_timestamp_ms,
            user_flag=request.user_flag,
            properties=f"{request.properties}{between}{PUSHED_AT}\x01{now_ms}\x02",
            reconsume_times=request.reconsume_times,
            unit_mode=request.unit_mode,
            born_host=peer.address,
            store_host=self._store_address,
            store_timestamp_ms=now_ms,
            body=request.body,
        )

    # --- to the log --------------------------------------------------------------------------------------------------

    def _store(self, sending: Sending) -> AppendedAt | None:
        """Keep the reply. That it cannot be kept is no reason to let the producer wait in vain."""
        try:
            return self._writer.append([sending.draft])[0]
        except PyroMQError as problem:
            log.warning("a reply could not be stored: %s", problem)
            return None

    async def _settled(self, stored: AppendedAt) -> None:
        try:
            await self._writer.acknowledged(stored)
        except PyroMQError as problem:
            log.warning("a reply may not have been stored: %s", problem)
