"""Clusters and brokers: who is there, how they are doing, and their settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyromq.admin.copies import Copying, DiskCare, first, read_copying, read_disk_care, whole, with_names
from pyromq.admin.directory import BrokerAddress, Directory, of_each
from pyromq.errors import CallFailed, ConfigError, NotFound, ServiceError
from pyromq.wire.bodies.routes import decode_kv_table
from pyromq.wire.requests.admin import GetRuntimeInfo, UpdateBrokerConfig

_RUNTIME = re.compile(r"(\d+) days?, (\d+) hours?, (\d+) minutes?, (\d+) seconds?")


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """State of one broker. If it does not answer, `problem` says why and the figures are zero."""

    cluster: str
    name: str
    broker_id: int
    address: str
    #: Of the protocol it speaks, as RocketMQ counts.
    version: str = ""
    #: Of the broker itself, where it is PyroMQ.
    pyromq_version: str | None = None
    started_ms: int = 0
    #: Its clock when it answered, to the second.
    clock_ms: int = 0
    #: Messages per second over the last ten.
    in_per_second: float = 0.0
    out_per_second: float = 0.0
    messages_in_today: int = 0
    messages_out_today: int = 0
    #: Share of the disk that is in use, from 0 to 1.
    disk_used: float = 0.0
    log_bytes: int = 0
    #: Store time of its oldest message; 0 without messages.
    oldest_message_ms: int = 0
    #: State of its replication; `None` for Apache RocketMQ's brokers.
    copying: Copying | None = None
    #: State of its disk; `None` for Apache RocketMQ's brokers.
    disk_care: DiskCare | None = None
    #: Why expired messages stay (its clock has jumped); empty if they do not.
    retention_paused: str = ""
    #: Which other broker has its name and id at a name server, so that it is not registered; empty if none has.
    name_conflict: str = ""
    problem: str | None = None
    #: All that it says, by RocketMQ's names.
    figures: Mapping[str, str] = field(default_factory=dict)


class Brokers:
    """Brokers are named by their name, which means the master, or by their address."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def list(self) -> Sequence[BrokerAddress]:
        """Every broker that a name server knows."""
        return await self._directory.brokers()

    async def statuses(self) -> Sequence[BrokerStatus]:
        """Return the state of all brokers. Those that do not answer are included, with the reason."""
        return name_slaves(await of_each(await self._directory.brokers(), self._status_or_problem))

    async def status(self, broker: str) -> BrokerStatus:
        """Of one broker. A master with slaves tells who they are, as far as they answer."""
        every = await self._directory.brokers_or_at(broker)
        found = self._directory.among(every, broker)
        told = await self._status(found)
        if told.copying is None or not told.copying.slaves:
            return told
        others = [one for one in every if (one.cluster, one.name) == (found.cluster, found.name) and one != found]
        return name_slaves([told, *await of_each(others, self._status_or_problem)])[0]

    async def members(self, name: str) -> Sequence[BrokerStatus]:
        """All brokers of one name: the master, if there is one, and its slaves. Raises NotFound.

        Of an address: the brokers of that one's name; it alone where no name server answers.
        """
        every = await self._directory.brokers_or_at(name)
        found = self._directory.among(every, name)
        return name_slaves(await of_each([one for one in every if one.name == found.name], self._status_or_problem))

    async def _status_or_problem(self, broker: BrokerAddress) -> BrokerStatus:
        try:
            return await self._status(broker)
        except (CallFailed, ServiceError) as problem:
            return BrokerStatus(broker.cluster, broker.name, broker.broker_id, broker.address, problem=str(problem))

    async def _status(self, broker: BrokerAddress) -> BrokerStatus:
        answer = await self._directory.ask(broker.address, GetRuntimeInfo())
        return read_status(broker, decode_kv_table(answer.body))

    async def config(self, broker: str) -> dict[str, str]:
        """The broker's settings by RocketMQ's names."""
        found = await self._directory.broker(broker)
        return await self._directory.settings_of(found.address)

    async def change(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker: all of them, or none. Raises ServiceError with what it refuses."""
        for name, value in settings.items():
            if not name.strip() or any(mark in name + value for mark in "\r\n") or "=" in name:
                raise ConfigError(f"{name!r} = {value!r} cannot be a setting: it is one line of name=value", name)
        found = await self._directory.broker(broker)
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        await self._directory.ask(found.address, UpdateBrokerConfig(body=lines.encode()))
        now = await self.config(broker)
        ignored = sorted(name for name in settings if name not in now)
        if ignored:  # RocketMQ does not say so
            raise NotFound(f"the broker {found.name!r} has no setting {', '.join(ignored)}: it took no notice")


def name_slaves(statuses: Sequence[BrokerStatus]) -> Sequence[BrokerStatus]:
    """The same, where masters know which brokers their slaves are: each end of a connection knows the other."""
    return [_with_names(one, statuses) for one in statuses]


def _with_names(one: BrokerStatus, statuses: Sequence[BrokerStatus]) -> BrokerStatus:
    if one.copying is None or not one.copying.slaves:
        return one
    slaves = {
        other.copying.connection: (other.broker_id, other.address)
        for other in statuses
        if other.copying is not None and (other.cluster, other.name) == (one.cluster, one.name)
    }
    return replace(one, copying=with_names(one.copying, slaves))


def read_status(broker: BrokerAddress, figures: Mapping[str, str]) -> BrokerStatus:
    """Convert RocketMQ's textual figures. Missing and malformed ones are zero."""
    started_ms = whole(figures, "bootTimestamp")
    running_ms = _running_ms(figures.get("runtime", ""))
    return BrokerStatus(
        broker.cluster,
        broker.name,
        broker.broker_id,
        broker.address,
        version=figures.get("brokerVersionDesc", "").removeprefix("V").replace("_", "."),
        pyromq_version=figures.get("pyromqVersion"),
        started_ms=started_ms,
        clock_ms=started_ms + running_ms if started_ms and running_ms is not None else 0,
        in_per_second=first(figures, "putTps"),
        out_per_second=first(figures, "getTransferredTps") or first(figures, "getTransferedTps"),
        messages_in_today=_since(figures, "msgPutTotal"),
        messages_out_today=_since(figures, "msgGetTotal"),
        disk_used=first(figures, "commitLogDiskRatio"),
        log_bytes=whole(figures, "commitLogMaxOffset") - whole(figures, "commitLogMinOffset"),
        oldest_message_ms=max(whole(figures, "earliestMessageTimeStamp"), 0),
        copying=read_copying(figures),
        disk_care=read_disk_care(figures),
        retention_paused=figures.get("pyromq.retentionPaused", ""),
        name_conflict=figures.get("pyromq.nameConflict", ""),
        figures=dict(sorted(figures.items())),
    )


def _since(figures: Mapping[str, str], name: str) -> int:
    return max(whole(figures, f"{name}TodayNow") - whole(figures, f"{name}TodayMorning"), 0)


def _running_ms(written: str) -> int | None:
    found = _RUNTIME.search(written)
    if found is None:
        return None
    days, hours, minutes, seconds = map(int, found.groups())
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
