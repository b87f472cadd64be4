"""A hostile broker: it has our name and everything that a stranger can know, but not the group secret."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from broker.support.leading_scene import Scene
from pyromq.broker.failover.members import Others
from pyromq.config import LimitsConfig
from pyromq.model.data_version import DataVersion
from pyromq.net.peer import Peer
from pyromq.net.server import Server
from pyromq.records.checksum import positive_crc32
from pyromq.wire.bodies.epochs import BrokerEpochs, EpochEntry
from pyromq.wire.bodies.routes import TopicConfigs, encode_registration
from pyromq.wire.codes import RequestCode, ResponseCode
from pyromq.wire.command import Command
from pyromq.wire.requests.nameserver import RegisterBroker
from pyromq.wire.responses import Response


class Stranger:
    """Answers every broker with a later epoch, and listens at a replication port. It notes who comes."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._server = Server(self._answer, LimitsConfig())
        self._log: asyncio.Server | None = None
        #: Its description of itself; `None` if it knows nothing of epochs, as a broker of Apache's.
        self.told: BrokerEpochs | None = None
        #: Its answer over the replication port.
        self.stream = b""
        self.questions: list[Command] = []
        self.copies = 0
        #: Answers instead, if set.
        self.answer: Callable[[Command], Response] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.port}"

    @property
    def ha_address(self) -> str:
        assert self._log is not None
        return f"127.0.0.1:{self._log.sockets[0].getsockname()[1]}"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Stranger]:
        await self._server.start("127.0.0.1", 0)
        self._log = await asyncio.start_server(self._copy, "127.0.0.1", 0)
        try:
            yield self
        finally:
            self._log.close()
            await self._server.stop()

    def _answer(self, command: Command, peer: Peer) -> Response:
        if command.code != RequestCode.GET_BROKER_EPOCH_CACHE:
            return Response()
        self.questions.append(command)
        if self.answer is not None:
            return self.answer(command)
        if self.told is None:
            return Response(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, reason="unknown")
        return Response(body=self.told.encode(), more={"proof": "0" * 64})

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.copies += 1
        with contextlib.suppress(OSError):
            await reader.read(8)
            writer.write(self.stream)
            await reader.read()
        writer.close()

    def claims_to_lead(self, family: BrokerEpochs, *, broker_id: int = 0) -> None:
        """It knows all epochs of the family, and was promoted after them."""
        last = family.entries[-1]
        later = EpochEntry(family.newest + 1, last.start, family.end + 1000, "stranger.1")
        self.told = replace(
            family, broker_id=broker_id, number=family.newest + 1, entries=(*family.entries, later),
            end=family.end + 1000, member="stranger", role="ASYNC_MASTER", address=self.address,
            ha_address=self.ha_address,
        )  # fmt: skip

    async def register(self, broker_id: int, state_version: int = 1_000, address: str | None = None) -> None:
        """Name servers believe everybody."""
        body = encode_registration(TopicConfigs(DataVersion(state_version=state_version), ()))
        request = RegisterBroker(
            broker_name="pair", address=address or self.address, cluster="DefaultCluster",
            ha_address=self.ha_address, broker_id=broker_id, timeout_ms=60_000, acting_master=False,
            body_crc=positive_crc32(body), body=body,
        )  # fmt: skip
        answer = await self._scene.client.call(self._scene.name_server, request)
        assert answer.code == ResponseCode.SUCCESS, answer.reason


async def surveyed(others: Others, times: int = 3) -> None:
    """Until a broker has looked for others of its name so often."""
    done = asyncio.Semaphore(0)
    survey = others.survey

    async def counted() -> list[object]:
        found = await survey()
        done.release()
        return list(found)

    others.survey = counted  # type: ignore[method-assign,assignment]
    try:
        for _ in range(times):
            await done.acquire()
    finally:
        others.survey = survey  # type: ignore[method-assign]
