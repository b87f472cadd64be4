"""A running name server: the parts put together, started and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from pyromq.clock import Clock, SystemClock
from pyromq.config import NameServerConfig
from pyromq.errors import StoreError
from pyromq.files.disk import Disk
from pyromq.nameserver.kv_config import KvConfig
from pyromq.nameserver.processors import Processors
from pyromq.nameserver.route_table import RouteTable
from pyromq.net.server import Server
from pyromq.net.service import Service

log = logging.getLogger("pyromq.nameserver")


class NameServer:
    """One name server. It knows of no other: brokers register with each, clients ask any."""

    def __init__(self, config: NameServerConfig, clock: Clock | None = None, disk: Disk | None = None) -> None:
        self.config = config
        self.table = RouteTable(
            expiry_ms=config.broker_expiry_ms,
            delete_topics_with_registration=config.delete_topics_with_registration,
        )
        self.kv = KvConfig(config.kv_config_path, disk)
        self._processors = Processors(config, self.table, self.kv, clock or SystemClock())
        self._server = Server(
            Service(self._processors.handlers()).handle, config.limits, on_disconnect=self._processors.disconnected
        )
        self._scanning: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def address(self) -> str:
        """Return the listening address for brokers and clients."""
        host = self.config.listen_host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    async def start(self) -> None:
        """Raises CorruptFile for key-value settings that cannot be read, ConfigError for a port that is taken."""
        self.kv.load()
        await self._server.start(self.config.listen_host, self.config.listen_port)
        self._scanning = asyncio.get_running_loop().create_task(self._scan())
        log.info("name server listens on %s", self.address)

    async def stop(self) -> None:
        if self._scanning is not None:
            self._scanning.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._scanning
            self._scanning = None
        await self._server.stop(self.config.limits.stop_grace_ms / 1000)
        try:
            await self.kv.save()
        except StoreError as error:
            log.error("%s", error)

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(self.config.scan_interval_ms / 1000)
            self._processors.expire()
