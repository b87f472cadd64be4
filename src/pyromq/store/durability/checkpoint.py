"""The files that survive a stop: RocketMQ's checkpoint page, our recover point, and the abort mark.

- `checkpoint` (4 KiB, RocketMQ's): store times of the last records whose log, queue and index bytes were synced.
  RocketMQ starts its recovery from it, and so do we on a store that RocketMQ wrote.
- `recoverpoint` (ours; RocketMQ ignores it): the same as exact positions, so that a restart scans only later
  records. Two slots written alternately, each with a CRC: a torn write leaves the other.
- `abort` (RocketMQ's): there while a broker runs, holding its pid; found at start, the last stop was not clean.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from pyromq.files.disk import Disk, MappedFile
from pyromq.records.checksum import crc32

CHECKPOINT_BYTES = 4096
_CHECKPOINT = struct.Struct(">qqq")  # log, queue, index store times in ms

_SLOT_BYTES = 512
_SLOT = struct.Struct(
    ">8s"  # magic and version
    "q"   # sequence
    "q"   # log start
    "q"   # synced
    "q"   # queues synced to
    "q"   # index synced to
    "q"   # name of the last synced index file (a number), 0: none
    "q"   # store time of the last synced record, ms
    "q"   # digest of all queues' next offsets, -1: not known
    "q"   # 1: written by a clean stop
    "q"   # digest of all queues' first offsets, -1: not known, -2: a repair was under way
    "q"   # digest of the index files, -1: not known
)  # fmt: skip
_MAGIC = b"PYROMQ\x00\x02"
#: Points of the first version lack the last two fields.
_SLOT_1 = struct.Struct(">8s9q")
_MAGIC_1 = b"PYROMQ\x00\x01"
UNKNOWN = -1
REPAIRING = -2


@dataclass(frozen=True, slots=True)
class RecoverPoint:
    """`log_start ≤ queues_to ≤ synced` and `index_to ≤ synced`, all at record boundaries."""

    #: Files of the log below this were given up: one that is still there was about to be removed.
    log_start: int = 0
    #: The log below this was on the disk: damage there is corruption, never a torn tail.
    synced: int = 0
    #: Consume queues below this were on the disk.
    queues_to: int = 0
    #: The key index below this was on the disk …
    index_to: int = 0
    #: … and this was its last file (0: it had none).
    index_file: int = 0
    #: Store time of the last record below `synced`.
    timestamp_ms: int = 0
    #: A digest of how far each queue was (`QueueTable.digest`): a queue that lost its last entries cannot tell by
    #: itself. -1 when some of them were ahead of `queues_to`.
    queue_digest: int = -1
    clean: bool = False
    #: A digest of where each queue begins (`QueueTable.start_digest`): a queue that lost its first file cannot tell by
    #: itself. `REPAIRING` if queues were being derived again.
    start_digest: int = UNKNOWN
    #: A digest of the index files up to `index_file` (`KeyIndex.digest`).
    index_digest: int = UNKNOWN

    @property
    def is_shown_whole(self) -> bool:
        """Is all of the log in its queues? Messages that wait for their copies are not, after a clean stop either."""
        return self.queues_to >= self.synced


class RecoverPointFile:
    """The recover point on disk. `save` may run on any one thread at a time."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._file: MappedFile | None = None
        self._sequence = 0

    def load(self) -> RecoverPoint | None:
        """The newest readable slot; None when there is none, as in a store that RocketMQ wrote."""
        if not self._disk.exists(self._path):
            return None
        data = self._disk.read_bytes(self._path)
        slots = [_read_slot(data[at : at + _SLOT_BYTES]) for at in (0, _SLOT_BYTES)]
        readable = [slot for slot in slots if slot is not None]
        if not readable:
            return None
        self._sequence, point = max(readable, key=lambda slot: slot[0])
        return point

    def damaged_slots(self) -> list[int]:
        """Return the position in the file of a slot that was written and cannot be read."""
        data = self._disk.read_bytes(self._path) if self._disk.exists(self._path) else b""
        starts = range(0, min(len(data), 2 * _SLOT_BYTES), _SLOT_BYTES)
        return [at for at in starts if any(data[at : at + _SLOT_BYTES]) and _read_slot(data[at:]) is None]

    def save(self, point: RecoverPoint) -> None:
        """Durable on return. Raises OSError."""
        if self._file is None:
            self._file = self._open()
        self._sequence += 1
        body = _SLOT.pack(
            _MAGIC,
            self._sequence,
            point.log_start,
            point.synced,
            point.queues_to,
            point.index_to,
            point.index_file,
            point.timestamp_ms,
            point.queue_digest,
            int(point.clean),
            point.start_digest,
            point.index_digest,
        )
        at = _SLOT_BYTES * (self._sequence % 2)
        slot = body + crc32(body, 0).to_bytes(4, "big")
        self._file.buffer[at : at + len(slot)] = slot
        self._file.sync()

    def _open(self) -> MappedFile:
        if self._disk.exists(self._path) and self._disk.size(self._path) == 2 * _SLOT_BYTES:
            return self._disk.open_mapped(self._path)
        self._disk.remove(self._path)
        return self._disk.create_mapped(self._path, 2 * _SLOT_BYTES, reserve=True)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _read_slot(slot: bytes) -> tuple[int, RecoverPoint] | None:
    form = _SLOT_1 if slot[:8] == _MAGIC_1 else _SLOT
    body, crc = slot[: form.size], slot[form.size : form.size + 4]
    if len(crc) != 4 or body[:8] not in (_MAGIC, _MAGIC_1) or crc32(body, 0) != int.from_bytes(crc, "big"):
        return None
    fields = form.unpack(body)
    sequence, log_start, synced, queues_to, index_to, index_file, at_ms, queue_digest, clean = fields[1:10]
    point = RecoverPoint(
        log_start, synced, queues_to, index_to, index_file, at_ms, queue_digest, bool(clean), *fields[10:]
    )
    return sequence, point


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Store times, in ms, of the last record whose bytes were synced: in the log, its queue, the index."""

    log_ms: int = 0
    queue_ms: int = 0
    index_ms: int = 0


class CheckpointFile:
    """RocketMQ's checkpoint page. Times are hints with a margin, so it needs no CRC."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._file: MappedFile | None = None

    def load(self) -> Checkpoint:
        if not self._disk.exists(self._path):
            return Checkpoint()
        data = self._disk.read_bytes(self._path)
        return Checkpoint(*_CHECKPOINT.unpack_from(data)) if len(data) >= _CHECKPOINT.size else Checkpoint()

    def save(self, checkpoint: Checkpoint) -> None:
        if self._file is None:
            self._file = self._open()
        _CHECKPOINT.pack_into(self._file.buffer, 0, checkpoint.log_ms, checkpoint.queue_ms, checkpoint.index_ms)
        self._file.sync()

    def _open(self) -> MappedFile:
        if self._disk.exists(self._path) and self._disk.size(self._path) == CHECKPOINT_BYTES:
            return self._disk.open_mapped(self._path)
        self._disk.remove(self._path)
        return self._disk.create_mapped(self._path, CHECKPOINT_BYTES, reserve=True)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class AbortMark:
    """There while a broker runs."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def is_set(self) -> bool:
        return self._disk.exists(self._path)

    def set(self) -> None:
        self._disk.replace_bytes(self._path, str(os.getpid()).encode())

    def clear(self) -> None:
        self._disk.remove(self._path)
