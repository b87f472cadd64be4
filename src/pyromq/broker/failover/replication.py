"""Replication of a broker, as master or as slave, run in the background.

A master listens for slaves, and their reports move its acknowledged mark. A slave takes the log of the master of its
name: from the address in its settings, or from the one that name servers tell.

A slave compares before it copies. It asks the master who led when, decides by that what of its own log is the master's,
and has the rest quarantined by a restart in place; only then it says where its log ends, and copies the master's tables
besides the log. One that has a log and does not know who led it compares messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable

from pyromq.broker.failover.forks import fork_to_decide
from pyromq.broker.failover.leadership import Member
from pyromq.broker.failover.master_address import MasterAddress
from pyromq.broker.failover.members import Answered, Others, Refused, why_not_trusted
from pyromq.broker.failover.role import FIRST_NUMBER, Leading, epochs_of, extent_of, forgotten_life, why_it_is_held
from pyromq.broker.failover.role_change import Ask, Change
from pyromq.broker.failover.sample_positions import sample_positions
from pyromq.broker.failover.trust import host_of, resolved
from pyromq.clock import Clock
from pyromq.config import BrokerConfig
from pyromq.config.replication import host_filter
from pyromq.errors import CallFailed, NotNow
from pyromq.net.address import shown_address
from pyromq.replication.admission import Admission, Itself, ResolvedMember
from pyromq.replication.followers import Followers
from pyromq.replication.identity import Identity
from pyromq.replication.identity import Refused as RefusedFollower
from pyromq.replication.introduction import Introduction
from pyromq.replication.log_matching import (
    CutBack,
    Epoch,
    GoOn,
    LogExtent,
    Parted,
    StartOver,
    are_related,
    chosen,
    way_back,
)
from pyromq.replication.primary import Primary
from pyromq.replication.replica import Replica, ReplicaState
from pyromq.replication.stream import StreamTimes
from pyromq.store.message_store import MessageStore
from pyromq.store.store_log import StoreLog
from pyromq.wire.bodies.epochs import BrokerEpochs

log = logging.getLogger("pyromq.broker")

#: If no send waits for slaves, written bytes are collected for this long.
GATHER_SECONDS = 0.002


class Replicating:
    """Made when the store is open and it is known who leads."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        leading: Leading,
        others: Others,
        change: Ask,
    ) -> None:
        self._config = config
        self._store = store
        self._leading = leading
        self._others = others
        self._change = change
        #: New with every start: a second process with our member id is a copy of our store.
        self._process = secrets.token_hex(8)
        self._times = StreamTimes(config.replication.heartbeat_ms, config.replication.peer_timeout_ms)
        self.primary: Primary | None = None
        self._admission: Admission | None = None
        self.replica: Replica | None = None
        self._copying: asyncio.Task[None] | None = None
        self._was_connected = False
        self._slaves: frozenset[str] = frozenset()
        #: One of them has not had our whole log since it came.
        self._are_behind = False
        #: Called whenever a replica joins, leaves or reports.
        self.followers_changed: Callable[[Followers], None] = lambda followers: None
        #: Of a slave: where the master's log and the master itself were said to be.
        self._told_at: tuple[str, str | None] | None = None
        #: The addresses of the master with whose log ours was compared; None if it knows nothing of epochs.
        self._agreed: frozenset[str] | None = frozenset()
        #: Told when a slave has compared, and copies: with the address of the master that it asked.
        self.agreed: Callable[[str | None], None] = lambda address: None
        self._master_address: str | None = None
        self._where = MasterAddress(config, leading, others, self._process)
        if config.is_slave:
            self.replica = Replica(
                StoreLog(store), clock, times=self._times, compare=self._compare, changed=self._replica_changed
            )
            self.replica.follow(self._first_master())
        else:
            self.primary = self._new_primary(clock)

    def _new_primary(self, clock: Clock) -> Primary:
        settings = self._config.replication
        log = StoreLog(self._store)
        self._admission = Admission(
            log, itself=self._itself, epochs=lambda: self._leading.epochs, secret=self._others.trust.secret,
            members=settings.configured_members, write_down=self._write_down, heartbeat_ms=settings.heartbeat_ms,
        )  # fmt: skip
        return Primary(
            log, clock, self._slaves_reported, times=self._times,
            batch_bytes=settings.batch_bytes, whole_log=settings.whole_log, admits=host_filter(settings.allowed_hosts),
            gather_s=0.0 if self._config.copies > 1 else GATHER_SECONDS, admission=self._admission,
        )  # fmt: skip

    def _itself(self) -> Itself:
        config = self._config
        return Itself(config.cluster, config.name, self._leading.known.member, self._others.own_address)

    def _write_down(self, identity: Identity) -> None:
        """Raises OSError, RefusedFollower."""
        member = Member(identity.address, identity.broker_id, identity.ha_address, _member_id(identity))
        try:
            self._leading.write_follower(member)
        except NotNow as full:
            raise RefusedFollower(f"the slave {identity} is not taken in: {full}") from None

    def _slaves_reported(self, followers: Followers) -> None:
        if followers.by_name.keys() != self._slaves:
            self._slaves, self._are_behind = frozenset(followers.by_name), True
            self._others.slaves_came()
        if self._are_behind:
            self._note_caught_up(followers)
        self.followers_changed(followers)

    def counts(self, member: Member) -> bool:
        """Return whether a member is connected and counts for acknowledgements."""
        if self.primary is None:
            return False
        connected = [one.identity for one in self.primary.followers.by_name.values() if one.identity is not None]
        return any(one.address == member.address or one.member == member.member for one in connected)

    def _note_caught_up(self, followers: Followers) -> None:
        """A slave that was replaced by another with its id is waited for until that one has everything."""
        counted = [one for one in followers.by_name.values() if one.identity is not None]
        self._are_behind = not all(one.has_caught_up for one in counted)
        for one in counted:
            if one.identity is not None and one.has_caught_up:
                self._leading.follower_caught_up(one.identity.broker_id, _member_id(one.identity))

    # --- who and where -----------------------------------------------------------------------------------------------

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        return self._leading.epochs

    @property
    def number(self) -> int:
        """The largest number of an epoch that is known here; 0: none."""
        return self._leading.number

    @property
    def address(self) -> str:
        """The address to which slaves connect; of a slave, the one they would use if it led."""
        host = self._config.replication.advertise_host or self._config.client_host
        return shown_address(host, self.primary.port if self.primary is not None else self._port())

    def _port(self) -> int:
        config = self._config
        return config.replication.listen_port or (config.listen_port and config.listen_port + 1)

    def described(self, address: str) -> BrokerEpochs:
        """Return the answer to a question for this broker's epochs."""
        log = self._store.positions()
        return self._leading.describe(log.log_start, log.written, address, self.address)

    # --- running -----------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Replicating]:
        """Raises ConfigError when the replication port cannot be had."""
        if self.replica is not None:
            async with self._following(self.replica):
                yield self
        else:
            assert self.primary is not None
            await self._resolve_members()
            # A port that is not configured must not keep the broker from starting.
            by_chance = not self._config.replication.listen_port
            async with self.primary.serving(self._config.listen_host, self._port(), or_any=by_chance):
                yield self

    async def _resolve_members(self) -> None:
        """Look up the host names in `replication.members`: a connection comes from an address."""
        members = []
        for one in self._config.replication.configured_members:
            members += [ResolvedMember(one.broker_id, one.address, host) for host in await resolved([one.host])]
        assert self._admission is not None
        self._admission.members = tuple(members)

    def log_grew(self, position: int) -> None:
        """Send the bytes of the log up to a position to the replicas."""
        if self.primary is not None:
            self.primary.log_grew()

    @contextlib.asynccontextmanager
    async def _following(self, replica: Replica) -> AsyncIterator[None]:
        self._store.follow()
        self._store.marks.synced.listen(lambda _: replica.copy_became_safer())
        self.go_on_following()
        try:
            yield
        finally:
            await self.stop_following()

    def go_on_following(self) -> None:
        if self.replica is not None and self._leading.waits:
            self.replica.state = ReplicaState(None, False, 0, self._leading.why_it_waits)
        elif self.replica is not None and self._copying is None:
            self._copying = asyncio.get_running_loop().create_task(self.replica.run(), name="copy the master's log")
            self._copying.add_done_callback(self._ended)

    async def stop_following(self) -> None:
        """Stop copying: the log does not grow after this returns."""
        task, self._copying = self._copying, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("the copy of the master's log stopped", exc_info=error)
            self._store.fence(error)

    def _replica_changed(self, state: ReplicaState) -> None:
        """A master that knows nothing of epochs shows by what it sends that it has no longer what follows our log."""
        if state.left_behind_at is not None and self._may_begin_anew(state):
            self._change(Change(why=state.problem or "we were left behind", begin_anew=True))
        if state.connected and not self._was_connected:
            self.agreed(self._master_address)
        self._was_connected = state.connected

    def _may_begin_anew(self, state: ReplicaState) -> bool:
        """Return whether the settings name the primary: no log is quarantined on the word of another one."""
        if self.follows_settings or self._others.trust.is_configured_host(host_of(state.primary or "")):
            return True
        log.error(
            "%s: our log is kept, for %s knows nothing of epochs and is not in the settings. If it is the master of "
            "this name, name it in replication.members or replication.primary (haMasterAddress), and a new copy "
            "begins", state.problem, state.primary,
        )  # fmt: skip
        return False

    # --- of a slave --------------------------------------------------------------------------------------------------

    def _first_master(self) -> str | None:
        """Return the master of the settings, or the one heard of last if the role was decided since."""
        if self.follows_settings:
            return self._config.replication.primary
        master = self._leading.master
        if master is None or not master.ha_address or master.ha_address.endswith(":0"):  # it had no port of its own yet
            return None
        self._told_at = master.ha_address, master.address
        return master.ha_address

    @property
    def follows_settings(self) -> bool:
        return self._config.replication.primary is not None and not self._leading.was_decided

    @property
    def follows(self) -> tuple[str, str | None] | None:
        """The replication address and the broker address of the master that was named; `None` if none was."""
        return self._told_at

    def master_is_at(self, ha_address: str, address: str | None = None) -> None:
        """Follow the master that a name server named, unless the settings name one."""
        if self.replica is not None and not self.follows_settings:
            self._told_at = ha_address, address
            self.replica.follow(ha_address)

    @property
    def seeks_master(self) -> bool:
        """Return whether this is a slave that copies no log now: its master may be at another address."""
        return self.replica is not None and not self.replica.state.connected

    @property
    def problem(self) -> str:
        """Why this slave copies no log; empty if it copies one, and for a master."""
        if self._leading.waits:
            return self._leading.why_it_waits
        return (self.replica.state.problem or "") if self.replica is not None else ""

    @property
    def is_held(self) -> bool:
        """Return whether this broker neither leads nor follows before an operator decides about a fork."""
        return self._leading.known.fork is not None

    @property
    def has_caught_up(self) -> bool:
        """Return whether this slave has all that its master had when the two were compared last.

        Until then it may lack messages that were acknowledged before it came: to another slave, or to none.
        """
        return self._store.positions().log_end >= self._leading.known.master_end

    def trusts(self, address: str) -> bool:
        """May topics, groups and progress be taken from there? From one whose log is ours, for as long as we copy it:
        one that starts again may have lost all it had."""
        if self.replica is None or not self.replica.state.connected:
            return False
        if self._agreed is None:  # a broker of Apache's: on the machine whose log we copy
            return host_of(address) == host_of(self._master_address or "")
        return address in self._agreed

    def is_configured_master(self, address: str) -> bool:
        """Return whether a broker address from a name server is on the machine of `replication.primary`."""
        return self.follows_settings and host_of(address) == host_of(self._config.replication.primary or "")

    # --- comparing ---------------------------------------------------------------------------------------------------

    async def _compare(self, ha_address: str) -> Introduction | None:
        """Make sure that our log is the beginning of the master's. Raises CallFailed, BadRequest, Parted, OSError.

        Return the handshake for a master of ours; `None` for one of RocketMQ's.
        """
        address, is_certain = self._where.guess(ha_address, self._told_at)
        self._agreed, self._master_address = frozenset(), address
        try:
            answer = await self._others.ask(address)
        except Refused:
            raise
        except CallFailed:
            told_at = await self._where.ask_replication_port(ha_address, is_certain=is_certain)
            if told_at is None and (is_certain or self._leading.epochs):
                raise
            if told_at is None:
                self._where.warn_of_guess(ha_address, address)
            else:
                self._told_at, self._master_address, address = (ha_address, told_at), told_at, told_at
            answer = None if told_at is None else await self._others.ask(told_at)
        if answer is not None and not answer.is_trusted and not self.follows_settings:
            raise Parted(f"{why_not_trusted(answer)}; until then its log is not copied")
        told = answer.told if answer is not None else None
        if told is None:
            self._refuse_to_forget(address)
            self._leading.adopt(None)
            self._agreed = None
            return None
        self._refuse_strangers(told, address)
        self._refuse_another_stream(told, ha_address, address)
        await self._compare_messages(told, address)
        self._agree_with(told, address)
        self._leading.adopt(told)
        self._leading.heard_of([Member(address, 0, ha_address)])
        self._agreed = frozenset((address, told.address))
        return self._introduction(told, is_configured=address in self._others.trust.configured)

    def _introduction(self, told: BrokerEpochs, *, is_configured: bool) -> Introduction | None:
        """A master that did not prove the secret to us says nothing of its member id: it is served without."""
        config, own = self._config, self._others.own_address
        if not told.member:
            return None
        if own.endswith(":0"):
            raise CallFailed("this broker does not listen yet, and its master would not find it after a crash")
        return Introduction(
            cluster=config.cluster, name=config.name,
            identity=Identity(self._leading.known.member, config.broker_id, own, self.address, self._process),
            epochs=self._leading.epochs, primary=told.member, primary_start=told.start,
            secret=self._others.trust.secret, expects_proof=not is_configured,
        )  # fmt: skip

    def _refuse_another_stream(self, told: BrokerEpochs, ha_address: str, address: str) -> None:
        """Follow the replication address that a trusted master tells, not one that a name server adds to its address.

        Raises CallFailed.
        """
        if told.ha_address and told.ha_address != ha_address and not self.follows_settings:
            self.master_is_at(told.ha_address, address)
            raise CallFailed(f"{address} gives its log at {told.ha_address}, not at {ha_address}")

    def _refuse_to_forget(self, address: str) -> None:
        """Raises Parted: without epochs on both sides nothing shows where two logs part."""
        if self._leading.epochs:
            raise Parted(
                f"{address} knows nothing of epochs, and our log has them: it is not continued without comparing. If "
                "it is the same log, stop this broker, move config/leadership.json out of its store, and start it again"
            )

    async def _compare_messages(self, told: BrokerEpochs, address: str) -> None:
        """A log that came here without its epochs (a backup, say) has to show that it is the master's.

        By the first message of each file, and the last one that both should have. Raises Parted, CallFailed.
        """
        if self._leading.epochs or not told.entries:
            return
        for position in sample_positions(self._store, told.start, told.end):
            if await self._others.record_at(address, position) != bytes(self._store.message_at(position)):
                raise Parted(
                    f"the message at position {position} is not the one that {address} has there, and nobody knows who "
                    "led our log: it is not continued, and stays as it is. Restore its config/leadership.json, or "
                    "begin a new copy in a new store directory"
                )

    def _refuse_strangers(self, told: BrokerEpochs, address: str) -> None:
        if (told.cluster, told.name) != (self._config.cluster, self._config.name):
            raise Parted(f"{address} is the broker {told.name} of {told.cluster}: its log is not ours to copy")
        if told.broker_id != 0:
            raise CallFailed(f"{address} is no master now")
        if told.newest < self._leading.number:
            raise Parted(
                f"{address} takes itself for the master, with epoch {told.newest}, and we know of epoch "
                f"{self._leading.number}: another broker has led since, and this one is not followed"
            )
        ours, theirs = chosen(self._leading.epochs), chosen(epochs_of(told))
        if FIRST_NUMBER < theirs[0] == ours[0] and theirs < ours:
            raise Parted(
                f"{address} leads with epoch {told.newest}, and so does another one that was chosen at the same time "
                "and is to lead: this one is not followed"
            )

    def _agree_with(self, told: BrokerEpochs, address: str) -> None:
        """Request the quarantine of bytes that the master lacks. Raises Parted if that is needed first, and OSError."""
        ours = LogExtent(*self._store.positions()[:2], self._leading.epochs)
        theirs = extent_of(told)
        way = way_back(theirs, ours)
        if not isinstance(way, GoOn) and told.newest <= self._leading.number and not are_related(theirs, ours):
            raise Parted(
                f"the log of {address} has nothing in common with ours, as far as is known, and it leads with no later "
                "epoch than ours: it may have lost its store. Stop it and promote this broker (`pyromq broker "
                "promote --force`); for a new copy of that log give this broker a new store directory"
            )
        self._refuse_restored(told, address, ours)
        if not isinstance(way, GoOn):
            self._refuse_fork(told, address, ours)
        if not isinstance(way, GoOn) and are_related(theirs, ours):
            self._leading.note_epoch(told.newest)  # after the restart the master before it is not followed again
        if isinstance(way, CutBack):
            why = (
                f"{way.until - way.position} bytes from position {way.position} on are not in the log of the master "
                f"{address}, which leads with epoch {told.newest}"
            )
            log.error("%s: they are cut from our log, and kept aside", why)
            self._change(Change(why=why, cut_at=way.position))
            raise Parted(why)
        if isinstance(way, StartOver):
            why = f"our log cannot be continued from {address}: {way.reason}"
            log.error("%s; it is put aside, and a new copy begins", why)
            self._change(Change(why=why, begin_anew=True))
            raise Parted(why)

    def _refuse_fork(self, told: BrokerEpochs, address: str, ours: LogExtent) -> None:
        """Raise Parted if bytes would be cut that this broker acknowledged as a leader. Raises OSError."""
        fork = fork_to_decide(self._leading, ours, Answered(address, told))
        if fork is not None:
            self._leading.note_fork(fork)
            raise Parted(why_it_is_held(fork))

    def _refuse_restored(self, told: BrokerEpochs, address: str, ours: LogExtent) -> None:
        """Raise Parted if the master forgot a life in which it led our log, and was not promoted since."""
        life = forgotten_life(ours, told)
        if life is not None and told.newest <= self._leading.number:
            raise Parted(
                f"{address} led our log from position {life.start} on, and does not know it: its store was restored "
                f"from an older copy, and {ours.end - life.start} bytes here may be acknowledged messages that it "
                "lacks. Nothing is cut. Promote this broker (`pyromq broker promote`) to keep them"
            )


def _member_id(identity: Identity) -> str:
    """A broker of Apache's has none, and is known by its address and its broker id."""
    return identity.member if identity.process else ""
