"""The components of a broker, made in the order of their dependencies, and the handler of each request.

Each part gets what it uses and nothing else; this is the one module that knows all of them.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from pyromq import accelerated
from pyromq.broker.cluster_queues import ClusterQueues
from pyromq.broker.delivery.ack_mark import AckMark
from pyromq.broker.delivery.append import Writer
from pyromq.broker.delivery.delays import Delays
from pyromq.broker.delivery.long_polls import Holds
from pyromq.broker.failover.admission import Admission
from pyromq.broker.failover.master_search import MasterSearch
from pyromq.broker.failover.metadata_sync import MetadataCopy, TakenProgress
from pyromq.broker.failover.read_routing import ReadAdvice
from pyromq.broker.failover.replication import Replicating
from pyromq.broker.failover.role_change import Ask
from pyromq.broker.failover.role_facts import Role
from pyromq.broker.idempotence.sends import NumberedSends
from pyromq.broker.nameserver_link import Registrar
from pyromq.broker.overload import Overload
from pyromq.broker.requests.admin.broker import BrokerAdmin
from pyromq.broker.requests.admin.clients import ClientAdmin
from pyromq.broker.requests.admin.groups import GroupAdmin
from pyromq.broker.requests.admin.offsets import OffsetAdmin
from pyromq.broker.requests.admin.topics import TopicAdmin
from pyromq.broker.requests.assignment import AssignmentProcessor
from pyromq.broker.requests.clients import MemberProcessor
from pyromq.broker.requests.offsets import OffsetProcessor
from pyromq.broker.requests.pull import PullProcessor
from pyromq.broker.requests.query import QueryProcessor
from pyromq.broker.requests.refused_sends import RefusedSends
from pyromq.broker.requests.reply import ReplyProcessor
from pyromq.broker.requests.roles import LeadingProcessor
from pyromq.broker.requests.send import SendProcessor
from pyromq.broker.requests.send_back import SendBackProcessor
from pyromq.broker.requests.transaction import TransactionProcessor
from pyromq.broker.settings import Settings
from pyromq.broker.state.clients import Consumers, Producers
from pyromq.broker.state.groups import Groups
from pyromq.broker.state.locks import QueueLocks
from pyromq.broker.state.offsets import Progress, machine_memory
from pyromq.broker.state.rejoin_guard import RejoinGuard
from pyromq.broker.state.resets import Resets
from pyromq.broker.state.saved_topics import SavedTopics
from pyromq.broker.state.tables import Tables
from pyromq.broker.state.topics import Topics
from pyromq.broker.statistics.replication import CopyFigures
from pyromq.broker.statistics.runtime_info import RuntimeInfo
from pyromq.broker.statistics.traffic import Statistics
from pyromq.broker.transactions.check_back import CheckBack
from pyromq.broker.transactions.journal import Journal
from pyromq.clock import Clock
from pyromq.config import BrokerConfig, parse_delay_levels
from pyromq.errors import NotNow, PyroMQError, ServiceError
from pyromq.model import names
from pyromq.model.data_version import DataVersion
from pyromq.model.message import PackedHost
from pyromq.model.topic import TopicConfig
from pyromq.net.client import Client
from pyromq.net.endpoint import Intake, Taker, Turns
from pyromq.net.peer import Peer
from pyromq.net.service import Answer, Handler
from pyromq.store.message_store import MessageStore
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests import admin as ask
from pyromq.wire.requests import client as requests
from pyromq.wire.requests.client import Request, ResumeCheck
from pyromq.wire.requests.roles import RoleRequest
from pyromq.wire.responses import Response

#: The plug of `pyromq.accel`; None if it was removed or not compiled.
ACCELERATED = accelerated.load("accelerator")

#: Once these are answered, a crash does not undo them.
CHANGE_TABLES = (
    ask.UpdateTopic, ask.UpdateTopicList, ask.DeleteTopic, ask.UpdateGroup, ask.UpdateGroupList, ask.DeleteGroup,
    ask.UpdateForbidden, ask.SetRequestMode,
)  # fmt: skip


#: Requests that change the log or the tables that a slave has from its master.
FOR_MASTERS = (
    requests.SendMessage, requests.SendReply, requests.SendBack, requests.EndTransaction, ResumeCheck,
    *CHANGE_TABLES, ask.ResetOffset,
)  # fmt: skip

#: Those that RocketMQ's slaves answer with a fault of the system; to sends they say that they are not available.
TOLD_PLAINLY = (*CHANGE_TABLES, ask.ResetOffset)


class Accelerator(Taker, Turns, Protocol):
    """The accelerated ways of sends and pulls. They give the answers of the request handlers, and leave them every
    request that they do not know."""

    def topics_changed(self) -> None: ...

    def groups_changed(self) -> None: ...

    def settings_changed(self) -> None: ...

    def sent(self, topic: str) -> None:
        """A request handler has taken a send to this topic."""

    async def stop(self) -> None:
        """Release the store's files, and return when every send is answered."""


def new_intake() -> Callable[[memoryview], Intake] | None:
    """Return what makes the server's intake; None without an accelerator."""
    return None if ACCELERATED is None else ACCELERATED.Intake


class Parts:
    """Made when the store is open and the broker's own address is known."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        tables: Tables,
        role: Role,
        address: str,
        store_host: PackedHost,
        copies: Replicating,
        change: Ask,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._settings = settings
        self.accelerator: Accelerator | None = None
        self._store = store
        self._tables = tables
        self._address = address
        self._clock = clock
        config = self.config = settings.current
        self.delay_levels = len(parse_delay_levels(config().store.delay_levels))
        # The broker's state.
        self._copies = copies
        self._know_others(role, address)
        self.saved_topics = SavedTopics(tables.topics, self._topics_saved)
        tables.settings_saver.on_save = self.saved_topics.saving
        self.topics = Topics(tables.topics, config, self._topics_changed)
        self.groups = Groups(tables.groups, config, self._groups_changed)
        self.producers, self.consumers = Producers(), Consumers()
        self.locks = QueueLocks()
        guard = None if config().is_slave else RejoinGuard(tables.offsets, store.given_out, clock)
        self.progress = Progress(tables.offsets, store, guard=guard)
        self.resets = Resets()
        self.statistics = Statistics(clock)
        # The background work.
        self.overload = Overload(lambda: config().overload, store.marks, clock)
        self.ack_mark = AckMark(config(), store, clock)
        self.ack_mark.connect(copies)
        self.read_advice = ReadAdvice(
            config, lambda: store.positions().written, lambda: bool(self.ack_mark.in_sync()), machine_memory()
        )
        self.copy_figures = CopyFigures(config, store, copies, self.ack_mark, clock, lambda: self.metadata_copy.problem)
        self.copy_figures.show_in(store.telemetry)
        self.writer = Writer(store, self.ack_mark, is_slave=config().is_slave)
        self.overload.count_waiting(lambda: self.ack_mark.waiting_sends)
        self.numbered = NumberedSends(tables.writers, self.writer, clock)
        self.holds = Holds(store.arrivals, config().max_long_polls)
        self.topics.add_system_topics(self.delay_levels)
        self.groups.add_system_groups()
        self.delays = Delays(store, self.writer, tables.delays, self.topics, clock)
        self.journal = Journal(store, self.writer, tables.offsets, clock, store_host)
        self.check_back = CheckBack(config, self.journal, self.producers, self.topics, clock)
        self._make_processors(role.client, store_host, rng)
        self.leading = self._leading(role, change)
        self._admission = Admission(role.others.trust, role.leading)
        settings.on_change.append(self._settings_changed)
        self._accelerate(store_host)

    def _know_others(self, role: Role, address: str) -> None:
        """Make the links to other processes: name servers, and the master if this broker is a slave."""
        config, tables, store, leading = self._settings.current, self._tables, self._store, role.leading
        files = store.table_files()
        self._taken = TakenProgress(files.disk, files.directory)
        self.metadata_copy = MetadataCopy(
            config, tables, role.client, topics_changed=self._topics_changed, groups_changed=self._groups_changed,
            log_end=lambda: store.positions().appended, queue_end=store.max_offset, taken=self._taken,
            trusts=self._copies.trusts, catch_up=store.catch_up,
        )  # fmt: skip
        self._copies.agreed = self._follows_master_at
        self.master_search = MasterSearch(leading, role.others, self._copies, self._follows_master_at)
        master = leading.master
        if master is not None and config().is_slave:
            self.metadata_copy.master_is_at(master.address)
        self.registrar = Registrar(
            config, address, self._known_topics, role.client, self._clock, ha_address=self._copies.address,
            on_master=self._master_is_at, seeks_master=lambda: self._copies.seeks_master,
            outranks=role.fencing.outranks, number=lambda: 0 if config().is_slave else leading.number,
        )  # fmt: skip

    def _leading(self, role: Role, change: Ask) -> LeadingProcessor:
        return LeadingProcessor(
            role.leading, role.others, role.fencing, self._copies, self.metadata_copy, self._taken,
            self._tables.offsets, self.ack_mark, self._store, role.client, self._clock, change, address=self._address,
            delays_confirmed=self.delays.confirmed,
        )  # fmt: skip

    def _make_processors(self, client: Client, store_host: PackedHost, rng: random.Random) -> None:
        """Those who handle requests."""
        config, store, tables, clock = self._settings.current, self._store, self._tables, self._clock
        self.members = MemberProcessor(
            config, self.topics, self.groups, self.producers, self.consumers, self.locks, clock
        )
        self.transaction = TransactionProcessor(config, self.journal, self.delays.divert)
        self.send = SendProcessor(
            config, self.topics, self.groups, self.writer, self.overload, store_host, self.statistics,
            transactions=self.transaction.prepare, delay=self.delays.divert, rng=rng, in_order=self._consumes_in_order,
            numbered=self.numbered,
        )  # fmt: skip
        self.send_back = SendBackProcessor(
            config, self.topics, self.groups, self.writer, self.overload, store, store_host, self.statistics,
            delay=self.delays.divert, rng=rng,
        )  # fmt: skip
        self.pull = PullProcessor(
            config, self.topics, self.groups, self.consumers, self.progress, store, self.holds,
            resets=self.resets, statistics=self.statistics, advice=self.read_advice,
        )  # fmt: skip
        self.offsets = OffsetProcessor(
            self.topics, self.groups, self.progress, store, self.resets, tables.offsets_saver.check
        )
        self.query = QueryProcessor(store)
        self.assignment = AssignmentProcessor(
            self.topics, self.groups, self.consumers, ClusterQueues(config, self.topics, client, clock),
            tables.request_modes, tables.settings_saver.changed,
        )  # fmt: skip
        self.reply = ReplyProcessor(config, self.send, self.producers, self.writer, self._address, clock)

    def _accelerate(self, store_host: PackedHost) -> None:
        """The one place that plugs `pyromq.accel` in."""
        refused = RefusedSends(self.overload, self.statistics)
        self.fast_path: Taker = refused
        if ACCELERATED is not None:
            self.fast_path = self.accelerator = ACCELERATED.Accelerator(self, self._store, store_host, refused)

    def _consumes_in_order(self, group: str) -> bool:
        expiry_ms = self._settings.current().queue_lock_expiry_ms
        return self.locks.is_held(group, int(self._clock.monotonic() * 1000), expiry_ms)

    # --- changes -----------------------------------------------------------------------------------------------------

    def _known_topics(self) -> tuple[DataVersion, list[TopicConfig]]:
        return self._tables.topics.version, list(self._tables.topics)

    def _topics_changed(self) -> None:
        self._tables.settings_saver.changed()
        self.registrar.topics_changed()
        self.holds.topics_changed(lambda topic: topic in self._tables.topics)
        self._topics_saved()

    def _master_is_at(self, address: str | None, ha_address: str | None) -> None:
        """Pass on the master that a name server names to a slave. One that names none may be new: ignore it."""
        if self._settings.current().is_slave and ha_address:
            self.master_search.named(address, ha_address)

    def _follows_master_at(self, address: str | None) -> None:
        """The log is copied from a master that answers there: so is everything else it has."""
        if address is not None:
            self.metadata_copy.master_is_at(address)
        self.metadata_copy.copy_soon()

    def _groups_changed(self) -> None:
        self._tables.settings_saver.changed()
        if self.accelerator is not None:
            self.accelerator.groups_changed()

    def _topics_saved(self) -> None:
        if self.accelerator is not None:
            self.accelerator.topics_changed()

    def _offsets_reset(self, queues: list[tuple[str, int]]) -> None:
        """Pulls that are held go on from somewhere else now."""
        for topic in {topic for topic, _ in queues}:
            self.holds.topic_changed(topic)

    def _settings_changed(self, config: BrokerConfig) -> None:
        """Apply settings changed over the network."""
        self._store.set_retention(config.store.retention)
        if self.accelerator is not None:
            self.accelerator.settings_changed()
        self._tables.topics.renew()  # the topics registered with name servers depend on settings
        self.topics.add_system_topics(self.delay_levels)

    # --- for the assembly --------------------------------------------------------------------------------------------

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """Return the background tasks of the broker's lifetime."""
        work = [*self._tables.work(), self.overload.run(), self.statistics.run(), self.leading.run()]
        if self._settings.current().is_slave:
            work += [self.metadata_copy.run(), self.master_search.run()]
        else:  # the records of these are in the master's log, and so in a slave's
            work += [self.delays.run(), self.check_back.run()]
        if self.ack_mark.waits_for_replicas:
            work.append(self.ack_mark.run())
        return work

    def handlers(self) -> dict[type[Request], Handler]:
        """Which part handles which request."""
        handlers = {**self._of_clients(), **self._of_admin()}
        handlers |= {
            kind: self._admission.guard(one) for kind, one in handlers.items() if issubclass(kind, RoleRequest)
        }
        if self._settings.current().is_slave:
            return handlers | dict.fromkeys(FOR_MASTERS, _refuse_as_slave)
        return handlers | {kind: self._unless_leaving(handlers[kind]) for kind in TOLD_PLAINLY}

    def _of_clients(self) -> dict[type[Request], Handler]:
        return {
            requests.SendMessage: self._counting_failures(self._send),
            requests.IssueWriter: self.numbered.issue,
            requests.SendReply: self.reply.reply,
            requests.SendBack: self._counting_failures(self._answered_when_saved(self.send_back.send_back)),
            requests.EndTransaction: self.transaction.end,
            ResumeCheck: self.transaction.resume,
            requests.PullMessage: self.pull.pull,
            requests.QueryConsumerOffset: self.offsets.query,
            requests.UpdateConsumerOffset: self.offsets.update,
            requests.SearchOffset: self.offsets.search,
            requests.GetMaxOffset: self.offsets.maximum,
            requests.GetMinOffset: self.offsets.minimum,
            requests.GetEarliestStoreTime: self.offsets.earliest_store_time,
            requests.QueryMessage: self.query.query,
            requests.ViewMessage: self.query.view,
            requests.Heartbeat: self.members.heartbeat,
            requests.UnregisterClient: self.members.unregister,
            requests.CheckClientConfig: self.members.check_config,
            requests.GetConsumerList: self.members.consumer_list,
            requests.LockQueues: self.members.lock,
            requests.UnlockQueues: self.members.unlock,
        }

    def _send(self, request: requests.SendMessage, peer: Peer) -> Answer:
        """A message is acknowledged when its topic is on the disk, too: it may have been made for it just now."""
        answer = self.send.send(request, peer)
        goes_elsewhere = names.is_retry_topic(request.topic) and not self._tables.settings_saver.is_saved
        is_settled = request.topic in self.saved_topics and not goes_elsewhere
        if self.accelerator is not None:
            self.accelerator.sent(request.topic)
        return answer if is_settled else self._when_saved(answer)

    def _counting_failures(self, handler: Handler) -> Handler:
        """Return a handler of sends that counts those which are answered with an error."""

        def handle(request: Any, peer: Peer) -> Answer:
            try:
                answer = handler(request, peer)
            except PyroMQError:
                self.statistics.send_failed()
                raise
            return self._count_failure(answer) if isinstance(answer, Awaitable) else answer

        return handle

    async def _count_failure(self, answer: Awaitable[Response | None]) -> Response | None:
        try:
            return await answer
        except PyroMQError:
            self.statistics.send_failed()
            raise

    def _answered_when_saved(self, handler: Handler) -> Handler:
        """A handler that changes topics or groups: the answer leaves when the change is on the disk."""

        def handle(request: Request, peer: Peer) -> Answer:
            answer = handler(request, peer)
            is_settled = isinstance(answer, Response) and self._tables.settings_saver.is_saved
            return answer if is_settled else self._when_saved(answer)

        return handle

    def _unless_leaving(self, handler: Handler) -> Handler:
        """Refuse changes that another master would not receive any more."""

        def handle(request: Request, peer: Peer) -> Answer:
            if self.ack_mark.is_refusing:
                self.ack_mark.check_accepts()
            return handler(request, peer)

        return handle

    async def _when_saved(self, answer: Answer) -> Response | None:
        response = await answer if isinstance(answer, Awaitable) else answer
        await self._tables.settings_saver.saved()
        await self._tables.writers.settled()
        return response

    def _of_admin(self) -> dict[type[Request], Handler]:
        config, store, levels = self._settings.current, self._store, self.delay_levels
        delays = self._tables.delays
        info = RuntimeInfo(
            config, store, self.statistics, self._clock,
            delays=delays, delay_levels=levels, loop_lag_ms=lambda: self.overload.lag_ms, numbered=self.numbered,
            copies=self.copy_figures.figures, name_conflict=lambda: self.registrar.conflict,
        )  # fmt: skip
        topics = TopicAdmin(
            config, self._address, self.topics, self.consumers, self.progress, self.resets, store, self.statistics,
            on_removal=self._tables.writers.forget_topic, all_visible=self.ack_mark.all_visible,
        )  # fmt: skip
        groups = GroupAdmin(self.groups, self.progress, self.resets, self.locks, self.statistics, self._groups_changed)
        offsets = OffsetAdmin(
            config, self._address, self.topics, self.groups, self.consumers, self.progress, self.resets, store,
            self.statistics, self._clock, wake=self._offsets_reset, delays=delays, delay_levels=levels,
        )  # fmt: skip
        clients = ClientAdmin(config, self.topics, self.groups, self.producers, self.consumers, store)
        broker = BrokerAdmin(
            self._settings, self.statistics, info, lambda at_any_hour: store.clean_soon(at_any_hour=at_any_hour),
            copies=self.copy_figures.encoded,
        )  # fmt: skip
        handlers: dict[type[Request], Handler] = {}
        for part in (topics, groups, offsets, clients, broker, self.assignment, self.leading):
            handlers.update(part.handlers())
        for kind in CHANGE_TABLES:
            handlers[kind] = self._answered_when_saved(handlers[kind])
        return handlers


def _refuse_as_slave(request: Request, peer: Peer) -> Response:
    """Refuse with RocketMQ's codes. A client that receives one asks for the route again, and finds the master."""
    where = "this broker is a slave: messages and changes go to its master"
    if isinstance(request, requests.EndTransaction):
        return Response(code=ResponseCode.SLAVE_NOT_AVAILABLE, reason=where)
    raise ServiceError(where) if isinstance(request, TOLD_PLAINLY) else NotNow(where)
