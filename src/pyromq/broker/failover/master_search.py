"""Lets a slave follow the master that name servers name, after checking it.

A name server repeats what any peer registers. So the address it names is asked first, and followed only if the broker
there is trusted (see `trust`) and leads with no older epoch; a copy that runs is not interrupted before that is known.
The replication address is the one that the trusted broker tells. A broker that knows nothing of epochs (Apache
RocketMQ's) cannot be compared: a slave takes it for its master if it copies no log now and its own log has no epochs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import NamedTuple

from pyromq.broker.failover.members import Answered, Others
from pyromq.broker.failover.replication import Replicating
from pyromq.broker.failover.role import Leading
from pyromq.errors import PyroMQError

#: The interval at which the named broker is asked again while this one copies no log.
AGAIN_SECONDS = 0.2


class Named(NamedTuple):
    """The master according to a name server: its broker address and its replication address."""

    address: str | None
    ha_address: str


class MasterSearch:
    """Of one slave."""

    def __init__(self, leading: Leading, others: Others, copies: Replicating, found: Callable[[str], None]) -> None:
        """`found` receives the broker address of a master that is followed from now on."""
        self._leading = leading
        self._others = others
        self._copies = copies
        self._found = found
        self._named: Named | None = None
        self._news = asyncio.Event()

    def named(self, address: str | None, ha_address: str) -> None:
        """A name server names the master. The first one is followed at once: there is no other to lose.

        If the settings name the replication address, only the broker address on the same machine is news.
        """
        told = Named(address, ha_address)
        if self._copies.follows_settings:
            if address is not None and self._copies.is_configured_master(address):
                self._found(address)
        elif self._copies.follows is None or address is None:
            self._follow(told)
        elif self._copies.follows != (ha_address, address):
            self._named = told
            self._news.set()

    def _follow(self, named: Named) -> None:
        self._copies.master_is_at(named.ha_address, named.address)
        if named.address is not None:
            self._found(named.address)

    async def run(self) -> None:
        """Until cancelled."""
        is_settled = True
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if is_settled else AGAIN_SECONDS):
                    await self._news.wait()
            self._news.clear()
            is_settled = self._named is None or await self._is_settled(self._named)

    async def _is_settled(self, named: Named) -> bool:
        """Ask the named broker; `False` if it is to be asked again, for this one copies no log and it may yet lead."""
        assert named.address is not None
        try:
            answer = await self._others.ask(named.address)
        except PyroMQError:
            return not self._copies.seeks_master
        if answer is None:
            if self._copies.seeks_master and not self._leading.epochs:
                self._follow(named)
            return True
        if not answer.is_trusted:
            self._others.warn_of_stranger(answer)
            return True
        if not self._leads(answer):
            return not self._copies.seeks_master
        self._follow(Named(named.address, answer.told.ha_address or named.ha_address))
        return True

    def _leads(self, answer: Answered) -> bool:
        config, told = self._leading.config, answer.told
        is_master = (told.cluster, told.name, told.broker_id) == (config.cluster, config.name, 0)
        return is_master and told.newest >= self._leading.number
