"""The broker's copies, or the broker as a copy: what its role asks for, run beside everything else.

A master listens for slaves, and what they report moves its promise. A slave takes the log of the master of its name:
from the address in its settings, or from the one that name servers tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from pyromq.clock import Clock
from pyromq.config import BrokerConfig
from pyromq.net.address import shown_address
from pyromq.replication.followers import Followers
from pyromq.replication.primary import Primary
from pyromq.replication.replica import Replica
from pyromq.replication.store_log import StoreLog
from pyromq.replication.stream import StreamTimes
from pyromq.store.message_store import MessageStore

log = logging.getLogger("pyromq.broker")


class Replicating:
    """Made when the store is open; the role is that of the settings."""

    def __init__(self, config: BrokerConfig, store: MessageStore, clock: Clock) -> None:
        self._config = config
        self._store = store
        settings = config.replication
        times = StreamTimes(settings.heartbeat_ms, settings.silence_ms)
        self.primary: Primary | None = None
        self.replica: Replica | None = None
        #: Told whenever a slave comes, goes or reports.
        self.slaves_changed: Callable[[Followers], None] = lambda followers: None
        if config.is_slave:
            self.replica = Replica(StoreLog(store), clock, times=times)
            self.replica.follow(settings.primary)
        else:
            self.primary = Primary(
                StoreLog(store), clock, lambda followers: self.slaves_changed(followers), times=times,
                batch_bytes=settings.batch_bytes, whole_log=settings.whole_log,
            )  # fmt: skip

    @property
    def address(self) -> str:
        """Where slaves connect; of a slave, where they would if it led."""
        host = self._config.replication.advertise_host or self._config.client_host
        return shown_address(host, self.primary.port if self.primary is not None else self._port(0))

    def _port(self, client_port: int) -> int:
        config = self._config
        return config.replication.listen_port or (config.listen_port and config.listen_port + 1) or client_port

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Replicating]:
        """Raises ConfigError when the replication port cannot be had."""
        if self.replica is not None:
            async with self._following(self.replica):
                yield self
        else:
            assert self.primary is not None
            self._store.marks.readable.listen(lambda _: self._log_grew())
            # A port that nobody asked for must not keep the broker from starting.
            by_chance = not self._config.replication.listen_port
            async with self.primary.serving(self._config.listen_host, self._port(0), or_any=by_chance):
                yield self

    def _log_grew(self) -> None:
        if self.primary is not None:
            self.primary.log_grew()

    @contextlib.asynccontextmanager
    async def _following(self, replica: Replica) -> AsyncIterator[None]:
        self._store.follow()
        self._store.marks.synced.listen(lambda _: replica.copy_became_safer())
        task = asyncio.get_running_loop().create_task(replica.run(), name="copy the master's log")
        task.add_done_callback(self._ended)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("the copy of the master's log stopped", exc_info=error)
            self._store.fence(error)

    def master_is_at(self, ha_address: str) -> None:
        """What a name server said. The settings know better."""
        if self.replica is not None and self._config.replication.primary is None:
            self.replica.follow(ha_address)

    @property
    def seeks_master(self) -> bool:
        """A slave that copies nobody's log now: its master may be somewhere else."""
        return self.replica is not None and not self.replica.state.connected
