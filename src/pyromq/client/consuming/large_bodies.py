"""Bodies that unpack to much more than they were sent with: handled one at a time.

A few kilobytes can unpack to 64 MiB, and many handlers at once would hold as many of them. A compressed body of at most
`KEPT_BYTES` is unpacked and kept with its message, like any other. A larger one waits until no other large one of this
consumer is being handled, is unpacked on a thread, and let go after its handler. So a consumer holds at most
`concurrency * KEPT_BYTES` and one large body, which has at most `MAX_BODY_BYTES`; above that `body` raises
UnreadableBody, and the message is redelivered and ends among the dead letters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from pyromq.client.received import KEPT_BYTES, ReceivedMessage
from pyromq.errors import IllegalMessage, UnreadableBody
from pyromq.records.layout import FLAG_COMPRESSED

Call = Callable[[Any], Awaitable[object]]


class LargeBodies:
    """Of one consumer."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    def call(self, call: Call, message: ReceivedMessage) -> Awaitable[object]:
        """Return the handler's call for a message; one with a large body waits for its turn first."""
        return self._one(call, message) if message.storage_flags & FLAG_COMPRESSED else call(message)

    async def _one(self, call: Call, message: ReceivedMessage) -> None:
        if not _is_large(message):
            await call(message)
            return
        async with self._turn:
            with suppress(UnreadableBody):  # the handler hears of it when it asks for the body
                message.body = await asyncio.to_thread(lambda: message.body)
            try:
                await call(message)
            finally:
                with suppress(AttributeError):
                    del message.body

    async def call_batch(self, call: Call, messages: list[ReceivedMessage]) -> None:
        """Call a handler with a list; in parts, if it holds large bodies, each of which comes alone."""
        part: list[ReceivedMessage] = []
        for message in messages:
            if message.storage_flags & FLAG_COMPRESSED and _is_large(message):
                if part:
                    await call(part)
                    part = []
                await self._one(lambda one: call([one]), message)
            else:
                part.append(message)
        if part:
            await call(part)


def _is_large(message: ReceivedMessage) -> bool:
    """Unpack a body that is to be kept; True if it is larger than that."""
    try:
        return not message.unpack(KEPT_BYTES)
    except (UnreadableBody, IllegalMessage):
        return False
