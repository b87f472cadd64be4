"""`config/writers.json`: the known producers that number their messages, up to a position of the log.

    {"position": 4096, "writers": [["orders", 0, "w04…9f/3", 1700000000000, [[11, 300, 2048], [12, 299, 3072]]], …]}

of each stream: topic, queue, writer, when its newest message was stored, and of the last batches, oldest first, the
number of the batch, index and log position of its last message; the one that rested longest comes first. Messages after
the position are found in the log itself. The file is there from before the first numbered message on: where there
is none, no message of the log has a number.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pyromq.broker.idempotence.sequences import BatchEnd, Newest, Stream
from pyromq.files.disk import Disk
from pyromq.files.json_file import JsonFile
from pyromq.model.json_form import COUNT, OFFSET, Json, JsonObject, expect, text

FILE = "writers.json"
_POSITION, _WRITERS = "position", "writers"
_FIELDS = 5
_END_FIELDS = 3


class Snapshot(NamedTuple):
    """The streams as they were when the log ended at a position."""

    position: int
    entries: list[tuple[Stream, Newest]]


class WritersFile:
    """Any thread may save, one at a time."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._file = JsonFile(disk, directory / FILE, snapshot_from_json)

    def load(self) -> Snapshot | None:
        """Return the last saved table; None if none was ever saved. Raises CorruptFile."""
        loaded = self._file.load()
        return None if loaded is None else snapshot_from_json(loaded.value)

    def save(self, snapshot: Snapshot) -> None:
        """Returns when it is durable. Raises OSError."""
        self._file.save(snapshot_to_json(snapshot))


def snapshot_to_json(snapshot: Snapshot) -> JsonObject:
    writers = [
        [
            *(stream.topic.decode(), stream.queue_id, stream.writer.decode(), newest.stored_ms),
            [list(end) for end in (*newest.earlier, newest.end)],
        ]
        for stream, newest in snapshot.entries
    ]
    return {_POSITION: snapshot.position, _WRITERS: writers}


def snapshot_from_json(value: JsonObject) -> Snapshot:
    """Raises WrongShape."""
    writers = value.get(_WRITERS)
    expect(isinstance(writers, list), f"{_WRITERS}: a list", writers)
    return Snapshot(OFFSET(value.get(_POSITION)), [_entry(one) for one in writers or ()])


def _entry(value: Json) -> tuple[Stream, Newest]:
    expect(isinstance(value, list) and len(value) == _FIELDS, f"{_FIELDS} fields of a writer", value)
    topic, queue_id, writer, stored_ms, ends = value
    stream = Stream(text(topic).encode(), COUNT(queue_id), text(writer).encode())
    expect(isinstance(ends, list) and bool(ends), "the ends of batches", ends)
    *earlier, newest = [_end(one) for one in ends]
    return stream, Newest(newest.batch, newest.number, OFFSET(stored_ms), newest.position, tuple(earlier))


def _end(value: Json) -> BatchEnd:
    expect(isinstance(value, list) and len(value) == _END_FIELDS, f"{_END_FIELDS} numbers of a batch", value)
    batch, number, position = value
    return BatchEnd(OFFSET(batch), OFFSET(number), OFFSET(position))
