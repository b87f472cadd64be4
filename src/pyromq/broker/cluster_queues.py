"""The queues of a topic on all brokers, as the name servers know them.

A client asks one broker for its share of a topic, and means the topic on all brokers. Routes are cached for a few
seconds: the members of a group ask all at once. Clients give up on an answer after a second, so a name server that is
slow is not waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pyromq.broker.state.topics import MAX_QUEUES, Topics
from pyromq.clock import Clock
from pyromq.config import BrokerConfig
from pyromq.errors import CallFailed, NotJson, WrongShape
from pyromq.model.topic import Permission
from pyromq.net.client import Client
from pyromq.wire.bodies.locks import MessageQueue
from pyromq.wire.bodies.routes import QueueData, TopicRoute
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.nameserver import GetRoute

#: The time for which a cached route is valid.
FRESH_SECONDS = 5.0
#: The timeout of all name servers together.
ASK_SECONDS = 0.6
#: Above this, routes that are no longer fresh are forgotten.
MAX_REMEMBERED = 10_000

#: In the order in which they are shared out.
Queues = tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class _Remembered:
    queues: Queues
    asked_s: float


class ClusterQueues:
    """Finds the queues that can be read."""

    def __init__(self, config: Callable[[], BrokerConfig], topics: Topics, client: Client, clock: Clock) -> None:
        self._config = config
        self._topics = topics
        self._client = client
        self._clock = clock
        self._remembered: dict[str, _Remembered] = {}
        self._asking: dict[str, asyncio.Task[Queues]] = {}

    async def of(self, topic: str) -> Queues:
        """Return no queues if the topic is unknown, or if no name server answers and none ever has."""
        if not self._config().name_servers:
            return self._own(topic)
        known = self._remembered.get(topic)
        if known is not None and self._is_fresh(known):
            return known.queues
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = asyncio.get_running_loop().create_task(self._renew(topic))
            asking.add_done_callback(lambda _: self._asking.pop(topic))
        return await asyncio.shield(asking)  # others wait for it too

    def _is_fresh(self, known: _Remembered) -> bool:
        return self._clock.monotonic() - known.asked_s < FRESH_SECONDS

    async def _renew(self, topic: str) -> Queues:
        queues, known = await self._ask(topic), self._remembered.pop(topic, None)
        if queues is None:
            queues = () if known is None else known.queues  # an older answer is better than none
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered = {name: one for name, one in self._remembered.items() if self._is_fresh(one)}
        if queues and len(self._remembered) < MAX_REMEMBERED:
            self._remembered[topic] = _Remembered(queues, self._clock.monotonic())
        return queues

    async def _ask(self, topic: str) -> Queues | None:
        """None: no name server answers."""
        name_servers = self._config().name_servers
        for address in name_servers:
            try:
                async with asyncio.timeout(ASK_SECONDS / len(name_servers)):
                    return await self._ask_one(address, topic)
            except (CallFailed, NotJson, WrongShape, TimeoutError):
                continue
        return None

    async def _ask_one(self, address: str, topic: str) -> Queues:
        answer = await self._client.call(address, GetRoute(topic=topic, standard_json_only=True), ASK_SECONDS)
        if answer.code == ResponseCode.SUCCESS:
            return _in_order(topic, TopicRoute.decode(bytes(answer.body)).queues)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return self._own(topic)  # it is new: the name server will hear of it in a moment
        raise CallFailed(f"{address} does not tell the route of {topic}: {answer.reason}")

    def _own(self, topic: str) -> Queues:
        known = self._topics.get(topic)
        if known is None:
            return ()
        name = self._config().name
        return _in_order(topic, [QueueData(name, known.read_queues, known.write_queues, known.permission)])


def _in_order(topic: str, brokers: Iterable[QueueData]) -> Queues:
    return tuple(_queues(topic, sorted(brokers, key=lambda one: one.broker_name)))


def _queues(topic: str, brokers: list[QueueData]) -> Iterator[MessageQueue]:
    for one in brokers:
        if one.permission & Permission.READ:
            for queue_id in range(min(one.read_queues, MAX_QUEUES)):
                yield MessageQueue(topic, one.broker_name, queue_id)
