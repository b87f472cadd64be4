"""Transactions as producers and administrators see them: begin with a half message, commit, roll back, resume.

Producers end a transaction without waiting for an answer. Whatever goes wrong then is in the log only, and the
transaction stays open: its producers are asked for it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from pyromq.broker.delivery import properties
from pyromq.broker.requests.send import Sending, receipt_for
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
from pyromq.wire.requests.client import EndTransaction, ResumeCheck
from pyromq.wire.responses import Response

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
        self._divert(draft)  # a half that could not be committed is refused now
        writer = self._journal.writer
        (receipt,) = writer.append([forms.half_of(draft, sending.request.producer_group)])
        # The offset and the id are those of the half: the producer ends the transaction by them.
        return writer.answer_when_acknowledged(receipt, receipt_for(sending, [receipt], config))

    # --- end ---------------------------------------------------------------------------------------------------------

    def end(self, request: EndTransaction, peer: Peer) -> Awaitable[Response] | Response:
        """Raises BadRequest, NoPermission, NotFound, and an append's errors. An ended transaction stays as it is."""
        if request.decision not in DECISIONS:
            log.info("%s does not know yet what becomes of the transaction %s", peer.address, _name(request))
            return Response()
        journal = self._journal
        if request.half_position >= journal.store.positions().dispatched:
            journal.store.catch_up()  # its half came a moment ago
        if not journal.is_loaded or journal.is_cold(request.half_offset):
            return self._end_later(request, peer)
        with _telling(request, peer):
            try:
                view = journal.store.message_at(request.half_position)
            except OffsetNotFound as problem:
                raise _not_found(problem) from None
            return self._end(request, view)

    async def _end_later(self, request: EndTransaction, peer: Peer) -> Response:
        with _telling(request, peer):
            await self._journal.wait_loaded()
            try:
                view = await self._journal.record(request.half_offset, request.half_position)
            except OffsetNotFound as problem:
                raise _not_found(problem) from None
            answer = self._end(request, view)
            return answer if isinstance(answer, Response) else await answer

    def _end(self, request: EndTransaction, view: memoryview) -> Awaitable[Response] | Response:
        """In one turn of the loop: no other task ends it in between, nor asks for it."""
        half, journal = self._half_of(request, view), self._journal
        current = journal.ledger.begin(half.offset, half.key)
        if current is None:
            log.warning("the transaction %s has ended before: it is not ended again", _name(request))
            return journal.writer.answer_when_all_acknowledged(Response(reason="the transaction has ended before"))
        if request.decision == FLAG_ROLLED_BACK:
            journal.record_end(current, half.key)
            return journal.writer.answer_when_all_acknowledged(Response())
        try:
            receipt = journal.commit(current, half.key, self._divert(forms.committed(view, journal.store_host)))
        except BaseException:
            journal.ledger.release(current)
            raise
        return journal.writer.answer_when_acknowledged(receipt, Response())

    @staticmethod
    def _half_of(request: EndTransaction, view: memoryview) -> Half:
        half = forms.half_at(view)
        if half is None:
            raise NotFound(f"the message at position {request.half_position} is not the half of a transaction")
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
        return half

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


def _not_found(problem: OffsetNotFound) -> NotFound:
    return NotFound(f"find prepared transaction message failed: {problem}")


@contextmanager
def _telling(request: EndTransaction, peer: Peer) -> Iterator[None]:
    """Producers do not wait for the answer: what goes wrong is in the log."""
    try:
        yield
    except PyroMQError as problem:
        what = DECISIONS[request.decision]
        log.warning("%s could not %s the transaction %s: %s", peer.address, what, _name(request), problem)
        raise


def _name(request: EndTransaction) -> str:
    """Return the name of a transaction in log lines."""
    return f"{request.transaction_id or request.message_id} (half offset {request.half_offset})"
