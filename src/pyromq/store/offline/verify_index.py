"""Checks the key index: every entry belongs to a record with a key of that hash and to its chain; every key is found.

Entries are derived from the log by the function that writes them, and compared in the order in which both were written;
chains, slots and headers are built again on the way. Index files that the next start does not keep are notes.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from pyromq.config import StoreConfig
from pyromq.files.disk import Disk, MappedFile
from pyromq.records import layout, record
from pyromq.records.java_hash import key_hash
from pyromq.store import key_index
from pyromq.store.durability.checkpoint import RecoverPoint
from pyromq.store.key_index import IndexCursor, index_keys, keys_of
from pyromq.store.log.zeroes import last_nonzero
from pyromq.store.offline.inspect import index_file_bytes
from pyromq.store.offline.verify_log import EVERYWHERE, Log
from pyromq.store.offline.verify_report import VerifyReport
from pyromq.store.paths import StorePaths

#: Entries that are derived at once.
INDEX_CHUNK = 8192
#: Behind the last entry of an index file there must be zeroes; this much is looked at.
LOOK_BEHIND = 4 << 20


class KeptIndex(NamedTuple):
    """Which index files a start would keep, and up to where they must hold every key."""

    last_file: int
    complete_to: int
    #: After a crash the index may be ahead of the log: files that end at or behind this go, and then all do.
    ends_before: int


def kept_index(point: RecoverPoint | None, clean: bool) -> KeptIndex:
    if point is not None:
        return KeptIndex(
            point.index_file, point.index_to, EVERYWHERE if clean and point.is_shown_whole else point.index_to
        )
    # Another program's: complete when it stopped in order, else built again.
    return KeptIndex(EVERYWHERE, 0, EVERYWHERE) if clean else KeptIndex(0, 0, 0)


#: Hash, position, seconds, the entry before it in its chain.
_Entry = tuple[int, int, int, int]


class IndexFileView:
    """One index file, read from its first entry to its last; chains are built again on the way."""

    def __init__(self, path: Path, file: MappedFile, slots: int, entries: int) -> None:
        self.path = path
        self.buffer = file.buffer
        self.slots = slots
        self.entries_at = key_index.HEADER.size + 4 * slots
        (
            self.begin_ms,
            self.end_ms,
            self.begin_position,
            self.end_position,
            self.used_slots,
            self.header_count,
        ) = key_index.HEADER.unpack_from(self.buffer)
        #: Entries that are there; entry 0 is never used.
        self.count = self._count(entries, file.data_end(0))

    def _count(self, entries: int, data_end: int) -> int:
        """Look behind what the header says, but not through the whole of a file that is hardly used."""
        said = min(max(self.header_count, 1), entries)
        end = max(min(self.at(entries), data_end), self.entries_at)
        used = last_nonzero(self.buffer, self.entries_at, min(self.at(said) + LOOK_BEHIND, end))
        if used > self.at(said):
            used = last_nonzero(self.buffer, self.entries_at, end)
        return max(-(-(used - self.entries_at) // key_index.ENTRY.size), 1)

    def at(self, number: int) -> int:
        return self.entries_at + number * key_index.ENTRY.size

    def entry(self, number: int) -> _Entry:
        found: _Entry = key_index.ENTRY.unpack_from(self.buffer, self.at(number))
        return found

    def find(self, wanted_hash: int, position: int) -> bool:
        """As a query does it: along the chain."""
        (number,) = struct.unpack_from(">i", self.buffer, key_index.HEADER.size + 4 * (wanted_hash % self.slots))
        while 0 < number < self.count:
            found_hash, found_position, _, previous = self.entry(number)
            if (found_hash, found_position) == (wanted_hash, position):
                return True
            if previous >= number:
                return False
            number = previous
        return False


class IndexCheck:
    """Derives every index entry from the log and compares, in the order in which both were written."""

    def __init__(
        self, disk: Disk, paths: StorePaths, config: StoreConfig, report: VerifyReport, log: Log, kept: KeptIndex
    ) -> None:
        self._disk = disk
        self._paths = paths
        self._config = config
        self._report = report
        self._log = log
        self._complete_to = kept.complete_to
        self._files = self._find(kept)
        self._entries = self._read_all()
        #: The entry that was read last, when it is still to be looked at.
        self._put_back: list[_Entry] = []
        #: The place of the entry that was read last.
        self._file: IndexFileView | None = None
        self._number = 0
        self._begin_ms = 0
        scratch = bytearray(key_index.HEADER.size + 4 + key_index.ENTRY.size * (INDEX_CHUNK + 2))
        self._scratch = memoryview(scratch)
        self._cursor = IndexCursor(self._scratch, 1, INDEX_CHUNK + 2)
        first = self._files[0].entry(1)[1] if self._files and self._files[0].count > 1 else EVERYWHERE
        #: Records before the first entry are not covered by the index (any longer).
        self._covers_from = first if self._files else EVERYWHERE

    @property
    def files(self) -> list[IndexFileView]:
        """Those that the next start keeps."""
        return self._files

    def _find(self, kept: KeptIndex) -> list[IndexFileView]:
        files: list[IndexFileView] = []
        names = self._disk.names(self._paths.index)
        for name in names:
            path = self._paths.index / name
            if not name.isdigit() or self._disk.size(path) != index_file_bytes(self._config):
                self._report.note(path, 0, "this is no index file; the next start removes it")
                continue
            mapped = self._disk.open_mapped(path, writable=False)
            file = IndexFileView(path, mapped, self._config.index_slots, self._config.index_entries)
            mapped.close()
            files.append(file)
        self._report.index_files = len(names)
        if 0 < kept.last_file < EVERYWHERE and str(kept.last_file) not in names:
            path = self._paths.index / str(kept.last_file)
            self._report.error(path, 0, "the recover point names this index file and it is not there")
        return self._sure(files, kept)

    def _sure(self, files: list[IndexFileView], kept: KeptIndex) -> list[IndexFileView]:
        """The files that the next start keeps."""
        sure = [file for file in files if int(file.path.name) <= kept.last_file]
        if any(file.end_position >= kept.ends_before for file in sure):
            sure = []
        for file in files[len(sure) :] if not self._report.live else []:
            self._report.note(file.path, 0, "this index file was never finished; the next start builds it again")
        return sure

    # --- what the files have -----------------------------------------------------------------------------------------

    def _read_all(self) -> Iterator[_Entry]:
        """Every entry of every file, in order; chains, slots and headers are checked on the way."""
        unpack = key_index.ENTRY.iter_unpack
        for file in self._files:
            self._file = file
            self._begin_ms = self._begin(file)
            slots, heads, used = file.slots, array("i", bytes(4 * file.slots)), 0
            for number, entry in enumerate(unpack(file.buffer[file.at(1) : file.at(file.count)]), 1):
                slot = entry[0] % slots
                before = heads[slot]
                used += before == 0
                if entry[3] != before:
                    what = f"entry {number} is chained to entry {entry[3]} where {before} is the one before it"
                    self._report.error(file.path, file.at(number), what)
                heads[slot] = self._number = number
                yield entry
            self._report.index_entries += file.count - 1
            self._check_slots(file, heads, used)
            self._check_header(file)

    def _begin(self, file: IndexFileView) -> int:
        """The time that the file's entries count from: its first record's."""
        first = file.entry(1)[1] if file.count > 1 else -1
        first_ms = None if self._log.is_lost(first) else self._log.stored_ms(first)
        return file.begin_ms if first_ms is None else first_ms

    def _check_header(self, file: IndexFileView) -> None:
        """Once the file is read: then the log is known as far as the file goes."""
        error, path = self._report.error, file.path
        if file.header_count != file.count and (file.header_count > 0 or file.count > 1):
            error(path, 36, f"the header counts {file.header_count - 1} entries, {file.count - 1} are there")
        if file.count <= 1:
            return
        first, last = file.entry(1)[1], file.entry(file.count - 1)[1]
        if file.begin_position != first:
            error(path, 16, f"the header begins at position {file.begin_position}, the first entry at {first}")
        if file.end_position != last:
            error(path, 24, f"the header ends at position {file.end_position}, the last entry at {last}")
        for at, said_ms, position in ((0, file.begin_ms, first), (8, file.end_ms, last)):
            true_ms = None if self._log.is_lost(position) else self._log.stored_ms(position)
            if true_ms is not None and true_ms != said_ms:
                error(path, at, f"the header says time {said_ms}, the record at {position} says {true_ms}")

    def _check_slots(self, file: IndexFileView, heads: array[int], used: int) -> None:
        # Older versions of RocketMQ counted every entry here.
        if file.used_slots not in (used, file.count - 1):
            self._report.error(file.path, 32, f"the header counts {file.used_slots} slots in use, {used} are")
        table = file.buffer[key_index.HEADER.size : file.entries_at]
        swapped = array("i", heads)
        if struct.pack("=i", 1) != struct.pack(">i", 1):
            swapped.byteswap()
        if swapped.tobytes() == bytes(table):
            return
        for slot, (said,) in enumerate(struct.iter_unpack(">i", table)):
            if said != heads[slot]:
                what = f"slot {slot} names entry {said} where {heads[slot]} is its newest"
                self._report.error(file.path, key_index.HEADER.size + 4 * slot, what)

    # --- what the log asks for ---------------------------------------------------------------------------------------

    def take(self, buffer: memoryview, start: int, end: int) -> None:
        """Good records, from one boundary to another."""
        if layout.position_of(buffer, start) + end - start <= self._covers_from:
            return
        cursor, at = self._cursor, start
        begin = key_index.HEADER.size + 4 + 2 * key_index.ENTRY.size
        while at < end:
            cursor.count = 2  # entry 1 would set the time to count from
            cursor.begin_ms = self._begin_ms
            reached = index_keys(buffer, at, end, cursor)
            chunk = self._scratch[begin : begin + (cursor.count - 2) * key_index.ENTRY.size]
            for found, position, seconds, _ in key_index.ENTRY.iter_unpack(chunk):
                if not self._put_back:
                    entry = next(self._entries, None)
                    if entry is not None:
                        if entry[1] == position and entry[0] == found and entry[2] == seconds:
                            continue
                        self._put_back.append(entry)
                self._expect(found, position, seconds)
            if reached == at:
                reached = self._take_one(buffer, at, end)
            at = reached

    def _take_one(self, buffer: memoryview, at: int, end: int) -> int:
        spans = record.spans_of(buffer, at, end)
        assert not isinstance(spans, str), spans
        if spans.storage_flags & layout.FLAG_TRANSACTION_MASK != layout.FLAG_ROLLED_BACK:
            position = layout.position_of(buffer, at)
            topic = bytes(buffer[spans.topic : spans.topic_end])
            for key in keys_of(bytes(buffer[spans.properties : spans.properties_end])):
                self._expect(key_hash(topic, key), position, self._seconds(position))
        return at + spans.total_size

    def _seconds(self, position: int) -> int:
        at_ms = self._log.stored_ms(position)
        seconds: int = (at_ms - self._begin_ms) // 1000 if at_ms is not None and self._begin_ms > 0 else 0
        return min(max(seconds, 0), 0x7FFFFFFF)

    def _expect(self, wanted: int, position: int, seconds: int) -> None:
        """The next entry must be this one."""
        if position < self._covers_from:
            return
        while True:
            entry = self._put_back.pop() if self._put_back else next(self._entries, None)
            if entry is None:
                self._missing(wanted, position)
                return
            found, found_position, found_seconds, _ = entry
            if found_position == position and found == wanted:
                if found_seconds not in (seconds, self._seconds(position)):
                    self._report_entry(f"says {found_seconds} s after the begin, its record {self._seconds(position)}")
                return
            if self._log.is_lost(found_position):
                continue
            if found in self._log.hashes_at(found_position):
                if found_position >= position:
                    self._put_back.append(entry)
                    self._missing(wanted, position)
                    return
                continue  # of an earlier record, once more: RocketMQ does that after a crash
            self._report_wrong(entry)
            if not self._is_found(wanted, position):
                return  # it stands where this one should

    def _report_wrong(self, entry: _Entry) -> None:
        self._report_entry(f"says position {entry[1]}, where no record has a key of hash {entry[0]}")

    def _report_entry(self, what: str) -> None:
        assert self._file is not None
        self._report.error(self._file.path, self._file.at(self._number), f"entry {self._number} {what}")

    def _missing(self, wanted: int, position: int) -> None:
        if position == self._covers_from or self._is_found(wanted, position):
            return
        last = self._files[-1]
        if position < self._complete_to or position < last.end_position:
            self._report.error(last.path, 0, f"a key of the record at {position} (hash {wanted}) is not in the index")

    def _is_found(self, wanted: int, position: int) -> bool:
        return any(file.find(wanted, position) for file in reversed(self._files))

    def finish(self) -> None:
        """Report the remaining entries: there is no record for them."""
        for entry in chain(self._put_back, self._entries):
            if not self._log.is_lost(entry[1]) and entry[0] not in self._log.hashes_at(entry[1]):
                self._report_wrong(entry)
