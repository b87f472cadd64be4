"""The key index: finds messages by key, by unique key, within a time range.

Format: RocketMQ's IndexFile, `index/<yyyyMMddHHmmssSSS>`:

    40 bytes   begin and end store time (8+8), begin and end position (8+8), slots in use (4), next entry (4)
    4 · slots  each slot: number of the newest entry whose hash falls there; 0: none
    20 · n     entries: hash of `topic#key` (4), position (8), seconds since begin (4), entry before it in the slot (4)

Entry 0 is never used. A message with a unique key and k keys has k + 1 entries.

Crash policy: a cache. A file is synced when it is full and at a clean stop; after a crash the files that were not
synced whole are thrown away and built again from the log while the store already serves. What a query finds is
checked against the log, so a damaged entry never shows a wrong message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from pyromq import accelerated
from pyromq.clock import Clock
from pyromq.config import StoreConfig
from pyromq.files.disk import Disk, MappedFile
from pyromq.records import layout, record
from pyromq.records.checksum import crc32
from pyromq.records.java_hash import key_hash, key_hash_by_parts
from pyromq.records.plain import plain_records
from pyromq.records.properties import split_properties

ACCELERATED = accelerated.load("queues")

HEADER = struct.Struct(">qqqqii")
_FACTS = struct.Struct(">6q")
ENTRY = struct.Struct(">iqii")
_SLOT = struct.Struct(">i")
_SLOTS_AT = HEADER.size
_MAX_SECONDS = 0x7FFFFFFF

#: Room for entries is taken in steps.
RESERVE_BYTES = 4 << 20
#: A chain longer than this is damaged: an honest one has a few entries.
MAX_CHAIN = 1_000_000


class ReadableIndexCursor:
    """The writing end of one index file; `limit` is the number of entries that have room on the disk."""

    def __init__(self, buffer: memoryview, slots: int, entries: int) -> None:
        self.buffer = buffer
        self.slots = slots
        self.entries = entries
        self._entries_at = _SLOTS_AT + _SLOT.size * slots
        self.limit = entries
        self.count = 1
        self.used_slots = 0
        self.begin_ms = self.end_ms = self.begin_position = self.end_position = 0

    def put(self, key_hash: int, position: int, timestamp_ms: int) -> None:
        count = self.count
        assert count < self.limit, "the index file is full"
        slot_at = _SLOTS_AT + _SLOT.size * (key_hash % self.slots)
        (previous,) = _SLOT.unpack_from(self.buffer, slot_at)
        if not 0 < previous <= count:
            previous = 0
            self.used_slots += 1
        if count <= 1:
            self.begin_position, self.begin_ms = position, timestamp_ms
        seconds = (timestamp_ms - self.begin_ms) // 1000 if self.begin_ms > 0 else 0
        if not 0 <= seconds <= _MAX_SECONDS:
            seconds = 0 if seconds < 0 else _MAX_SECONDS
        ENTRY.pack_into(self.buffer, self._entries_at + ENTRY.size * count, key_hash, position, seconds, previous)
        _SLOT.pack_into(self.buffer, slot_at, count)
        self.count = count + 1
        self.end_position = position
        self.end_ms = timestamp_ms


def index_keys_readable(buffer: memoryview, start: int, end: int, index: ReadableIndexCursor) -> int:
    """Index the keys of the records in `[start, end)`; stop before the first that is not ordinary.

    `KeyIndex.index_one` is the definition, and knows all the cases.
    """
    at = start
    for position, size, _, _, timestamp_ms, topic, (_, unique_key, keys) in plain_records(buffer, start, end):
        words = [unique_key] if unique_key else []
        if keys:
            words += filter(None, keys.split(b" "))
        if index.count + len(words) > index.limit:
            break  # all keys of a record are in one file
        for word in words:
            index.put(key_hash_by_parts(topic, word), position, timestamp_ms)
        at += size
    return at


if TYPE_CHECKING or ACCELERATED is None:
    IndexCursor = ReadableIndexCursor
    index_keys = index_keys_readable
else:
    IndexCursor, index_keys = ACCELERATED.IndexCursor, ACCELERATED.index_keys


def keys_of(properties: bytes) -> Iterator[bytes]:
    """Return the keys of a message: its unique key, then each word of its keys."""
    found = dict(split_properties(properties))
    unique = found.get(b"UNIQ_KEY")
    if unique:
        yield unique
    yield from filter(None, found.get(b"KEYS", b"").split(b" "))


class IndexFile:
    """One file of the index."""

    def __init__(self, name: str, file: MappedFile, slots: int, entries: int) -> None:
        self.name = name
        self.file = file
        self.cursor = IndexCursor(file.buffer, slots, entries)
        cursor = self.cursor
        (
            cursor.begin_ms,
            cursor.end_ms,
            cursor.begin_position,
            cursor.end_position,
            cursor.used_slots,
            count,
        ) = HEADER.unpack_from(file.buffer)
        cursor.count = min(max(count, 1), entries)
        cursor.limit = cursor.count
        self.is_synced = False

    def facts(self) -> tuple[int, int, int, int, int, int]:
        cursor = self.cursor
        return (
            cursor.begin_ms, cursor.end_ms, cursor.begin_position, cursor.end_position, cursor.used_slots, cursor.count,
        )  # fmt: skip

    def make_room(self, wanted: int) -> None:
        """Take disk for more entries. Raises OSError."""
        cursor = self.cursor
        start = HEADER.size + _SLOT.size * cursor.slots + ENTRY.size * cursor.count
        end = min(start + max(RESERVE_BYTES, ENTRY.size * wanted), self.file.size)
        self.file.reserve(start, end)
        room = (end - HEADER.size - _SLOT.size * cursor.slots) // ENTRY.size
        cursor.limit = min(room, cursor.entries)

    def write_header(self) -> None:
        cursor = self.cursor
        HEADER.pack_into(
            self.file.buffer,
            0,
            cursor.begin_ms,
            cursor.end_ms,
            cursor.begin_position,
            cursor.end_position,
            cursor.used_slots,
            cursor.count,
        )

    def sync(self) -> None:
        """Make it durable. May run on another thread once the file is no longer written. Raises OSError."""
        self.file.sync()
        self.is_synced = True

    def covers(self, begin_ms: int, end_ms: int) -> bool:
        return self.cursor.count > 1 and self.cursor.begin_ms <= end_ms and self.cursor.end_ms >= begin_ms

    def positions(self, wanted_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Positions of entries with a hash, newest first. Bounded, also when the file is damaged."""
        cursor, buffer = self.cursor, self.file.buffer
        entries_at = HEADER.size + _SLOT.size * cursor.slots
        (number,) = _SLOT.unpack_from(buffer, HEADER.size + _SLOT.size * (wanted_hash % cursor.slots))
        for _ in range(MAX_CHAIN):
            if not 0 < number < cursor.count:
                return
            found_hash, position, seconds, previous = ENTRY.unpack_from(buffer, entries_at + ENTRY.size * number)
            # Entries keep whole seconds only; the record itself has the exact time.
            at_ms = cursor.begin_ms + seconds * 1000
            if found_hash == wanted_hash and begin_ms < at_ms + 1000 and at_ms <= end_ms:
                yield position
            if previous >= number:
                return
            number = previous


class KeyIndex:
    """All files of the index, oldest first. Written by the dispatcher only."""

    def __init__(self, config: StoreConfig, disk: Disk, clock: Clock, *, writable: bool = True) -> None:
        self._directory = config.root / "index"
        self._slots = config.index_slots
        self._entries = config.index_entries
        self._disk = disk
        self._clock = clock
        self._writable = writable
        self.files: list[IndexFile] = []

    @property
    def file_bytes(self) -> int:
        return HEADER.size + _SLOT.size * self._slots + ENTRY.size * self._entries

    # --- opening -----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Open every file that has the right length and a believable header; remove the others.

        Raises IsADirectoryError for a directory with the name of a file; others are left alone.
        """
        self.close(write_header=False)
        self.files = []
        for name in self._disk.names(self._directory):
            path = self._directory / name
            if not name.isdigit() and self._disk.is_dir(path):
                continue
            if name.isdigit() and self._disk.size(path) == self.file_bytes:
                file = self._disk.open_mapped(path, writable=self._writable)
                index_file = IndexFile(name, file, self._slots, self._entries)
                if _is_believable(index_file):
                    self.files.append(index_file)
                    continue
                file.close()
            if self._writable:
                self._disk.remove(path)

    def keep_synced(self, index_to: int, last_file: int) -> bool:
        """After a crash keep only the files that were synced whole; False when one of those is missing."""
        kept = [file for file in self.files if int(file.name) <= last_file and file.cursor.end_position < index_to]
        for file in self.files:
            if file not in kept:
                self._remove(file)
            else:
                file.is_synced = True
        self.files = kept
        return (int(kept[-1].name) if kept else 0) == last_file

    def digest(self, last_file: int, log_start: int) -> int:
        """Return a number that says which files there are up to one, and what their headers say. Files that only point
        before the start of the log do not count."""
        headers = [
            file.name.encode() + _FACTS.pack(*file.facts())
            for file in self.files
            if int(file.name) <= last_file and file.cursor.end_position >= log_start
        ]
        return crc32(b"".join(headers), 0)

    def discard(self) -> None:
        for file in self.files:
            self._remove(file)
        self.files = []

    def _remove(self, file: IndexFile) -> None:
        self._disk.remove(self._directory / file.name)
        file.file.close()

    # --- writing -----------------------------------------------------------------------------------------------------

    def index_span(self, buffer: memoryview, start: int, end: int) -> int:
        """Index the records in `[start, end)`; where it stopped (a blank, or the end).

        Raises OSError only for the first record: earlier records count as done.
        """
        at = start
        while at < end:
            try:
                reached = self._index_some(buffer, at, end)
            except OSError:
                if at == start:
                    raise
                break
            if reached == at:
                break
            at = reached
        if self.files:
            self.files[-1].write_header()
        return at

    def _index_some(self, buffer: memoryview, at: int, end: int) -> int:
        """Some records, at least one; `at` when there is none."""
        if self.files:  # the first file comes with the first key
            reached = index_keys(buffer, at, end, self._writable_file().cursor)
            if reached > at:
                return reached
        spans = record.spans_of(buffer, at, end)
        if isinstance(spans, str):
            return at
        self.index_one(buffer, at, spans)
        return at + spans.total_size

    def index_one(self, buffer: memoryview, at: int, spans: record.Spans) -> None:
        """Any record, one key at a time, going on in a new file where one is full."""
        if spans.storage_flags & layout.FLAG_TRANSACTION_MASK == layout.FLAG_ROLLED_BACK:
            return
        position = layout.position_of(buffer, at)
        (timestamp_ms,) = layout.STORED_AT.unpack_from(buffer, spans.store_timestamp_at)
        topic = bytes(buffer[spans.topic : spans.topic_end])
        keys = list(keys_of(bytes(buffer[spans.properties : spans.properties_end])))
        if not keys:
            return
        # One file has all keys of a record, so that a file can be built again from a record boundary on. Only a
        # record with more keys than a whole file holds continues in the next.
        file = self._writable_file(min(len(keys), self._entries - 1))
        for key in keys:
            if file.cursor.count >= file.cursor.limit:
                file = self._writable_file(1)
            file.cursor.put(key_hash(topic, key), position, timestamp_ms)

    def _writable_file(self, wanted: int = 1) -> IndexFile:
        """The last file if it has room for some more entries, or a new one."""
        if not self.files or self.files[-1].cursor.count + wanted > self._entries:
            if self.files:
                self.files[-1].write_header()
            self.files.append(self._create())
        file = self.files[-1]
        if file.cursor.count + wanted > file.cursor.limit:
            file.make_room(wanted)
        file.is_synced = False
        return file

    def _create(self) -> IndexFile:
        name = self._new_name()
        file = self._disk.create_mapped(self._directory / name, self.file_bytes, reserve=False, durable=False)
        try:
            # Keys fall anywhere in the slots: all of them need room now.
            file.reserve(0, HEADER.size + _SLOT.size * self._slots)
        except OSError:
            file.close()
            self._disk.remove(self._directory / name)
            raise
        return IndexFile(name, file, self._slots, self._entries)

    def _new_name(self) -> str:
        """The time of creation; later than the newest file, so that names sort."""
        moment = datetime.fromtimestamp(self._clock.now_ms() / 1000).astimezone()
        name = f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"
        if self.files and name <= self.files[-1].name:
            name = str(int(self.files[-1].name) + 1)
        return name

    def sync_all(self) -> None:
        """At a clean stop. Raises OSError."""
        for file in self.files:
            if not file.is_synced:
                file.write_header()
                file.sync()

    # --- reading -----------------------------------------------------------------------------------------------------

    def positions(self, topic: bytes, key: bytes, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Positions of records that may have the key, newest first. Two keys can share a hash: check the record."""
        wanted = key_hash(topic, key)
        for file in reversed(self.files):
            if file.covers(begin_ms, end_ms):
                yield from file.positions(wanted, begin_ms, end_ms)

    def drop_before(self, log_start: int) -> None:
        """Remove files that only point before the start of the log. Keeps the last file."""
        while len(self.files) > 1 and self.files[0].cursor.end_position < log_start:
            self._remove(self.files.pop(0))

    def close(self, *, write_header: bool = True) -> None:
        for file in self.files:
            if self._writable and write_header:
                file.write_header()
            file.file.close()


def _is_believable(file: IndexFile) -> bool:
    """A header that no writer leaves means that the file is damaged."""
    cursor = file.cursor
    (count,) = struct.unpack_from(">i", file.file.buffer, HEADER.size - 4)
    return (
        0 <= count <= cursor.entries
        and 0 <= cursor.used_slots < max(count, 1)
        and 0 <= cursor.begin_position <= cursor.end_position
        and 0 <= cursor.begin_ms <= cursor.end_ms
    )
