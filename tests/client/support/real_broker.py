"""A real broker for the stories of producers, and a plain way to read what it has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pyromq.testing
from pyromq.client.received import ReceivedMessage, split_records
from pyromq.client.session import Session
from pyromq.model.queue import MessageQueue
from pyromq.testing import LocalBroker
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import PullMessage


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


@asynccontextmanager
async def real_broker(**settings: Any) -> AsyncIterator[LocalBroker]:
    async with pyromq.testing.broker(**{"topics": {"orders": 4}, **settings}) as mq:
        yield mq


async def messages_of(mq: LocalBroker, topic: str) -> list[ReceivedMessage]:
    """All messages of a topic, queue by queue."""
    found: list[ReceivedMessage] = []
    async with Session(mq.name_servers) as session:
        for queue in await session.routes.readable(topic):
            found += await _read(session, queue)
    return found


async def _read(session: Session, queue: MessageQueue) -> list[ReceivedMessage]:
    address = session.routes.address(queue.broker_name)
    assert address is not None
    found: list[ReceivedMessage] = []
    while True:
        request = PullMessage(
            group="readers", topic=queue.topic, queue_id=queue.queue_id, offset=len(found), max_messages=32, flags=4,
            suspend_ms=0, subscription="*", expression_type="TAG",
        )  # fmt: skip
        empty = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)
        answer = await session.ask(address, request, ok=(ResponseCode.SUCCESS, *empty))
        if answer.code in empty:
            return found
        found += split_records(answer.body, queue)


async def eventually(mq: LocalBroker, topic: str, count: int) -> list[ReceivedMessage]:
    """Return the messages of a topic, once there are `count`: one-way requests arrive later."""
    async with asyncio.timeout(5):
        while len(found := await messages_of(mq, topic)) < count:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.02)
    return found
