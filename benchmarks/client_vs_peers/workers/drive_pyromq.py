"""PyroMQ's own client, through the names that everybody uses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import shape
from shape import Backlog, Task, Waits

from pyromq import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage

WINDOW = 256
WINDOW_BATCHING = 1024
#: Messages of one call, for a handler that takes several.
BATCH = 1024

Send = Callable[[bytes], Awaitable[Any]]


def producer(task: Task, *, auto_batch: bool = False) -> Producer:
    return Producer(task.address, group="bench-producer", auto_batch=auto_batch)


def consumer(task: Task) -> PushConsumer:
    return PushConsumer(task.address, group=task.group, consume_from=ConsumeFrom.FIRST)


def sending(client: Producer, task: Task) -> Send:
    return lambda payload: client.send(Message(task.topic, payload))


async def window(task: Task) -> dict[str, float]:
    batching = task.options == "auto_batch"
    async with producer(task, auto_batch=batching) as client:
        await client.send(Message(task.topic, shape.body()))
        return await shape.many(sending(client, task), task, WINDOW_BATCHING if batching else WINDOW)


async def fill(task: Task) -> dict[str, float]:
    async with producer(task, auto_batch=True) as client:
        return await shape.fill_many(sending(client, task), task, WINDOW_BATCHING)


async def one(task: Task) -> dict[str, float]:
    async with producer(task) as client:
        return await shape.many(sending(client, task), task, 1)


async def latency(task: Task) -> dict[str, float]:
    waits, seen, reader = Waits(task), asyncio.Event(), consumer(task)

    @reader.on(task.topic)
    async def handle(message: ReceivedMessage) -> None:
        if seen.is_set():
            waits.handled(message.body)
        seen.set()

    async with producer(task) as client:
        await client.send(Message(task.topic, shape.body()))
        async with reader:
            await seen.wait()
            return await shape.paced(sending(client, task), waits, task)


async def backlog(task: Task) -> dict[str, float]:
    progress, finished, reader = Backlog(task), asyncio.Event(), consumer(task)
    touched = 0

    async def handle(message: ReceivedMessage) -> None:
        nonlocal touched
        touched += len(message.body)
        if not progress.handled():
            finished.set()

    async def handle_several(messages: list[ReceivedMessage]) -> None:
        nonlocal touched
        touched += sum(len(message.body) for message in messages)
        if not progress.handled(len(messages)):
            finished.set()

    if task.options == "each":
        reader.subscribe(task.topic, handle)
    else:
        reader.subscribe(task.topic, handle_several, batch=BATCH)
    async with reader:
        await finished.wait()
        await asyncio.sleep(0)  # the last handler has to have returned before its messages count as handled
        await reader.commit()
        return progress.committed()


async def first(task: Task) -> None:
    received, reader = asyncio.Event(), consumer(task)

    @reader.on(task.topic)
    async def handle(_: ReceivedMessage) -> None:
        received.set()

    async with producer(task) as client:
        await shape.persist(lambda: client.send(Message(task.topic, shape.body())))
        async with reader:
            await received.wait()


shape.run({"window": window, "one": one, "latency": latency, "fill": fill, "backlog": backlog, "first": first})
