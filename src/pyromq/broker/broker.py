"""The broker's lifecycle: its start, its background tasks, its stop.

    async with Broker(config).running() as broker:
        await broker.wait_failed()      # returns only by raising what stopped the broker

It starts in this order: lock and recover the store, find out who leads, read the tables and clamp them to the log,
write the new epoch if it leads, listen, register with the name servers. It stops in the other: say goodbye to the name
servers, answer the pending requests, write the tables, close the store. Its role does not change while it runs:
`changed` holds the change to make before the next start, and `supervisor` carries it out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator

from pyromq.auth.group_secret import load_group_secret
from pyromq.broker.failover.fencing import Fencing
from pyromq.broker.failover.leadership import LeadershipFile
from pyromq.broker.failover.members import Others
from pyromq.broker.failover.metadata_sync import TakenProgress, forget_own_progress
from pyromq.broker.failover.replication import Replicating
from pyromq.broker.failover.role import Leading
from pyromq.broker.failover.role_change import Change
from pyromq.broker.failover.role_facts import Role
from pyromq.broker.failover.trust import Trust
from pyromq.broker.settings import Settings
from pyromq.broker.state.clamping import LogEnds, clamp_tables
from pyromq.broker.state.tables import Tables
from pyromq.broker.wiring import Parts, new_intake
from pyromq.clock import Clock, SystemClock
from pyromq.config import BrokerConfig
from pyromq.config.static_roles import unsafe_acknowledgements
from pyromq.errors import NotNow, StoreFenced
from pyromq.files.platform import what_to_do
from pyromq.metrics import Telemetry
from pyromq.net.address import VIP_PORTS_BELOW, pack_address, shown_address
from pyromq.net.client import Client
from pyromq.net.peer import Peer
from pyromq.net.server import Server
from pyromq.net.service import Answer, Service
from pyromq.replication.log_matching import LogExtent
from pyromq.store.message_store import MessageStore
from pyromq.wire.codes import RequestCode
from pyromq.wire.command import Command
from pyromq.wire.responses import refusal

log = logging.getLogger("pyromq.broker")

#: The interval between searches for silent clients.
EXPIRY_SECONDS = 10.0
#: A position that no log reaches: waiting for it ends only when the store fails.
NEVER = 1 << 62
#: Sends look at nothing that is stored, and the end of a transaction at one message only: thousands in a row must not
#: fill queues message by message.
LOOK_BY_THEMSELVES = frozenset((
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.END_TRANSACTION,
))  # fmt: skip


class Broker:
    """One broker in this process."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        telemetry: Telemetry | None = None,
        rng: random.Random | None = None,
        after: Change | None = None,
    ) -> None:
        """`config` comes from the settings; later decisions are known once the store is open.

        `after`: the change that this start is a part of; None: it is the first.
        """
        self._given = self.config = config
        self._after = after
        #: Completes with the change to make before this broker can continue; it has to be stopped for that.
        self.changed: asyncio.Future[Change] | None = None
        self.clock: Clock = clock or SystemClock()
        self.telemetry = telemetry or Telemetry()
        self.store = MessageStore(config.store, clock=self.clock, telemetry=self.telemetry)
        self.server = Server(self._handle, config.limits, on_disconnect=self._disconnected, clock=self.clock)
        self.server.new_intake = new_intake()
        #: None until the broker serves.
        self.parts: Parts | None = None
        self.copies: Replicating | None = None
        self._rng = rng or random.Random()  # noqa: S311  it chooses queues
        self._service: Service | None = None

    @property
    def address(self) -> str:
        """The address at which clients reach this broker."""
        return shown_address(self.config.client_host, self._client_port)

    @property
    def _client_port(self) -> int:
        return self.config.advertise_port or self.server.port

    # --- life --------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Broker]:
        """Start, serve until the block ends, stop. Raises StoreLocked, CorruptStore, ConfigError, StoreFenced."""
        self.changed = asyncio.get_running_loop().create_future()
        cut_at = self._after.cut_at if self._after is not None else None
        async with self._open_store(cut_at), _open_client() as client:
            role = await self._find_role(client)
            files = self.store.table_files()
            settings = Settings(self.config, files.disk, files.directory, self.clock)
            settings.load()
            tables = Tables(self.config, self.store, self.clock)
            taken = TakenProgress(files.disk, files.directory)
            clamp_tables(LogEnds.of(self.store), (taken, *tables.log_tables), files.write)
            if role.has_stood_down:
                forget_own_progress(tables.offsets, taken)
            elif not self.config.is_slave:
                log = self.store.positions()
                files.write(lambda: role.leading.begin(log.log_start, log.log_end))
            copies = Replicating(self.config, self.store, self.clock, role.leading, role.others, self._ask_for)
            try:
                async with copies.running():
                    self.copies = copies
                    async with self._serving(settings, tables, copies, role):
                        yield self
            finally:
                await tables.save()
            self._record_clean_end(role.leading)

    def _open_store(self, cut_at: int | None) -> contextlib.AbstractAsyncContextManager[MessageStore]:
        """Keep messages that no replica had hidden after a start: `AckMark` makes them visible. Raises CorruptFile."""
        replication = self._given.replication
        role = self._leadership_file().load().role or self._given.role
        holds_back = replication.hides and replication.copies_for(role) > 1
        return self.store.running(truncate_at=cut_at, hold_back=holds_back)

    def _leadership_file(self) -> LeadershipFile:
        files = self.store.table_files()
        return LeadershipFile(files.disk, files.directory)

    @property
    def _was_clean(self) -> bool:
        """Return whether the store was closed cleanly before it was opened."""
        return self.store.report.clean

    async def _find_role(self, client: Client) -> Role:
        """Load the decisions made since the settings, and whether we may lead. Raises CorruptFile, OSError."""
        leading = Leading(self._leadership_file(), self._given)
        trust = Trust(self._given, load_group_secret(self._given.replication.secret_file), self.clock)
        await trust.resolve()
        others = Others(leading, client, lambda: self.address, trust)
        role = Role(
            client, leading, others, Fencing(leading, others, client, self.clock, lambda: self._extent(leading))
        )
        self._void_late_promotion(leading)
        if not leading.config.is_slave:
            role.has_stood_down = not await role.fencing.may_lead(after_crash=self._has_crashed(leading))
            self._void_late_promotion(leading)
            role.has_stood_down |= leading.config.is_slave
        else:
            if not self._was_clean and not self._given.store.flush.sync:
                leading.may_lack_reported()
            if (number := await others.id_instead_of_taken()) is not None:
                leading.renumber(number)
        self.config = leading.config
        if unsafe := unsafe_acknowledgements(self.config, len(leading.known.members) + 1):
            log.warning("%s", unsafe)
        return role

    def _has_crashed(self, leading: Leading) -> bool:
        if leading.known.pending is not None:
            return False  # it has not led with this log
        return not self._was_clean or leading.has_crashed(self.store.positions().log_end)

    def _void_late_promotion(self, leading: Leading) -> None:
        """Raises OSError."""
        now_ms, clock_ms = self.clock.now_ms(), int(self.clock.monotonic() * 1000)
        leading.void_late_promotion(now_ms=now_ms, clock_ms=clock_ms, was_clean=self._was_clean)

    def _record_clean_end(self, leading: Leading) -> None:
        """Record in leadership.json where the log of a leading life ends, after everything in it was synced.

        Reached only by a stop without an error. If the record cannot be written, the next start assumes a crash.
        """
        if leading.config.is_slave:
            return
        try:
            self.store.commit_gathered()
            self.store.flush()
            self.store.table_files().write(lambda: leading.end_cleanly(self.store.positions().log_end))
        except StoreFenced:
            return  # the store says why
        except OSError as error:
            log.warning("that this broker was stopped cleanly cannot be written down: %s", what_to_do(error))

    def _extent(self, leading: Leading) -> LogExtent:
        log = self.store.positions()
        return leading.extent(log.log_start, max(log.log_end, log.appended))  # an open append batch is ahead

    def _ask_for(self, change: Change) -> bool:
        """False: another one has been asked for before, and is carried out."""
        if self.changed is None or self.changed.done():
            return False
        self.changed.set_result(change)
        return True

    @contextlib.asynccontextmanager
    async def _serving(
        self, settings: Settings, tables: Tables, copies: Replicating, role: Role
    ) -> AsyncIterator[None]:
        await self.server.start(self.config.listen_host, self.config.listen_port)
        try:
            await self._listen_for_vips()
            store_host = pack_address(self.config.client_host, self._client_port)
            parts = Parts(
                settings, self.store, tables, role, self.address, store_host, copies, self._ask_for, self.clock,
                self._rng,
            )  # fmt: skip
            self.parts, self._service = parts, Service(parts.handlers())
            self.server.fast_path, self.server.turns = parts.fast_path, parts.accelerator
            async with self._working_beside(parts):
                try:
                    await parts.registrar.start(refuse_twins=self._is_first_start(role.leading))
                    yield
                finally:
                    await self._stop_serving(parts)
        finally:
            await self.server.stop()

    def _is_first_start(self, leading: Leading) -> bool:
        """Return whether this store was never used before: a name that is taken is a mistake in its settings then."""
        return self._after is None and self.store.positions().log_end == 0 and leading.known.lives <= 1

    async def _listen_for_vips(self) -> None:
        """Clients may choose to send to the port two below, which RocketMQ keeps free of pulls. Here it is the same."""
        port = self.config.listen_port - VIP_PORTS_BELOW
        if self.config.vip_channel and port > 0:
            await self.server.listen_also(port)

    async def _stop_serving(self, parts: Parts) -> None:
        comes_back = self.changed is not None and self.changed.done()
        await parts.registrar.stop(says_goodbye=not comes_back)
        self.server.fast_path = self.server.turns = None
        parts.holds.release()
        if parts.accelerator is not None:
            await parts.accelerator.stop()
        await self.server.stop()
        with contextlib.suppress(StoreFenced):
            parts.journal.record_missing_ends()

    @contextlib.asynccontextmanager
    async def _working_beside(self, parts: Parts) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(work) for work in (*parts.work(), self._expire_clients(parts))]
        for task in tasks:
            task.add_done_callback(self._task_ended)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def wait_failed(self) -> None:
        """Wait until the store is fenced, answer the waiting sends with an error, and raise StoreFenced."""
        try:
            await self.store.marks.synced.wait(NEVER)
        except StoreFenced as fenced:
            if self.parts is not None:
                self.parts.ack_mark.fail(fenced)
            raise

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Fence the store if a background task failed: its work would silently stop otherwise."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical("a part of the broker stopped working", exc_info=error)
            self.store.fence(error)

    async def _expire_clients(self, parts: Parts) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            parts.members.expire()

    # --- what the server calls ---------------------------------------------------------------------------------------

    def _handle(self, command: Command, peer: Peer) -> Answer:
        if self._service is None:
            return refusal(NotNow("the broker is starting: try again in a moment"))
        if command.code not in LOOK_BY_THEMSELVES:
            self.store.catch_up()  # a client whose message was acknowledged finds it
        return self._service.handle(command, peer)

    def _disconnected(self, peer: Peer) -> None:
        if self.parts is not None:
            self.parts.members.disconnected(peer)


@contextlib.asynccontextmanager
async def _open_client() -> AsyncIterator[Client]:
    client = Client()
    try:
        yield client
    finally:
        await client.close()
