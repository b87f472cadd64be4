"""The work on one piece of a backup: copy a stretch of the log, check a chunk, put a segment back.

Each can run on any machine that sees the files, apart from the others, and again after a failure: the result is the
same. Every record is verified on the way (lengths, place, CRC), and nothing gets its name before that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyromq.backup.arriving import Gathered
from pyromq.backup.manifest import TAIL_BYTES, Chunk, chunk_path, sha256_of
from pyromq.backup.planning import SegmentPlan, Stretch, Until
from pyromq.backup.tables import QueueEnds, queue_ends
from pyromq.backup.target import NOTHING_ADDED, Target, saving
from pyromq.errors import BackupError, CorruptBackup, CorruptLog
from pyromq.files.disk import OsDisk
from pyromq.records import layout, record
from pyromq.records.scan import Scan, Stop, scan, why_bad
from pyromq.store.log.segmented_file import NAME_DIGITS

#: Bytes per read and write.
BLOCK = 8 << 20
#: Takes the good records in `[from, to)` of a buffer.
Take = Callable[[memoryview, int, int], None]
#: No record is larger: a body of 64 MiB, and the fields around it.
MAX_RECORD = (64 << 20) + (1 << 20)

# --- copying -------------------------------------------------------------------------------------------------------


def copy_stretch(stretch: Stretch, target: Target, series: int) -> Chunk:
    """Verify a part of the log and save it. Raises CorruptLog, BackupError, OSError."""
    try:
        source = OsDisk(stretch.path.parent).open_mapped(stretch.path, writable=False)
    except FileNotFoundError:
        raise BackupError(
            f"{stretch.path} was removed while the backup ran, by the store's retention: run it again, and more often"
        ) from None
    try:
        found = _verified(stretch, source.buffer)
        # Of the blank that ends a segment only its head is kept.
        end = found.end + (layout.BLANK.size if found.stop is Stop.BLANK else 0)
        kept = source.buffer[stretch.start - stretch.base : end]
        first_ms = record.stored_at_ms(source.buffer, stretch.start - stretch.base, end) or 0
        return _saved(
            target, series, kept, stretch.start, stretch.end, found.records, first_ms, found.last_timestamp_ms
        )
    finally:
        source.close()


def save_gathered(gathered: Gathered, target: Target, series: int) -> Chunk:
    """Save records that came over a connection and were checked on arrival. Raises BackupError, OSError."""
    with memoryview(gathered.data) as kept:
        return _saved(
            target, series, kept, gathered.start, gathered.end, gathered.records, gathered.first_ms, gathered.last_ms,
            "What came before is in the backup",
        )  # fmt: skip


def _saved(
    target: Target,
    series: int,
    kept: memoryview,
    start: int,
    end: int,
    records: int,
    first_ms: int,
    last_ms: int,
    if_not: str = NOTHING_ADDED,
) -> Chunk:
    tail = sha256_of(kept[-TAIL_BYTES:])
    name = chunk_path(series, start, end, tail)
    digest = hashlib.sha256()
    with saving(target, name, kept=if_not):
        target.write(name, _blocks(kept, digest))
    return Chunk(name, start, end, len(kept), records, first_ms, last_ms, digest.hexdigest(), tail)


def _verified(stretch: Stretch, buffer: memoryview) -> Scan:
    """All of a stretch must be records, and behind the last of a full segment there must be its blank."""
    limit = stretch.end - stretch.base
    found = scan(buffer, stretch.start - stretch.base, limit, stretch.base, True)
    if found.stop is Stop.LIMIT:
        return found
    what = "zeroes where a record must be"
    if found.stop is Stop.BLANK:
        size = layout.BLANK.unpack_from(buffer, found.end)[0]
        if stretch.ends_segment and found.end + size == stretch.size:
            return found
        what = f"a blank of {size} bytes where records must be"
    elif found.stop is Stop.BAD:
        what = why_bad(buffer, found.end, limit, stretch.base + found.end)
    raise CorruptLog(
        stretch.path,
        stretch.base + found.end,
        what,
        "nothing of this run was added to the backup. Put the file back from a replica or from this backup, or find "
        "out more with `pyromq store verify`",
    )


def _blocks(kept: memoryview, digest: hashlib._Hash) -> Iterator[bytes]:
    for at in range(0, len(kept), BLOCK):
        block = bytes(kept[at : at + BLOCK])  # a copy: the digest stays right even if the file changes
        digest.update(block)
        yield block


def tail_of(path: Path, base: int, chunk: Chunk) -> str:
    """The digest that a chunk has of its end, of what the log's file holds there now. Raises OSError."""
    size = min(chunk.bytes, TAIL_BYTES)
    with path.open("rb") as file:
        file.seek(chunk.written_end - size - base)
        return sha256_of(file.read(size))


# --- checking ------------------------------------------------------------------------------------------------------


def check_chunk(target: Target, segment_bytes: int, chunk: Chunk, take: Take | None = None) -> Chunk:
    """Read a chunk and hold it against its manifest, record by record. Raises CorruptBackup, OSError.

    `take` is handed the records that are good, `(buffer, start, end)`, until one is not.
    """
    name = target.shown(chunk.file)
    walk = RecordStream(name, segment_bytes, chunk, take)
    digest = hashlib.sha256()
    try:
        with target.open(chunk.file) as file:
            while block := file.read(BLOCK):
                digest.update(block)
                walk.take(block)
    except FileNotFoundError:
        raise CorruptBackup(name, chunk.start, "the file is missing") from None
    walk.finish()
    if digest.hexdigest() != chunk.sha256:
        raise CorruptBackup(name, chunk.start, "its bytes have another checksum than the manifest says")
    return chunk


class RecordStream:
    """Checks the records of a chunk that comes in blocks."""

    def __init__(self, name: str, segment_bytes: int, chunk: Chunk, take: Take | None = None) -> None:
        """`take` is handed the good records as they come."""
        self._take = take
        self._name = name
        self._chunk = chunk
        self._segment_end = chunk.start - chunk.start % segment_bytes + segment_bytes
        self._rest = b""
        #: The position of `_rest` in the log.
        self._at = chunk.start
        self._records = 0
        self._last_ms = 0
        self._size = 0

    def take(self, block: bytes) -> None:
        self._size += len(block)
        data = memoryview(self._rest + block)
        found = scan(data, 0, len(data), self._at, True)
        if found.end and self._take is not None:
            self._take(data, 0, found.end)
        self._records += found.records
        self._last_ms = found.last_timestamp_ms or self._last_ms
        self._rest = bytes(data[found.end :])
        self._at += found.end
        if len(self._rest) > MAX_RECORD:
            self._refuse_rest()

    def finish(self) -> None:
        chunk = self._chunk
        if self._size != chunk.bytes:
            raise self._bad(self._at, f"the file has {self._size} bytes where the manifest says {chunk.bytes}")
        if self._rest:
            self._check_blank()
        elif self._at != chunk.end:
            raise self._bad(self._at, f"the records end before {chunk.end}, where the manifest says")
        if (self._records, self._last_ms) != (chunk.records, chunk.last_ms):
            what = f"{self._records} records up to time {self._last_ms}"
            raise self._bad(self._at, f"it has {what}, and the manifest says {chunk.records} up to {chunk.last_ms}")

    def _check_blank(self) -> None:
        if len(self._rest) != layout.BLANK.size or self._chunk.end != self._segment_end:
            self._refuse_rest()
        size, magic = layout.BLANK.unpack(self._rest)
        if magic != layout.MAGIC_BLANK or self._at + size != self._segment_end:
            self._refuse_rest()

    def _refuse_rest(self) -> None:
        data = memoryview(self._rest)
        raise self._bad(self._at, why_bad(data, 0, len(data), self._at))

    def _bad(self, position: int, what: str) -> CorruptBackup:
        return CorruptBackup(self._name, position, what)


# --- putting back --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Restored:
    """The content of a restored segment."""

    records: int
    bytes: int
    #: Behind its last record; behind the blank: the end of the segment.
    end: int
    last_ms: int
    #: Of the queues that it has messages of.
    queue_ends: QueueEnds = field(default_factory=dict)


def restore_segment(target: Target, directory: Path, plan: SegmentPlan) -> Restored:
    """Write one file of a log into a directory, durably. Raises BackupError, CorruptBackup, OSError."""
    # A directory of its own to make the file in: others make theirs at the same time.
    disk = OsDisk(directory.with_name(f"making-{plan.base:0{NAME_DIGITS}d}"))
    path = directory / f"{plan.base:0{NAME_DIGITS}d}"
    try:
        disk.remove(path)
        file = disk.create_mapped(path, plan.size, reserve=True)
    except OSError as error:
        raise BackupError(
            f"{path} cannot be made, with {plan.size} bytes: {error.strerror or error}. Nothing was restored; put that "
            "right and restore again, or to another directory"
        ) from error
    try:
        for chunk in plan.chunks:
            _copy_back(target, chunk, file.buffer[chunk.start - plan.base : chunk.end - plan.base])
        restored = _verify_back(target, plan, file.buffer)
        file.sync()
    finally:
        file.close()
    return restored


def _copy_back(target: Target, chunk: Chunk, room: memoryview) -> None:
    name, at, digest = target.shown(chunk.file), 0, hashlib.sha256()
    try:
        with target.open(chunk.file) as file:
            while block := file.read(BLOCK):
                if at + len(block) > chunk.bytes:
                    raise CorruptBackup(name, chunk.start + at, f"the file has more bytes than {chunk.bytes}")
                room[at : at + len(block)] = block
                digest.update(block)
                at += len(block)
    except FileNotFoundError:
        raise CorruptBackup(name, chunk.start, "the file is missing") from None
    if at != chunk.bytes or digest.hexdigest() != chunk.sha256:
        raise CorruptBackup(name, chunk.start, "its bytes have another checksum than the manifest says")


def _verify_back(target: Target, plan: SegmentPlan, buffer: memoryview) -> Restored:
    first, last = plan.chunks[0], plan.chunks[-1]
    start, end = first.start - plan.base, last.end - plan.base
    found = scan(buffer, start, end, plan.base, True)
    if found.stop not in (Stop.LIMIT, Stop.BLANK) or found.records != sum(chunk.records for chunk in plan.chunks):
        what = why_bad(buffer, found.end, end, plan.base + found.end)
        raise CorruptBackup(target.shown(last.file), plan.base + found.end, what)
    if plan.until is None:
        ends = queue_ends(buffer, start, found.end)
        return Restored(found.records, plan.bytes, plan.base + end, found.last_timestamp_ms, ends)
    kept = cut_at(buffer, start, found.end, plan.base, plan.until)
    buffer[kept.end : end] = bytes(end - kept.end)
    ends = queue_ends(buffer, start, kept.end)
    return Restored(kept.records, kept.end - start, plan.base + kept.end, kept.last_timestamp_ms, ends)


def cut_at(buffer: memoryview, start: int, end: int, base: int, until: Until) -> Scan:
    """The records from `start` on that are kept, where the first that is not ends them."""
    at, records, last_ms = start, 0, 0
    while at < end:
        spans = record.spans_of(buffer, at, end)
        if isinstance(spans, str):
            break
        stored_ms: int = layout.STORED_AT.unpack_from(buffer, spans.store_timestamp_at)[0]
        too_late = until.time_ms is not None and stored_ms > until.time_ms
        if too_late or (until.position is not None and base + at + spans.total_size > until.position):
            break
        at, records, last_ms = at + spans.total_size, records + 1, stored_ms
    return Scan(at, records, last_ms, Stop.LIMIT)
