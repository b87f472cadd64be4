"""Delayed messages: kept in a queue for each delay level, and delivered when their time has come.

A message with the property DELAY = n goes to queue n-1 of a topic of the broker's own; its topic and queue go along as
properties. All messages of a level wait equally long, so its queue is in the order in which they become due, and one
deliverer for each level looks at nothing but the head: it sleeps until the head is due, or until a message arrives.

Never early: a message is due when the clock says that its delay has passed since it was stored. A clock that was set
back would make it wait for as long as it went back; so a message is due as well when it was seen waiting for the whole
delay by the clock that only grows.

At least once: the offset of a level is saved when the delivered copies are on the disk. A crash repeats the last
deliveries; a clean stop, and a slave that takes over from a master that lives, deliver nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pyromq.broker.delivery import properties
from pyromq.broker.delivery.append import Writer
from pyromq.broker.delivery.redraft import draft_of
from pyromq.broker.state.topics import Topics
from pyromq.clock import Clock
from pyromq.config import parse_delay_levels
from pyromq.errors import (
    CorruptStore,
    DiskFull,
    IllegalMessage,
    NoPermission,
    NotEnoughReplicas,
    NotNow,
    SlavesLate,
    StoreError,
    StoreFenced,
)
from pyromq.model import names
from pyromq.model.message import AppendedAt, Draft
from pyromq.records import layout, record
from pyromq.store.message_store import MessageStore
from pyromq.store.queues.queue_reader import ReadStatus
from pyromq.store.tables.offset_files import DelayOffsets

log = logging.getLogger("pyromq.broker")

#: The maximum of messages delivered in one turn, so that senders and consumers get their turn too.
MAX_TURN_MESSAGES = 256
MAX_TURN_BYTES = 1 << 20
#: More would be a stray directory, not the levels of an older configuration.
MAX_LEVELS = 1024
#: After a full disk, or one that cannot be read, the next attempt.
RETRY_SECONDS = 1.0
#: The longest sleep between two looks at the clock: it may have been set forward.
MAX_SLEEP_SECONDS = 30.0
#: The longest wait of a stop for the disk to confirm the last deliveries; without it they are repeated after the start.
STOP_SECONDS = 5.0

_EXACT_TIME = (b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS")


class _Ready(NamedTuple):
    """A message that is due, as it goes to its topic."""

    offset: int
    draft: Draft


class _Unconfirmed(NamedTuple):
    """Everything before an offset is delivered once the log is synced up to a position."""

    end: int
    offset: int


@dataclass(slots=True, eq=False)
class _Level:
    number: int
    delay_ms: int
    #: The next message to deliver.
    offset: int
    #: All messages below this offset were there at that time of the clock that only grows …
    seen_below: int
    seen_at: float
    #: … and these since a whole delay.
    due_below: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    unconfirmed: deque[_Unconfirmed] = field(default_factory=deque)

    @property
    def queue_id(self) -> int:
        return self.number - 1

    def saw(self, max_offset: int, now: float) -> None:
        """Note which messages are there."""
        if now - self.seen_at >= self.delay_ms / 1000:
            self.due_below = self.seen_below
        elif self.seen_below > self.offset:
            return  # some of them still wait
        self.seen_below, self.seen_at = max_offset, now

    def seconds_left(self, view: memoryview, now_ms: int, now: float) -> float:
        """Return the time that a message has to wait; 0 if it is due."""
        if layout.queue_offset_of(view) < self.due_below:
            return 0.0
        stored_ms = record.stored_at_ms(view, 0, len(view))
        assert stored_ms is not None, "the store gave a view that is no record"
        by_clock = (stored_ms + self.delay_ms - now_ms) / 1000
        return max(0.0, min(by_clock, max(self.seen_at + self.delay_ms / 1000 - now, 0.001)))


class Delays:
    """Puts delayed messages aside, and delivers them."""

    def __init__(
        self, store: MessageStore, writer: Writer, offsets: DelayOffsets, topics: Topics, clock: Clock
    ) -> None:
        """The store is open, and `offsets` are loaded: from here on new messages may come in."""
        self._store = store
        self._writer = writer
        self._offsets = offsets
        self._topics = topics
        self._clock = clock
        self._delays_ms = parse_delay_levels(store.config.delay_levels)
        self._levels = [self._level(number) for number in range(1, self._level_count() + 1)]
        self._last: AppendedAt | None = None
        self._is_held_up = False
        self._missing_topics: set[bytes] = set()
        store.on_arrival(self._on_arrival)
        store.marks.synced.listen(self._on_synced)

    def _level_count(self) -> int:
        """The levels of the settings, and those that older settings left messages in: they wait like the last level."""
        queues = self._store.queue_list(names.SCHEDULE_TOPIC)
        found = [queue.id.number + 1 for queue in queues if queue.id.number < MAX_LEVELS]
        return max(len(self._delays_ms), *found, 0)

    def _level(self, number: int) -> _Level:
        delay_ms = self._delays_ms[min(number, len(self._delays_ms)) - 1]
        offset = self._start_of(number)
        max_offset = self._store.max_offset(names.SCHEDULE_TOPIC, number - 1)
        return _Level(number, delay_ms, offset, max_offset, self._clock.monotonic())

    def _start_of(self, number: int) -> int:
        """Return the start of a level: the saved offset, if its queue has it, else the nearest that it has."""
        saved = self._offsets.offset_of(number)
        low = self._store.min_offset(names.SCHEDULE_TOPIC, number - 1)
        high = self._store.max_offset(names.SCHEDULE_TOPIC, number - 1)
        if saved is None:
            return low
        nearest = min(max(saved, low), high)
        if nearest != saved:
            log.error("delay level %d goes on at offset %d: its queue does not hold %d", number, nearest, saved)
            self._offsets.reset(number, nearest)
        return nearest

    def progress(self) -> list[tuple[int, int, int]]:
        """Of each level: its number, the offset it delivers next, and the end of its queue."""
        return [
            (level.number, level.offset, self._store.max_offset(names.SCHEDULE_TOPIC, level.queue_id))
            for level in self._levels
        ]

    # --- on the way in -----------------------------------------------------------------------------------------------

    def divert(self, draft: Draft) -> Draft:
        """Return the message to store: the given one, or a copy for a delay level's queue. Raises IllegalMessage."""
        wanted = properties.get(draft.properties, properties.DELAY)
        if wanted is None or not layout.has_queue_offset(draft.storage_flags):
            return draft
        level = properties.get_int(draft.properties, properties.DELAY)
        if level is None:
            raise IllegalMessage(f"the delay level (DELAY) is a whole number, not {wanted[:20]!r}")
        return draft if level <= 0 else self._put_aside(draft, min(level, len(self._delays_ms)))

    @staticmethod
    def _put_aside(draft: Draft, level: int) -> Draft:
        changed = draft.properties
        for name in _EXACT_TIME:  # the level counts
            changed = properties.remove(changed, name)
        changed = properties.put(changed, properties.DELAY, b"%d" % level)
        changed = properties.put(changed, properties.REAL_TOPIC, draft.topic)
        changed = properties.put(changed, properties.REAL_QUEUE, b"%d" % draft.queue_id)
        return replace(draft, topic=layout.SCHEDULE_TOPIC, queue_id=level - 1, properties=changed)

    # --- in the background -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Deliver, for as long as the broker runs."""
        try:
            async with asyncio.TaskGroup() as deliverers:
                for level in self._levels:
                    deliverers.create_task(self._deliver(level))
        finally:
            await self.confirmed()

    async def _deliver(self, level: _Level) -> None:
        while True:
            try:
                seconds = await self._turn(level)
            except (DiskFull, NotEnoughReplicas, NotNow, OSError) as trouble:
                if not self._is_held_up:
                    log.warning("delayed messages wait, and are tried again: %s", trouble)
                self._is_held_up = True
                seconds = RETRY_SECONDS
            except StoreFenced:
                return  # the fenced store has failed its waiters
            if seconds is None:
                await self._arrival(level)
            else:
                await asyncio.sleep(min(seconds, MAX_SLEEP_SECONDS))

    async def _arrival(self, level: _Level) -> None:
        level.arrived.clear()
        self._store.watch(names.SCHEDULE_TOPIC, level.queue_id)
        await level.arrived.wait()

    def _on_arrival(self, queues: list[tuple[str, int]]) -> None:
        for topic, queue_id in queues:
            if topic == names.SCHEDULE_TOPIC and queue_id < len(self._levels):
                self._levels[queue_id].arrived.set()

    async def _turn(self, level: _Level) -> float | None:
        """Deliver the due messages of a level, up to a bound. Return the seconds until the next; None if none waits."""
        try:
            found = await self._store.read_soon(
                names.SCHEDULE_TOPIC,
                level.queue_id,
                level.offset,
                max_messages=MAX_TURN_MESSAGES,
                max_bytes=MAX_TURN_BYTES,
            )
        except CorruptStore as damage:
            self._step_over(level, level.offset, damage)
            return 0.0
        match found.status:
            case ReadStatus.AT_END | ReadStatus.NO_QUEUE:
                return None
            case ReadStatus.FOUND:
                level.saw(found.max_offset, self._clock.monotonic())
                return await self._deliver_first(level, found.records)
            case ReadStatus.NO_MATCH:  # a hole
                self._advance(level, found.next_offset)
            case _:
                log.error("delay level %d goes from offset %d to %d", level.number, level.offset, found.next_offset)
                self._offsets.reset(level.number, found.next_offset)
                self._advance(level, found.next_offset)
        return 0.0

    async def _deliver_first(self, level: _Level, records: Sequence[memoryview]) -> float:
        """Deliver those at the beginning that are due."""
        now_ms, now = self._clock.now_ms(), self._clock.monotonic()
        ready: list[_Ready] = []
        seconds = 0.0
        for view in records:
            seconds = level.seconds_left(view, now_ms, now)
            if seconds:
                break
            offset = layout.queue_offset_of(view)
            released = self._released(view)
            if isinstance(released, str):
                self._append(level, ready)
                ready = []
                self._step_over(level, offset, released)
            else:
                ready.append(_Ready(offset, released))
        self._append(level, ready)
        if self._last is not None:
            with contextlib.suppress(SlavesLate):  # they are delivered, and slaves get them in the order of the log
                await self._writer.acknowledged(self._last)
        return seconds

    # --- one message -------------------------------------------------------------------------------------------------

    def _released(self, view: memoryview) -> Draft | str:
        """A delayed message as it goes to its topic; the reason when it cannot. Its properties stay as they are."""
        draft = draft_of(view)
        topic = properties.get(draft.properties, properties.REAL_TOPIC)
        queue_id = properties.get_int(draft.properties, properties.REAL_QUEUE)
        if topic is None or queue_id is None:
            return "it does not say which topic and queue it is for"
        name = topic.decode(errors="replace")
        try:
            names.check_may_send(name)
        except NoPermission as problem:
            return str(problem)
        if self._topics.get(name) is None and topic not in self._missing_topics:
            # It may have been removed, or a crash came before it was saved: no acknowledged message is dropped, and
            # as soon as the topic exists (again), its messages are there.
            log.warning("delayed messages are delivered to the topic %s, which is not there (any more)", name)
            self._missing_topics.add(topic)
        return replace(draft, topic=topic, queue_id=queue_id, prepared_position=0)

    def _append(self, level: _Level, ready: Sequence[_Ready]) -> None:
        """Raises DiskFull, StoreFenced; messages appended before the error count."""
        if not ready:
            return
        try:
            receipts = self._writer.append([one.draft for one in ready])
        except DiskFull as full:
            self._appended(level, ready, full.receipts)
            raise
        except IllegalMessage as problem:  # the limits were other ones when it came in
            if len(ready) == 1:
                self._step_over(level, ready[0].offset, problem)
                return
            for one in ready:
                self._append(level, [one])
        else:
            self._appended(level, ready, receipts)

    def _appended(self, level: _Level, ready: Sequence[_Ready], receipts: Sequence[object]) -> None:
        if receipts:
            last = receipts[-1]
            assert isinstance(last, AppendedAt)
            self._last = last
            self._is_held_up = False
            self._advance(level, ready[len(receipts) - 1].offset + 1, last.end)

    def _step_over(self, level: _Level, offset: int, why: object) -> None:
        log.error("the message at offset %d of delay level %d is not delivered: %s", offset, level.number, why)
        self._advance(level, offset + 1)

    # --- how far a level is ------------------------------------------------------------------------------------------

    def _advance(self, level: _Level, offset: int, end: int = 0) -> None:
        """Go on at an offset, which counts when the log is synced up to `end` and everything before counts."""
        level.offset = offset
        level.unconfirmed.append(_Unconfirmed(end, offset))
        self._confirm(level, self._store.positions().synced)

    def _confirm(self, level: _Level, synced: int) -> None:
        while level.unconfirmed and level.unconfirmed[0].end <= synced:
            end, offset = level.unconfirmed.popleft()
            self._offsets.commit(level.number, offset, end)

    def _on_synced(self, synced: int) -> None:
        for level in self._levels:
            if level.unconfirmed:
                self._confirm(level, synced)

    async def confirmed(self) -> None:
        """Wait until the last deliveries are on the disk, so that they are not repeated: before a stop, and before
        another broker takes over."""
        if self._last is not None:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._store.wait_synced(self._last)
