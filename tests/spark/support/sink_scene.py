"""A broker, and tasks that write to it as Spark's would: without Spark, so that a test can stop them where it likes."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pyromq.admin.admin import Admin
from pyromq.client.blocking import shared_portal
from pyromq.client.received import ReceivedMessage
from pyromq.spark import connecting
from pyromq.spark.connecting import Cluster
from pyromq.spark.sink import task
from pyromq.spark.sink.halves import Written
from pyromq.spark.sink.identity import Identity
from pyromq.spark.sink.options import Mode, SinkOptions
from pyromq.spark.sink.task import WRITERS, Place, TaskWriter, place_of

#: More than any story needs; a test that reaches this limit has failed.
LONG_S = 60.0


def frames(first: int, count: int, size: int = 500, **columns: list[Any]) -> list[pa.RecordBatch]:
    """Rows whose bodies are numbers, in frames as Spark hands them over."""
    return [
        pa.record_batch({"body": pa.array([b"%08d" % number for number in range(at, min(at + size, first + count))])})
        for at in range(first, first + count, size)
    ]


class Scene:
    """The operations of a test on a cluster."""

    def __init__(self, name_servers: str, **more: Any) -> None:
        self.cluster = Cluster(name_servers, **more)
        self._attempts = 0

    def options(self, mode: Mode, topic: str, **more: Any) -> SinkOptions:
        options = SinkOptions(cluster=self.cluster, topic=topic, mode=mode, patience_s=1, **more)
        if mode is not Mode.AT_LEAST_ONCE:
            place = place_of(options)
            place.portal.wait(place.ensure_decisions())
        return options

    def identity(self, query: str, batch: int, partition: int = 0) -> Identity:
        self._attempts += 1
        return Identity(query, batch, partition, f"attempt{self._attempts}")

    def task(self, options: SinkOptions, query: str, batch: int = 0, partition: int = 0) -> TaskWriter:
        return WRITERS[options.mode](options, self.identity(query, batch, partition))

    def write(
        self, options: SinkOptions, rows: list[pa.RecordBatch], query: str, batch: int = 0, partition: int = 0
    ) -> Written:
        return self.task(options, query, batch, partition).write(rows)

    def commit(self, options: SinkOptions, written: list[Written], batch: int = 0) -> bool:
        place = place_of(options)
        return place.portal.wait(place.transactions().commit(written, batch))

    def abort(self, options: SinkOptions, written: list[Written | None], batch: int = 0) -> None:
        place = place_of(options)
        place.portal.wait(place.transactions().abort(written, batch))

    def other_driver(self, options: SinkOptions) -> Place:
        """One that has read nothing yet."""
        return Place(replace(options, topic=None))

    # --- looking -----------------------------------------------------------------------------------------------------

    def messages(self, topic: str) -> list[ReceivedMessage]:
        return shared_portal().wait(_messages(self.cluster.name_servers, topic))

    def bodies(self, topic: str) -> list[int]:
        return [int(message.body) for message in self.messages(topic)]

    def repeated(self, topic: str) -> dict[int, int]:
        """Return the count of each row that occurs more than once."""
        return {body: count for body, count in Counter(self.bodies(topic)).items() if count > 1}

    def wait_for(self, topic: str, count: int) -> list[int]:
        """Wait until this many messages are readable: brokers check half messages gradually."""
        pause = threading.Event()
        for _ in range(int(LONG_S / 0.1)):
            found = self.bodies(topic)
            if len(found) >= count:
                return found
            pause.wait(0.1)
        raise AssertionError(f"{len(found)} messages of {count} are there after {LONG_S:g} s")

    def close(self) -> None:
        session = connecting._sessions.pop((os.getpid(), self.cluster), None)
        if session is not None:
            shared_portal().wait(session.close())
        task._places.clear()


@contextmanager
def scene_of(name_servers: str, **more: Any) -> Iterator[Scene]:
    scene = Scene(name_servers, **more)
    try:
        yield scene
    finally:
        scene.close()


async def _messages(name_servers: str, topic: str) -> list[ReceivedMessage]:
    async with Admin(name_servers) as admin:
        found: list[ReceivedMessage] = []
        for queue in await admin.messages.queues(topic):
            low, high = await admin.messages.bounds(queue)
            found += [message async for message in admin.messages.read(queue, low, high)]
        return found


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """Do something on a thread while the block runs; what it raises is raised at the end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  it is raised again in the test's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="beside", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(LONG_S)
    if errors:
        raise errors[0]
