"""Routes: the queues of each topic, read from a name server, cached, and refreshed at intervals.

Any name server will do. The one that answered last is asked first, and when it does not answer, the next one: one
living name server is enough. When none is, the cached routes stay in use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from pyromq.errors import CallFailed, NotJson, PyroMQError, TlsFailed, TopicNotFound, Unreachable, WrongShape
from pyromq.model.names import DEFAULT_TOPIC
from pyromq.model.queue import MessageQueue
from pyromq.model.topic import Permission
from pyromq.wire.bodies.routes import BrokerData, TopicRoute
from pyromq.wire.command import Command
from pyromq.wire.requests.client import Request
from pyromq.wire.requests.nameserver import GetRoute

log = logging.getLogger("pyromq.client")

MASTER = 0
#: RocketMQ's own clients request the same.
NEW_QUEUES = 4
#: A topic is gone after this many negative answers in a row; its last route serves until then.
GONE_ROUNDS = 3
#: Of one topic, on all brokers: a route with more is a mistake, and would take all memory.
MAX_QUEUES = 100_000

Ask = Callable[[str, Request], Awaitable[Command]]


class Routes:
    """The routes of the topics that a client uses."""

    def __init__(self, name_servers: Sequence[str], ask: Ask) -> None:
        self._name_servers = list(name_servers)
        self._ask = ask
        self._known: dict[str, TopicRoute] = {}
        self._asking: dict[str, asyncio.Task[TopicRoute]] = {}
        #: The negative answers in a row for a cached topic.
        self._missed: dict[str, int] = {}
        #: Addresses by broker name and id, from all routes; a broker that vanished from them stays until it is back.
        self._brokers: dict[str, Mapping[int, str]] = {}
        #: Called with a topic whose queues or brokers are others than before.
        self.on_change: list[Callable[[str], None]] = []
        #: Called with the name and the address of a master that leads in place of another, or is back.
        self.on_master: list[Callable[[str, str], None]] = []

    # --- asking ------------------------------------------------------------------------------------------------------

    async def of(self, topic: str) -> TopicRoute:
        """Raises TopicNotFound, Unreachable."""
        return self._known.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """Ask for the route now. Those who ask for the same at the same time share one request."""
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = asyncio.ensure_future(self._fetch(topic))
            asking.add_done_callback(partial(self._asked, topic))
        return await asyncio.shield(asking)

    def _asked(self, topic: str, asking: asyncio.Task[TopicRoute]) -> None:
        self._asking.pop(topic, None)
        if not asking.cancelled():
            asking.exception()  # retrieved, even if the waiting task is gone

    async def look_again(self, topic: str) -> None:
        """The same for callers that can continue with the cached route: a failure suggests that it is old."""
        try:
            await self.refresh(topic)
        except PyroMQError as error:
            log.debug("the route of %s cannot be had at the moment: %s", topic, error)

    async def refresh_all(self) -> None:
        """Ask for everything that is known. What cannot be had now is kept."""
        for topic in tuple(self._known):
            try:
                await self.refresh(topic)
            except TopicNotFound:
                self._missed_once_more(topic)
            except PyroMQError as error:
                log.warning("routes are not up to date: %s", error)
                return

    def _missed_once_more(self, topic: str) -> None:
        """It was deleted; or a name server has just been started, and brokers have not told it everything yet."""
        self._missed[topic] = self._missed.get(topic, 0) + 1
        if self._missed[topic] < GONE_ROUNDS:
            return
        log.info("the topic %s is gone", topic)
        del self._missed[topic], self._known[topic]
        self._changed(topic)

    async def call_name_server(self, request: Request) -> Command:
        """The answer of the first name server that gives one. Raises Unreachable, or what the answer says."""
        problems: list[CallFailed] = []
        for address in tuple(self._name_servers):
            try:
                answer = await self._ask(address, request)
            except CallFailed as error:
                problems.append(error)
                if self._name_servers[0] == address:  # unless another task has moved it
                    self._name_servers.append(self._name_servers.pop(0))
                continue
            return answer
        told = "; ".join(map(str, problems))
        if problems and all(isinstance(one, TlsFailed) for one in problems):
            raise TlsFailed(told)
        raise Unreachable(f"no name server answers: {told}. Is it running? `pyromq up` starts one")

    async def _fetch(self, topic: str) -> TopicRoute:
        try:
            answer = await self.call_name_server(GetRoute(topic=topic, standard_json_only=True))
        except TopicNotFound:
            raise TopicNotFound(f"no broker has the topic {topic!r}") from None
        try:
            route = TopicRoute.decode(answer.body)
        except (NotJson, WrongShape) as error:
            raise Unreachable(f"a name server sent a route of {topic!r} that cannot be read: {error}") from None
        if (count := _queue_count(route)) > MAX_QUEUES:
            raise Unreachable(
                f"a name server sent a route of {topic!r} with {count} queues; {MAX_QUEUES} are the limit"
            )
        self._learn(topic, route)
        return route

    def _learn(self, topic: str, route: TopicRoute) -> None:
        masters = self._new_masters(route.brokers)
        for broker in route.brokers:
            if broker.addresses:
                self._brokers[broker.name] = broker.addresses
        before, self._known[topic] = self._known.get(topic), route
        self._missed.pop(topic, None)
        if before is not None and before != route:
            self._changed(topic)
        for name, address in masters:
            for notice in self.on_master:
                notice(name, address)

    def _new_masters(self, brokers: Iterable[BrokerData]) -> list[tuple[str, str]]:
        """Of brokers that were known before."""
        return [
            (broker.name, master)
            for broker in brokers
            if (master := broker.addresses.get(MASTER)) is not None
            and broker.name in self._brokers
            and self._brokers[broker.name].get(MASTER) != master
        ]

    def _changed(self, topic: str) -> None:
        for notice in self.on_change:
            notice(topic)

    # --- what a route says -------------------------------------------------------------------------------------------

    async def writable(self, topic: str, new_queues: int = NEW_QUEUES) -> tuple[MessageQueue, ...]:
        """The queues that messages may be sent to, of masters only; of a topic that is not there yet, those it may get.

        A topic that the first message makes gets at most `new_queues` on each broker. Raises TopicNotFound when no
        broker would make it.
        """
        try:
            return writable_queues(topic, await self.of(topic))
        except TopicNotFound as error:
            try:
                template = writable_queues(topic, await self.of(DEFAULT_TOPIC))
                return tuple(queue for queue in template if queue.queue_id < new_queues)
            except TopicNotFound:
                raise TopicNotFound(f"{error}, and none makes it on its own: create it first") from None

    def masterless(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that could be sent to if their brokers had a master at the moment; as far as it is known."""
        route = self._known.get(topic) or self._known.get(DEFAULT_TOPIC)
        return () if route is None else masterless_queues(topic, route)

    def closed(self, topic: str) -> frozenset[str]:
        """Return the brokers that an operator excluded for a topic's messages, as far as it is known."""
        route = self._known.get(topic)
        if route is None:
            return frozenset()
        if route.order_conf:
            return frozenset(self._brokers)  # it names those that are meant, and in which order
        return frozenset(one.broker_name for one in route.queues if not one.permission & Permission.WRITE)

    async def readable(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that messages may be read from. Raises TopicNotFound."""
        return readable_queues(topic, await self.of(topic))

    async def order_conf(self, topic: str) -> str | None:
        return (await self.of(topic)).order_conf

    def is_known(self, topic: str) -> bool:
        return topic in self._known

    def brokers(self) -> Mapping[str, Mapping[int, str]]:
        """Addresses by broker name and id; id 0 is the master."""
        return self._brokers

    def topic_at(self, address: str) -> str | None:
        """A topic that the broker at an address has."""
        for topic, route in self._known.items():
            if any(address in broker.addresses.values() for broker in route.brokers):
                return topic
        return None

    def addresses(self, broker_name: str) -> Mapping[int, str]:
        return self._brokers.get(broker_name, {})

    def address(self, broker_name: str, broker_id: int = MASTER) -> str | None:
        return self.addresses(broker_name).get(broker_id)


def _by_name(route: TopicRoute) -> dict[str, BrokerData]:
    return {broker.name: broker for broker in route.brokers if broker.addresses}


def writable_queues(topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
    """In the order that sends go round."""
    if route.order_conf:
        return _ordered_queues(topic, route.order_conf)
    return _queues_to_write(topic, route, has_master=True)


def masterless_queues(topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
    """The same of brokers whose slaves are there and whose master is not."""
    return () if route.order_conf else _queues_to_write(topic, route, has_master=False)


def _queues_to_write(topic: str, route: TopicRoute, *, has_master: bool) -> tuple[MessageQueue, ...]:
    brokers = _by_name(route)
    return tuple(
        MessageQueue(topic, queues.broker_name, number)
        for queues in sorted(route.queues, key=lambda one: one.broker_name)
        if queues.permission & Permission.WRITE
        and queues.broker_name in brokers
        and (MASTER in brokers[queues.broker_name].addresses) is has_master
        for number in range(queues.write_queues)
    )


def readable_queues(topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
    brokers = _by_name(route)
    return tuple(
        MessageQueue(topic, queues.broker_name, number)
        for queues in sorted(route.queues, key=lambda one: one.broker_name)
        if queues.permission & Permission.READ and queues.broker_name in brokers
        for number in range(queues.read_queues)
    )


def _ordered_queues(topic: str, order_conf: str) -> tuple[MessageQueue, ...]:
    return tuple(
        MessageQueue(topic, broker_name, number)
        for broker_name, count in _order_entries(order_conf)
        for number in range(count)
    )


def _order_entries(order_conf: str) -> Iterator[tuple[str, int]]:
    """Parse `broker:number;broker:number`. Invalid entries are left out."""
    for entry in order_conf.split(";"):
        broker_name, _, count = entry.partition(":")
        if broker_name and count.isascii() and count.isdigit() and len(count) <= 12:
            yield broker_name, int(count)


def _queue_count(route: TopicRoute) -> int:
    plain = sum(max(queues.read_queues, queues.write_queues) for queues in route.queues)
    return max(plain, sum(count for _, count in _order_entries(route.order_conf or "")))
