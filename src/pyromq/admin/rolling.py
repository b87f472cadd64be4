"""Restarts the brokers of a cluster one after the other, while each name keeps serving.

For each name the slaves restart first, each until it is in sync again. Then the master hands over to one of them and
restarts as a slave. It stops at the first problem and can be run again. A master without slaves restarts without a
hand-over: its messages are unavailable until then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from pyromq.admin.brokers import Brokers, BrokerStatus
from pyromq.admin.leading import Leading, until
from pyromq.errors import NotFound, NotNow, NotSupported

#: Makes this broker start again; returns at once or when it has.
Restart = Callable[[BrokerStatus], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Team:
    """The brokers of one name."""

    name: str
    master: BrokerStatus
    #: By their number.
    slaves: tuple[BrokerStatus, ...]

    @property
    def brokers(self) -> int:
        return 1 + len(self.slaves)


@dataclass(frozen=True, slots=True)
class Step:
    """One broker's turn."""

    team: Team
    broker: BrokerStatus
    #: The slave that leads from then on, when it is the master's turn.
    successor: BrokerStatus | None = None

    def __str__(self) -> str:
        if self.broker.broker_id:
            return f"{self.team.name}: restart slave {self.broker.broker_id} at {self.broker.address}"
        if self.successor is None:
            return f"{self.team.name}: restart the master at {self.broker.address}"
        return f"{self.team.name}: hand over from {self.broker.address} to {self.successor.address}"


# --- deciding --------------------------------------------------------------------------------------------------------


def teams_of(
    statuses: Sequence[BrokerStatus], *, cluster: str | None = None, broker: str | None = None
) -> tuple[Team, ...]:
    """All that are to be restarted, if all of them are well. Raises NotFound, NotNow, NotSupported."""
    chosen = [one for one in statuses if cluster in (None, one.cluster) and broker in (None, one.name)]
    if not chosen:
        known = sorted({f"{one.cluster}/{one.name}" for one in statuses})
        raise NotFound(f"there is no such broker: a name server knows {', '.join(known) or 'none at all'}")
    names = dict.fromkeys((one.cluster, one.name) for one in chosen)
    return tuple(_team(name, [one for one in chosen if (one.cluster, one.name) == (of, name)]) for of, name in names)


def _team(name: str, members: Sequence[BrokerStatus]) -> Team:
    for one in members:
        if one.problem is not None:
            raise NotNow(
                f"{name!r}: {one.address} does not answer ({one.problem}): nothing is restarted before it does"
            )
        if one.copying is None:
            raise NotSupported(f"{name!r}: {one.address} is no PyroMQ, and does not say when its copies are level")
    master = next((one for one in members if one.broker_id == 0), None)
    if master is None:
        raise NotNow(f"{name!r} has no master: `pyromq broker promote {name}` makes one of a slave")
    team = Team(name, master, tuple(one for one in members if one.broker_id != 0))
    for slave in team.slaves:
        if not is_in_sync(master, slave.address):
            why = slave.copying.problem if slave.copying else ""
            raise NotNow(
                f"{name!r}: slave {slave.broker_id} at {slave.address} is not in sync with its master"
                f"{f' ({why})' if why else ''}: nothing is restarted before it is"
            )
    return team


def is_in_sync(master: BrokerStatus, address: str) -> bool:
    return master.copying is not None and any(one.address == address for one in master.copying.in_sync)


def steps_of(team: Team) -> Iterable[Step]:
    """The slave with the smallest number has been level for longest when the master hands over: it goes first."""
    for slave in team.slaves:
        yield Step(team, slave)
    yield Step(team, team.master, team.slaves[0] if team.slaves else None)


# --- doing -----------------------------------------------------------------------------------------------------------


class Rolling:
    """Executes steps. `restart` gets the broker to restart; `None` restarts it within its process, by a request."""

    def __init__(
        self, brokers: Brokers, leading: Leading, *, restart: Restart | None = None, timeout_s: float = 300.0
    ) -> None:
        self._brokers = brokers
        self._leading = leading
        self._restart_by_hand = restart
        self._timeout_s = timeout_s

    async def take(self, step: Step) -> None:
        """Returns when the broker is back and has everything. Raises NotNow, CallFailed, ServiceError."""
        if step.successor is not None:
            await self._hand_over(step.team, step.broker, step.successor)
        else:
            await self._restart(step.team.name, step.broker)

    async def _hand_over(self, team: Team, master: BrokerStatus, successor: BrokerStatus) -> None:
        """The master starts again by becoming a slave; one with new code needs a new process then."""
        name = team.name
        await self._leading.hand_over(master.address, successor.address, reason="cluster roll")
        await self._leading.until_leads(name, successor.address, self._timeout_s)
        slave = await self._until_level(name, master.address)
        if self._restart_by_hand is not None:
            await self._restart(name, slave)
        for other in team.slaves:  # they have found the new master
            if other is not successor:
                await self._until_level(name, other.address)

    async def _restart(self, name: str, broker: BrokerStatus) -> None:
        if self._restart_by_hand is None:
            await self._leading.restart(broker.address, "cluster roll")
        else:
            await self._restart_by_hand(broker)
        back = await self._until_back(name, broker)
        if back.broker_id != 0:
            await self._until_level(name, broker.address)

    async def _until_back(self, name: str, before: BrokerStatus) -> BrokerStatus:
        async def look() -> BrokerStatus | None:
            one = await self._member(name, before.address)
            return one if one is not None and one.started_ms not in (0, before.started_ms) else None

        return await until(look, self._timeout_s, f"{name!r}: {before.address} was told to restart, and is not back")

    async def _until_level(self, name: str, address: str) -> BrokerStatus:
        """Until it has what its master had when this began, and is in sync."""
        target: list[int] = []

        async def look() -> BrokerStatus | None:
            members = await self._brokers.members(name)
            master = next((one for one in members if one.broker_id == 0 and one.copying is not None), None)
            slave = next((one for one in members if one.address == address and one.copying is not None), None)
            if master is None or master.copying is None:
                return None
            target.append(master.copying.end)
            has = slave.copying.end if slave is not None and slave.copying is not None else -1
            return slave if has >= target[0] and is_in_sync(master, address) else None

        return await until(look, self._timeout_s, f"{name!r}: {address} is back, and has not caught up with its master")

    async def _member(self, name: str, address: str) -> BrokerStatus | None:
        found = (one for one in await self._brokers.members(name) if one.address == address)
        return next((one for one in found if one.problem is None), None)
