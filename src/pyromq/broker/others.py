"""The other brokers of this name: where they are, and what they say of their logs.

Name servers know who is there. They forget, and may not answer; so whoever was heard of before is asked as well. Who
says of itself that it is a slave of ours is believed when it answers at the address it gave and has our epochs: only
then it is written down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple

from pyromq.broker.leadership import Member
from pyromq.broker.leading import MAX_JUMP, Leading, epochs_of, free_id
from pyromq.broker.together import within
from pyromq.errors import CallFailed, PyroMQError
from pyromq.net.address import is_address
from pyromq.net.client import Client
from pyromq.replication.joining import are_of_one_family
from pyromq.wire.bodies.epochs import BrokerEpochs
from pyromq.wire.bodies.routes import MemberGroup
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.leading_requests import GetBrokerEpochs
from pyromq.wire.nameserver_requests import GetMemberGroup
from pyromq.wire.requests import ViewMessage

log = logging.getLogger("pyromq.broker")

ASK_SECONDS = 1.0
#: What RocketMQ's brokers say who have no controller, and so no epochs.
NO_CONTROLLER = "only for controllerMode"
#: Whoever says that it is a slave of ours is asked so often whether that is so.
CANDIDATE_TRIES = 20
#: From one machine so many are remembered at a time, and in all.
MOST_OF_ONE_HOST, MOST_CANDIDATES = 8, 64


class Refused(CallFailed):
    """It answered, and did not say what it was asked."""


class Answered(NamedTuple):
    address: str
    told: BrokerEpochs


class Candidate(NamedTuple):
    """Says that it is a slave of ours, or leads as we do."""

    host: str
    address: str


class Others:
    """Asks them, all at once and not for long."""

    def __init__(self, leading: Leading, client: Client, own_address: Callable[[], str]) -> None:
        self._leading = leading
        self._client = client
        self._own_address = own_address
        #: How often each of them is still asked.
        self._candidates: dict[Candidate, int] = {}
        self._news = asyncio.Event()

    @property
    def are_there(self) -> bool:
        """Is there anybody who may know of others?"""
        return bool(self._leading.config.name_servers or self._leading.known.members)

    # --- who says that it is a slave of ours -------------------------------------------------------------------------

    def came(self, host: str, address: str) -> None:
        """A broker of our name asks us from this machine, and says that this is its address. Nothing is written yet."""
        is_known = any(one.address == address for one in self._leading.known.members)
        if is_known or address == self._own_address() or not is_address(address):
            return
        said = Candidate(host, address)
        of_host = [one for one in self._candidates if one.host == host]
        if said not in self._candidates and len(of_host) >= MOST_OF_ONE_HOST:
            del self._candidates[of_host[0]]
        if said in self._candidates or len(self._candidates) < MOST_CANDIDATES:
            self._candidates[said] = CANDIDATE_TRIES

    def slaves_came(self) -> None:
        """Somebody begins to copy our log, or has gone: one that asked before may be it."""
        if self._candidates:
            self._news.set()

    async def news(self, timeout_s: float) -> None:
        """Until a slave has come that is not known, or it is time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        self._news.clear()

    def _may_be_written(self, answer: Answered, registered: set[str]) -> bool:
        """Name servers know it, we did before, it copies our log, or leads one that belongs to ours."""
        if answer.address in registered or any(one.address == answer.address for one in self._leading.known.members):
            return True
        epochs = epochs_of(answer.told)
        if answer.told.broker_id == 0:
            return are_of_one_family(epochs, self._leading.epochs)
        return epochs == self._leading.epochs and answer.told.newest == self._leading.number

    def _settle_candidates(self, found: set[str]) -> None:
        left = {one: tries - 1 for one, tries in self._candidates.items()}
        self._candidates = {one: tries for one, tries in left.items() if tries > 0 and one.address not in found}

    # --- asking ------------------------------------------------------------------------------------------------------

    async def survey(self) -> list[Answered]:
        """Whoever answers, but for ourselves; what they say of where they are is remembered."""
        registered = set((await self.registered()).values())
        addresses = {one.address for one in self._leading.known.members} | registered
        addresses |= {one.address for one in self._candidates}
        addresses.discard(self._own_address())
        answers = await _all(ASK_SECONDS, [self._ask_known(one) for one in sorted(addresses)])
        found = [one for one in answers if isinstance(one, Answered) and self._may_be_written(one, registered)]
        self._settle_candidates({one.address for one in found})
        self._leading.heard_of(Member(one.address, one.told.broker_id, one.told.ha_address) for one in found)
        return found

    async def registered(self) -> dict[int, str]:
        """Who is there, as the name servers say: by id."""
        config = self._leading.config
        request = GetMemberGroup(cluster=config.cluster, broker_name=config.name)
        groups = await _all(ASK_SECONDS, [self._group(one, request) for one in config.name_servers])
        return {number: address for one in groups if isinstance(one, dict) for number, address in one.items()}

    async def _group(self, name_server: str, request: GetMemberGroup) -> dict[int, str]:
        answer = await self._client.call(name_server, request, ASK_SECONDS)
        return dict(MemberGroup.decode(answer.body).addresses) if answer.code == ResponseCode.SUCCESS else {}

    async def _ask_known(self, address: str) -> Answered | None:
        told = await self.ask(address)
        config = self._leading.config
        is_one_of_us = told is not None and (told.cluster, told.name) == (config.cluster, config.name)
        return Answered(address, told) if told is not None and is_one_of_us else None

    async def ask(self, address: str) -> BrokerEpochs | None:
        """What a broker says of its log; None: it knows nothing of epochs. Raises CallFailed, BadRequest."""
        config = self._leading.config
        request = GetBrokerEpochs(
            name=config.name, broker_id=config.broker_id if config.is_slave else None, address=self._own_address()
        )
        answer = await self._client.call(address, request, ASK_SECONDS)
        if _knows_no_epochs(answer):
            return None
        if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            raise Refused(f"{address} is starting or stopping: {answer.reason}")
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(f"{address} does not say who led its log (code {answer.code}): {answer.reason}")
        return self._believable(BrokerEpochs.decode(bytes(answer.body)), address)

    def _believable(self, told: BrokerEpochs, address: str) -> BrokerEpochs:
        """What we would write down has to make sense: it stays. Raises Refused."""
        if told.broker_id < 0:
            raise Refused(f"{address} says that it has the id {told.broker_id}, which no broker has")
        if told.newest > self._leading.number + MAX_JUMP:
            raise Refused(
                f"{address} says that it knows of epoch {told.newest}, and {self._leading.number} is the newest here: "
                "nobody has been promoted so often"
            )
        return told

    async def record_at(self, address: str, position: int) -> bytes | None:
        """A record of another broker's log; None: it has none that begins there. Raises CallFailed."""
        answer = await self._client.call(address, ViewMessage(position=position), ASK_SECONDS)
        return bytes(answer.body) if answer.code == ResponseCode.SUCCESS else None

    async def free_id(self, master: str) -> int:
        """A number for us as a slave of the broker at this address, whose own is free."""
        besides = {self._own_address(), master}
        taken = {number for number, address in (await self.registered()).items() if address not in besides}
        return free_id(taken | {one.broker_id for one in self._leading.known.members if one.address not in besides})


def _knows_no_epochs(answer: Command) -> bool:
    """RocketMQ before 5.0, or without a controller. Anything else may be another answer the next time."""
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return True
    return answer.code == ResponseCode.SYSTEM_ERROR and NO_CONTROLLER in (answer.reason or "")


async def _all(timeout_s: float, work: Iterable[Coroutine[Any, Any, object]]) -> list[object]:
    """What came of several questions; those that went wrong, or take too long, are no answers."""
    results = await within(timeout_s, work)
    for one in results:
        if isinstance(one, Exception) and not isinstance(one, PyroMQError):  # an address that is none, say
            log.error("another broker of this name cannot be asked: %s", one)
    return results
