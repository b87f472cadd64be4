"""The other brokers of this name: where they are, and what they say of their logs.

Name servers know who is there. They forget, and may not answer; so members from the settings and those that were heard
of before are asked as well. Answers count only from trusted brokers (see `trust`): a stranger that a name server names
is asked, warned of once, and ignored; an address that a stranger names is not asked at all. A trusted broker that says
of itself that it is a slave of this one is written down when it answers at the address it gave and has our epochs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple

from pyromq.broker.failover.leadership import Member
from pyromq.broker.failover.role import MAX_JUMP, Leading, epochs_of, free_id
from pyromq.broker.failover.trust import HOW, Trust
from pyromq.broker.together import within
from pyromq.config.members import ConfiguredMember
from pyromq.errors import CallFailed, PyroMQError
from pyromq.net.address import is_address
from pyromq.net.client import Client
from pyromq.replication.log_matching import are_of_one_family
from pyromq.wire.bodies.epochs import BrokerEpochs
from pyromq.wire.bodies.routes import MemberGroup, decode_kv_table
from pyromq.wire.codes import ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.admin import GetRuntimeInfo
from pyromq.wire.requests.client import ViewMessage
from pyromq.wire.requests.nameserver import GetMemberGroup

log = logging.getLogger("pyromq.broker")

ASK_SECONDS = 1.0
#: The answer of RocketMQ's brokers that have no controller, and so no epochs.
NO_CONTROLLER = "only for controllerMode"
#: A broker that claims to be our slave is asked at most this many times whether that is so.
CANDIDATE_TRIES = 20
#: Of the brokers that name servers know by this name, those with the smallest ids are asked, at most this many.
MAX_REGISTERED = 64
#: At most this many are remembered at a time: from one machine, and in all.
MOST_OF_ONE_HOST, MOST_CANDIDATES = 8, 64


class Refused(CallFailed):
    """It answered, and did not say what it was asked."""


class Answered(NamedTuple):
    """The answer of a broker at an address that this broker dialled."""

    address: str
    told: BrokerEpochs
    #: It is a member from the settings, or has proved the group secret: what it says may change something here.
    is_trusted: bool = True


class Candidate(NamedTuple):
    """Says that it is a slave of ours, or leads as we do."""

    host: str
    address: str


class Others:
    """Asks them, all at once and not for long."""

    def __init__(self, leading: Leading, client: Client, own_address: Callable[[], str], trust: Trust) -> None:
        self._leading = leading
        self._client = client
        self._own_address = own_address
        self.trust = trust
        #: Addresses of strangers that were warned of.
        self._strangers: set[str] = set()
        #: The number of remaining attempts for each of them.
        self._candidates: dict[Candidate, int] = {}
        self._news = asyncio.Event()

    @property
    def are_there(self) -> bool:
        """Is there anybody who may know of others?"""
        return bool(self._leading.config.name_servers or self._leading.known.members or self.trust.configured)

    @property
    def own_address(self) -> str:
        return self._own_address()

    # --- who says that it is a slave of ours -------------------------------------------------------------------------

    def came(self, host: str, address: str) -> None:
        """A broker of our name, which has proved the secret, says that this is its address. Nothing is written yet."""
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
        """Wake the search: a replica joined or left, and it may be one of the candidates."""
        if self._candidates:
            self._news.set()

    async def news(self, timeout_s: float) -> None:
        """Until a slave has come that is not known, or it is time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        self._news.clear()

    def _may_be_written(self, answer: Answered, vouched: set[str]) -> bool:
        """Name servers or the settings name it, it was known, it copies our log, or leads one that belongs to ours."""
        if answer.address in vouched or any(one.address == answer.address for one in self._leading.known.members):
            return True
        epochs = epochs_of(answer.told)
        if answer.told.broker_id == 0:
            return are_of_one_family(epochs, self._leading.epochs)
        return epochs == self._leading.epochs and answer.told.newest == self._leading.number

    def _settle_candidates(self, found: set[str]) -> None:
        left = {one: tries - 1 for one, tries in self._candidates.items()}
        self._candidates = {one: tries for one, tries in left.items() if tries > 0 and one.address not in found}

    # --- asking ------------------------------------------------------------------------------------------------------

    async def survey(self, *, before_leading: bool = False) -> list[Answered]:
        """Return the answers of trusted brokers of this name; remember where they are.

        `before_leading`: slaves of Apache RocketMQ that the settings name are asked for the end of their logs, too.
        """
        registered = set((await self.registered()).values())
        addresses = {one.address for one in self._leading.known.members} | registered | self.trust.configured
        addresses |= {one.address for one in self._candidates}
        addresses.discard(self._own_address())
        answers = await _all(ASK_SECONDS, [self._ask_known(one) for one in sorted(addresses)])
        vouched = registered | self.trust.configured
        found = [one for one in answers if isinstance(one, Answered) and self._may_be_written(one, vouched)]
        without_epochs = await self._ask_without_epochs({one.address for one in found}) if before_leading else []
        self._settle_candidates({one.address for one in found})
        self._leading.heard_of(
            Member(one.address, one.told.broker_id, one.told.ha_address, one.told.member) for one in found
        )
        return found + without_epochs

    async def _ask_without_epochs(self, asked: set[str]) -> list[Answered]:
        """Return how far the logs of configured slaves go that know nothing of epochs: Apache's."""
        known = self._leading.config.replication.configured_members
        questions = [self._log_end_of(one) for one in known if one.broker_id and one.address not in asked]
        return [one for one in await _all(ASK_SECONDS, questions) if isinstance(one, Answered)]

    async def _log_end_of(self, member: ConfiguredMember) -> Answered | None:
        answer = await self._client.call(member.address, GetRuntimeInfo(), ASK_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            return None
        figures = decode_kv_table(bytes(answer.body))
        if "pyromqVersion" in figures or not figures.get("commitLogMaxOffset", "").isdigit():
            return None
        config = self._leading.config
        told = BrokerEpochs(
            cluster=config.cluster, name=config.name, broker_id=member.broker_id,
            end=int(figures["commitLogMaxOffset"]), address=member.address,
        )  # fmt: skip
        return Answered(member.address, told)

    async def registered(self) -> dict[int, str]:
        """Return the members known to the name servers, by id."""
        config = self._leading.config
        request = GetMemberGroup(cluster=config.cluster, broker_name=config.name)
        groups = await _all(ASK_SECONDS, [self._group(one, request) for one in config.name_servers])
        found = {number: address for one in groups if isinstance(one, dict) for number, address in one.items()}
        return dict(sorted(found.items())[:MAX_REGISTERED])

    async def _group(self, name_server: str, request: GetMemberGroup) -> dict[int, str]:
        answer = await self._client.call(name_server, request, ASK_SECONDS)
        return dict(MemberGroup.decode(answer.body).addresses) if answer.code == ResponseCode.SUCCESS else {}

    async def _ask_known(self, address: str) -> Answered | None:
        """Return the answer of a trusted broker of this name."""
        answer = await self.ask(address)
        config = self._leading.config
        if answer is None or (answer.told.cluster, answer.told.name) != (config.cluster, config.name):
            return None
        if not answer.is_trusted:
            self.warn_of_stranger(answer)
            return None
        return answer

    def warn_of_stranger(self, answer: Answered) -> None:
        """Log once that an address is ignored."""
        if answer.address not in self._strangers and len(self._strangers) < MOST_CANDIDATES:
            self._strangers.add(answer.address)
            log.warning("%s, so it is ignored", why_not_trusted(answer))

    async def ask(self, address: str) -> Answered | None:
        """Return the epochs of a broker's log; None if it knows nothing of epochs. Raises CallFailed, BadRequest."""
        config = self._leading.config
        request = self.trust.question(
            member=self._leading.known.member, broker_id=config.broker_id if config.is_slave else None,
            address=self._own_address(),
        )  # fmt: skip
        answer = await self._client.call(address, request, ASK_SECONDS)
        if _knows_no_epochs(answer):
            return None
        if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            raise Refused(f"{address} is starting or stopping: {answer.reason}")
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(f"{address} does not say who led its log (code {answer.code}): {answer.reason}")
        told = BrokerEpochs.decode(bytes(answer.body))
        is_trusted = self.trust.is_trusted(request, answer, told, address)
        return Answered(address, self._believable(told, address), is_trusted)

    async def ask_trusted(self, address: str) -> Answered | None:
        """The same. Raises Refused as well if it knows of epochs and is not trusted."""
        answer = await self.ask(address)
        if answer is not None and not answer.is_trusted:
            raise Refused(why_not_trusted(answer))
        return answer

    def _believable(self, told: BrokerEpochs, address: str) -> BrokerEpochs:
        """Check an answer before it is written down: it stays. Raises Refused."""
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

    async def id_instead_of_taken(self) -> int | None:
        """Return a free id for this slave if a trusted broker of this name has its own; else None.

        Ids are given away when masters stand down, so a slave with a new disk may find the id of its settings taken.
        """
        own = self._leading.config.broker_id
        holder = (await self.registered()).get(own)
        if holder is None or holder == self._own_address():
            return None
        try:
            answer = await self._ask_known(holder)
        except PyroMQError:
            return None
        if answer is None or answer.told.broker_id != own or answer.told.member == self._leading.known.member:
            return None
        return await self.free_id("")

    async def free_id(self, master: str) -> int:
        """A number for us as a slave of the broker at this address, whose own is free."""
        besides = {self._own_address(), master}
        taken = {number for number, address in (await self.registered()).items() if address not in besides}
        return free_id(taken | {one.broker_id for one in self._leading.known.members if one.address not in besides})


def why_not_trusted(answer: Answered) -> str:
    return (
        f"{answer.address} calls itself the broker {answer.told.name} with id {answer.told.broker_id} and epoch "
        f"{answer.told.newest}, and has not proved the group secret: if it is a broker of this name, {HOW}"
    )


def _knows_no_epochs(answer: Command) -> bool:
    """RocketMQ before 5.0, or without a controller. Anything else may be another answer the next time."""
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return True
    return answer.code == ResponseCode.SYSTEM_ERROR and NO_CONTROLLER in (answer.reason or "")


async def _all(timeout_s: float, work: Iterable[Coroutine[Any, Any, object]]) -> list[object]:
    """Return the results of several questions; errors and timeouts are no answers."""
    results = await within(timeout_s, work)
    for one in results:
        if isinstance(one, Exception) and not isinstance(one, PyroMQError):  # an address that is none, say
            log.error("another broker of this name cannot be asked: %s", one)
    return results
