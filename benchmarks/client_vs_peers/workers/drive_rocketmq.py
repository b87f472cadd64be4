"""rocketmq-python-client: the official one, gRPC to RocketMQ's proxy, threads of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import shape
from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
)
from rocketmq.v5.util import Misc
from shape import Backlog, Span, Task, Waits

#: Sends under way.
WINDOW = 64

# Where no network but the loopback is, the client would look for its address, and log an error, with every message.
Misc._Misc__LOCAL_IP = "127.0.0.1"


def configuration(task: Task) -> ClientConfiguration:
    return ClientConfiguration(task.address, Credentials(), request_timeout=10)


def producer(task: Task) -> Producer:
    client = Producer(configuration(task), (task.topic,))
    client.startup()
    return client


class Listener(MessageListener):  # type: ignore[misc]
    def __init__(self, handle: Callable[[bytes], object]) -> None:
        self._handle = handle

    def consume(self, message: Message) -> ConsumeResult:
        self._handle(message.body)
        return ConsumeResult.SUCCESS


def consumer(task: Task, handle: Callable[[bytes], object]) -> PushConsumer:
    client = PushConsumer(configuration(task), task.group, Listener(handle), {task.topic: FilterExpression()})
    client.startup()
    return client


def message(task: Task, payload: bytes) -> Message:
    made = Message()
    made.topic = task.topic
    made.body = payload
    return made


def window(task: Task) -> dict[str, float]:
    client, span, payload = producer(task), Span(task), shape.body()
    room = threading.Semaphore(WINDOW)

    def delivered(future: object) -> None:
        room.release()
        future.result()  # type: ignore[attr-defined]
        span.acknowledged()

    while time.perf_counter() < span.end:
        room.acquire()
        client.send_async(message(task, payload)).add_done_callback(delivered)
    return span.result()


def fill(task: Task) -> dict[str, float]:
    client, began, room = producer(task), time.perf_counter(), threading.Semaphore(WINDOW)
    for number in range(task.count):
        room.acquire()
        client.send_async(message(task, shape.body(number))).add_done_callback(lambda _: room.release())
    for _ in range(WINDOW):
        room.acquire()
    return {"count": task.count, "seconds": time.perf_counter() - began}


def one(task: Task) -> dict[str, float]:
    client, span, payload = producer(task), Span(task), shape.body()
    while True:
        client.send(message(task, payload))
        if not span.acknowledged():
            return span.result()


def latency(task: Task) -> dict[str, float]:
    waits, seen = Waits(task), threading.Event()
    client = producer(task)

    def handle(payload: bytes) -> None:
        if seen.is_set():
            waits.handled(payload)
        seen.set()

    consumer(task, handle)
    client.send(message(task, shape.body()))
    assert seen.wait(shape.STUCK_S)
    return shape.paced_blocking(lambda payload: client.send_async(message(task, payload)), waits, task)


def backlog(task: Task) -> dict[str, float]:
    """Every message is acknowledged by itself, by the client, behind the listener's back."""
    progress, finished, lock = Backlog(task), threading.Event(), threading.Lock()

    def handle(_: bytes) -> None:
        with lock:
            if not progress.handled():
                finished.set()

    consumer(task, handle)
    assert finished.wait(shape.STUCK_S)
    return progress.committed()


def first(task: Task) -> None:
    received = threading.Event()
    client = shape.persist_blocking(lambda: producer(task))
    shape.persist_blocking(lambda: client.send(message(task, shape.body())))
    consumer(task, lambda _: received.set())
    assert received.wait(shape.STUCK_S)


shape.run({"window": window, "one": one, "latency": latency, "fill": fill, "backlog": backlog, "first": first})
