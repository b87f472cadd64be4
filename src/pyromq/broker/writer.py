"""Into the log, and back when the promise of this broker holds: the one way in which the broker stores messages.

What the promise is says `promise`: in the log here, on the disk here, in the logs of slaves too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

from pyromq.broker.promise import BrokerPromise
from pyromq.errors import NotNow, SlavesLate
from pyromq.model.ids import LogPosition, QueueOffset
from pyromq.model.message import AppendedAt, Draft
from pyromq.store.message_store import MessageStore
from pyromq.wire.responses import Response


class Writer:
    """Appends for processors and for the broker's own services."""

    def __init__(self, store: MessageStore, promise: BrokerPromise, *, is_slave: bool = False) -> None:
        self._store = store
        self._is_slave = is_slave
        self._promise = promise
        #: Does a send wait for anything after the append?
        self.waits = store.config.flush.sync or promise.waits_for_slaves
        #: How many do so now.
        self.waiting = 0

    def append(self, drafts: list[Draft]) -> list[AppendedAt]:
        """Into the log, now. Raises IllegalMessage, DiskFull, StoreFenced, NotEnoughReplicas, NotNow."""
        self._check()
        return self._store.append(drafts)

    def append_together(self, drafts: list[Draft]) -> list[AppendedAt]:
        """The same, all of them or none."""
        self._check()
        return self._store.append_together(drafts)

    def _check(self) -> None:
        if self._is_slave:
            raise NotNow("this broker is a slave: messages go to its master")
        self._promise.check()

    async def settled(self, receipt: AppendedAt) -> None:
        """Return once the promise holds for the message. Raises StoreFenced, SlavesLate."""
        if not self.waits:
            return
        self.waiting += 1
        try:
            if self._store.config.flush.sync:
                await self._store.wait_synced(receipt)
            if self._promise.waits_for_slaves:
                await self._copied(receipt)
        finally:
            self.waiting -= 1

    async def _copied(self, receipt: AppendedAt) -> None:
        if not self._promise.is_within_reach:
            raise SlavesLate(self._promise.late_code())
        try:
            async with asyncio.timeout(self._promise.timeout_s):
                await self._promise.mark.wait(receipt.end)
        except TimeoutError:
            raise SlavesLate(self._promise.late_code()) from None

    def answer_when_settled(self, receipt: AppendedAt, answer: Response) -> Awaitable[Response] | Response:
        """The answer, now or once the promise holds for the message."""
        return self._answer_later(receipt, answer) if self.waits else answer

    def answer_when_all_settled(self, answer: Response) -> Awaitable[Response] | Response:
        """The answer, now or once the promise holds for everything that is in the log."""
        end = LogPosition(self._store.marks.appended.value)
        return self.answer_when_settled(AppendedAt(end, 0, QueueOffset(0)), answer)

    async def _answer_later(self, receipt: AppendedAt, answer: Response) -> Response:
        try:
            await self.settled(receipt)
        except SlavesLate as late:
            return replace(answer, code=late.code, reason=str(late))
        return answer

    async def put(self, draft: Draft) -> AppendedAt:
        """Append one message and wait for the promise."""
        (receipt,) = self.append([draft])
        await self.settled(receipt)
        return receipt
