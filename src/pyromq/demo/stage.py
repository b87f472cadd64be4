"""Everything the story needs, started and stopped in one place: a broker, the services twice, and both sign-ups.

The two sign-ups share nothing: each has services of its own, with the same capacity, so that neither waits for the
other's work.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from pyromq.admin.admin import Admin
from pyromq.client.group.starting_point import ConsumeFrom
from pyromq.client.message import Message
from pyromq.client.producer import Producer
from pyromq.client.push_consumer import PushConsumer
from pyromq.client.received import ReceivedMessage
from pyromq.demo.lanes import Lane, monotonic
from pyromq.demo.ledger import Ledger
from pyromq.demo.services import KINDS, REGISTRATION_SECONDS, Service, work
from pyromq.errors import PyroMQError
from pyromq.metrics import FINE_BOUNDS, Histogram
from pyromq.testing import broker

QUEUES = 4
#: A service that is stopped may finish what it has in its hands.
STOP_GRACE_SECONDS = 1.0


class Cluster:
    """The name servers of the demo's messages, and the connection settings of every client."""

    def __init__(self, name_servers: str, connection: Mapping[str, Any] | None = None) -> None:
        self.name_servers = name_servers
        self.connection = dict(connection or {})


class Greeter:
    """One service behind the queue: a consumer group of its own, which can be stopped and started again."""

    def __init__(self, service: Service, cluster: Cluster, topic: str, ledger: Ledger) -> None:
        self.service = service
        self.group = group_of(topic, service.name)
        self._cluster = cluster
        self._topic = topic
        self._ledger = ledger
        self._consumer: PushConsumer | None = None

    @property
    def name(self) -> str:
        return self.service.name

    @property
    def is_up(self) -> bool:
        return self._consumer is not None

    async def start(self) -> None:
        consumer = PushConsumer(
            self._cluster.name_servers,
            **self._cluster.connection,
            group=self.group,
            concurrency=self.service.kind.capacity,
            consume_from=ConsumeFrom.FIRST,
            stop_grace_s=STOP_GRACE_SECONDS,
        )
        consumer.subscribe(self._topic, self._greet)
        await consumer.start()
        self._consumer = consumer

    async def stop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()

    async def _greet(self, message: ReceivedMessage) -> None:
        await self.service.call()
        self._ledger.handle(self.name, message.keys[0])


class Stage:
    """Both worlds: `in_line` before, `queued` after."""

    def __init__(self, cluster: Cluster, topic: str, patience_s: float, rng: random.Random) -> None:
        self.cluster = cluster
        self.topic = topic
        self.ledger = Ledger(kind.name for kind in KINDS)
        self.called = [Service(kind, rng) for kind in KINDS]
        self.greeters = [Greeter(Service(kind, rng), cluster, topic, self.ledger) for kind in KINDS]
        self.in_line = Lane("in line", self._sign_up_in_line, patience_s)
        self.queued = Lane("with a queue", self._sign_up_with_queue, patience_s)
        #: Time until the broker acknowledged a message.
        self.sends = Histogram(FINE_BOUNDS)
        self._producer = Producer(cluster.name_servers, **cluster.connection, group=f"{topic}-signup")
        self._rng = rng

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        return (self.in_line, self.queued)

    def greeter(self, name: str) -> Greeter:
        return next(one for one in self.greeters if one.name == name)

    def called_service(self, name: str) -> Service:
        return next(one for one in self.called if one.name == name)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Stage]:
        async with self._producer, contextlib.AsyncExitStack() as running:
            running.callback(self.in_line.close)
            running.callback(self.queued.close)
            for greeter in self.greeters:
                running.push_async_callback(greeter.stop)
                await greeter.start()
            # The first message opens every connection. It is handled and counted, but is not part of an act.
            await self.queued.visit("first")
            yield self

    async def _sign_up_in_line(self, _: str) -> None:
        """As it was: the visitor waits for everything."""
        with self.in_line.steps.step("register"):
            await work(REGISTRATION_SECONDS, self._rng)
        for service in self.called:
            with self.in_line.steps.step(service.name):
                await service.call()

    async def _sign_up_with_queue(self, user: str) -> None:
        """As it is: the visitor waits for the registration and for one acknowledged message."""
        with self.queued.steps.step("register"):
            await work(REGISTRATION_SECONDS, self._rng)
        body = json.dumps({"user": user, "plan": "free"}).encode()
        began = monotonic()
        with self.queued.steps.step("send"):
            await self._producer.send(Message(self.topic, body, tags="registered", keys=[user]))
        self.sends.record(monotonic() - began)
        self.ledger.acknowledge(user)


@contextlib.asynccontextmanager
async def cluster_for(given: Cluster | None, topic: str) -> AsyncIterator[Cluster]:
    """The one that is there, or a broker that lives as long as the block. It has the topic.

    A cluster that was there before has nothing of the story afterwards.
    """
    if given is None:
        async with broker(topics={topic: QUEUES}) as embedded:
            yield Cluster(embedded.name_servers)
        return
    async with Admin(given.name_servers, **given.connection) as admin, contextlib.AsyncExitStack() as made:
        await admin.topics.create(topic, queues=QUEUES)
        made.push_async_callback(_remove, admin.topics.delete, topic)
        for kind in KINDS:
            group = group_of(topic, kind.name)
            await admin.groups.create(group)
            made.push_async_callback(_remove, admin.groups.delete, group)
        yield given


async def _remove(delete: Callable[[str], Awaitable[object]], name: str) -> None:
    """As far as possible: a cluster that is gone by now does not spoil the end."""
    with contextlib.suppress(PyroMQError):
        await delete(name)


def group_of(topic: str, service: str) -> str:
    return f"{topic}-{service}"
