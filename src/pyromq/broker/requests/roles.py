"""Role requests over the network: asked by slaves and tools, changed by hand.

A slave that is promoted writes it down, answers, and restarts as the master. A master that steps down takes nothing
more, waits until the slave has everything, has it promoted, and restarts as a slave. Until the slave has said yes the
master can go on as if nothing had been asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pyromq.broker.delivery.ack_mark import AckMark
from pyromq.broker.failover.fencing import BEGIN_SECONDS, PROMOTE_SECONDS, Fencing, deadline
from pyromq.broker.failover.leadership import Member
from pyromq.broker.failover.members import Answered, Others
from pyromq.broker.failover.metadata_sync import MetadataCopy, TakenProgress, forget_own_progress
from pyromq.broker.failover.promotion_check import Candidate, has_answered, why_not_to_promote
from pyromq.broker.failover.replication import Replicating
from pyromq.broker.failover.role import MAX_JUMP, Leading, epochs_of
from pyromq.broker.failover.role_change import Ask, Change
from pyromq.clock import Clock
from pyromq.config.broker import MASTER_ROLES
from pyromq.errors import BadRequest, CallFailed, ConfigError, EpochTooOld, NotNow, PyroMQError
from pyromq.model.ids import LogPosition, QueueOffset
from pyromq.model.message import AppendedAt
from pyromq.net.address import is_address
from pyromq.net.client import Client
from pyromq.net.peer import Peer
from pyromq.net.service import Handler
from pyromq.store.message_store import MessageStore
from pyromq.store.tables.offset_files import ConsumerOffsets
from pyromq.wire.bodies.epochs import BrokerEpochs
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.client import Request
from pyromq.wire.requests.roles import (
    ForgetMember,
    ForgotMember,
    GetBrokerEpochs,
    GetTimerCheckPoint,
    GetTimerMetrics,
    PromoteBroker,
    Promoted,
    RestartBroker,
    StepDown,
    SteppedDown,
)
from pyromq.wire.responses import Response

log = logging.getLogger("pyromq.broker")

#: A slave that lacks no more than this gets it in a moment: only then messages are refused.
NEARLY_BYTES = 4 << 20
ASK_AGAIN_SECONDS = 0.02
#: For the tables that a slave copies from its master besides the log, before it leads.
METADATA_SECONDS = 3.0
#: The longest wait for a slave, regardless of the request: the broker accepts nothing in that time.
LONGEST_STEP_SECONDS = 60.0
#: The interval at which a slave asks its leader for the other members.
LEARN_SECONDS = 5.0
#: After a promotion without an answer: the time in which its outcome is asked for.
DOUBT_SECONDS = 5.0


class LeadingProcessor:
    """Handles what changes who leads. The changes themselves are carried out by a restart in place."""

    def __init__(
        self,
        leading: Leading,
        others: Others,
        fencing: Fencing,
        copies: Replicating,
        metadata: MetadataCopy,
        taken: TakenProgress,
        offsets: ConsumerOffsets,
        ack_mark: AckMark,
        store: MessageStore,
        client: Client,
        clock: Clock,
        change: Ask,
        *,
        address: str,
        delays_confirmed: Callable[[], Awaitable[None]],
    ) -> None:
        self._leading = leading
        self._others = others
        self._fencing = fencing
        self._copies = copies
        self._metadata = metadata
        self._taken = taken
        self._offsets = offsets
        self._ack_mark = ack_mark
        self._store = store
        self._client = client
        self._clock = clock
        self._change = change
        self._address = address
        self._delays_confirmed = delays_confirmed
        self._lock = asyncio.Lock()
        #: Why nothing is accepted here because of another broker; None: it is.
        self._closed: str | None = None
        self._under_way: set[asyncio.Task[Response]] = set()

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {
            GetBrokerEpochs: self.epochs,
            PromoteBroker: self.promote,
            StepDown: self.step_down,
            RestartBroker: self.restart,
            ForgetMember: self.forget_member,
            GetTimerCheckPoint: _no_timers,
            GetTimerMetrics: _no_timers,
        }

    def epochs(self, request: GetBrokerEpochs, peer: Peer) -> Response:
        """A slave that asks and proves the group secret is looked at: it may have what a crash takes from this log.

        A stranger gets the same answer as from RocketMQ's brokers.
        """
        trust, config = self._others.trust, self._leading.config
        if request.address and not config.is_slave and trust.is_of_this_name(request):
            self._others.came(peer.address.rpartition(":")[0], request.address)
        told = replace(self._copies.described(self._address), clock_ms=self._clock_ms())
        body, fields = trust.answers(request, told, peer)
        return Response(body=body, more=fields)

    def _clock_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def restart(self, request: RestartBroker, peer: Peer) -> Response:
        log.warning("%s asks this broker to restart in place: %s", peer.address, request.reason)
        self._change(Change(why=request.reason or "somebody asked for it"))
        return Response()

    # --- a slave is to lead ------------------------------------------------------------------------------------------

    async def promote(self, request: PromoteBroker, peer: Peer) -> Response:
        """Raises EpochTooOld, NotNow, ConfigError, OSError."""
        return await self._whole(self._promote(request, peer))

    async def _promote(self, request: PromoteBroker, peer: Peer) -> Response:
        leading = self._leading
        role = leading.role_if_promoted(request.role)
        if not leading.config.is_slave:
            if request.epoch == leading.number:
                return self._promoted()
            if not request.force:
                raise NotNow(f"this broker leads already, with epoch {leading.number}")
        if role not in MASTER_ROLES:
            raise ConfigError(f"role = {role!r} does not lead: it is {' or '.join(MASTER_ROLES)}", "role")
        if request.epoch <= leading.number:
            raise EpochTooOld(f"epoch {request.epoch} has been: {leading.number} is known here; ask with a larger one")
        if request.epoch > leading.number + MAX_JUMP:
            raise ConfigError(
                f"epoch = {request.epoch} is none: {leading.number} is known here; ask with one more", "epoch"
            )
        forced = ", whatever other brokers have" if request.force else ""
        log.warning(
            "%s asks this broker to lead, with epoch %d%s: %s", peer.address, request.epoch, forced, request.reason
        )
        if not (request.force or request.handed_over):
            await self._refuse_loss()
        if request.handed_over:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(METADATA_SECONDS):
                    await self._metadata.copy_now()
        async with self._standing_still():
            end = self._store.positions().log_end
            if end < request.position:
                raise NotNow(
                    f"this broker's log ends at {end}, and {request.position} is asked for: it would "
                    "lead without what was promised"
                )
            self._store.catch_up()
            self._decide(request, role)
        return self._promoted()

    async def _refuse_loss(self) -> None:
        """Ask every known member. Raise NotNow if one has more, or may have acknowledged messages and is silent."""
        leading, known = self._leading, self._leading.known.members
        answers = await self._others.survey(before_leading=True)
        told = (one for answer in answers for one in answer.told.members or ())
        named = [Member(one.address, one.broker_id, one.ha_address, one.member) for one in told]
        fresh = [one for one in self._unknown(named) if not has_answered(one, answers)]
        if fresh:
            leading.heard_of(fresh)
            known = (*known, *fresh)
            answers = await self._others.survey(before_leading=True)
        knows_leader = leading.waits or any(one.broker_id == 0 for one in known)
        end = self._store.positions().log_end
        is_whole = not leading.waits and self._copies.has_caught_up
        candidate = Candidate(leading.extent(self._store.positions().log_start, end), leading.least_copies, is_whole)
        why = why_not_to_promote(candidate, known, answers, not knows_leader)
        if why is not None:
            raise NotNow(f"this broker is not promoted: {why}")

    def _unknown(self, members: Iterable[Member]) -> list[Member]:
        """Return those that are neither this broker nor in its list."""
        known = self._leading.known
        ours = {one.address for one in known.members} | {self._address}
        return [one for one in members if one.address not in ours and one.member != known.member]

    def _decide(self, request: PromoteBroker, role: str) -> None:
        """It leads with the next start, or does not: nothing comes in between. Raises NotNow, OSError."""
        leading, before = self._leading, self._leading.known
        self._check_in_time(request)
        if not self._change(Change(why=f"it leads from now on, with epoch {request.epoch}")):
            raise NotNow("this broker is about to start again for another reason: try again in a moment")
        self._metadata.name_new_topics(self._topics_begun_since)
        leading.promote(request.epoch, role, now_ms=self._clock.now_ms(), clock_ms=self._clock_ms())
        try:
            self._check_in_time(request)
        except NotNow:
            leading.take_back(before)
            raise

    def _check_in_time(self, request: PromoteBroker) -> None:
        """Raises NotNow."""
        if request.deadline_ms and self._clock_ms() > request.deadline_ms:
            raise NotNow(
                f"this broker was to lead {self._clock_ms() - request.deadline_ms} ms ago at the latest: whoever asked "
                "goes on leading by now"
            )

    @contextlib.asynccontextmanager
    async def _standing_still(self) -> AsyncIterator[None]:
        """Stop the copy and sync it to the disk. If this broker does not lead after all, the copy continues."""
        await self._copies.stop_following()
        try:
            end = LogPosition(self._store.positions().log_end)
            await self._store.wait_synced(AppendedAt(end, 0, QueueOffset(0)))
            yield
        except BaseException:
            self._copies.go_on_following()
            raise

    def _topics_begun_since(self, position: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for queue in self._store.queue_list():
            first = queue.entry(queue.min_offset) if queue.max_offset > queue.min_offset else None
            if first is not None and first.position >= position:
                found[queue.id.topic] = max(found.get(queue.id.topic, 0), queue.id.number + 1)
        return found

    def _promoted(self) -> Promoted:
        leading = self._leading
        return Promoted(epoch=leading.number, position=self._store.positions().log_end, role=leading.config.role)

    # --- a master stands down ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """For as long as the broker runs. A master looks for others who lead."""
        try:
            if not self._leading.config.is_slave:
                await self._fencing.watch(self._stand_down, self._ack_mark.leadership_confirmed, self._close)
            elif self._leading.waits:
                why = await self._fencing.wait_to_lead()
                self._change(Change(why=why))
            else:
                await self._learn_members()
            await asyncio.Event().wait()
        finally:
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _learn_members(self) -> None:
        """Of a slave: keep the leader's list of members, to ask them all before it is promoted."""
        while True:
            await asyncio.sleep(LEARN_SECONDS)
            leader = self._leading.master
            if leader is None or not self._copies.trusts(leader.address):
                continue
            with contextlib.suppress(PyroMQError):
                answer = await self._others.ask_trusted(leader.address)
                if answer is None or answer.told.broker_id != 0 or answer.told.members is None:
                    continue
                told = (one for one in answer.told.members if one.address != self._address)
                members = [Member(one.address, one.broker_id, one.ha_address, one.member) for one in told]
                self._leading.learn_members([*members, replace(leader, member=answer.told.member)])

    def forget_member(self, request: ForgetMember, peer: Peer) -> Response:
        """Remove a broker that is gone for good from the known members. Raises NotFound, NotNow, OSError."""
        known = self._leading.known.members
        found = [one for one in known if request.member in (one.address, one.member)]
        listed = ", ".join(f"{one.address} (id {one.broker_id})" for one in known) or "none"
        if not found or not request.member:
            raise BadRequest(f"{request.member!r} is no known member of this name: there is {listed}")
        if any(self._copies.counts(one) for one in found):
            raise NotNow(f"{request.member} copies this log now and counts for acknowledgements: stop it first")
        log.warning("%s asks this broker to forget the member %s: %s", peer.address, request.member, request.reason)
        for one in found:
            self._leading.forget(one)
        left = self._leading.known.members
        return ForgotMember(members=", ".join(f"{one.address} (id {one.broker_id})" for one in left))

    def _close(self, why: str | None) -> None:
        """Refuse sends with this reason, or accept them if it is None. A hand-over under way takes precedence."""
        if why != self._closed and not self._lock.locked():
            self._closed = why
            if why is None:
                self._ack_mark.accept()
            else:
                log.error("%s", why)
                self._ack_mark.refuse(why)

    async def _whole(self, work: Coroutine[Any, Any, Response]) -> Response:
        """Run role changes one after the other, and each to its end, even if the client has disconnected."""
        task = asyncio.get_running_loop().create_task(self._in_turn(work))
        self._under_way.add(task)
        task.add_done_callback(self._is_done)
        return await asyncio.shield(task)

    async def _in_turn(self, work: Coroutine[Any, Any, Response]) -> Response:
        try:
            async with self._lock:
                return await work
        finally:
            work.close()  # no effect on a coroutine that has ended

    def _is_done(self, task: asyncio.Task[Response]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("who leads is not changed: %s", error)

    async def _stand_down(self, other: Answered) -> None:
        """At once: another one leads, and whatever we take from now on would be lost."""
        why = f"{other.address} leads with epoch {other.told.newest}: messages go there"
        self._ack_mark.refuse(why)
        self._store.close_batch()
        self._ack_mark.fail_replication(NotNow(why))
        await self._forget_progress()
        await self._fencing.note_standing_down(other)
        self._change(Change(why=why))

    async def _forget_progress(self) -> None:
        await asyncio.to_thread(forget_own_progress, self._offsets, self._taken)

    async def step_down(self, request: StepDown, peer: Peer) -> Response:
        """Raises BadRequest, NotNow: then this broker continues to lead. Raises OSError."""
        if not is_address(request.to):
            raise BadRequest("a master steps down for a slave: name its address, host:port, in `to`")
        if request.role is not None and request.role not in MASTER_ROLES:
            raise BadRequest(f"the one that leads then is {' or '.join(MASTER_ROLES)}: no other `role` leads")
        log.warning("%s asks this broker to step down for %s: %s", peer.address, request.to, request.reason)
        return await self._whole(self._step_down(request))

    async def _step_down(self, request: StepDown) -> Response:
        config = self._leading.config
        if config.is_slave:
            raise NotNow("this broker is a slave: its master can step down")
        until = self._clock.monotonic() + min(max(request.timeout_ms / 1000, 0), LONGEST_STEP_SECONDS)
        try:
            told = await self._hand_over(request.to, request.role or config.role, until)
        except CallFailed as problem:
            raise NotNow(f"{request.to} cannot be asked, and this broker goes on leading: {problem}") from None
        return await self._follow(request.to, told)

    async def _hand_over(self, to: str, role: str, until: float) -> BrokerEpochs:
        """Return when the other one leads. Raises NotNow, CallFailed: then we do."""
        await self._until_it_has(to, NEARLY_BYTES, until)
        self._ack_mark.refuse(f"this broker hands over to {to}: messages go there in a moment")
        try:
            self._store.close_batch()
            told = await self._until_it_has(to, 0, until)
            await self._until_answered(until)
            await self._delays_confirmed()  # the slave asks how far they are
            told = await self._until_it_has(to, 0, until)  # once more: its clock must be of now
            await self._have_promoted(to, role, told)
        except BaseException:
            self._ack_mark.accept()
            raise
        return told

    async def _follow(self, to: str, told: BrokerEpochs) -> Response:
        """There is no way back. What cannot be written now is found out by the next start. Raises OSError."""
        epoch = self._leading.number + 1
        try:
            await self._forget_progress()
            number = await self._others.free_id(to)
            self._leading.stand_down(epoch, number, Member(to, 0, told.ha_address))
        finally:
            self._change(Change(why=f"{to} leads from now on, with epoch {epoch}"))
        return SteppedDown(epoch=epoch, position=self._store.positions().log_end, broker_id=number)

    async def _until_it_has(self, to: str, all_but: int, until: float) -> BrokerEpochs:
        """Wait for a slave to have our log. Raises NotNow, CallFailed."""
        while True:
            try:
                answer = await self._others.ask_trusted(to)
            except CallFailed:  # it may be restarting
                if self._clock.monotonic() > until:
                    raise
                await asyncio.sleep(ASK_AGAIN_SECONDS)
                continue
            told = answer.told if answer is not None else None
            if told is None or told.name != self._leading.config.name or told.broker_id == 0:
                raise NotNow(f"{to} is no slave of this broker: nobody to hand over to")
            follows = epochs_of(told) == self._leading.epochs
            if follows and told.end >= self._store.positions().appended - all_but:
                return told
            if self._clock.monotonic() > until:
                lacks = self._store.positions().appended - told.end
                why = f"still lacks {lacks} bytes" if follows else "does not follow this broker now"
                raise NotNow(f"{to} {why}: this broker goes on leading; try again later")
            await asyncio.sleep(ASK_AGAIN_SECONDS)

    async def _until_answered(self, until: float) -> None:
        """Wait until this broker has answered the sends that wait for slaves: the slave has them all."""
        while self._ack_mark.waiting_sends and self._clock.monotonic() < until:  # noqa: ASYNC110  many wait, in two ways
            await asyncio.sleep(ASK_AGAIN_SECONDS)

    async def _have_promoted(self, to: str, role: str, told: BrokerEpochs) -> None:
        """Raises NotNow when it does not lead, as far as can be found out."""
        number, end = self._leading.number + 1, self._store.positions().appended
        request = PromoteBroker(
            epoch=number, role=role, reason="the master hands over", position=end, handed_over=True,
            deadline_ms=deadline(told),
        )  # fmt: skip
        self._others.trust.prove(request, told)
        in_doubt_until = self._clock.monotonic() + PROMOTE_SECONDS  # it may become the master until then
        try:
            answer = await self._client.call(to, request, PROMOTE_SECONDS)
        except CallFailed as problem:
            if not await self._leads_after_all(to, number, in_doubt_until):
                raise NotNow(f"{to} was asked to lead, and nobody knows what came of it: {problem}") from None
            return
        if answer.code != ResponseCode.SUCCESS:
            raise NotNow(f"{to} does not lead, and this broker goes on: {answer.reason}")

    async def _leads_after_all(self, to: str, number: int, in_doubt_until: float) -> bool:
        until = max(self._clock.monotonic(), in_doubt_until) + BEGIN_SECONDS + DOUBT_SECONDS
        while self._clock.monotonic() < until:
            with contextlib.suppress(PyroMQError):
                answer = await self._others.ask_trusted(to)
                if answer is not None and answer.told.newest >= number:
                    return True
                if answer is not None and self._clock.monotonic() > in_doubt_until:
                    return False  # it answers, was not promoted, and cannot be any more
            await asyncio.sleep(ASK_AGAIN_SECONDS)
        return False


def _no_timers(request: Request, peer: Peer) -> Response:
    """Refuse without a line in our log: a slave of RocketMQ asks every few seconds, and works without an answer."""
    return Response(code=ResponseCode.SYSTEM_ERROR, reason="this broker has no timer wheel: nothing to copy")
