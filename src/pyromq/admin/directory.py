"""Directory of a cluster. Queries one name server after the other, and all brokers concurrently.

Nothing is kept between two questions: an admin wants to know how things are now.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pyromq.errors import CallFailed, ConfigError, NotFound, NotNow, TlsFailed, TopicNotFound, Unreachable
from pyromq.net.address import is_address
from pyromq.wire.bodies.routes import ClusterInfo, TopicRoute
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.admin import GetBrokerConfig
from pyromq.wire.requests.client import Request
from pyromq.wire.requests.nameserver import GetClusterInfo, GetRoute

log = logging.getLogger("pyromq.admin")

Item = TypeVar("Item")
Told = TypeVar("Told")

#: The broker of a name that may be written to.
MASTER = 0
OK = (ResponseCode.SUCCESS,)
#: Questions on their way at the same time.
AT_ONCE = 16


class Asks(Protocol):
    """Sends a request to `host:port` and returns the answer; raises if it is not `ok`."""

    async def ask(
        self, address: str, request: Request, timeout_s: float | None = None, *, ok: Collection[int] = OK
    ) -> Command: ...


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """One broker process. Of those that share a name, number 0 is the master."""

    cluster: str
    name: str
    broker_id: int
    address: str

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER


class Directory:
    def __init__(self, line: Asks, name_servers: Collection[str]) -> None:
        self._line = line
        self.name_servers = tuple(name_servers)
        self._warned: set[str] = set()
        if not self.name_servers:
            raise ConfigError("no name server is given: use --name-servers")

    async def ask(
        self, address: str, request: Request, *, ok: Collection[int] = OK, timeout_s: float | None = None
    ) -> Command:
        return await self._line.ask(address, request, timeout_s, ok=ok)

    # --- name servers ------------------------------------------------------------------------------------------------

    async def ask_names(self, request: Request) -> Command:
        """The answer of the first name server that gives one. Raises Unreachable when none does."""
        problems = []
        for address in self.name_servers:
            try:
                return await self.ask(address, request)
            except CallFailed as error:
                problems.append(error)
        if problems and all(isinstance(one, TlsFailed) for one in problems):
            raise problems[0]
        raise Unreachable(
            f"no name server answers at {' or '.join(self.name_servers)}: start one with `pyromq nameserver` (`pyromq "
            f"up` starts a first broker too), or say where it is with --name-servers ({problems[-1]})"
        )

    async def tell_names(self, request: Request) -> None:
        """Every name server that can be reached; they know nothing of each other. Raises Unreachable for none."""
        told = await asyncio.gather(
            *(self.ask(address, request) for address in self.name_servers), return_exceptions=True
        )
        problems = [one for one in told if isinstance(one, BaseException)]
        hard = [one for one in problems if not isinstance(one, CallFailed)]
        if hard or len(problems) == len(told):
            raise (hard or problems)[0]

    async def route(self, topic: str) -> TopicRoute:
        """Raises TopicNotFound."""
        try:
            answer = await self.ask_names(GetRoute(topic=topic, standard_json_only=True))
        except TopicNotFound:
            raise TopicNotFound(f"no broker has a topic {topic!r}: `pyromq topic list` shows those there are") from None
        return TopicRoute.decode(answer.body)

    # --- brokers -----------------------------------------------------------------------------------------------------

    async def brokers(self) -> list[BrokerAddress]:
        """Every broker that a name server knows, by cluster, name and number."""
        info = ClusterInfo.decode((await self.ask_names(GetClusterInfo())).body)
        found = [
            BrokerAddress(broker.cluster, name, number, address)
            for name, broker in info.brokers.items()
            for number, address in broker.addresses.items()
        ]
        return sorted(found, key=lambda one: (one.cluster, one.name, one.broker_id))

    async def masters(self, cluster: str | None = None, broker: str | None = None) -> list[BrokerAddress]:
        """Return the masters, which accept changes. Log names without a master.

        Raises NotFound for an unknown cluster or broker, NotNow if only slaves are registered.
        """
        every = await self.brokers()
        chosen = [one for one in every if cluster in (None, one.cluster) and broker in (None, one.name)]
        if not chosen:
            raise NotFound(_nobody(every, cluster, broker))
        found = [one for one in chosen if one.is_master]
        without = without_master(chosen)
        if not found:
            raise NotNow(no_master(*without))
        if without:
            self._warn(f"left out: {no_master(*without)}")
        return found

    async def masters_called(self, names: Iterable[str]) -> dict[str, BrokerAddress]:
        """Return the masters of all these names. Raises NotNow if one has none: changes apply to all or to none."""
        every = await self.brokers()
        found = {one.name: one for one in every if one.is_master}
        if missing := sorted(set(names) - set(found)):
            raise NotNow(no_master(*missing))
        return {name: found[name] for name in names}

    async def readable(self) -> list[BrokerAddress]:
        """One broker of each name, to be asked what there is: the master, or a slave where there is none now.

        Raises NotFound when there is no broker at all.
        """
        every = await self.brokers()
        if not every:
            raise NotFound(_nobody(every, None, None))
        first: dict[tuple[str, str], BrokerAddress] = {}
        for one in every:
            first.setdefault((one.cluster, one.name), one)
        for one in first.values():
            if not one.is_master:
                self._warn(f"{no_master(one.name)}: shown is what its slave {one.broker_id} knows")
        return list(first.values())

    def _warn(self, sentence: str) -> None:
        """Once: one answer takes several questions."""
        if sentence not in self._warned:
            self._warned.add(sentence)
            log.warning("%s", sentence)

    async def masters_of(self, topic: str) -> list[BrokerAddress]:
        """The masters that have the topic; a slave where a master is away. Raises TopicNotFound."""
        route = await self.route(topic)
        found = []
        for broker in route.brokers:
            if broker.addresses:
                number = min(broker.addresses)
                found.append(BrokerAddress(broker.cluster, broker.name, number, broker.addresses[number]))
        return sorted(found, key=lambda one: (one.cluster, one.name))

    async def broker(self, name_or_address: str) -> BrokerAddress:
        """A broker by its name (then its master) or by its address. Raises NotFound."""
        return self.among(await self.brokers_or_at(name_or_address), name_or_address)

    async def brokers_or_at(self, name_or_address: str) -> list[BrokerAddress]:
        """Every broker; the one at the address alone, by its own account, where no name server answers."""
        try:
            return await self.brokers()
        except Unreachable:
            if not is_address(name_or_address):
                raise
            return [await self._by_its_own_account(name_or_address)]

    async def settings_of(self, address: str) -> dict[str, str]:
        """By RocketMQ's names."""
        answer = await self.ask(address, GetBrokerConfig())
        lines = (line.partition("=") for line in answer.body.decode(errors="replace").splitlines())
        return dict(sorted((name.strip(), value.strip()) for name, equals, value in lines if equals))

    async def _by_its_own_account(self, address: str) -> BrokerAddress:
        told = await self.settings_of(address)
        number = told.get("brokerId", "")
        return BrokerAddress(
            told.get("brokerClusterName", ""),
            told.get("brokerName", ""),
            int(number) if number.isascii() and number.isdigit() else MASTER,
            address,
        )

    @staticmethod
    def among(every: Sequence[BrokerAddress], name_or_address: str) -> BrokerAddress:
        """The same, of brokers that are known. Raises NotFound."""
        for one in every:
            if name_or_address in (one.name, one.address):
                return one
        raise NotFound(_nobody(every, None, name_or_address))


class Named(Protocol):
    """A broker, in any form."""

    @property
    def cluster(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def broker_id(self) -> int: ...


def without_master(brokers: Sequence[Named]) -> list[str]:
    """The names of which there are only slaves."""
    led = {(one.cluster, one.name): False for one in brokers}
    led |= {(one.cluster, one.name): True for one in brokers if one.broker_id == MASTER}
    return [name for (_, name), is_led in led.items() if not is_led]


def no_master(*names: str) -> str:
    """Return the error text for names without a master."""
    has = "has" if len(names) == 1 else "have"
    return f"{', '.join(names)} {has} no master now (`pyromq broker promote {names[0]}` lets a slave lead)"


def _nobody(every: Iterable[BrokerAddress], cluster: str | None, broker: str | None) -> str:
    brokers = sorted({one.name for one in every})
    if not brokers:
        return "no broker has registered with the name server yet: start one with `pyromq broker`, or wait a moment"
    if broker is not None:
        return f"no broker is called {broker!r}: there are {', '.join(brokers)}"
    clusters = sorted({one.cluster for one in every})
    return f"there is no cluster {cluster!r}: there are {', '.join(clusters)}"


async def of_reachable(
    brokers: Sequence[BrokerAddress], ask: Callable[[BrokerAddress], Awaitable[Told]]
) -> list[tuple[BrokerAddress, Told]]:
    """Return the answers; log the brokers that do not answer. Raises CallFailed if none does."""
    problems: list[CallFailed] = []

    async def asked(broker: BrokerAddress) -> list[tuple[BrokerAddress, Told]]:
        try:
            return [(broker, await ask(broker))]
        except CallFailed as problem:
            problems.append(problem)
            return []

    found = [one for some in await of_each(brokers, asked) for one in some]
    if problems and not found:
        raise problems[0]
    for problem in problems:
        log.warning("a broker is left out of what is shown: %s", problem)
    return found


async def of_each(items: Iterable[Item], ask: Callable[[Item], Awaitable[Told]]) -> list[Told]:
    """Return the answer for each item, in order, with a bounded number of concurrent requests."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(item: Item) -> Told:
        async with gate:
            return await ask(item)

    return list(await asyncio.gather(*(one(item) for item in items)))
