"""aiokafka: Kafka on asyncio, with its record batches built by compiled code."""

from __future__ import annotations

import asyncio

import shape
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from shape import Backlog, Span, Task, Waits

WINDOW = 2_000
FETCHED = 2_000


def producer(task: Task, **settings: object) -> AIOKafkaProducer:
    return AIOKafkaProducer(bootstrap_servers=task.address, acks="all", **settings)


def consumer(task: Task, **settings: object) -> AIOKafkaConsumer:
    common = {"bootstrap_servers": task.address, "group_id": task.group, "auto_offset_reset": "earliest"}
    return AIOKafkaConsumer(task.topic, **{**common, "metadata_max_age_ms": 1000, **settings})


async def window(task: Task) -> dict[str, float]:
    """`send` waits for room in a batch and gives a future; as many futures as the window are open."""
    async with producer(task, linger_ms=2, max_batch_size=256 << 10) as client:
        span, payload, room = Span(task), shape.body(), asyncio.Semaphore(WINDOW)
        going = True

        def delivered(future: asyncio.Future[object]) -> None:
            nonlocal going
            future.result()
            room.release()
            going = span.acknowledged()

        while going:
            await room.acquire()
            (await client.send(task.topic, payload)).add_done_callback(delivered)
        await client.flush()
        return span.result()


async def fill(task: Task) -> dict[str, float]:
    async with producer(task, linger_ms=2, max_batch_size=256 << 10) as client:
        return await shape.fill_many(lambda payload: client.send_and_wait(task.topic, payload), task, WINDOW)


async def one(task: Task) -> dict[str, float]:
    async with producer(task) as client:
        return await shape.many(lambda payload: client.send_and_wait(task.topic, payload), task, 1)


async def latency(task: Task) -> dict[str, float]:
    waits, assigned = Waits(task), asyncio.Event()
    async with producer(task) as client:
        await client.send_and_wait(task.topic, shape.body())
        async with consumer(task) as reader:

            async def read() -> None:
                async for message in reader:
                    if assigned.is_set():
                        waits.handled(message.value)
                    assigned.set()

            reading = asyncio.ensure_future(read())
            await assigned.wait()
            result = await shape.paced(lambda payload: client.send(task.topic, payload), waits, task)
            reading.cancel()
            return result


async def backlog(task: Task) -> dict[str, float]:
    progress, touched = Backlog(task), 0
    settings = {"auto_commit_interval_ms": 1000, "max_partition_fetch_bytes": 4 << 20}
    async with consumer(task, **settings) as reader:
        while progress.left > 0:
            for messages in (await reader.getmany(timeout_ms=1000, max_records=FETCHED)).values():
                touched += sum(len(message.value) for message in messages)
                progress.handled(len(messages))
        await reader.commit()
        return progress.committed()


async def first(task: Task) -> None:
    async def start() -> AIOKafkaProducer:
        client = producer(task)
        try:
            await client.start()
        except BaseException:
            await client.stop()
            raise
        return client

    client = await shape.persist(start)
    await client.send_and_wait(task.topic, shape.body())
    async with consumer(task) as reader:
        await reader.getone()


shape.run({"window": window, "one": one, "latency": latency, "fill": fill, "backlog": backlog, "first": first})
