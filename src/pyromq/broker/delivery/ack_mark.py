"""The acknowledgement chain: from an appended message to the answer of its send, and to the consumers.

    appended       `store.append` or an append batch; the stream to the replicas is woken            `connect`
    synced         the flusher synced the log, under sync flush                                      `_local`
    replicated     a replica reported; enough of them have the log up to here                        `followers_changed`
    acknowledged   the smaller of the two: everything below it may be acknowledged                   `_advance`
    answered       the sends that wait for it: coroutines (`wait`), encoded answers (`hold`)
    visible        everything below it may be read by consumers; the dispatcher fills the queues     `_advance`

The first three depend on the settings:

    async flush, async master   acknowledged is `appended`: the message is in the page cache here
    sync flush                  acknowledged is `synced`: it is on the disk here
    sync master                 the same, and it is in the logs of enough replicas

A send that waits for replicas longer than `timeout_ms` is stored here and perhaps nowhere else: its answer says so.

After a start nothing counts as acknowledged on a broker that waits for replicas, until replicas have confirmed it in
this life: a repeated send, or the repeated end of a transaction, waits like a first one. `visible` begins where it was
before the start. A message without copies is lost when a replica takes over, and its queue offset is assigned again: a
consumer that had read it would skip the new one. With `visibility = "replicated"` a master makes everything visible
after too few replicas have been in sync for `timeout_ms`, until enough are in sync again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Protocol

from pyromq.clock import Clock
from pyromq.config import BrokerConfig
from pyromq.errors import NotEnoughReplicas, NotNow, PyroMQError, SlavesLate
from pyromq.model.ids import LogPosition, QueueOffset
from pyromq.model.message import AppendedAt
from pyromq.replication.followers import AckRule, Followers, SyncRule
from pyromq.store.message_store import MessageStore
from pyromq.store.watermarks import Watermark
from pyromq.wire.codes import ResponseCode
from pyromq.wire.responses import Response

#: The interval at which the in-sync replicas are counted.
CHECK_SECONDS = 0.5
#: How long a count of "all are in sync" stays valid while they report. The more replicas are in sync, the more of them
#: an acknowledgement waits for.
IN_SYNC_VALID_SECONDS = 0.05


class Replicas(Protocol):
    """The streams to the replicas."""

    #: Called whenever a replica joins, leaves or reports.
    followers_changed: Callable[[Followers], None]

    def log_grew(self, position: int) -> None:
        """Send the new bytes."""
        ...


class HeldSends(Protocol):
    """Sends whose answers are encoded and wait for a position of the log."""

    @property
    def held_sends(self) -> int:
        """The number of answers that wait."""
        ...

    @property
    def last_held(self) -> int:
        """The position that the last of them waits for."""
        ...

    @property
    def release(self) -> Callable[[int], None]:
        """Send all answers whose position is reached."""
        ...

    def answer_late(self, position: int, code: ResponseCode) -> None:
        """Answer the sends that wait for positions up to this one with a code that says: too late."""
        ...

    def fail(self, error: PyroMQError) -> None:
        """Answer all of them with an error."""
        ...


class AckMark:
    """Moves the acknowledged mark and the visible mark, and answers the sends that wait."""

    def __init__(self, config: BrokerConfig, store: MessageStore, clock: Clock) -> None:
        replication = config.replication
        marks = store.marks
        self._store = store
        self._marks = marks
        self._sync_flush = config.store.flush.sync
        #: The mark that this broker alone can confirm.
        self._local = marks.synced if self._sync_flush else marks.appended
        self._end = marks.appended
        self._clock = clock
        self._followers = Followers()
        #: The replicas in sync at the last count, and until when the count is valid.
        self._in_sync: frozenset[str] = frozenset()
        self._in_sync_valid_until = 0.0
        self._sync_rule = SyncRule(replication.max_gap_bytes, replication.peer_timeout_ms)
        self.timeout_s = replication.timeout_ms / 1000
        #: True if enough replicas were connected at the last count, and the time since when they are not.
        self._had_replicas = False
        self._lacks_replicas_since = clock.monotonic()
        #: Since when too few replicas are in sync and have caught up; `None` if there are enough.
        self._lacks_copies_since: float | None = self._lacks_replicas_since
        #: Everything becomes visible after copies were lacking for `timeout_s`.
        self._visible_when_alone = replication.hides and not replication.hides_when_alone
        #: Until then no other broker leads; `None` if there are no others to ask.
        self._leads_until: float | None = None
        #: Why every send is refused, however many copies there are; `None` if none is.
        self._refusal: str | None = None
        #: Sends that wait in `wait`, and those that wait encoded.
        self._waiting = 0
        self._held: list[HeldSends] = []
        #: The number of copies of an acknowledged message; `None` if no replica is waited for.
        self.rule: AckRule | None = None
        #: Everything below may be acknowledged.
        self.acknowledged = self._local
        #: Limits what consumers read, if they have to wait until replicas confirm; else `None`.
        self._visible: Watermark | None = None
        if config.copies == 1:
            marks.lift_visible_limit()
            return
        self.rule = AckRule(
            copies=config.copies,
            min_in_sync=replication.min_in_sync,
            all_in_sync=replication.all_in_sync,
            adapts=replication.adapts,
        )
        self.acknowledged = Watermark("acknowledged")
        if replication.hides:
            self._visible = Watermark("visible", min(self._local.value, marks.visible))
            marks.limit_visible(self._visible)
        else:
            marks.lift_visible_limit()
        if self._sync_flush or replication.adapts:  # else no replica has more than is confirmed here
            self._local.listen(lambda _: self._advance(self.replicated()))
            self._advance(self.replicated())

    # --- the links of the chain --------------------------------------------------------------------------------------

    def connect(self, replicas: Replicas) -> None:
        """Send the log to the replicas as it grows, and take their reports."""
        self._store.copyable.listen(replicas.log_grew)
        replicas.followers_changed = self.followers_changed

    def hold(self, sends: HeldSends) -> None:
        """Release these answers as the acknowledged mark advances."""
        self._held.append(sends)
        self.acknowledged.listen(sends.release)

    def followers_changed(self, followers: Followers) -> None:
        """Advance the marks after a replica joined, left or reported."""
        are_the_same = followers.by_name.keys() == self._followers.by_name.keys()
        self._followers = followers
        if self.rule is not None and are_the_same and self._clock.monotonic() < self._in_sync_valid_until:
            self._advance(self._replicated(self._in_sync, self.rule))
        else:
            self.check_in_sync()

    def _advance(self, replicated: int) -> None:
        position = min(self._local.value, replicated)
        if self._visible is not None and position > self._visible.value:
            self._visible.advance(position)  # first: a client that was answered finds its message
        if position > self.acknowledged.value:
            self.acknowledged.advance(position)

    async def wait(self, receipt: AppendedAt) -> None:
        """Return once the message may be acknowledged. Raises StoreFenced, SlavesLate."""
        if not self.waits:
            return
        self._waiting += 1
        try:
            if self._sync_flush:
                await self._store.wait_synced(receipt)
            if self.rule is not None:
                await self._wait_replicated(receipt)
        finally:
            self._waiting -= 1

    async def _wait_replicated(self, receipt: AppendedAt) -> None:
        if not self.expects_replicas:
            raise SlavesLate(self.late_code())
        try:
            async with asyncio.timeout(self.timeout_s):
                await self.acknowledged.wait(receipt.end)
        except TimeoutError:
            raise SlavesLate(self.late_code()) from None

    def answer(self, receipt: AppendedAt, response: Response) -> Awaitable[Response] | Response:
        """Return the response to a send, at once or after the message is acknowledged."""
        return self._answer_later(receipt, response) if self.waits else response

    def answer_all(self, response: Response) -> Awaitable[Response] | Response:
        """Return the response, at once or after everything in the log is acknowledged."""
        return self.answer(AppendedAt(LogPosition(self._end.value), 0, QueueOffset(0)), response)

    async def _answer_later(self, receipt: AppendedAt, response: Response) -> Response:
        try:
            await self.wait(receipt)
        except SlavesLate as late:
            return replace(response, code=late.code, reason=str(late))
        return response

    def late_code(self) -> ResponseCode:
        """Return the code for a send that waited too long: replicas are slow, or too few are connected."""
        return ResponseCode.FLUSH_SLAVE_TIMEOUT if self._are_enough else ResponseCode.SLAVE_NOT_AVAILABLE

    @property
    def waits(self) -> bool:
        """Return whether a send waits for anything after the append."""
        return self._sync_flush or self.rule is not None

    @property
    def waiting_sends(self) -> int:
        return self._waiting + sum(held.held_sends for held in self._held)

    def fail(self, error: PyroMQError) -> None:
        """Answer every waiting send with an error: the store is fenced."""
        if self.rule is not None:
            self.acknowledged.fail(lambda: error)
        for held in self._held:
            held.fail(error)

    def fail_replication(self, error: PyroMQError) -> None:
        """Answer every send that waits for replicas with an error: another broker leads."""
        if self.rule is not None:
            self.fail(error)

    async def run(self) -> None:
        """Count the replicas in sync, and answer the held sends that are late, until cancelled."""
        if self.rule is not None:
            await asyncio.gather(self._watch_in_sync(), *map(self._watch_late, self._held))

    async def _watch_in_sync(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self.check_in_sync()

    async def _watch_late(self, held: HeldSends) -> None:
        seen: deque[tuple[float, int]] = deque()
        while True:
            await asyncio.sleep(self.timeout_s / 8)
            now = self._clock.monotonic()
            seen.append((now, held.last_held))
            late = -1
            while seen and seen[0][0] <= now - self.timeout_s:
                late = seen.popleft()[1]
            if late >= 0:
                held.answer_late(late, self.late_code())

    # --- how much is replicated --------------------------------------------------------------------------------------

    @property
    def waits_for_replicas(self) -> bool:
        return self.rule is not None

    def check_in_sync(self) -> None:
        """Count the replicas in sync, and advance the marks. A silent replica leaves no event, so count regularly."""
        if self.rule is None:
            return
        in_sync = self._in_sync = self.in_sync()
        had_replicas, self._had_replicas = self._had_replicas, self._are_enough_with(in_sync, self.rule)
        if had_replicas and not self._had_replicas:
            self._lacks_replicas_since = self._clock.monotonic()
        if self._visible_when_alone:
            self._choose_visible_limit(has_copies=1 + self._followers.caught_up(in_sync) >= self.rule.copies)
        have_copies = not self._visible_when_alone or self._lacks_copies_since is None
        are_all_in_sync = have_copies and len(in_sync) == self._followers.copies
        self._in_sync_valid_until = self._clock.monotonic() + IN_SYNC_VALID_SECONDS if are_all_in_sync else 0.0
        self._advance(self._replicated(in_sync, self.rule))

    def _choose_visible_limit(self, *, has_copies: bool) -> None:
        """A replica that has just joined and has not caught up yet does not limit visibility."""
        now = self._clock.monotonic()
        if has_copies:
            if self._lacks_copies_since is not None:
                self._lacks_copies_since = None
                assert self._visible is not None
                self._marks.limit_visible(self._visible)
        elif self._lacks_copies_since is None:
            self._lacks_copies_since = now
        elif now >= self._lacks_copies_since + self.timeout_s:
            self._marks.lift_visible_limit()

    def in_sync(self) -> frozenset[str]:
        return self._followers.in_sync(self._sync_rule, self._end.value, int(self._clock.monotonic() * 1000))

    def replicated(self) -> int:
        """Everything below has the copies that an acknowledged message needs."""
        return self._end.value if self.rule is None else self._replicated(self.in_sync(), self.rule)

    def _replicated(self, in_sync: frozenset[str], rule: AckRule) -> int:
        needed = rule.needed(1 + len(in_sync))
        if needed is None:
            return self.acknowledged.value
        among = in_sync if rule.all_in_sync else None
        return self._followers.replicated(needed, self._end.value, among)

    @property
    def expects_replicas(self) -> bool:
        """Return whether enough replicas are connected, or may connect within `timeout_s` after a start, or after they
        have left."""
        return self._are_enough or self._clock.monotonic() < self._lacks_replicas_since + self.timeout_s

    @property
    def _are_enough(self) -> bool:
        """Return whether as many replicas are connected as a message needs."""
        return self.rule is None or self._are_enough_with(self.in_sync(), self.rule)

    def _are_enough_with(self, in_sync: frozenset[str], rule: AckRule) -> bool:
        return 1 + self._followers.copies >= (rule.needed(1 + len(in_sync)) or rule.min_in_sync)

    # --- whether sends are accepted ----------------------------------------------------------------------------------

    def leadership_confirmed(self, valid_s: float) -> None:
        """No other broker leads. A process that was stopped for longer than `valid_s` asks again before it accepts
        anything: another broker may have been chosen."""
        self._leads_until = self._clock.monotonic() + valid_s

    @property
    def leadership_is_stale(self) -> bool:
        return self._leads_until is not None and self._clock.monotonic() > self._leads_until

    def refuse(self, why: str) -> None:
        """Refuse every send: the log does not grow any more."""
        self._refusal = why

    def accept(self) -> None:
        """Accept sends again."""
        self._refusal = None

    @property
    def is_refusing(self) -> bool:
        return self._refusal is not None

    @property
    def accepts(self) -> bool:
        """Return whether a message would be accepted: this broker leads, and enough copies are in sync."""
        if self.is_refusing or self.leadership_is_stale:
            return False
        return self.rule is None or self.rule.needed(1 + len(self.in_sync())) is not None

    def check_accepts(self) -> None:
        """Raise NotEnoughReplicas if a message would not get its copies, and NotNow while the leader changes.

        The message is refused before it is stored.
        """
        if self._refusal is not None:
            raise NotNow(f"{self._refusal}; the message was not stored")
        if self.leadership_is_stale:
            raise NotNow(
                "this broker stood still, and looks first whether another one leads by now: the message was not "
                "stored; try again"
            )
        if not self.accepts and self.rule is not None:
            raise NotEnoughReplicas(
                f"the copies in sync are {1 + len(self.in_sync())}, this broker's own included, and "
                f"{self.rule.min_in_sync} must be: the message was not stored; bring slaves back, or lower "
                "replication.min_in_sync"
            )

    @contextlib.asynccontextmanager
    async def all_visible(self) -> AsyncIterator[None]:
        """Make every stored message visible, and refuse sends for the block.

        Raises NotNow if replicas do not confirm the log within the time that a send waits.
        """
        if self._visible is None:
            yield
            return
        await self._all_acknowledged()
        if self._refusal is not None:
            raise NotNow(f"{self._refusal}; try again in a moment")
        self.refuse("a topic is being removed: try again in a moment")
        try:
            await self._all_acknowledged()
            yield
        finally:
            self.accept()

    async def _all_acknowledged(self) -> None:
        end = self._end.value
        try:
            async with asyncio.timeout(self.timeout_s):
                await self.acknowledged.wait(end)
        except TimeoutError:
            raise NotNow(
                f"slaves have not confirmed the log up to {end} within {self.timeout_s} s: nothing is removed; bring "
                "them back and try again"
            ) from None
