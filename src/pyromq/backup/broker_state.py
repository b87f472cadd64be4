"""The parts of a running broker that a backup needs besides log bytes: the log's ends and the tables of `config/`.

By the requests that tools and slaves use, so that every broker of RocketMQ's answers them too. What they answer becomes
the files that a broker of either kind reads at its start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from pyromq.backup.tables import NO_WRITERS
from pyromq.errors import BackupError, PyroMQError
from pyromq.model import lenient_json
from pyromq.model.json_form import JsonObject, an_object
from pyromq.net.address import parse_address, shown_address
from pyromq.store.tables.log_history import FIELD
from pyromq.wire.bodies.routes import decode_kv_table
from pyromq.wire.command import Command
from pyromq.wire.fastjson import loads
from pyromq.wire.requests import admin as ask
from pyromq.wire.requests.client import Request

#: Asks `host:port`, and raises a PyroMQError unless the answer is a success.
Ask = Callable[[str, Request], Awaitable[Command]]


@dataclass(frozen=True, slots=True)
class Table:
    """A file of `config/`, and the request for its content."""

    name: str
    request: Request
    #: These fields; none: all.
    fields: tuple[str, ...]
    #: A broker that cannot give it has none.
    may_lack: bool = False


TABLES = (
    Table("topics.json", ask.GetAllTopics(), ("dataVersion", "topicConfigTable")),
    Table("subscriptionGroup.json", ask.GetAllGroups(), ("dataVersion", "subscriptionGroupTable", "forbiddenTable")),
    Table("consumerOffset.json", ask.GetAllOffsets(), ("dataVersion", "offsetTable", FIELD)),
    Table("delayOffset.json", ask.GetAllDelayOffsets(), ("dataVersion", "offsetTable", FIELD), may_lack=True),
    Table("messageRequestMode.json", ask.GetRequestModes(), (), may_lack=True),
)


@dataclass(frozen=True, slots=True)
class LogState:
    """The log of a running broker, when it was asked."""

    #: Behind the last byte that this backup may have.
    end: int
    start: int
    segment_bytes: int
    #: Its replication port.
    ha_address: str
    name: str
    #: It is one of ours, and knows what a backup is.
    ours: bool


class RunningBroker:
    """One broker, by its address for clients."""

    def __init__(self, ask: Ask, address: str, ha_address: str | None = None) -> None:
        self._ask = ask
        self.address = address
        self._ha_address = ha_address
        self._settings: Mapping[str, str] | None = None

    async def log_state(self) -> LogState:
        """Raises CallFailed, BackupError when it is no broker that a log can be copied from."""
        if self._settings is None:
            self._settings = _settings((await self._ask(self.address, ask.GetBrokerConfig())).body)
        settings, figures = self._settings, await self._figures()
        if figures.get("pyromq.role", settings.get("brokerRole")) == "SLAVE":
            raise BackupError(
                f"the broker at {self.address} is a slave: back up its master, or its directory (--from-store)"
            )
        return LogState(
            end=may_be_saved_to(figures),
            start=max(_number(figures, "commitLogMinOffset"), 0),
            segment_bytes=_number(settings, "mappedFileSizeCommitLog"),
            ha_address=self._ha_address or ha_address(self.address, settings, figures),
            name=settings.get("brokerName", self.address),
            ours="pyromqVersion" in figures,
        )

    async def end(self) -> int:
        """Of the log, as far as it may be saved now. Raises CallFailed."""
        return may_be_saved_to(await self._figures())

    async def _figures(self) -> Mapping[str, str]:
        return decode_kv_table((await self._ask(self.address, ask.GetRuntimeInfo())).body)

    async def small_files(self) -> dict[str, bytes]:
        """The tables as files, by name. Raises CallFailed, BackupError."""
        found: dict[str, bytes] = {}
        for table in TABLES:
            document = await self._document(table)
            if document:
                found[f"config/{table.name}"] = lenient_json.canonical(document)
        if "pyromqVersion" in await self._figures():
            found["config/writers.json"] = lenient_json.canonical(NO_WRITERS)
        return found

    async def _document(self, table: Table) -> JsonObject:
        try:
            answer = await self._ask(self.address, table.request)
            document = an_object(loads(bytes(answer.body)))
        except PyroMQError:
            if table.may_lack:
                return {}
            raise
        return {field: document[field] for field in table.fields or document if field in document}


def may_be_saved_to(figures: Mapping[str, str]) -> int:
    """Return the log's end for a backup: the replicated end, if messages are acknowledged only when replicated.

    Bytes that only the master has may be cut when another one leads. With no slave in sync they are all there is.
    """
    end = _number(figures, "pyromq.logEnd" if "pyromq.logEnd" in figures else "commitLogMaxOffset")
    waits = int(figures.get("pyromq.copies", "1")) > 1 and int(figures.get("pyromq.slavesInSync", "0")) > 0
    return min(end, _number(figures, "pyromq.replicatedTo")) if waits else end


def ha_address(address: str, settings: Mapping[str, str], figures: Mapping[str, str]) -> str:
    """Return the replication address of a broker: the one it reports, or the port after its own."""
    if figures.get("pyromq.haAddress"):
        return figures["pyromq.haAddress"]
    host, port = parse_address(address)
    told = settings.get("haListenPort", "")
    return shown_address(host, int(told) if told.isdigit() and int(told) else port + 1)


def _settings(body: bytes | memoryview) -> dict[str, str]:
    lines = (line.partition("=") for line in bytes(body).decode(errors="replace").splitlines())
    return {name.strip(): value.strip() for name, equals, value in lines if equals}


def _number(told: Mapping[str, str], name: str) -> int:
    value = told.get(name, "")
    if not value.lstrip("-").isdigit():
        raise BackupError(f"the broker does not tell its {name} ({value!r}): its log cannot be copied")
    return int(value)
