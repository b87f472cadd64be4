"""Helpers for the stories about consumers: send some messages, and record deliveries."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable

from pyromq.client.message import Message
from pyromq.client.producer import Producer
from pyromq.client.received import ReceivedMessage
from pyromq.testing import LocalBroker

#: Long enough for a busy machine: nothing waits this long when all is well.
PATIENCE_S = 20.0

_numbers = itertools.count(1)


def new_topic(mq: LocalBroker, queues: int = 4) -> str:
    name = f"orders-{next(_numbers)}"
    mq.create_topic(name, queues)
    return name


def new_group() -> str:
    return f"group-{next(_numbers)}"


def bodies(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


async def send(mq: LocalBroker, topic: str, texts: Iterable[str], **fields: object) -> None:
    async with Producer(mq.name_servers, group="scene") as producer:
        for text in texts:
            await producer.send(Message(topic, text, **fields))  # type: ignore[arg-type]


async def send_in_order(mq: LocalBroker, topic: str, texts: Iterable[str]) -> None:
    """All to one queue."""
    await send(mq, topic, texts, sharding_key="same")


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.01)


class Heard:
    """A handler that records its messages, and fails on request."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        #: For each text how many times it fails.
        self.failures: dict[str, int] = {}
        self.error: Callable[[], Exception] = lambda: ValueError("not today")
        self._changed = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.note(message)
        if self.failures.get(message.text, 0) > 0:
            self.failures[message.text] -= 1
            raise self.error()

    def note(self, message: ReceivedMessage) -> None:
        self.messages.append(message)
        self._changed.set()

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.messages]

    async def until(self, count: int) -> None:
        """Wait for this many in all."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.messages) < count:
                self._changed.clear()
                await self._changed.wait()
