"""Asking back: what became of the transactions that did not end in time?

Any producer of the group may answer. Each question is counted in the half message itself, so that a restart continues
counting; after `transaction.check_max` of them the message moves to a topic for administrators. While no
producer of the group is connected no question is sent and nothing is counted, for as long as the log keeps messages:
RocketMQ counts, and so gives up the transactions of a producer that is away for some minutes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pyromq.broker.state.clients import Producers
from pyromq.broker.state.topics import Topics
from pyromq.broker.transactions import forms
from pyromq.broker.transactions.journal import Journal
from pyromq.broker.transactions.ledger import Act, Half, Limits, Step
from pyromq.clock import Clock
from pyromq.config import BrokerConfig
from pyromq.errors import (
    CorruptStore,
    DiskFull,
    IllegalMessage,
    NotEnoughReplicas,
    NotNow,
    OffsetNotFound,
    PyroMQError,
    StoreFenced,
)
from pyromq.files.platform import what_to_do
from pyromq.model import names
from pyromq.model.message import Draft
from pyromq.net.peer import Peer

log = logging.getLogger("pyromq.broker")

#: Steps between which others get their turn.
STEPS_IN_TURN = 32
#: The maximum sent to producers in one round: it is in memory until received. The rest is for the next round.
MAX_ROUND_BYTES = 64 << 20
#: After a disk that could not be read, the next attempt.
RETRY_SECONDS = 1.0

HOUR_MS = 3_600_000


class CheckBack:
    """Looks after the transactions that their producers forget."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        journal: Journal,
        producers: Producers,
        topics: Topics,
        clock: Clock,
    ) -> None:
        self._config = config
        self._journal = journal
        self._producers = producers
        self._topics = topics
        self._clock = clock
        self._asked = 0
        self._bytes_left = 0

    async def run(self) -> None:
        """Find the open transactions, then ask for them from time to time, for as long as the broker runs."""
        await self._load()
        while True:
            await asyncio.sleep(self._config().transaction.check_interval_ms / 1000)
            try:
                await self.round()
            except (DiskFull, NotEnoughReplicas, NotNow) as refused:
                log.warning("transactions are not asked for until messages are taken again: %s", refused)
            except OSError as error:
                log.error("transactions are asked for in the next round: %s", what_to_do(error))
            except StoreFenced:
                return  # the fenced store has failed its waiters

    async def _load(self) -> None:
        while True:
            try:
                return await self._journal.load()
            except OSError as error:
                log.error("transactions cannot be read, and are tried again: %s", what_to_do(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def round(self) -> None:
        """Ask for everything that is due. Raises DiskFull, NotEnoughReplicas, StoreFenced, OSError."""
        journal, ledger = self._journal, self._journal.ledger
        journal.record_missing_ends()
        end = journal.end_of(names.HALF_TOPIC)  # the copies that this round makes are for the next
        self._bytes_left = MAX_ROUND_BYTES
        while True:
            await journal.read_halves(end)
            steps = ledger.plan(self._clock.now_ms(), self._limits(), self._can_ask)
            done = await self._carry_out(steps)
            await journal.save_positions()
            if not done or ledger.half_next >= end:
                return

    def _limits(self) -> Limits:
        config = self._config()
        keep_ms = int(config.store.retention.max_age_hours * HOUR_MS)
        return Limits(config.transaction.timeout_ms, config.transaction.check_max, keep_ms)

    # --- steps -------------------------------------------------------------------------------------------------------

    async def _carry_out(self, steps: list[Step]) -> int:
        """Return the number of steps taken."""
        taken = 0
        for number, (act, half) in enumerate(steps):
            if number % STEPS_IN_TURN == STEPS_IN_TURN - 1:
                await asyncio.sleep(0)
            try:
                view = await self._journal.record(half.offset, half.position)
                # Its producer may have ended it since.
                if self._journal.ledger.is_idle(half.offset) and self._take(act, half, view):
                    taken += 1
            except (OffsetNotFound, CorruptStore, IllegalMessage) as problem:
                self._cannot(half, problem)
        return taken

    def _cannot(self, half: Half, problem: PyroMQError) -> None:
        """Leave a half that the store refuses: it may be accepted later (a setting may be too small for it)."""
        if isinstance(problem, IllegalMessage) and not self._journal.ledger.is_crowded(half):
            log.warning("the half message at offset %d stays as it is: %s", half.offset, problem)
        else:
            log.error("the half message at offset %d is given up: %s", half.offset, problem)
            self._journal.ledger.gone(half)

    def _take(self, act: Act, half: Half, view: memoryview) -> bool:
        """False when it has to be left for the next round."""
        if act is Act.PUT_ASIDE:
            self._put_aside(half, view)
        elif act is Act.CHECK:
            return self._check(half, view)
        else:
            # No end is recorded: while a half may not be asked for yet, RocketMQ would take it as the end of the copy.
            self._journal.move(half, self._copied(half, view, half.checks), with_end=False)
        return True

    def _copied(self, half: Half, view: memoryview, checks: int) -> Draft:
        return forms.copied(view, half, checks, self._journal.store_host)

    def _put_aside(self, half: Half, view: memoryview) -> None:
        self._topics.derived(names.CHECKED_TOO_OFTEN_TOPIC, 1)
        self._journal.put_aside(half, forms.put_aside(view, half, self._journal.store_host))
        log.error(
            "the transaction at half offset %d of group %s did not end after %d checks; its message is in %s",
            half.offset, half.key.group, half.checks, names.CHECKED_TOO_OFTEN_TOPIC,
        )  # fmt: skip

    def _check(self, half: Half, view: memoryview) -> bool:
        peer = self._next_peer(half.key.group)
        if peer is None or self._bytes_left <= 0:
            return False
        self._bytes_left -= len(view)
        copy = self._copied(half, view, half.checks + 1)
        at = self._journal.move(half, copy, with_end=True)
        peer.tell(forms.question(copy, at, self._clock.now_ms(), self._config().name))
        log.info(
            "%s of group %s is asked for the transaction at half offset %d (check %d)",
            peer.address, half.key.group, at.queue_offset, half.checks + 1,
        )  # fmt: skip
        return True

    # --- producers ---------------------------------------------------------------------------------------------------

    def _can_ask(self, group: str) -> bool:
        return any(member.peer.is_open for member in self._producers.members(group))

    def _next_peer(self, group: str) -> Peer | None:
        """They take turns: one that does not know the answer is not the only one asked."""
        peers = [member.peer for member in self._producers.members(group) if member.peer.is_open]
        if not peers:
            return None
        self._asked += 1
        return peers[self._asked % len(peers)]
