"""A real broker for the stories of the admin client, and short ways to do what consumers and producers do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pyromq.admin.admin import Admin
from pyromq.client.message import Message
from pyromq.client.producer import Producer
from pyromq.client.received import ReceivedMessage
from pyromq.wire.requests.client import SendBack, UpdateConsumerOffset

Result = TypeVar("Result")


def with_admin(name_servers: str, story: Callable[[Admin], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        async with Admin(name_servers) as admin:
            return await story(admin)

    return asyncio.run(run())


async def send(name_servers: str, *messages: Message) -> None:
    """One after the other, each to the next queue, the first to the first."""
    async with Producer(name_servers, group="tests") as producer:
        for index, message in enumerate(messages):
            await producer.send(message, select=lambda queues, _, index=index: queues[index % len(queues)])


async def bury(admin: Admin, group: str, message: ReceivedMessage) -> None:
    """Make a dead letter of a message, as a consumer does that gives up at once."""
    broker = await admin.directory.broker(message.queue.broker_name)
    request = SendBack(
        position=message.position,
        group=group,
        delay_level=-1,
        origin_topic=message.topic,
        origin_message_id=message.message_id,
    )
    await admin.session.ask(broker.address, request)


async def commit(admin: Admin, group: str, topic: str, queue_id: int, offset: int) -> None:
    """A group's progress, as a consumer tells it."""
    (broker,) = await admin.directory.masters_of(topic)
    await admin.session.ask(
        broker.address, UpdateConsumerOffset(group=group, topic=topic, queue_id=queue_id, offset=offset)
    )
