"""nats-py on JetStream: each publish is acknowledged by the stream that stored it."""

from __future__ import annotations

import asyncio
from typing import Any

import nats
import shape
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType
from shape import Backlog, Span, Task, Waits

WINDOW = 1_000
FETCHED = 1_000


async def connect(task: Task) -> tuple[Any, Any]:
    """A connection, and JetStream with the task's topic as a stream on disk."""
    client = await nats.connect(f"nats://{task.address}", pending_size=64 << 20)
    stream = client.jetstream(publish_async_max_pending=WINDOW)
    await stream.add_stream(name=task.topic, subjects=[task.topic], storage=StorageType.FILE)
    return client, stream


async def window(task: Task) -> dict[str, float]:
    """`publish_async` gives a future of the acknowledgement, and waits when too many are open."""
    _, stream = await connect(task)
    span, payload, going = Span(task), shape.body(), True

    def delivered(future: asyncio.Future[object]) -> None:
        nonlocal going
        future.result()
        going = span.acknowledged()

    while going:
        (await stream.publish_async(task.topic, payload)).add_done_callback(delivered)
    await stream.publish_async_completed()
    return span.result()


async def fill(task: Task) -> dict[str, float]:
    _, stream = await connect(task)
    return await shape.fill_many(lambda payload: stream.publish(task.topic, payload), task, 256)


async def one(task: Task) -> dict[str, float]:
    _, stream = await connect(task)
    return await shape.many(lambda payload: stream.publish(task.topic, payload), task, 1)


async def latency(task: Task) -> dict[str, float]:
    _, stream = await connect(task)
    waits = Waits(task)

    async def handle(message: Any) -> None:
        waits.handled(message.data)
        await message.ack()

    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, deliver_policy=DeliverPolicy.ALL)
    await stream.subscribe(task.topic, durable=task.group, cb=handle, manual_ack=True, config=config)
    return await shape.paced(lambda payload: stream.publish(task.topic, payload), waits, task)


async def backlog(task: Task) -> dict[str, float]:
    """Pushed by the server, which is faster than asking for batches; an acknowledgement covers all before it."""
    _, stream = await connect(task)
    config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=20 * FETCHED)
    progress, finished = Backlog(task), asyncio.Event()

    async def handle(message: Any) -> None:
        if not progress.handled():
            await message.ack_sync()
            finished.set()
        elif len(message.data) and progress.left % FETCHED == 0:
            await message.ack()

    await stream.subscribe(task.topic, durable=task.group, cb=handle, manual_ack=True, config=config)
    await finished.wait()
    return progress.committed()


async def first(task: Task) -> None:
    async def start() -> tuple[Any, Any]:
        return await connect(task)

    # The client waits two seconds before it tries a refused connection again, so it is asked only when one is taken.
    await shape.persist(lambda: asyncio.open_connection(*task.address.split(":")))
    _, stream = await shape.persist(start)
    await stream.publish(task.topic, shape.body())
    reader = await stream.pull_subscribe(task.topic, durable=task.group)
    await reader.fetch(1)


shape.run({"window": window, "one": one, "latency": latency, "fill": fill, "backlog": backlog, "first": first})
