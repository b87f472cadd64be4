"""Appends messages to the log: the only place of the broker that does, except for append batches.

`ack_mark` decides whether they are accepted, and when they are acknowledged.
"""

from __future__ import annotations

from collections.abc import Awaitable

from pyromq.broker.delivery.ack_mark import AckMark
from pyromq.errors import NotNow
from pyromq.model.message import AppendedAt, Draft
from pyromq.store.message_store import MessageStore
from pyromq.wire.responses import Response


class Writer:
    """Appends for the request handlers and for the broker's own services."""

    def __init__(self, store: MessageStore, ack_mark: AckMark, *, is_slave: bool = False) -> None:
        self._store = store
        self._is_slave = is_slave
        self._ack_mark = ack_mark

    def append(self, drafts: list[Draft]) -> list[AppendedAt]:
        """Append messages in order. Raises IllegalMessage, DiskFull, StoreFenced, NotEnoughReplicas, NotNow."""
        self._check()
        return self._store.append(drafts)

    def append_together(self, drafts: list[Draft]) -> list[AppendedAt]:
        """Append all of them or none."""
        self._check()
        return self._store.append_together(drafts)

    def _check(self) -> None:
        if self._is_slave:
            raise NotNow("this broker is a slave: messages go to its master")
        self._ack_mark.check_accepts()

    async def acknowledged(self, receipt: AppendedAt) -> None:
        """Return once the message may be acknowledged. Raises StoreFenced, SlavesLate."""
        await self._ack_mark.wait(receipt)

    def answer_when_acknowledged(self, receipt: AppendedAt, answer: Response) -> Awaitable[Response] | Response:
        """Return the answer, at once or after the message is acknowledged."""
        return self._ack_mark.answer(receipt, answer)

    def answer_when_all_acknowledged(self, answer: Response) -> Awaitable[Response] | Response:
        """Return the answer, at once or after everything in the log is acknowledged."""
        return self._ack_mark.answer_all(answer)

    async def put(self, draft: Draft) -> AppendedAt:
        """Append one message and wait until it is acknowledged."""
        (receipt,) = self.append([draft])
        await self.acknowledged(receipt)
        return receipt
