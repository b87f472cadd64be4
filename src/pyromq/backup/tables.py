"""The tables of a restored store fit its log: both are of one moment.

A restored log may end before the moment at which its tables were read: it was cut by `--until`, or the backup took the
log of a sync master only up to its replicated position. The offsets after that end are given to other messages later,
and a group that is "past" them would never receive those. So every position is clamped to the log that was restored:
of groups to the ends of their queues, of delays and transactions to the newest that the log supports
(`store.log_history`). Without any they begin with the first message, which delivers again rather than never.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyromq.files.disk import Disk
from pyromq.files.json_file import JsonFile
from pyromq.model import names
from pyromq.model.json_form import JsonObject, an_object
from pyromq.store.offline.derive_queues import DerivedQueue, QueueDeriver
from pyromq.store.queues.queue_cursor import ENTRY
from pyromq.store.tables import log_history
from pyromq.store.tables.log_history import LogHistory

CONSUMERS = "config/consumerOffset.json"
TAKEN = "config/progressTaken.json"
DELAYS = "config/delayOffset.json"
WRITERS = "config/writers.json"
#: The files that speak of positions in the log. All others hold settings.
POSITIONS = frozenset({CONSUMERS, TAKEN, DELAYS, WRITERS})
#: A file of writers that knows of none: the log is read from its beginning.
NO_WRITERS: JsonObject = {"position": 0, "writers": []}

_TABLE = "offsetTable"
#: Entries are counted and not kept: a queue file that never ends saves a look at its boundaries.
_FILE_BYTES = ENTRY.size << 40

#: By topic and queue id: the offset that the next message gets.
QueueEnds = Mapping[tuple[str, int], int]


# --- the queues of a log ---------------------------------------------------------------------------------------------


class _Ends(QueueDeriver[DerivedQueue]):
    """Counts the messages of each queue."""

    def __init__(self) -> None:
        super().__init__((0,))
        self.ends: dict[tuple[str, int], int] = {}
        self._ids: dict[int, tuple[str, int]] = {}

    def new_queue(self, topic: bytes, number: int) -> DerivedQueue:
        queue = DerivedQueue(_FILE_BYTES)
        self._ids[id(queue)] = topic.decode(errors="replace"), number
        return queue

    def complete(self, queue: DerivedQueue) -> None:
        name = self._ids[id(queue)]
        self.ends[name] = max(self.ends.get(name, 0), queue.cursor.next_dispatch)

    def jump(self, queue: DerivedQueue, offset: int, position: int) -> None:
        self.complete(queue)
        queue.aim(offset)

    def finish(self) -> dict[tuple[str, int], int]:
        for queue in self.queues.values():
            self.complete(queue)
        return self.ends


def queue_ends(buffer: memoryview, start: int, end: int) -> dict[tuple[str, int], int]:
    """Return the ends of the queues after the good records of `[start, end)`."""
    counting = _Ends()
    counting.take(buffer, start, end)
    return counting.finish()


# --- tables ----------------------------------------------------------------------------------------------------------


def fitted(name: str, document: JsonObject, log_end: int, ends: QueueEnds, *, is_later: bool) -> JsonObject:
    """Return a file's content without what a log of this end does not support. Raises WrongShape.

    `is_later`: it was read when the log had messages that are not restored.
    """
    if name == WRITERS:
        position = document.get("position")
        return document if isinstance(position, int) and position <= log_end else dict(NO_WRITERS)
    if name == DELAYS:
        return _fitted_delays(document, log_end, ends, is_later=is_later)
    return _fitted_groups(document, log_end, ends, is_later=is_later)


def _fitted_delays(document: JsonObject, log_end: int, ends: QueueEnds, *, is_later: bool) -> JsonObject:
    history = log_history.from_document(document)
    table = an_object(document.get(_TABLE, {}))
    if _is_beyond(history, log_end):
        history.cut(log_end)
        table = dict(history.newest.offsets) if history.newest is not None else {}
    elif not history.entries and is_later:
        table = {}
    schedule = names.SCHEDULE_TOPIC
    table = {
        level: min(offset, ends.get((schedule, int(level) - 1), 0))
        for level, offset in table.items()
        if level.isdigit()
    }
    return _with(document, table, history)


def _fitted_groups(document: JsonObject, log_end: int, ends: QueueEnds, *, is_later: bool) -> JsonObject:
    history = log_history.from_document(document)
    table = dict(an_object(document.get(_TABLE, {})))
    if _is_beyond(history, log_end) or (is_later and not history.entries):
        history.cut(log_end)
        positions = history.newest.offsets if history.newest is not None else {}
        for topic in names.TRANSACTION_TOPICS:
            table.pop(f"{topic}@{names.TRANSACTION_GROUP}", None)
            if topic in positions:
                table[f"{topic}@{names.TRANSACTION_GROUP}"] = {"0": positions[topic]}
    for pair, offsets in table.items():
        topic, at, group = pair.partition("@")
        if at and group:
            table[pair] = {
                queue: min(offset, ends.get((topic, int(queue)), 0))
                for queue, offset in an_object(offsets).items()
                if queue.isdigit()
            }
    return _with(document, table, history)


def _is_beyond(history: LogHistory, log_end: int) -> bool:
    return history.newest is not None and history.newest.end > log_end


def _with(document: JsonObject, table: dict[str, Any], history: LogHistory) -> JsonObject:
    changed = {**document, _TABLE: table}
    changed.pop(log_history.FIELD, None)
    return {**changed, log_history.FIELD: log_history.to_json(history)} if history.entries else changed


def fit_file(disk: Disk, path: Path, name: str, log_end: int, ends: QueueEnds, *, is_later: bool) -> bool:
    """Clamp a file to a log; False if it fits as it is. Raises CorruptFile, WrongShape, OSError."""
    file = JsonFile(disk, path)
    loaded = file.load()
    if loaded is None:
        return False
    document = fitted(name, loaded.value, log_end, ends, is_later=is_later)
    if document == loaded.value:
        return False
    disk.remove(path)  # else it would stay as the previous copy
    file.save(document)
    return True
