"""A broker from its first start to its last stop, whatever it becomes in between.

    async with BrokerLife(config).running() as life:
        life.broker                     # as it is now
        await life.wait_failed()        # returns only by raising what stopped it

When the broker's role changes, or its log has to be cut or replaced, it is stopped cleanly and started again in the
same process, on the same ports: everything that depends on the role is made again from the disk, and there is no state
between two roles. If the disk is full, the restart waits for room.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import logging
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from pyromq.broker.broker import Broker
from pyromq.broker.failover.role_change import Change
from pyromq.clock import Clock, SystemClock
from pyromq.config import BrokerConfig
from pyromq.errors import ConfigError, DiskFull
from pyromq.files.disk import OsDisk
from pyromq.metrics import Telemetry
from pyromq.store.paths import StorePaths
from pyromq.store.recovery.quarantine import put_log_aside

log = logging.getLogger("pyromq.broker")

#: The ports were ours a moment ago: the system may need one to notice.
PORT_ATTEMPTS, PORT_SECONDS = 20, 0.25
#: The interval of attempts while an operator has to make room on the disk.
ROOM_SECONDS = 1.0
FULL = (errno.ENOSPC, errno.EDQUOT)


class BrokerLife:
    """The one owner of the loop in which a broker is started, stopped and started again."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        telemetry: Telemetry | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._config = config
        self._clock: Clock = clock or SystemClock()
        self._telemetry = telemetry or Telemetry()
        self._rng = rng
        self._broker: Broker | None = None
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._waits_for_room = False
        #: The number of restarts.
        self.changes = 0

    @property
    def broker(self) -> Broker:
        """As it is now; while it changes, as it was."""
        assert self._broker is not None, "it has not been started"
        return self._broker

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[BrokerLife]:
        """Start, serve until the block ends, stop. Raises what keeps a broker from starting or from going on."""
        served = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._live(served), name="the broker's life")
        try:
            await self._first(served)
            yield self
        finally:
            self._stop.set()
            try:
                await asyncio.wait([self._task])
            finally:
                self._task.cancel()  # nothing happens to one that is done
            failure = None if self._task.cancelled() else self._task.exception()
        if failure is not None:
            raise failure

    async def _first(self, served: asyncio.Event) -> None:
        """Until it serves, or has ended before."""
        assert self._task is not None
        waiting = asyncio.ensure_future(served.wait())
        try:
            await asyncio.wait([waiting, self._task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._task.done():
            await self._task

    async def wait_failed(self) -> None:
        """Wait until it can no longer go on, and raise why."""
        assert self._task is not None
        await asyncio.wait([self._task])
        await self._task

    # --- one life after the other ------------------------------------------------------------------------------------

    async def _live(self, served: asyncio.Event) -> None:
        change: Change | None = None
        while not self._stop.is_set():
            change = await self._once(change, served)
            if change is None:
                return
            self.changes += 1
            log.warning("restarting in place: %s", change.why)
            gc.unfreeze()  # the frozen objects of this broker do not live to the end of the process
            await self._prepared(change)

    async def _prepared(self, change: Change) -> None:
        """Before the next start. Raises StoreError, OSError."""
        while not self._stop.is_set():
            try:
                await asyncio.to_thread(self._prepare, change)
                return
            except OSError as error:
                if not _is_full(error):
                    raise
                await self._wait_for_room(error)

    async def _wait_for_room(self, problem: Exception) -> None:
        """Said once, however long it lasts. A stop is not kept waiting."""
        if not self._waits_for_room:
            log.error("the disk is full: %s. The broker starts again as soon as there is room", problem)
        self._waits_for_room = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ROOM_SECONDS):
                await self._stop.wait()

    async def _once(self, after: Change | None, served: asyncio.Event) -> Change | None:
        """Run from a start to a stop. Returns the change to make before the next start; None if there is none."""
        port_attempts = PORT_ATTEMPTS
        while not self._stop.is_set():
            broker = Broker(self._config, clock=self._clock, telemetry=self._telemetry, rng=self._rng, after=after)
            try:
                async with broker.running():
                    self._broker = broker
                    self._keep_port(broker)
                    served.set()
                    self._waits_for_room = False
                    return await self._until_over(broker)
            except (DiskFull, OSError) as error:
                if not served.is_set() or self._broker is broker or not _is_full(error):
                    raise
                await self._wait_for_room(error)
            except ConfigError as error:
                port_attempts -= 1
                if not served.is_set() or broker.server.port != 0 or not port_attempts:
                    raise
                log.warning("the broker does not start again yet: %s", error)
                await asyncio.sleep(PORT_SECONDS)
        return None

    def _keep_port(self, broker: Broker) -> None:
        """One that was free to choose keeps what it has chosen."""
        self._config = replace(self._config, listen_port=broker.server.port)

    async def _until_over(self, broker: Broker) -> Change | None:
        assert broker.changed is not None
        stopping = asyncio.ensure_future(self._stop.wait())
        failing = asyncio.ensure_future(broker.wait_failed())
        signs: list[asyncio.Future[Any]] = [stopping, failing, broker.changed]
        try:
            await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            failing.cancel()
            ends = await asyncio.gather(stopping, failing, return_exceptions=True)
        if isinstance(ends[1], Exception):
            raise ends[1]
        return broker.changed.result() if broker.changed.done() and not self._stop.is_set() else None

    # --- between two lives -------------------------------------------------------------------------------------------

    def _prepare(self, change: Change) -> None:
        """Quarantine the log of the closed store, or record where it is cut. Raises StoreError, OSError."""
        store = self._config.store
        paths, end = StorePaths.of(store), self.broker.store.positions().log_end
        disk = OsDisk(paths.staging, {paths.commit_log: paths.log_staging})
        if change.begin_anew:
            put_log_aside(disk, paths, self._clock, end=end, why=change.why)
        elif change.cut_at is not None:
            epochs = self.broker.copies.epochs if self.broker.copies is not None else ()
            note = {
                "why": change.why, "first": change.cut_at, "end": end, "at_ms": self._clock.now_ms(),
                "epochs": [{"epoch": one.number, "start": one.start, "by": one.by} for one in epochs],
            }  # fmt: skip
            place = paths.cut_off / f"{change.cut_at:020d}-{end:020d}.json"
            disk.replace_bytes(place, json.dumps(note, indent=2).encode() + b"\n")


def _is_full(error: Exception) -> bool:
    return isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in FULL)
