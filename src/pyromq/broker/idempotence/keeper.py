"""Keeps the producer table over restarts: a file, and the log after the file's position.

The file is written before the first numbered message ever is appended; so a broker that has none need not look, and
one that has it finds every later message in the log. From then on it follows the log, so that a start has little to
read, and it covers only bytes on the disk: it is written once `synced` has reached its position. A crash at any
moment therefore leaves a file that knows too little at worst, never a message that is not stored.

If the log ends before the file's position, it was cut: then the file is of no use, and all of the log is read.

A slave has its messages from another broker's log, and reads what it must remember from its copy. It has the file from
its first moment on, so that it knows the same as its master when it takes over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from pyromq.broker.idempotence.log_scan import numbered_at, numbered_records
from pyromq.broker.idempotence.producer_file import FILE, Snapshot, WritersFile
from pyromq.broker.idempotence.sequences import BatchEnd, Sequences, Stream
from pyromq.broker.state.clamping import COPIES_OF_A_TABLE, LogEnds
from pyromq.clock import Clock
from pyromq.errors import CorruptFile, NotNow, StoreFenced
from pyromq.files.platform import what_to_do
from pyromq.files.uninterrupted import end_if_cancelled, uninterrupted
from pyromq.model.ids import LogPosition, QueueOffset
from pyromq.model.message import AppendedAt
from pyromq.store.message_store import MessageStore

log = logging.getLogger("pyromq.broker")

LOOK_SECONDS = 10.0
#: The file follows when the log has grown by this much: a start reads it in a second, if it is nothing but numbers.
FOLLOW_BYTES = 128 << 20
#: A change is in the file after this time at the latest: sooner than the log forgets it.
FOLLOW_SECONDS = 600.0


#: A follower reads more often, at most this many bytes in one turn of the loop.
COPY_LOOK_SECONDS = 1.0
PIECE_BYTES = 4 << 20


class SequenceKeeper:
    """Loads the table at the start, and saves it in the background."""

    def __init__(
        self, sequences: Sequences, file: WritersFile, store: MessageStore, clock: Clock, *, reads_copy: bool = False
    ) -> None:
        """`reads_copy`: messages come from another broker's log, and what their writers are is read from the copy."""
        self._reads_copy = reads_copy
        #: Everything below is in the table; and where pieces end that are not.
        self._read_to = 0
        self._ends: deque[int] = deque()
        if reads_copy:
            store.marks.written.listen(self._copy_grew)
        self.sequences = sequences
        self._file = file
        self._store = store
        self._clock = clock
        #: May numbered messages be appended? There is a file, and it holds.
        self.is_ready = False
        #: Something was forgotten that the log would bring back.
        self._must_save = False
        #: The file speaks of a part of the log that was truncated.
        self._was_cut = False
        self._saved_to = 0
        #: Changes of the table that are in the file, and in the snapshot on its way there.
        self._saved_changes = self._taken_changes = 0
        self._saved_at = clock.monotonic()
        self._saving = asyncio.Lock()
        self._is_in_trouble = False

    # --- the start ---------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the known producers, before anything is appended."""
        end = self._store.positions().appended
        try:
            snapshot = self._file.load()
        except CorruptFile as damage:
            log.error("what is known of writers is read from the whole log: %s", damage)
            self._read_log(0, end)
            return
        if snapshot is None:
            return  # numbered messages make the file first; a copy's are read from its beginning on
        if snapshot.position > end:
            log.error("the log was cut at %d, below what %s speaks of: all of it is read", end, FILE)
            self._was_cut = True
            self._read_log(0, end)
            return
        self.sequences.restore(snapshot.entries)
        self._saved_to, self._saved_changes = snapshot.position, self.sequences.changes
        self.is_ready = True
        self._read_log(snapshot.position, end)

    def clamp(self, ends: LogEnds) -> bool:
        """The table was read from the log as it is: only the file has to be written again. See `clamping`."""
        return self._was_cut

    def save_clamped(self) -> None:
        """Have the next start read the whole log. Raises OSError.

        Before the log grows over the position in the file: it would have other messages there.
        """
        for _ in range(COPIES_OF_A_TABLE):
            self._file.save(Snapshot(0, []))

    def _read_log(self, start: int, end: int) -> None:
        start = max(start, self._store.positions().log_start)
        for message, stored_ms, position in numbered_records(self._store.log_files(), start, end):
            self.sequences.stored(((message, position),), stored_ms)
        self.sequences.forget_old(self._clock.now_ms())
        self._read_to = end
        log.info("%d writers are remembered; the log was read from %d to %d", len(self.sequences), start, end)

    def holds(self, stream: Stream, end: BatchEnd) -> bool:
        """Return whether the end of a batch is in the log, at the position that the table has."""
        store = self._store
        positions = store.positions()
        if not positions.log_start <= end.position < positions.appended:
            return False
        if end.position >= positions.replicable:
            return True  # appended in this life, and not in a file yet
        found = numbered_at(store.log_files(), end.position)
        return found is not None and (found.stream, found.batch, found.number) == (stream, end.batch, end.number)

    # --- a copy ------------------------------------------------------------------------------------------------------

    def _copy_grew(self, position: int) -> None:
        """Records end where an append does: a long stretch can be read in pieces."""
        if position - (self._ends[-1] if self._ends else self._read_to) >= PIECE_BYTES:
            self._ends.append(position)

    async def _follow_copy(self) -> None:
        try:
            await self.make_ready()  # from now on a start reads the rest, whatever it starts as
        except NotNow as trouble:
            log.warning("writers are not remembered yet, and are tried again: %s", trouble)
            return
        while self._read_to < (end := self._next_end()):
            for message, stored_ms, position in numbered_records(self._store.log_files(), self._read_to, end):
                self.sequences.stored(((message, position),), stored_ms)
            self._read_to = end
            await asyncio.sleep(0)

    def _next_end(self) -> int:
        while self._ends and self._ends[0] <= self._read_to:
            self._ends.popleft()
        return self._ends[0] if self._ends else self._store.positions().written

    # --- saving ------------------------------------------------------------------------------------------------------

    async def make_ready(self) -> None:
        """Return when numbered messages may be appended. Raises NotNow (the disk takes no file), StoreFenced."""
        async with self._saving:
            if not self.is_ready:
                await self._write_or_refuse(await self._synced_snapshot())
                self.is_ready = True

    def forget_topic(self, topic: str) -> None:
        """The topic is gone in this turn."""
        if self.sequences.forget_topic(topic.encode()):
            self._must_save = True

    async def settled(self) -> None:
        """Return when a crash cannot restore a forgotten producer. Raises NotNow, StoreFenced."""
        if self._must_save:
            async with self._saving:
                self._must_save = False
                try:
                    await self._write_or_refuse(await self._synced_snapshot())
                except BaseException:
                    self._must_save = True
                    raise

    async def run(self) -> None:
        """Follow the log, for as long as the broker runs."""
        while True:
            if self._reads_copy:
                await self._follow_copy()
            await asyncio.sleep(COPY_LOOK_SECONDS if self._reads_copy else LOOK_SECONDS)
            self.sequences.forget_old(self._clock.now_ms())
            if self._is_due:
                await self.save()

    @property
    def _is_due(self) -> bool:
        if not self.is_ready:
            return False
        grown = self._known_to - self._saved_to
        has_changed = self.sequences.changes != self._saved_changes
        is_late = self._clock.monotonic() - self._saved_at >= FOLLOW_SECONDS
        return grown >= FOLLOW_BYTES or (has_changed and is_late) or self._must_save

    @property
    def _known_to(self) -> int:
        return self._read_to if self._reads_copy else self._store.positions().appended

    async def save(self) -> None:
        """Let the file follow the log, if numbered messages were ever sent; a disk that does not take it is logged."""
        if not self.is_ready or self._saved_to == self._known_to:
            return
        try:
            async with self._saving:
                await self._write(await self._synced_snapshot())
        except OSError as error:
            if not self._is_in_trouble:
                log.error("the writers' file cannot be written, and is tried again: %s", what_to_do(error))
            self._is_in_trouble = True
            end_if_cancelled()
        except StoreFenced:
            return  # the fenced store has failed its waiters
        else:
            self._is_in_trouble = False

    async def _synced_snapshot(self) -> Snapshot:
        """Everything up to now, once it is on the disk. Raises StoreFenced."""
        position = LogPosition(self._known_to)
        snapshot = Snapshot(position, self.sequences.entries())
        self._taken_changes = self.sequences.changes
        await self._store.wait_synced(AppendedAt(position, 0, QueueOffset(0)))
        return snapshot

    async def _write_or_refuse(self, snapshot: Snapshot) -> None:
        try:
            await self._write(snapshot)
        except OSError as error:
            end_if_cancelled()
            raise NotNow(f"what is known of writers cannot be written now: {what_to_do(error)}") from error

    async def _write(self, snapshot: Snapshot) -> None:
        await uninterrupted(asyncio.ensure_future(asyncio.to_thread(self._file.save, snapshot)))
        self._saved_to, self._saved_changes = snapshot.position, self._taken_changes
        self._saved_at = self._clock.monotonic()
