"""Into the log, and back when the promise of this broker holds: the one way in which the broker stores messages.

Under async flush the promise holds when the message is in the log; under sync flush when it is on the disk.
"""

from __future__ import annotations

from collections.abc import Awaitable

from pyromq.model.ids import LogPosition, QueueOffset
from pyromq.model.message import AppendedAt, Draft
from pyromq.store.message_store import MessageStore
from pyromq.wire.responses import Response


class Writer:
    """Appends for processors and for the broker's own services."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        #: Does a send wait for anything after the append?
        self.waits = store.config.flush.sync
        #: How many do so now.
        self.waiting = 0

    def append(self, drafts: list[Draft]) -> list[AppendedAt]:
        """Into the log, now. Raises IllegalMessage, DiskFull, StoreFenced."""
        return self._store.append(drafts)

    def append_together(self, drafts: list[Draft]) -> list[AppendedAt]:
        """The same, all of them or none."""
        return self._store.append_together(drafts)

    async def settled(self, receipt: AppendedAt) -> None:
        """Return once the promise holds for the message. Raises StoreFenced."""
        if not self.waits:
            return
        self.waiting += 1
        try:
            await self._store.wait_synced(receipt)
        finally:
            self.waiting -= 1

    def answer_when_settled(self, receipt: AppendedAt, answer: Response) -> Awaitable[Response] | Response:
        """The answer, now or once the promise holds for the message."""
        return self._answer_later(receipt, answer) if self.waits else answer

    def answer_when_all_settled(self, answer: Response) -> Awaitable[Response] | Response:
        """The answer, now or once the promise holds for everything that is in the log."""
        end = LogPosition(self._store.marks.appended.value)
        return self.answer_when_settled(AppendedAt(end, 0, QueueOffset(0)), answer)

    async def _answer_later(self, receipt: AppendedAt, answer: Response) -> Response:
        await self.settled(receipt)
        return answer

    async def put(self, draft: Draft) -> AppendedAt:
        """Append one message and wait for the promise."""
        (receipt,) = self.append([draft])
        await self.settled(receipt)
        return receipt
