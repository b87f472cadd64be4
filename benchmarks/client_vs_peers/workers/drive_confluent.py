"""confluent-kafka: Kafka's C library, which batches in threads of its own."""

from __future__ import annotations

import threading
import time
from typing import Any

import shape
from confluent_kafka import Consumer, Producer
from shape import Backlog, Span, Task, Waits

#: Messages that wait in the library at most; more would only be memory.
WINDOW = 20_000
FETCHED = 2_000


def producer(task: Task, **settings: object) -> Producer:
    common = {"bootstrap.servers": task.address, "acks": "all", "reconnect.backoff.ms": 20, "log_level": 0}
    return Producer({**common, "queue.buffering.max.messages": 2 * WINDOW, "linger.ms": 5, **settings})


def consumer(task: Task, **settings: object) -> Consumer:
    common = {"bootstrap.servers": task.address, "group.id": task.group, "auto.offset.reset": "earliest"}
    made = Consumer({**common, "reconnect.backoff.ms": 20, "log_level": 0, **settings})
    made.subscribe([task.topic])
    return made


def raise_if(error: object) -> None:
    if error is not None:
        raise SystemExit(str(error))


def window(task: Task) -> dict[str, float]:
    client, span, payload = producer(task), Span(task), shape.body()
    going = True

    def delivered(error: object, _: object) -> None:
        nonlocal going
        raise_if(error)
        going = span.acknowledged()

    while going:
        while len(client) < WINDOW and going:
            for _ in range(100):
                client.produce(task.topic, payload, on_delivery=delivered)
            client.poll(0)
        client.poll(0.001)
    client.flush()
    return span.result()


def fill(task: Task) -> dict[str, float]:
    client, began = producer(task), time.perf_counter()
    failed: list[object] = []
    for number in range(task.count):
        client.produce(task.topic, shape.body(number), on_delivery=lambda error, _: error and failed.append(error))
        while len(client) >= WINDOW:
            client.poll(0.01)
    client.flush()
    raise_if(failed[0] if failed else None)
    return {"count": task.count, "seconds": time.perf_counter() - began}


def one(task: Task) -> dict[str, float]:
    client, span, payload = producer(task, **{"linger.ms": 0}), Span(task), shape.body()
    while True:
        client.produce(task.topic, payload, on_delivery=lambda error, _: raise_if(error))
        client.flush()
        if not span.acknowledged():
            return span.result()


def latency(task: Task) -> dict[str, float]:
    client, reader, waits = producer(task, **{"linger.ms": 0}), consumer(task), Waits(task)
    assigned = threading.Event()

    def read() -> None:
        while True:
            message = reader.poll(1.0)
            if message is not None and message.error() is None:
                if assigned.is_set():
                    waits.handled(message.value())
                assigned.set()

    threading.Thread(target=read, daemon=True).start()
    client.produce(task.topic, shape.body())  # brings the topic and the reader's partitions into being
    client.flush()
    assert assigned.wait(shape.STUCK_S)

    def send(payload: bytes) -> None:
        client.produce(task.topic, payload)
        client.poll(0)

    return shape.paced_blocking(send, waits, task)


def backlog(task: Task) -> dict[str, float]:
    reader, progress = consumer(task, **{"auto.commit.interval.ms": 1000, "fetch.max.bytes": 64 << 20}), Backlog(task)
    touched = 0
    while progress.left > 0:
        messages: list[Any] = reader.consume(FETCHED, 1.0)
        if messages:
            touched += sum(len(message.value()) for message in messages)
            progress.handled(len(messages))
    reader.commit(asynchronous=False)
    return progress.committed()


def first(task: Task) -> None:
    client = producer(task)
    client.produce(task.topic, shape.body())
    client.flush()
    reader = consumer(task)
    while (message := reader.poll(1.0)) is None or message.error() is not None:
        pass


shape.run({"window": window, "one": one, "latency": latency, "fill": fill, "backlog": backlog, "first": first})
