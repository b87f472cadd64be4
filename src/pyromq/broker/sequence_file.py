"""`config/writers.json`: what is known of writers that number their messages, up to a position of the log.

    {"position": 4096, "writers": [["orders", 0, "query-7/3", 12, 299, 1700000000000], …]}

of each stream: topic, queue, writer, batch and index of its newest message, and when that was stored; the one that
rested longest comes first. What came behind the position is found in the log itself. The file is there from before the
first numbered message on: where there is none, no message of the log has a number.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pyromq.broker.sequences import Newest, Stream
from pyromq.model.json_form import COUNT, OFFSET, Json, JsonObject, expect, text
from pyromq.store.config_files import JsonFile
from pyromq.store.disk import Disk

FILE = "writers.json"
_POSITION, _WRITERS = "position", "writers"
_FIELDS = 6


class Snapshot(NamedTuple):
    """The streams as they were when the log ended at a position."""

    position: int
    entries: list[tuple[Stream, Newest]]


class WritersFile:
    """Any thread may save, one at a time."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._file = JsonFile(disk, directory / FILE, snapshot_from_json)

    def load(self) -> Snapshot | None:
        """What was saved last; None when nothing ever was. Raises CorruptFile."""
        loaded = self._file.load()
        return None if loaded is None else snapshot_from_json(loaded.value)

    def save(self, snapshot: Snapshot) -> None:
        """Returns when it is durable. Raises OSError."""
        self._file.save(snapshot_to_json(snapshot))


def snapshot_to_json(snapshot: Snapshot) -> JsonObject:
    writers = [
        [stream.topic.decode(), stream.queue_id, stream.writer.decode(), *newest] for stream, newest in snapshot.entries
    ]
    return {_POSITION: snapshot.position, _WRITERS: writers}


def snapshot_from_json(value: JsonObject) -> Snapshot:
    """Raises WrongShape."""
    writers = value.get(_WRITERS)
    expect(isinstance(writers, list), f"{_WRITERS}: a list", writers)
    return Snapshot(OFFSET(value.get(_POSITION)), [_entry(one) for one in writers or ()])


def _entry(value: Json) -> tuple[Stream, Newest]:
    expect(isinstance(value, list) and len(value) == _FIELDS, f"{_FIELDS} fields of a writer", value)
    topic, queue_id, writer, batch, index, stored_ms = value
    stream = Stream(text(topic).encode(), COUNT(queue_id), text(writer).encode())
    return stream, Newest(OFFSET(batch), OFFSET(index), OFFSET(stored_ms))
