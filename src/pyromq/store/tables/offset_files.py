"""Offsets of consumer groups and of delay levels, as RocketMQ keeps them in `config/*.json`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from pyromq.clock import Clock
from pyromq.errors import IllegalOffset, WrongShape
from pyromq.files.disk import Disk
from pyromq.files.json_file import Source
from pyromq.model import names
from pyromq.model.data_version import DataVersion
from pyromq.model.ids import QueueOffset
from pyromq.model.json_form import (
    COUNT,
    INT32_MAX,
    OFFSET,
    JsonObject,
    an_object,
    expect,
    text,
)
from pyromq.store.tables import log_history
from pyromq.store.tables.change_log import ChangeLog
from pyromq.store.tables.log_history import Entry, LogHistory
from pyromq.store.tables.table import Table

log = logging.getLogger("pyromq.store")


def _check_offset(queue: int, offset: int) -> None:
    # Such a value could never be read again, and would stop every later save.
    try:
        COUNT(queue)
        OFFSET(offset)
    except WrongShape as problem:
        raise IllegalOffset(f"queue {queue}, offset {offset}: {problem}") from None


def _read_offsets(table: JsonObject) -> dict[int, int]:
    """`{"0": 12, "1": 7}`, keys as written by `str`, so that no two of them can mean the same queue."""
    offsets: dict[int, int] = {}
    for key, offset in table.items():
        expect(key.isascii() and key.isdigit() and len(key) <= 10, "a queue number", key)
        queue = int(key)
        expect(str(queue) == key and queue <= INT32_MAX, "a queue number", key)
        offsets[queue] = OFFSET(offset)
    return offsets


def _write_offsets(offsets: dict[int, int]) -> JsonObject:
    return {str(queue): offset for queue, offset in offsets.items()}


def _advance(offsets: dict[int, int], queue: int, offset: int) -> bool:
    """Move forward only; True when it moved."""
    if offset <= offsets.get(queue, -1):
        return False
    offsets[queue] = offset
    return True


class ConsumerOffsets(Table[dict[str, dict[int, int]]]):
    """`consumerOffset.json`: the next message of each queue for each group.

    RocketMQ's key is "topic@group", taken apart at '@'. Neither name may contain one (RocketMQ's rules for
    names say the same), else two pairs would share a key. Keys in the file that are no such pair stay as
    they are.

    The positions of transactions are among them, as those of a group of the broker's own. They depend on the log
    beyond the two queues they are of: see `log_history`.
    """

    FILE = "consumerOffset.json"
    TABLE = "offsetTable"

    def __init__(self, disk: Disk, directory: Path, clock: Clock) -> None:
        super().__init__(disk, directory, clock)
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        self._unpaired: dict[str, dict[int, int]] = {}
        self._change_log: ChangeLog[tuple[str, str]] = ChangeLog()

    @property
    def token(self) -> str:
        """Stands for the table as it is now, for `changed_since`."""
        return self._change_log.token

    def changed_since(self, token: str | None) -> list[tuple[str, str]] | None:
        """Return the topics and groups that changed or were forgotten after a token; `None` if that is unknown."""
        with self._lock:
            return self._change_log.since(token)

    def _replace(self, content: dict[str, dict[int, int]]) -> None:
        self._offsets, self._unpaired = {}, {}
        self._change_log = ChangeLog()
        self._take(content)

    @classmethod
    def places_in(cls, document: JsonObject) -> dict[tuple[str, str], dict[int, int]]:
        """Return the contents of another broker's table, by topic and group. Raises WrongShape."""
        table = an_object(document.get(cls.TABLE, {}))
        pairs = ((_split_pair(key), offsets) for key, offsets in table.items())
        return {pair: _read_offsets(an_object(offsets)) for pair, offsets in pairs if pair is not None}

    def all(self) -> dict[tuple[str, str], dict[int, int]]:
        """A copy: (topic, group) to offsets by queue."""
        with self._lock:
            return {pair: dict(offsets) for pair, offsets in self._offsets.items()}

    def commit(self, group: str, topic: str, queue: int, offset: int) -> bool:
        """Move forward. False when the group is there already or further: going back takes `reset`."""
        with self._lock:
            moved = _advance(self._of(group, topic, queue, offset), queue, offset)
            if moved:
                self._changed = True
                self._change_log.note((topic, group))
            return moved

    def replace(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set all offsets of a group in a topic: no others are left. They were checked by `places_in`."""
        with self._lock:
            pair = topic, group
            if offsets:
                if pair not in self._offsets:
                    _check_pair(topic, group)
                self._offsets[pair] = dict(offsets)
                self._note(topic, group)
            elif self._offsets.pop(pair, None) is not None:
                self._note(topic, group)

    def _note(self, topic: str, group: str) -> None:
        self._changed = True
        self._change_log.note((topic, group))

    def reset(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Set it, back or forth: an operator's or a consumer's explicit wish."""
        with self._lock:
            self._of(group, topic, queue, offset)[queue] = offset
            self._note(topic, group)

    # --- transactions ------------------------------------------------------------------------------------------------

    def set_transactions(self, positions: Mapping[str, int], log_end: int) -> None:
        """Set where transactions go on after a restart, by topic: true if the log reaches `log_end`."""
        with self._lock:
            self._history.note(log_end, positions)
            self._set_transactions(positions)

    def _set_transactions(self, positions: Mapping[str, int]) -> None:
        for topic in names.TRANSACTION_TOPICS:
            pair = topic, names.TRANSACTION_GROUP
            new = {0: positions[topic]} if topic in positions else None
            if self._offsets.get(pair) != new:
                self._note(*pair)
                self._offsets.pop(pair, None)
                if new is not None:
                    self._offsets[pair] = new

    def adopt_transactions(self, history: LogHistory, log_end: int) -> None:
        """Take what another broker knows of transactions, as far as a log of this end supports it."""
        kept = [entry for entry in history.entries if entry.end <= log_end]
        if kept:
            with self._lock:
                if kept != self._history.entries:
                    self._history = LogHistory(kept)
                    self._set_transactions(kept[-1].offsets)

    def transactions(self) -> LogHistory:
        """Return a copy of the positions of transactions, each with the log end that it depends on."""
        with self._lock:
            return LogHistory(self._history.entries)

    def cut_transactions(self, log_end: int) -> bool:
        """Take the positions of transactions back to what a log of this end supports. False: they all are.

        Without any that it supports the queues are read from their beginnings, where the ends of all halves are.
        """
        with self._lock:
            if not _is_beyond(self._history, log_end):
                return False
            self._history.cut(log_end)
            self._set_transactions(self._history.newest.offsets if self._history.newest is not None else {})
            return True

    # --- groups ------------------------------------------------------------------------------------------------------

    def offset_of(self, group: str, topic: str, queue: int) -> QueueOffset | None:
        """None: the group never committed here."""
        offset = self._offsets.get((topic, group), {}).get(queue)
        return None if offset is None else QueueOffset(offset)

    def offsets_of(self, group: str, topic: str) -> dict[int, QueueOffset]:
        with self._lock:
            return {queue: QueueOffset(offset) for queue, offset in self._offsets.get((topic, group), {}).items()}

    def count(self) -> int:
        """Return how many offsets there are: of each group in each queue."""
        with self._lock:
            return sum(map(len, self._offsets.values()))

    def pairs(self) -> list[tuple[str, str]]:
        """Every topic and group that there are offsets of."""
        with self._lock:
            return list(self._offsets)

    def topics_of(self, group: str) -> set[str]:
        with self._lock:
            return {topic for topic, member in self._offsets if member == group}

    def groups_of(self, topic: str) -> set[str]:
        with self._lock:
            return {group for name, group in self._offsets if name == topic}

    def forget(self, group: str, topic: str, queue: int) -> None:
        """As if the group had never committed there."""
        with self._lock:
            offsets = self._offsets.get((topic, group), {})
            if offsets.pop(queue, None) is not None:
                self._note(topic, group)
                if not offsets:
                    del self._offsets[topic, group]

    def forget_group(self, group: str) -> None:
        with self._lock:
            self._drop([pair for pair in self._offsets if pair[1] == group])

    def forget_topic(self, topic: str) -> None:
        with self._lock:
            self._drop([pair for pair in self._offsets if pair[0] == topic])

    def _drop(self, pairs: list[tuple[str, str]]) -> None:
        for pair in pairs:
            del self._offsets[pair]
            self._note(*pair)

    def _of(self, group: str, topic: str, queue: int, offset: int) -> dict[int, int]:
        _check_offset(queue, offset)
        offsets = self._offsets.get((topic, group))
        if offsets is None:
            _check_pair(topic, group)
            offsets = self._offsets[topic, group] = {}
        return offsets

    def _before_save(self) -> None:
        self._new_version()  # once per save: commits are too many to count

    def _read(self, table: JsonObject) -> dict[str, dict[int, int]]:
        return {key: _read_offsets(an_object(offsets)) for key, offsets in table.items()}

    def _take(self, content: dict[str, dict[int, int]]) -> None:
        self._rest.pop("groupTopicMap", None)  # RocketMQ derives it from the table whenever it writes: ours would age
        for key, offsets in content.items():
            pair = _split_pair(key)
            mine = self._unpaired.setdefault(key, {}) if pair is None else self._offsets.setdefault(pair, {})
            for queue, offset in offsets.items():  # offsets committed since are newer than the file
                _advance(mine, queue, offset)

    def _table(self) -> JsonObject:
        pairs = {f"{topic}@{group}": _write_offsets(offsets) for (topic, group), offsets in self._offsets.items()}
        return {**{key: _write_offsets(offsets) for key, offsets in self._unpaired.items()}, **pairs}


def _split_pair(key: str) -> tuple[str, str] | None:
    topic, _, group = key.partition("@")
    return None if not topic or not group or "@" in group else (topic, group)


def _check_pair(topic: str, group: str) -> None:
    try:
        text(topic), text(group)
    except WrongShape as problem:
        raise IllegalOffset(str(problem)) from None
    if _split_pair(f"{topic}@{group}") != (topic, group):
        raise IllegalOffset(f"topic {topic!r}, group {group!r}: both need a name, and none may contain '@'")


def _is_beyond(history: LogHistory, log_end: int) -> bool:
    return history.newest is not None and history.newest.end > log_end


class DelayOffsets(Table[dict[int, int]]):
    """`delayOffset.json`: the next message of each delay level.

    Everything before it is delivered if the log has the delivered copies: see `log_history`.
    """

    FILE = "delayOffset.json"
    TABLE = "offsetTable"

    def __init__(self, disk: Disk, directory: Path, clock: Clock) -> None:
        super().__init__(disk, directory, clock)
        self._offsets: dict[int, int] = {}
        #: The log end that the offsets depend on.
        self._needs = 0
        #: Counts the changes of this process.
        self.changes = 0

    def load(self) -> Source | None:
        source = super().load()
        self._needs = self._history.newest.end if self._history.newest is not None else 0
        return source

    def adopt_history(self, history: LogHistory, log_end: int) -> None:
        """Take what another broker delivered, as far as a log of this end has it. No offsets are no news."""
        kept = [entry for entry in history.entries if entry.end <= log_end and entry.offsets]
        if kept:
            with self._lock:
                if kept != self._history.entries:
                    self._set(LogHistory(kept))

    def _set(self, history: LogHistory) -> None:
        newest = history.newest or Entry(0, {})
        self._history = history
        self._offsets = {int(level): offset for level, offset in newest.offsets.items()}
        self._needs = newest.end
        self._changed = True
        self.changes += 1

    def history(self) -> LogHistory:
        """Return a copy of the offsets, each with the log end that it depends on; the newest are those of now."""
        with self._lock:
            history = LogHistory(self._history.entries)
            history.note(self._needs, _write_offsets(self._offsets))
            return history

    def cut_to(self, log_end: int) -> bool:
        """Take the offsets back to what a log of this end supports. False: it supports them as they are.

        Without any that it supports the levels begin with their first messages: better twice than never.
        """
        with self._lock:
            if not self._history.entries and self._offsets:  # RocketMQ's file: true of the log as it is
                self._needs = log_end
            if self._needs <= log_end:
                return False
            history = LogHistory(self._history.entries)
            history.cut(log_end)
            self._set(history)
            return True

    def _parse(self, document: JsonObject) -> tuple[DataVersion | None, dict[int, int]]:
        for entry in log_history.from_document(document).entries:
            _read_offsets(dict(entry.offsets))
        return super()._parse(document)

    def _has(self, version: DataVersion | None, content: dict[int, int]) -> bool:
        return content == self._offsets  # the version is that of the last save, which may be long ago

    def _replace(self, content: dict[int, int]) -> None:
        self._offsets = dict(content)

    def adopt_at(self, document: JsonObject, log_end: int) -> None:
        """Take the offsets of a broker that tells no history, which depend on the log up to `log_end`."""
        if self.adopt(document):
            with self._lock:
                self._needs = log_end

    def commit(self, level: int, offset: int, log_end: int = 0) -> bool:
        """Move forward, with delivered copies below `log_end`. False when it is there already or further."""
        _check_offset(level, offset)
        with self._lock:
            moved = _advance(self._offsets, level, offset)
            if moved:
                self._needs = max(self._needs, log_end)
                self.changes += 1
            self._changed = self._changed or moved
            return moved

    def reset(self, level: int, offset: int) -> None:
        """Set it, back or forth: when the queue of the level does not hold what the file says."""
        _check_offset(level, offset)
        with self._lock:
            self._offsets[level] = offset
            self._changed = True
            self.changes += 1

    def offset_of(self, level: int) -> QueueOffset | None:
        offset = self._offsets.get(level)
        return None if offset is None else QueueOffset(offset)

    def _before_save(self) -> None:
        self._new_version()
        self._history.note(self._needs, _write_offsets(self._offsets))

    def _read(self, table: JsonObject) -> dict[int, int]:
        return _read_offsets(table)

    def _take(self, content: dict[int, int]) -> None:
        for level, offset in content.items():
            _advance(self._offsets, level, offset)

    def _table(self) -> JsonObject:
        return _write_offsets(self._offsets)
