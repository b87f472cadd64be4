"""Numbered messages on their way into the log: repeats are acknowledged, the rest is stored (see `sequences`).

The decision, the append and the update of the table happen in one turn of the loop. An append that
stops in the middle, because the disk is full, leaves the table where the log is.

The answer names all messages of the request in their order. A repeat is not looked up in the log: its id has position
`FFFFFFFFFFFFFFFF`, and the offset is that of the first message that was stored now, or -1. A repeat is acknowledged
as soon as the whole log is acknowledged: the message that it repeats is a part of that. If its batch
ends nowhere in the log, because retention removed it, the repeat is refused.

Every numbered send proves the identity of its writer by a token (see `writer_identities`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pyromq.broker.delivery.append import Writer
from pyromq.broker.idempotence.identities import WriterIdentities, id_of
from pyromq.broker.idempotence.keeper import SequenceKeeper
from pyromq.broker.idempotence.sequences import MARKER, MAX_STREAMS, BatchEnd, Numbered, Stream, are_counted, numbered
from pyromq.clock import Clock
from pyromq.errors import DiskFull, IllegalMessage, OutOfSequence, PyroMQError, RepeatNotFound, WriterNotIssued
from pyromq.model.ids import LogPosition
from pyromq.model.message import AppendedAt, Draft, PackedHost
from pyromq.net.peer import Peer
from pyromq.records.message_id import encode_message_id, encode_message_ids
from pyromq.wire.requests.client import IssueWriter, WriterIssued
from pyromq.wire.responses import Response, SendReceipt

#: The position of a message that is somewhere in the log.
SOMEWHERE = LogPosition(2**64 - 1)
UNKNOWN_OFFSET = -1
#: Fields of the answer: how many of the messages were repeats; the number that would be stored next.
REPEATED, EXPECTED = "repeated", "expected"
#: A field of a refusal: the writer is to ask for its identity again.
RENEW_FIELD, RENEW = "writerToken", "renew"


@dataclass(slots=True)
class Outcome:
    """The result of the messages of a request."""

    #: The place of each message that was stored now.
    receipts: list[AppendedAt]
    #: The place of each message, stored now or before.
    positions: list[LogPosition]
    repeats: int

    @property
    def queue_offset(self) -> int:
        return self.receipts[0].queue_offset if self.receipts else UNKNOWN_OFFSET

    def message_ids(self, store_host: PackedHost) -> str:
        if not self.repeats:
            return encode_message_ids(store_host, self.positions)
        return ",".join([encode_message_id(store_host, position) for position in self.positions])


#: Makes the answer of what became of the messages.
Answering = Callable[[Outcome], SendReceipt]


class _Parcel(NamedTuple):
    """The messages of one request."""

    drafts: list[Draft]
    messages: list[Numbered]
    answering: Answering


class NumberedSends:
    """Stores the numbered messages of a send."""

    def __init__(self, keeper: SequenceKeeper, writer: Writer, clock: Clock) -> None:
        self._keeper = keeper
        self._writer = writer
        self._clock = clock
        #: Requests that wait for the file to be created, and the task that creates it.
        self._early: list[tuple[_Parcel, asyncio.Future[Awaitable[Response] | Response]]] = []
        self._opening: asyncio.Task[None] | None = None
        #: Repeats that were not stored.
        self.repeats = 0
        self.identities = WriterIdentities(keeper.sequences.streams_of)

    @property
    def writers(self) -> int:
        """The number of known streams: a producer counts once for every queue it writes to."""
        return len(self._keeper.sequences)

    def issue(self, request: IssueWriter, peer: Peer) -> WriterIssued:
        """Handle a request for an identity. Raises BadRequest, NotNow."""
        writer, token = self.identities.issue(request.seed, peer.address.rpartition(":")[0])
        return WriterIssued(writer=writer, token=token)

    def send(
        self, drafts: list[Draft], messages: list[Numbered], answering: Answering, token: str | None
    ) -> Awaitable[Response] | Response:
        """Store those of the drafts that are no repeats, by their numbers. Raises NotNow, DiskFull, StoreFenced,
        RepeatNotFound."""
        try:
            self.identities.verify({message.stream.writer for message in messages}, token)
        except WriterNotIssued as refused:
            more = {RENEW_FIELD: RENEW} if refused.may_renew else {}
            return Response(code=refused.code, reason=str(refused), more=more)
        if self._keeper.is_ready:
            return self._store(_Parcel(drafts, messages, answering))
        # The received buffer is reused when this turn of the loop is over.
        copies = [replace(draft, body=bytes(draft.body)) for draft in drafts]
        return self._answer_to(self._wait_for_file(_Parcel(copies, messages, answering)))

    def _wait_for_file(self, parcel: _Parcel) -> asyncio.Future[Awaitable[Response] | Response]:
        """The first ones ever wait for it, and keep their order."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Awaitable[Response] | Response] = loop.create_future()
        self._early.append((parcel, waiting))
        if len(self._early) == 1:
            self._opening = loop.create_task(self._open())
        return waiting

    @staticmethod
    async def _answer_to(waiting: asyncio.Future[Awaitable[Response] | Response]) -> Response:
        answer = await waiting
        return answer if isinstance(answer, Response) else await answer

    async def _open(self) -> None:
        try:
            await self._keeper.make_ready()
        except PyroMQError as problem:
            early, self._early = self._early, []
            for _, waiting in early:
                if not waiting.done():
                    waiting.set_exception(problem)
            return
        early, self._early = self._early, []
        for parcel, waiting in early:
            if not waiting.done():  # a cancelled request is not stored, and gets no answer
                self._store_early(parcel, waiting)

    def _store_early(self, parcel: _Parcel, waiting: asyncio.Future[Awaitable[Response] | Response]) -> None:
        try:
            waiting.set_result(self._store(parcel))
        except PyroMQError as problem:
            waiting.set_exception(problem)

    def _store(self, parcel: _Parcel) -> Awaitable[Response] | Response:
        drafts, messages, answering = parcel
        try:
            fresh, repeated, new_streams = self._keeper.sequences.decide(messages, self._clock.now_ms())
        except OutOfSequence as gap:
            return Response(code=gap.code, reason=str(gap), more={EXPECTED: gap.expected})
        self._require_found(repeated)
        self.identities.require_room(id_of(messages[0].stream.writer) or b"", new_streams, MAX_STREAMS // 4)
        receipts = self._append([drafts[place] for place in fresh], [messages[place] for place in fresh])
        positions = [SOMEWHERE] * len(drafts)
        for place, receipt in zip(fresh, receipts, strict=True):
            positions[place] = receipt.position
        outcome = Outcome(receipts, positions, len(drafts) - len(fresh))
        answer = answering(outcome)
        if outcome.repeats:
            self.repeats += outcome.repeats
            answer.more = {**answer.more, REPEATED: str(outcome.repeats)}
        return self._writer.answer_when_all_acknowledged(answer)

    def _require_found(self, repeated: set[tuple[Stream, BatchEnd]]) -> None:
        for stream, end in repeated:
            if not self._keeper.holds(stream, end):
                raise RepeatNotFound(
                    f"batch {end.batch} of the writer {stream.writer.decode(errors='replace')} was stored up to index "
                    f"{end.number}, and is not in the log any more: retention removed it. Whether consumers got it is "
                    "not known here; to send it once more, use a later batch number or another writer"
                )

    def _append(self, drafts: list[Draft], messages: list[Numbered]) -> list[AppendedAt]:
        if not drafts:
            return []
        sequences, now_ms = self._keeper.sequences, self._clock.now_ms()
        try:
            receipts = self._writer.append(drafts)
        except DiskFull as full:
            stored = [receipt for receipt in full.receipts if isinstance(receipt, AppendedAt)]
            sequences.stored(_placed(messages[: len(stored)], stored), now_ms)
            raise
        sequences.stored(_placed(messages, receipts), now_ms)
        return receipts


def _placed(messages: list[Numbered], receipts: Sequence[AppendedAt]) -> list[tuple[Numbered, int]]:
    return [(message, receipt.position) for message, receipt in zip(messages, receipts, strict=True)]


def numbers_of(topic: bytes, drafts: list[Draft]) -> list[Numbered] | None:
    """The number of each message of a request; None when they have none. Raises IllegalMessage.

    Most have none, and that costs one search for each.
    """
    if not any([MARKER in draft.properties for draft in drafts]) or not are_counted(topic):  # noqa: C419  half the time
        return None
    found = [numbered(draft.topic, draft.queue_id, draft.properties) for draft in drafts]
    numbers = [number for number in found if number is not None]
    if numbers and len(numbers) < len(found):
        raise IllegalMessage("the messages of a batch are all numbered, or none is")
    return numbers or None
