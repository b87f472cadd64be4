"""Our own client, for stories that must hold against two referees: PyroMQ's broker and Apache RocketMQ's.

The servers live in a network of their own, which a thread can enter: a story runs in such a thread, on its own loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from interop.support.loopback import run_inside
from pyromq import ConsumeFrom, MessageQueue, PushConsumer, ReceivedMessage

#: Long enough for a busy machine: nothing waits this long when all is well.
PATIENCE_S = 60.0


def tell(
    story: Callable[[], Awaitable[None]],
    patience_s: float = 120.0,
    loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run a story where the servers are; whatever it raises fails the test. `loop` makes its loop."""

    async def told() -> None:
        async with asyncio.timeout(patience_s):
            await story()

    def inside() -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(told())

    run_inside(inside)


class Inbox:
    """Records the messages of a push consumer's handler, and wakes the waiting test."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self._changed = asyncio.Event()

    async def take(self, message: ReceivedMessage) -> None:
        self.messages.append(message)
        self._changed.set()

    @property
    def bodies(self) -> list[str]:
        return [message.text for message in self.messages]

    async def received(self, count: int, patience_s: float = PATIENCE_S) -> list[ReceivedMessage]:
        try:
            async with asyncio.timeout(patience_s):
                while len(self.messages) < count:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{len(self.messages)} of {count} within {patience_s:g} s: {self.bodies}") from None
        return self.messages

    async def nothing_more(self, count: int, for_s: float = 1.0) -> list[ReceivedMessage]:
        """Wait for exactly this many messages, and check that no other follows."""
        await self.received(count)
        await asyncio.sleep(for_s)
        assert len(self.messages) == count, self.bodies
        return self.messages


def push(name_servers: str, group: str, topic: str, **settings: Any) -> tuple[PushConsumer, Inbox]:
    """A consumer from the first message on, not started yet, and what it gets. `tags`, `sql`: what it wants."""
    inbox = Inbox()
    wanted = {name: settings.pop(name) for name in ("tags", "sql") if name in settings}
    consumer = PushConsumer(name_servers, group=group, consume_from=ConsumeFrom.FIRST, **settings)
    consumer.subscribe(topic, inbox.take, **wanted)
    return consumer, inbox


async def until_owned(consumer: PushConsumer, count: int, topic: str, patience_s: float = PATIENCE_S) -> None:
    """Wait until the consumer owns this many queues of a topic."""

    def owned() -> list[MessageQueue]:
        return [queue for queue in consumer.queues if queue.topic == topic]

    async with asyncio.timeout(patience_s):
        while len(owned()) != count:  # noqa: ASYNC110  a rebalance is seen by looking
            await asyncio.sleep(0.05)
