"""Transactions as producers and administrators see them: begin with a half message, commit, roll back, resume.

Producers end a transaction without waiting for an answer. Whatever goes wrong then is in the log only, and the
transaction stays open: its producers are asked for it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from pyromq.broker import properties
from pyromq.broker.processors.send import Sending, receipt_for
from pyromq.broker.transactions import forms
from pyromq.broker.transactions.journal import Journal
from pyromq.broker.transactions.ledger import Half
from pyromq.config import BrokerConfig
from pyromq.errors import BadRequest, NoPermission, NotFound, OffsetNotFound, PyroMQError
from pyromq.model import names
from pyromq.model.message import Draft
from pyromq.net.peer import Peer
from pyromq.records.layout import FLAG_COMMITTED, FLAG_ROLLED_BACK
from pyromq.records.message_id import decode_message_id
from pyromq.wire.requests import EndTransaction
from pyromq.wire.responses import Response
from pyromq.wire.transaction_requests import ResumeCheck

log = logging.getLogger("pyromq.broker")

DECISIONS = {FLAG_COMMITTED: "commit", FLAG_ROLLED_BACK: "roll back"}


class TransactionProcessor:
    """Handles half messages (as the send processor's detour), `EndTransaction` and `ResumeCheck`."""

    def __init__(self, config: Callable[[], BrokerConfig], journal: Journal, divert: Callable[[Draft], Draft]) -> None:
        self._config = config
        self._journal = journal
        self._divert = divert

    # --- begin -------------------------------------------------------------------------------------------------------

    def prepare(self, sending: Sending) -> Awaitable[Response] | Response | None:
        """Store a half message and answer as to a send; None: this message is not for us. Raises what a send raises."""
        draft = sending.draft
        if not forms.is_half(draft) or sending.topic.name.startswith((names.RETRY_PREFIX, names.DEAD_LETTER_PREFIX)):
            return None
        config = self._config()
        if config.reject_transactions:
            raise NoPermission(f"the broker {config.name} takes no transactions (rejectTransactionMessage)")
        self._divert(draft)  # what could not be committed is refused now
        writer = self._journal.writer
        (receipt,) = writer.append([forms.half_of(draft, sending.request.producer_group)])
        # The offset and the id are those of the half: the producer ends the transaction by them.
        return writer.answer_when_settled(receipt, receipt_for(sending, [receipt], config))

    # --- end ---------------------------------------------------------------------------------------------------------

    async def end(self, request: EndTransaction, peer: Peer) -> Response:
        """Raises BadRequest, NoPermission, NotFound, and what an append raises."""
        what = DECISIONS.get(request.decision)
        if what is None:
            log.info("%s does not know yet what becomes of the transaction %s", peer.address, _name(request))
            return Response()
        try:
            await self._journal.wait_loaded()
            return await self._end(request, what)
        except PyroMQError as problem:
            log.warning("%s could not %s the transaction %s: %s", peer.address, what, _name(request), problem)
            raise

    async def _end(self, request: EndTransaction, what: str) -> Response:
        view, half = await self._half_of(request)
        ledger = self._journal.ledger
        current = ledger.begin(half.offset, half.key)
        if current is None:
            log.warning("the transaction %s has ended before: it is not ended again (%s)", _name(request), what)
            return Response(reason="the transaction has ended before")
        if request.decision == FLAG_ROLLED_BACK:
            self._journal.record_end(current, half.key)
            return Response()
        try:
            (receipt,) = self._journal.writer.append([self._divert(forms.committed(view, self._journal.store_host))])
        except BaseException:
            ledger.release(current)
            raise
        await self._journal.committed(current, half.key, receipt)
        return Response()

    async def _half_of(self, request: EndTransaction) -> tuple[memoryview, Half]:
        try:
            view = await self._journal.record(request.half_offset, request.half_position)
        except OffsetNotFound as problem:
            raise NotFound(f"find prepared transaction message failed: {problem}") from None
        if forms.topic_of(view) != forms.HALF_TOPIC:
            raise NotFound(f"the message at position {request.half_position} is not the half of a transaction")
        half = forms.read_half(view)
        if half.key.group != request.producer_group:
            raise NoPermission(
                f"the producer group wrong: the transaction is one of {half.key.group!r}, "
                f"and {request.producer_group!r} cannot end it"
            )
        if half.offset != request.half_offset:
            raise BadRequest(
                f"the transaction state table offset wrong: the half message at position {request.half_position} "
                f"has offset {half.offset}, not {request.half_offset}"
            )
        return view, half

    # --- resume ------------------------------------------------------------------------------------------------------

    async def resume(self, request: ResumeCheck, peer: Peer) -> Response:
        """Have a half message asked for again, from the first time on. Raises BadRequest, OffsetNotFound."""
        if not request.message_id:
            raise BadRequest("the id of the half message is missing (msgId)")
        await self._journal.wait_loaded()
        view = await self._journal.store.message_soon(decode_message_id(request.message_id)[1])
        topic = forms.topic_of(view)
        if topic == forms.HALF_TOPIC:
            self._count_anew(forms.read_half(view), view)
        elif topic == forms.ASIDE_TOPIC:
            self._back_into_queue(view)
        else:
            raise BadRequest(f"{request.message_id} is no half message: it is a message of {topic.decode()}")
        log.info("%s has the half message %s asked for again", peer.address, request.message_id)
        return Response()

    def _count_anew(self, half: Half, view: memoryview) -> None:
        """It is still in the queue."""
        if not self._journal.ledger.is_idle(half.offset):
            raise NotFound(f"the half message at offset {half.offset} has ended, or has been copied: it is not open")
        if half.checks:
            copy = forms.copied(view, half, 0, self._journal.store_host)
            self._journal.move(half, copy, with_end=True)

    def _back_into_queue(self, view: memoryview) -> None:
        """It was put aside."""
        half = forms.read_half(view)
        # One that RocketMQ put aside does not say which offset it had: the next one is its first.
        key = half.key if forms.names_origin(view) else None
        if key is not None and self._journal.ledger.newest_of(key) is not None:
            raise BadRequest("the half message is in the queue already")
        draft = forms.copied(view, half, 0, self._journal.store_host)
        if key is None:
            draft = replace(draft, properties=properties.remove(draft.properties, forms.ORIGIN))
        self._journal.resume(key, draft)


def _name(request: EndTransaction) -> str:
    """What a log line calls a transaction."""
    return f"{request.transaction_id or request.message_id} (half offset {request.half_offset})"
