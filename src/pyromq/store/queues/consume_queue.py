"""One queue of one topic: 20-byte entries that say where its messages are in the log.

Format: `consumequeue/<topic>/<queue>/<first byte>`, files of a fixed number of entries (see `queue_cursor`). The entry
of queue offset n is at byte 20·n of the whole run. A queue whose oldest messages are gone begins in the middle of a
file; the entries before are blanks (position 0, size 2³¹−1), as RocketMQ writes them.

Crash policy: a cache. Everything in it is derived from the log; recovery cuts it back to the synced entries, and
the dispatcher writes the rest again. Files have no checksum: entries that this process did not write itself are checked
against the record that they point to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from pyromq.errors import CorruptStore
from pyromq.files.disk import Disk
from pyromq.model.ids import QueueId
from pyromq.store.log.segmented_file import Segment, SegmentedFile, is_position, run_names
from pyromq.store.log.zeroes import last_nonzero, zero
from pyromq.store.queues.queue_cursor import ENTRY, QueueCursor

#: Room on the disk is taken in steps, not for a whole file: a broker may have thousands of queues with few messages.
RESERVE_BYTES = 6000 * ENTRY.size
BLANK_SIZE = 0x7FFFFFFF
#: Entries that are compared with the log together, before a filtered read believes their tag hashes.
CHECKED_ENTRIES = 512


class QueueEntry(NamedTuple):
    position: int
    size: int
    tag_code: int

    @property
    def end(self) -> int:
        return self.position + self.size

    @property
    def is_blank(self) -> bool:
        return self.position == 0 and self.size == BLANK_SIZE


class ConsumeQueue:
    """The entries of one queue. Written by the dispatcher only."""

    def __init__(
        self, disk: Disk, directory: Path, queue: QueueId, file_entries: int, *, writable: bool = True
    ) -> None:
        self.id = queue
        self.topic = queue.topic.encode("utf-8", "surrogateescape")
        self.file_entries = file_entries
        # Entries come a few at a time, and a broker has many queues: large pages would fill its memory.
        # And two descriptors each would leave none for connections.
        self.files = SegmentedFile(
            disk, directory, file_entries * ENTRY.size, writable=writable, small_pages=True, keeps_descriptors=False
        )
        self.cursor = QueueCursor()
        #: The oldest offset whose message is still in the log.
        self.min_offset = 0
        #: Entries below this offset were found on disk, not written by this process.
        self.found_below = 0
        #: Its files were not what a writer leaves, and were thrown away.
        self.is_damaged = False
        #: Its last files are in order, and some before them are missing or were thrown away.
        self.has_lost_front = False
        #: The chunks of `CHECKED_ENTRIES` whose tag hashes were compared with the log.
        self._checked_chunks: set[int] = set()
        #: It is not to be read until it has been derived from the log again.
        self.is_suspect = False
        self._synced_to = 0

    # --- reading -----------------------------------------------------------------------------------------------------

    @property
    def max_offset(self) -> int:
        """Behind the newest entry: the offset that the next message will have."""
        return self.cursor.next_dispatch

    def entry(self, offset: int) -> QueueEntry | None:
        """The entry of an offset; None when no file holds it."""
        at = offset * ENTRY.size
        segment = self.files.find(at)
        if segment is None:
            return None
        return QueueEntry(*ENTRY.unpack_from(segment.buffer, at - segment.base))

    # --- writing -----------------------------------------------------------------------------------------------------

    def make_room(self) -> None:
        """See to it that the next entry can be written. Raises OSError when the disk is full."""
        cursor = self.cursor
        at = cursor.next_dispatch * ENTRY.size
        segment = self.files.find(at)
        if segment is None:
            is_first = not self.files.segments
            segment = self.files.create(at - at % self.files.file_bytes, reserve=False, durable=False)
            if is_first:
                segment.file.reserve(0, at - segment.base + ENTRY.size)
                self._fill_blanks(segment.buffer, (at - segment.base) // ENTRY.size)
                self.min_offset = max(self.min_offset, cursor.next_dispatch)
            self.files.add(segment)
        start = at - segment.base
        end = min(start - start % RESERVE_BYTES + RESERVE_BYTES, segment.size)
        segment.file.reserve(start, end)
        first = segment.base // ENTRY.size
        cursor.point_at(segment.buffer, first, first + end // ENTRY.size)

    @staticmethod
    def _fill_blanks(buffer: memoryview, count: int) -> None:
        buffer[: count * ENTRY.size] = ENTRY.pack(0, BLANK_SIZE, 0) * count

    def start_at(self, offset: int) -> None:
        """Begin an empty queue in the middle: its older messages are no longer in the log."""
        assert not self.files.segments
        self.cursor.next_dispatch = self.cursor.next_append = self.min_offset = offset
        self.found_below = self._synced_to = offset

    def sync(self, to: int) -> None:
        """Make the entries below an offset durable. May run on another thread. Raises OSError."""
        if to <= self._synced_to:
            return
        for segment in list(self.files.segments):
            if segment.base <= to * ENTRY.size and segment.end > self._synced_to * ENTRY.size and segment.is_mapped:
                segment.file.sync()
        self._synced_to = to

    # --- checks ------------------------------------------------------------------------------------------------------

    def is_checked(self, offset: int) -> bool:
        """May the tag hash of an entry be believed: was it written by this process, or compared with the log?"""
        return offset >= self.found_below or offset // CHECKED_ENTRIES in self._checked_chunks

    def checked(self, chunk: int) -> None:
        self._checked_chunks.add(chunk)

    # --- repair ------------------------------------------------------------------------------------------------------

    def suspect(self) -> None:
        """Block all readers, and do not report its first messages as removed, until it has been derived again."""
        self.is_suspect = True
        self.min_offset = 0

    def edges(self) -> list[int]:
        """Return the offsets of the first and last entry in each file that was found on the disk, and of the first
        message that is in the log."""
        found = {self.min_offset} if self.min_offset < self.found_below else set()
        for segment in list(self.files.segments):
            first, last = segment.base // ENTRY.size, min(segment.end // ENTRY.size, self.found_below) - 1
            found |= {first, last} if first <= last else set()
        return sorted(found)

    def has_front(self, log_start: int) -> bool:
        """Is it certain that no file is missing before the first one? It begins with offset 0, with a message that is
        gone, or with a blank."""
        first = self.files.start // ENTRY.size
        entry = self.entry(first)
        return not first or entry is None or entry.is_blank or entry.position < log_start

    def segment_for(self, offset: int) -> Segment | None:
        """Return the file of an offset; one before the first file is made. Raises OSError."""
        at = offset * ENTRY.size
        while self.files.segments and at < self.files.start:
            segment = self.files.create(self.files.start - self.files.file_bytes, reserve=True, durable=False)
            self.files.prepend(segment)
        return self.files.find(at)

    def begin_at(self, offset: int) -> None:
        """Its first message has this offset, as the log says; blanks stand before it in the file."""
        self.min_offset = offset
        first = self.files.start // ENTRY.size
        for number in range(first, min(offset, first + self.file_entries)):
            entry = self.entry(number)
            if entry is None or entry.size:
                break
            self.overwrite(number, ENTRY.pack(0, BLANK_SIZE, 0))

    def overwrite(self, offset: int, entry: bytes) -> None:
        """Put an entry in the place of another one; the next sync makes it durable."""
        segment = self.files.find(offset * ENTRY.size)
        assert segment is not None
        at = offset * ENTRY.size - segment.base
        segment.buffer[at : at + ENTRY.size] = entry
        self._synced_to = min(self._synced_to, offset)

    # --- recovery and retention --------------------------------------------------------------------------------------

    def load(self, log_start: int = 0) -> None:
        """Find the files. A run with gaps or wrong lengths is thrown away: it can be built again."""
        try:
            self.files.load()
            self.is_damaged = self.files.had_empty_file
        except CorruptStore:
            if not self.files.writable:
                raise
            if not self._drop_returned(log_start) and not self._keep_last_files():
                self.discard()
                self.is_damaged = True

    def _keep_last_files(self) -> bool:
        """Keep the last files that have no gap between them, because they tell the next offset; False if the very last
        one is not in order. Files that are not of a queue are left alone."""
        disk, directory, size = self.files.disk, self.files.directory, self.files.file_bytes
        names = [name for name in disk.names(directory) if is_position(name)]
        kept: list[int] = []
        for name in reversed(names):
            base = int(name)
            if disk.size(directory / name) != size or base % size or (kept and base + size != kept[-1]):
                break
            kept.append(base)
        if not kept:
            return False
        self.has_lost_front = len(kept) < len(names)
        for name in names[: len(names) - len(kept)]:
            disk.remove(directory / name)
        self.files.adopt(kept[::-1])
        return True

    def _drop_returned(self, log_start: int) -> bool:
        """Files that retention had removed, of which a crash brought back some and not others; False: no such gap."""
        segments = self.files.segments
        gaps = [n for n in range(1, len(segments)) if segments[n - 1].end != segments[n].base]
        if not gaps:
            return False
        last = QueueEntry(*ENTRY.unpack_from(segments[gaps[-1] - 1].buffer, self.files.file_bytes - ENTRY.size))
        if last.position >= log_start:
            return False
        for _ in range(gaps[-1]):
            self.files.remove_first()
        return True

    def discard(self) -> None:
        """Throw everything away, to be built again from the log."""
        for name in run_names(self.files.disk, self.files.directory):
            self.files.disk.remove(self.files.directory / name)
        self.files.close()
        self.let_go()

    def let_go(self) -> None:
        """Become an empty queue: the files have another owner, and close when their last reader is done."""
        self.files.segments = []
        self.files.buffers = []
        self.cursor = QueueCursor()
        self.min_offset = self.found_below = self._synced_to = 0
        self.is_suspect = False
        self._checked_chunks.clear()

    def find_end(self, is_good: Callable[[int, QueueEntry], bool]) -> int:
        """The offset behind the last good entry, where `is_good` holds for a first part of the queue and then never."""
        segments = self.files.segments
        for segment in reversed(segments):
            # Only where something was written: looking at a hole would bring in its pages, or take them from a tmpfs.
            low = segment.base // ENTRY.size
            high = -(-(segment.base + segment.data_end(0)) // ENTRY.size)  # an entry may end in a hole: zeroes
            if low >= high or not self._is_good(low, is_good):
                continue
            while high - low > 1:
                middle = (low + high) // 2
                if self._is_good(middle, is_good):
                    low = middle
                else:
                    high = middle
            return high
        return segments[0].base // ENTRY.size if segments else 0

    def _is_good(self, offset: int, is_good: Callable[[int, QueueEntry], bool]) -> bool:
        entry = self.entry(offset)
        return entry is not None and (entry.is_blank or is_good(offset, entry))

    def written_from(self, offset: int) -> Iterator[QueueEntry]:
        """Return all nonzero entries from an offset on, valid or not."""
        for segment in self.files.segments:
            start = max(offset * ENTRY.size - segment.base, 0)
            end = last_nonzero(segment.buffer, start, segment.data_end(start)) if start < segment.size else start
            for entry in ENTRY.iter_unpack(segment.buffer[start : end + -end % ENTRY.size]):
                if any(entry):
                    yield QueueEntry(*entry)

    def end_of_gone(self, log_start: int) -> int:
        """The offset behind the last entry of a message that is no longer in the log: only the queue knows of it."""
        for segment in reversed(self.files.segments):
            size = segment.data_end(0)
            entries = list(ENTRY.iter_unpack(segment.buffer[: min(size + -size % ENTRY.size, segment.size)]))
            for number in range(len(entries) - 1, -1, -1):
                entry = QueueEntry(*entries[number])
                if entry.size > 0 and 0 <= entry.position < log_start and (entry.is_blank or entry.end <= log_start):
                    return segment.base // ENTRY.size + number + 1
        return 0

    def skip_to(self, offset: int) -> None:
        """Offsets below were given out before, and are not given out again. Raises OSError."""
        if not self.files.segments:
            self.start_at(offset)
            self.make_room()
        while self.max_offset < offset:
            if self.cursor.next_dispatch >= self.cursor.limit:
                self.make_room()
            self.cursor.put(0, BLANK_SIZE, 0)

    def resume_at(self, offset: int) -> None:
        """Continue at an offset: nothing is written from there on, and the entries below are synced."""
        self.cursor.next_dispatch = self.cursor.next_append = offset
        self.found_below = self._synced_to = offset

    def cut(self, offset: int) -> None:
        """Forget the entries from an offset on, and leave zeroes where they were."""
        at = offset * ENTRY.size
        kept = -(-at // self.files.file_bytes) * self.files.file_bytes
        for segment in self.files.segments:
            if segment.end > at:
                start = max(at - segment.base, 0)
                zero(segment.buffer, start, segment.data_end(start))
            if segment.base >= kept:
                segment.file.sync()  # a crash may bring the file back: then there is nothing in it
        self.files.remove_from(kept)
        self.cursor.next_dispatch = self.cursor.next_append = self.found_below = offset
        self.min_offset = min(self.min_offset, offset)
        self._synced_to = -1  # the zeroes, too
        self.cursor.limit = 0  # the next write looks for its file again

    def drop_before(self, log_start: int) -> None:
        """The log begins at a later position now: forget what points before it. Keeps the last file."""
        self.min_offset = self.first_from(log_start)
        while len(self.files.segments) > 1 and self.files.segments[0].end <= self.min_offset * ENTRY.size:
            self.files.remove_first()

    def hide(self, position: int) -> None:
        """Forget the entries of messages from a position on. Their offsets stay given out, and are written again."""
        offset, given_out = self.first_from(position), self.cursor.next_append
        if offset < self.max_offset:
            self.cut(offset)
            self.cursor.next_append = given_out

    def first_from(self, position: int) -> int:
        """The first offset whose message is at or behind a position. Positions grow; blanks between them have none."""
        low, high = max(self.min_offset, self.files.start // ENTRY.size), self.max_offset
        answer = high
        oldest = self.entry(low)
        if oldest is not None and not oldest.is_blank and oldest.position >= position:
            return min(low, high)  # nothing is to go: no damaged entry in the middle may say otherwise
        while low < high:
            middle = offset = (low + high) // 2
            entry = self.entry(offset)
            while entry is not None and entry.is_blank and offset + 1 < high:
                offset += 1
                entry = self.entry(offset)
            if entry is None or entry.is_blank:
                high = middle
            elif entry.position < position:
                low = offset + 1
            else:
                high, answer = middle, offset
        return answer

    def close(self) -> None:
        self.cursor = QueueCursor()
        self.files.close()
