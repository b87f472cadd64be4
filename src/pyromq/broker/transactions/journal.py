"""The ledger of transactions and the store: read at the start, written from then on.

After a crash: a committed message and the record of its half's end are appended together, the message first. A full
disk takes both or neither, and the log survives up to some point: so the end is never there without the message, and
only the last message of a log can be there without its end. If a crash came between the two, the start finds the
message, which says of which half it is, in the part of the log that was written last, and records the end. So a half
that is committed several times, by any producers, is one message. A copy of a half and the end of the one it replaces
are appended together as well; if a crash separates them, the copies' common key tells. The position for a restart is
saved only once everything that it relies on is on the disk.

Each end is recorded at once, with one record. RocketMQ gathers them for up to three seconds, and asks producers again
for what it had gathered when it crashed; a record of some hundred bytes for each transaction is a small price.
"""

from __future__ import annotations

import asyncio
import logging

from pyromq.broker.delivery.append import Writer
from pyromq.broker.transactions import forms
from pyromq.broker.transactions.committed import committed_halves
from pyromq.broker.transactions.ledger import Half, Key, Ledger
from pyromq.clock import Clock
from pyromq.errors import CorruptStore, DiskFull, IllegalMessage, NotEnoughReplicas, NotNow, OffsetNotFound
from pyromq.model import names
from pyromq.model.message import AppendedAt, Draft, PackedHost
from pyromq.store.message_store import MessageStore
from pyromq.store.queues.queue_reader import ReadResult, ReadStatus
from pyromq.store.tables.offset_files import ConsumerOffsets

log = logging.getLogger("pyromq.broker")

#: The maximum read before other tasks get their turn.
READ_MESSAGES = 32
READ_BYTES = 1 << 20
SKIP_MESSAGES = 10_000


class Journal:
    """Keeps the ledger and the store in step."""

    def __init__(
        self, store: MessageStore, writer: Writer, offsets: ConsumerOffsets, clock: Clock, store_host: PackedHost
    ) -> None:
        self.store = store
        self.writer = writer
        self.store_host = store_host
        self.ledger = Ledger(0, 0)
        self._offsets = offsets
        self._clock = clock
        self._is_loaded = asyncio.Event()
        #: Halves below this offset were found at the start: each is read, for a copy tells of those before it.
        self._found_below = 0
        #: The newest record that the saved position relies on, and the log end at the load.
        self._last: AppendedAt | None = None
        self._loaded_to = 0
        #: Ends that a full disk, or too few copies, did not let in; until then nothing but this process knows of them.
        self._unrecorded: list[int] = []

    # --- the start ---------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Find out which transactions are open. Until then none can be ended."""
        half_from, op_from = self._start_of(names.HALF_TOPIC), self._start_of(names.HALF_DONE_TOPIC)
        self.ledger = Ledger(half_from, op_from)
        self._loaded_to = self.store.positions().appended
        await self._read_ends(op_from, self.end_of(names.HALF_DONE_TOPIC))
        self._found_below = self.end_of(names.HALF_TOPIC)
        await self.read_halves(self._found_below)
        await self._end_committed()
        self._is_loaded.set()

    async def _end_committed(self) -> None:
        """Record the ends that a crash came before. Raises OSError."""
        report = self.store.report
        for number, position in enumerate(
            committed_halves(self.store.log_files(), report.scanned_from, report.log_end)
        ):
            if number % READ_MESSAGES == 0:
                await asyncio.sleep(0)
            if position is None:
                continue
            try:
                half = forms.half_at(await self.store.message_soon(position))
            except (OffsetNotFound, CorruptStore, IllegalMessage):
                half = None
            # None: it was the half of another broker, or is too old.
            current = None if half is None else self.ledger.begin(half.offset, half.key)
            if half is not None and current is not None:
                log.info("the half message at offset %d was committed right before the last stop", current)
                self.record_end(current, half.key)

    @property
    def is_loaded(self) -> bool:
        return self._is_loaded.is_set()

    async def wait_loaded(self) -> None:
        if not self._is_loaded.is_set():
            await self._is_loaded.wait()

    def _start_of(self, topic: str) -> int:
        """Return the offset where the last run stopped, if the queue has it, else the nearest that it has."""
        saved = self._offsets.offset_of(names.TRANSACTION_GROUP, topic, forms.QUEUE)
        low, high = self.store.min_offset(topic, forms.QUEUE), self.end_of(topic)
        if saved is None:
            return low
        nearest = min(max(saved, low), high)
        if nearest < saved:
            log.error("transactions go on at offset %d of %s: it does not hold %d", nearest, topic, saved)
            self._offsets.reset(names.TRANSACTION_GROUP, topic, forms.QUEUE, nearest)
        return nearest

    def end_of(self, topic: str) -> int:
        return self.store.max_offset(topic, forms.QUEUE)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def record(self, offset: int, position: int) -> memoryview:
        """The record of a half. Raises OffsetNotFound, OSError."""
        if self.is_cold(offset):
            return await self.store.message_soon(position)
        return self.store.message_at(position)

    def is_cold(self, offset: int) -> bool:
        return self.store.is_cold(names.HALF_TOPIC, forms.QUEUE, offset)

    async def read_halves(self, end: int) -> None:
        """Let the ledger see the halves below an offset, or as many of them as it has room for. Raises OSError."""
        ledger = self.ledger
        while ledger.half_next < end and ledger.has_room:
            if ledger.half_next >= self._found_below:
                ledger.skip_ended(min(end, ledger.half_next + SKIP_MESSAGES))
            found = await self._read(names.HALF_TOPIC, ledger.half_next, end)
            for view in found.records:
                self._see_half(view)
            ledger.read_to(found.next_offset)

    def _see_half(self, view: memoryview) -> None:
        try:
            half = forms.read_half(view)
        except IllegalMessage as problem:
            log.error("a half message cannot be understood, and is left where it is: %s", problem)
        else:
            self.ledger.half_seen(half)

    async def _read_ends(self, offset: int, end: int) -> None:
        while offset < end:
            found = await self._read(names.HALF_DONE_TOPIC, offset, end)
            for view in found.records:
                self.ledger.op_seen(*forms.ends_in(view))
            offset = found.next_offset

    async def _read(self, topic: str, offset: int, end: int) -> ReadResult:
        """Read the next piece of a queue. Damaged records are skipped: they must not block the rest."""
        await asyncio.sleep(0)
        nothing = ReadResult(ReadStatus.NO_MATCH, offset, 0, end)
        if offset >= end:
            return nothing
        try:
            found = await self.store.read_soon(
                topic, forms.QUEUE, offset, max_messages=min(READ_MESSAGES, end - offset), max_bytes=READ_BYTES
            )
        except CorruptStore as damage:
            log.error("offset %d of %s is stepped over: %s", offset, topic, damage)
            found = nothing
        found.next_offset = max(found.next_offset, offset + 1)
        return found

    # --- writing -----------------------------------------------------------------------------------------------------

    def record_end(self, offset: int, key: Key) -> None:
        """A half has ended: it counts from now on, also when it cannot be recorded yet. Raises StoreFenced."""
        self.ledger.ended(offset, key)
        self._record_end(offset)

    def commit(self, offset: int, key: Key, message: Draft) -> AppendedAt:
        """Append the message of a half, and that the half has ended. Raises IllegalMessage, DiskFull, StoreFenced; then
        it has not."""
        _, end = self._append_with_end(message, offset)
        self.ledger.ended(offset, key)
        return end

    def record_missing_ends(self) -> None:
        """Try again what could not be recorded. Raises StoreFenced."""
        missing, self._unrecorded = self._unrecorded, []
        for offset in missing:
            self._record_end(offset)

    def _record_end(self, offset: int) -> None:
        try:
            (receipt,) = self.writer.append([self._end_of(offset)])
        except (DiskFull, NotEnoughReplicas, NotNow):
            log.warning("it is not recorded yet that the transaction at half offset %d has ended", offset)
            self._unrecorded.append(offset)
        else:
            self._recorded(receipt, offset)

    def _end_of(self, offset: int) -> Draft:
        ((draft, _),) = forms.op_drafts([offset], self._clock.now_ms(), self.store_host)
        return draft

    def move(self, half: Half, copy: Draft, *, with_end: bool) -> AppendedAt:
        """Append a copy of a half, which counts from now on in its place. Raises IllegalMessage, DiskFull, StoreFenced.

        `with_end` also records the end of the old one; without it only the saved position says that it has been moved.
        """
        receipt = self._replace(half, copy, with_end=with_end)
        self.ledger.moved(half, receipt.queue_offset)
        return receipt

    def put_aside(self, half: Half, draft: Draft) -> None:
        """Append a half to those that are no longer checked. Raises IllegalMessage, DiskFull, StoreFenced."""
        self._replace(half, draft, with_end=True)
        self.ledger.put_aside(half)

    def resume(self, key: Key | None, draft: Draft) -> AppendedAt:
        """Append a half that was put aside to the queue. Raises IllegalMessage, DiskFull, StoreFenced."""
        (receipt,) = self.writer.append([draft])
        if key is not None:
            self.ledger.resumed(key, receipt.queue_offset)
        return receipt

    def _replace(self, half: Half, draft: Draft, *, with_end: bool) -> AppendedAt:
        if with_end:
            copy, _ = self._append_with_end(draft, half.offset)
            return copy
        (receipt,) = self.writer.append([draft])
        self._last = receipt
        return receipt

    def _append_with_end(self, draft: Draft, offset: int) -> tuple[AppendedAt, AppendedAt]:
        """A record, and behind it the end of the half that it is made of."""
        made, end = self.writer.append_together([draft, self._end_of(offset)])
        self._recorded(end, offset)
        return made, end

    def _recorded(self, receipt: AppendedAt, offset: int) -> None:
        self._last = receipt
        self.ledger.op_written(receipt.queue_offset, [offset])

    async def save_positions(self) -> None:
        """Save the position for a restart, once all that it relies on is on the disk. Raises StoreFenced."""
        positions, log_end = self.ledger.positions(), self._loaded_to
        if self._last is not None:
            log_end = self._last.end
            await self.store.wait_synced(self._last)
        by_topic = {names.HALF_TOPIC: positions.half, names.HALF_DONE_TOPIC: positions.op}
        self._offsets.set_transactions(by_topic, log_end)
