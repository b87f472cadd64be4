"""The other brokers of this name: where they are, and what they say of their logs.

Name servers know who is there. They forget, and may not answer; so whoever was heard of before is asked as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple

from pyromq.broker.leadership import Member
from pyromq.broker.leading import Leading, free_id
from pyromq.errors import CallFailed, PyroMQError
from pyromq.net.client import Client
from pyromq.wire.bodies.epochs import BrokerEpochs
from pyromq.wire.bodies.routes import MemberGroup
from pyromq.wire.codes import ResponseCode
from pyromq.wire.leading_requests import GetBrokerEpochs
from pyromq.wire.nameserver_requests import GetMemberGroup

log = logging.getLogger("pyromq.broker")

ASK_SECONDS = 1.0


class Answered(NamedTuple):
    address: str
    told: BrokerEpochs


class Others:
    """Asks them, all at once and not for long."""

    def __init__(self, leading: Leading, client: Client, own_address: Callable[[], str]) -> None:
        self._leading = leading
        self._client = client
        self._own_address = own_address

    @property
    def are_there(self) -> bool:
        """Is there anybody who may know of others?"""
        return bool(self._leading.config.name_servers or self._leading.known.members)

    async def survey(self) -> list[Answered]:
        """Whoever answers, but for ourselves; what they say of where they are is remembered."""
        addresses = {one.address for one in self._leading.known.members} | set((await self.registered()).values())
        addresses.discard(self._own_address())
        answers = await _all(ASK_SECONDS, [self._ask_known(one) for one in sorted(addresses)])
        found = [one for one in answers if isinstance(one, Answered)]
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
        if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            raise CallFailed(f"{address} is starting or stopping: {answer.reason}")
        return BrokerEpochs.decode(bytes(answer.body)) if answer.code == ResponseCode.SUCCESS else None

    async def free_id(self, master: str) -> int:
        """A number for us as a slave of the broker at this address, whose own is free."""
        besides = {self._own_address(), master}
        taken = {number for number, address in (await self.registered()).items() if address not in besides}
        return free_id(taken | {one.broker_id for one in self._leading.known.members if one.address not in besides})


async def _all(timeout_s: float, work: Iterable[Coroutine[Any, Any, object]]) -> list[object]:
    """What came of several questions; those that went wrong, or take too long, are no answers."""
    tasks = [asyncio.ensure_future(one) for one in work]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, timeout=timeout_s)
    finally:
        for task in tasks:
            task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for one in results:
        if isinstance(one, Exception) and not isinstance(one, PyroMQError):
            raise one
    return results
