"""redis-py on streams, with hiredis: XADD in pipelines, XREADGROUP and XACK."""

from __future__ import annotations

import threading
import time
from typing import Any

import redis
import shape
from shape import Backlog, Span, Task, Waits

PIPELINE = 500
FETCHED = 1_000


def connect(task: Task) -> Any:
    host, _, port = task.address.partition(":")
    return redis.Redis(host, int(port))


def make_group(client: Any, task: Task) -> None:
    client.xgroup_create(task.topic, task.group, id="0", mkstream=True)


def window(task: Task) -> dict[str, float]:
    client, span, fields = connect(task), Span(task), {"b": shape.body()}
    pipeline = client.pipeline(transaction=False)
    while True:
        for _ in range(PIPELINE):
            pipeline.xadd(task.topic, fields)
        if not span.acknowledged(len(pipeline.execute())):
            return span.result()


def fill(task: Task) -> dict[str, float]:
    client, began = connect(task), time.perf_counter()
    pipeline = client.pipeline(transaction=False)
    for number in range(task.count):
        pipeline.xadd(task.topic, {"b": shape.body(number)})
        if number % PIPELINE == PIPELINE - 1:
            pipeline.execute()
    pipeline.execute()
    return {"count": task.count, "seconds": time.perf_counter() - began}


def one(task: Task) -> dict[str, float]:
    client, span, fields = connect(task), Span(task), {"b": shape.body()}
    while True:
        client.xadd(task.topic, fields)
        if not span.acknowledged():
            return span.result()


def latency(task: Task) -> dict[str, float]:
    client, waits = connect(task), Waits(task)
    make_group(client, task)

    def read() -> None:
        reader = connect(task)
        while True:
            for _, entries in reader.xreadgroup(task.group, "bench", {task.topic: ">"}, count=100, block=1000):
                for number, fields in entries:
                    waits.handled(fields[b"b"])
                    reader.xack(task.topic, task.group, number)

    threading.Thread(target=read, daemon=True).start()
    return shape.paced_blocking(lambda payload: client.xadd(task.topic, {"b": payload}), waits, task)


def backlog(task: Task) -> dict[str, float]:
    """What was read last is acknowledged in the same round trip that asks for more."""
    client, progress, touched = connect(task), Backlog(task), 0
    make_group(client, task)
    handled: list[bytes] = []
    while progress.left > 0 or handled:
        pipeline = client.pipeline(transaction=False)
        if handled:
            pipeline.xack(task.topic, task.group, *handled)
        pipeline.xreadgroup(task.group, "bench", {task.topic: ">"}, count=FETCHED)
        entries = [entry for _, found in pipeline.execute()[-1] or () for entry in found]
        touched += sum(len(fields[b"b"]) for _, fields in entries)
        handled = [number for number, _ in entries]
        progress.handled(len(entries))
    return progress.committed()


def first(task: Task) -> None:
    client = connect(task)
    shape.persist_blocking(lambda: client.xadd(task.topic, {"b": shape.body()}))
    make_group(client, task)
    client.xreadgroup(task.group, "bench", {task.topic: ">"}, count=1)


shape.run({"window": window, "one": one, "latency": latency, "fill": fill, "backlog": backlog, "first": first})
