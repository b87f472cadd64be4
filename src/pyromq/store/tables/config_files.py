"""The small tables that RocketMQ keeps as `config/*.json`: topics, groups, consumer offsets, delay offsets.

A table is a file and its previous copy, `<name>.bak`, where RocketMQ looks too. Saving writes the content
that is still good to the copy, then the new content to the file, each atomically. So a crash at any moment
leaves at least one good copy, and after the first save there are always two. Loading takes the file; when
that is damaged or gone, the copy, with a warning. When neither can be read it raises `CorruptFile`. It
never takes damage for an empty table: offsets that start from nothing deliver everything again, or nothing
at all. Only when neither file exists is the store new.

RocketMQ's format has no checksum, and a flipped bit in a digit is a valid file with another offset. So we
write one of our own as the first field, `pyromqCrc`: the CRC-32 of all other fields in a canonical form.
RocketMQ skips fields that it does not know and leaves them out when it writes. So a file with the field was
written by us and must match it; a file without it is RocketMQ's, and only its shape is checked. (A checksum
in a file of its own could not tell a rewritten file from a damaged one, nor be replaced in the same
instant.) Who edits a file by hand removes that line. A damaged file is kept as `<name>.damaged` when it is
replaced, so a forgotten line costs no work.

Fields that a newer RocketMQ wrote stay in the file as they are. Any thread may use a table.
"""

from __future__ import annotations

import enum
import errno
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from pyromq.clock import Clock
from pyromq.errors import CorruptFile, IllegalOffset, NotJson, WrongShape
from pyromq.files.disk import Disk
from pyromq.files.json_checks import CHECKSUM, decode_checked, encode_checked
from pyromq.model import names
from pyromq.model.data_version import DataVersion
from pyromq.model.group import GroupConfig
from pyromq.model.ids import QueueOffset
from pyromq.model.json_form import (
    COUNT,
    INT32_MAX,
    OFFSET,
    Json,
    JsonObject,
    an_object,
    expect,
    from_json,
    text,
    to_json,
)
from pyromq.model.topic import TopicConfig
from pyromq.store.tables import config_changes, log_history
from pyromq.store.tables.change_log import ChangeLog
from pyromq.store.tables.config_changes import ChangeFiles
from pyromq.store.tables.log_history import Entry, LogHistory

log = logging.getLogger("pyromq.store")

DATA_VERSION = "dataVersion"


class Source(enum.Enum):
    """Where a loaded value was read."""

    CURRENT = "the file"
    PREVIOUS = "the previous copy"


@dataclass(frozen=True, slots=True)
class Loaded:
    value: JsonObject
    source: Source


@dataclass(frozen=True, slots=True)
class _Copy:
    """One of the two files, as it was found: a value, or what is wrong with it."""

    raw: bytes = b""
    value: JsonObject | None = None
    problem: str = ""
    missing: bool = False


def _any_object(value: JsonObject) -> None:
    pass


class JsonFile:
    """A JSON object on disk that survives crashes and notices damage. One thread at a time.

    `check` raises `WrongShape` for an object that cannot be what belongs into this file.
    """

    def __init__(self, disk: Disk, path: Path, check: Callable[[JsonObject], object] = _any_object) -> None:
        self.path = path
        self.previous = path.with_name(f"{path.name}.bak")
        self.damaged = path.with_name(f"{path.name}.damaged")
        self._disk = disk
        self._check = check
        #: The digest of what this process wrote last.
        self._written: bytes | None = None

    def load(self) -> Loaded | None:
        """The newest good content; None when there is no file at all, which is a new store."""
        current = self._look(self.path)
        if current.value is not None:
            return Loaded(current.value, Source.CURRENT)
        previous = self._look(self.previous)
        if previous.value is not None:
            log.warning(
                "%s cannot be used: %s; went on with %s, which may lack the last change",
                self.path,
                current.problem,
                self.previous.name,
            )
            return Loaded(previous.value, Source.PREVIOUS)
        if current.missing and previous.missing:
            return None
        raise self._both_bad(current, previous)

    def save(self, value: JsonObject) -> None:
        """Replace the content. Returns when it is durable; raises OSError when the disk does not take it."""
        self._check(value)
        data = encode_checked(value)
        raw = self._as_written()
        current = _Copy(raw, {}) if raw is not None else self._look(self.path)
        if current.value is not None:
            self._disk.replace_bytes(self.previous, current.raw)
        else:
            self._keep_damaged(current)
            if self._look(self.previous).value is None:
                self._disk.replace_bytes(self.previous, data)  # a good copy first, whatever happens next
        self._disk.replace_bytes(self.path, data)
        self._written = hashlib.sha256(data).digest()

    def _as_written(self) -> bytes | None:
        """The content, if it is what was written last: good without a look at each entry of a large table."""
        if self._written is None:
            return None
        try:
            raw = self._disk.read_bytes(self.path)
        except OSError:
            return None
        return raw if hashlib.sha256(raw).digest() == self._written else None

    def problem(self) -> str | None:
        """What is wrong with the file itself, whatever its copy has; None: nothing, or it is not there."""
        found = self._look(self.path)
        return None if found.missing else found.problem or None

    def _look(self, path: Path) -> _Copy:
        try:
            raw = self._disk.read_bytes(path)
        except FileNotFoundError:
            return _Copy(problem="it is missing", missing=True)
        except OSError as error:
            if error.errno != errno.EIO:  # "permission denied" is no damage: an older copy would be no remedy
                raise
            return _Copy(problem=f"the disk cannot read it ({error})")
        try:
            value = decode_checked(raw)
            self._check(value)
        except (NotJson, WrongShape) as error:
            return _Copy(raw, problem=str(error))
        return _Copy(raw, value)

    def _keep_damaged(self, current: _Copy) -> None:
        if current.raw:
            self._disk.replace_bytes(self.damaged, current.raw)
            log.warning("%s is replaced; what it held is kept as %s", self.path, self.damaged.name)

    def _both_bad(self, current: _Copy, previous: _Copy) -> CorruptFile:
        return CorruptFile(
            f"{self.path} cannot be used: {current.problem}; nor can its previous copy {self.previous.name}: "
            f"{previous.problem}. Nothing was changed. Put back either file from a backup or from another "
            f'broker of this group, or repair it by hand (without its "{CHECKSUM}" line), then start again. '
            "Removing both files starts this table from nothing."
        )


Content = TypeVar("Content")


class _Table(Generic[Content]):
    """What the tables share: a file, a version, the fields we do not know, and saving only what changed."""

    FILE: ClassVar[str]
    #: The field that holds the table. A file without it is damaged, not empty.
    TABLE: ClassVar[str]

    def __init__(self, disk: Disk, directory: Path, clock: Clock) -> None:
        self.version = DataVersion(timestamp_ms=clock.now_ms())
        self._file = JsonFile(disk, directory / self.FILE, self._parse)
        self._clock = clock
        self._rest: JsonObject = {}
        #: Positions that depend on the log: of delays, and of transactions.
        self._history = LogHistory()
        self._changed = False
        self._loaded = False
        self._lock = threading.Lock()  # the content
        self._saving = threading.Lock()  # the file; the content stays free while the disk works

    def load(self) -> Source | None:
        """Read the file, once, at the start. None: there is none, the store is new.

        Raises `CorruptFile` rather than start empty.
        """
        loaded = self._file.load()
        self._loaded = True
        if loaded is None:
            return None
        version, content = self._parse(loaded.value)
        with self._lock:
            self.version = version or self.version
            self._rest = self._unknown(loaded.value)
            self._history = log_history.from_document(loaded.value)
            self._take(content)
            if loaded.source is Source.PREVIOUS:
                self._changed = True  # the next save repairs the file
        return loaded.source

    def save(self) -> bool:
        """Write the file when something changed since the last time. Returns when it is durable."""
        assert self._loaded, f"{self.FILE} must be loaded first, else it would be replaced by an empty table"
        with self._saving:
            return self._save()

    def _save(self) -> bool:
        with self._lock:
            if not self._changed:
                return False
            self._before_save()
            document = {**self._rest, DATA_VERSION: to_json(self.version), self.TABLE: self._table()}
            if self._history.entries:
                document[log_history.FIELD] = log_history.to_json(self._history)
            self._changed = False
        try:
            self._file.save(document)
        except BaseException:
            self._changed = True
            raise
        return True

    def _parse(self, document: JsonObject) -> tuple[DataVersion | None, Content]:
        found = document.get(DATA_VERSION)  # absent in old files of delayed messages
        version = None if found is None else from_json(DataVersion, found)
        if self.TABLE not in document:
            raise WrongShape(f"{self.TABLE} is missing")
        log_history.from_document(document)
        return version, self._read(an_object(document[self.TABLE]))

    def _unknown(self, document: JsonObject) -> JsonObject:
        known = (DATA_VERSION, self.TABLE, log_history.FIELD)
        return {key: value for key, value in document.items() if key not in known}

    def renew(self) -> None:
        """Count as changed, although nothing in the table is: what is said of it elsewhere has changed."""
        with self._lock:
            self._new_version()
            self._changed = True

    def adopt(self, document: JsonObject) -> bool:
        """Become what another broker's table is, its version too; False: nothing has changed. Raises WrongShape.

        Nothing is never taken for something: a broker that lost its tables must not take ours with it.
        """
        version, content = self._parse(document)
        with self._lock:
            if not content or self._has(version, content):
                return False
            self.version = version or self.version
            self._rest = {**self._rest, **self._unknown(document)}
            self._replace(content)
            self._changed = True
            return True

    def _has(self, version: DataVersion | None, content: Content) -> bool:
        """Is this what we have?"""
        return version is not None and version == self.version

    def _replace(self, content: Content) -> None:
        self._take(content)

    def _new_version(self) -> None:
        self.version = self.version.next(self._clock.now_ms())

    def _before_save(self) -> None:
        """Called when something changed, before the version is written."""

    def _read(self, table: JsonObject) -> Content:
        """The content, or `WrongShape`."""
        raise NotImplementedError

    def _take(self, content: Content) -> None:
        raise NotImplementedError

    def _table(self) -> JsonObject:
        raise NotImplementedError


Config = TypeVar("Config", TopicConfig, GroupConfig)


class _Configs(_Table[dict[str, Config]]):
    """Settings by name. The version grows with each change: name servers compare it."""

    #: The key under which a config says its name once more.
    NAME: ClassVar[str]

    def __init__(self, disk: Disk, directory: Path, clock: Clock) -> None:
        super().__init__(disk, directory, clock)
        self._configs: dict[str, Config] = {}
        #: Changes that are not saved, and the counter of the version that is: if it grew by as many, nothing else
        #: happened to the table.
        self._pending: list[JsonObject] = []
        self._saved_counter = -1
        #: The version of the whole file; None: it is not known, and the next save writes it.
        self._base: JsonObject | None = None
        self._whole_version = self.version
        self._change_files = ChangeFiles(disk, directory / self.FILE)

    def __len__(self) -> int:
        return len(self._configs)

    def __contains__(self, name: str) -> bool:
        return name in self._configs

    def __iter__(self) -> Iterator[Config]:
        with self._lock:
            return iter(list(self._configs.values()))

    def by_name(self) -> dict[str, Config]:
        """A copy of all."""
        with self._lock:
            return dict(self._configs)

    def get(self, name: str) -> Config | None:
        return self._configs.get(name)

    def put(self, config: Config) -> bool:
        """Add or replace; False when it is there already. `WrongShape` for what the file cannot hold."""
        form = to_json(config)
        from_json(type(config), form)
        with self._lock:
            if self._configs.get(config.name) == config:
                return False
            self._configs[config.name] = config
            self._new_version()
            self._pending.append({"put": form})
            self._changed = True
            return True

    def remove(self, name: str) -> bool:
        with self._lock:
            if self._configs.pop(name, None) is None:
                return False
            self._new_version()
            self._pending.append({"removed": name})
            if self._forget(name):
                self._base = None
            self._changed = True
            return True

    def _forget(self, name: str) -> bool:
        """Drop what else the file says of it; False: nothing."""
        return False

    # --- changes of a large table ------------------------------------------------------------------------------------

    def load(self) -> Source | None:
        source = super().load()
        found = self._change_files.load()
        whole = to_json(self.version)
        if source is Source.CURRENT:
            self._base = whole
        with self._lock:
            for changes in found:
                if source is Source.PREVIOUS or changes.base == whole:
                    self._apply(changes.changes)
                    self.version = from_json(DataVersion, changes.version)
                else:
                    self._base = None  # of a file that was written again since
            if found and self._base is None:
                self._changed = True
            self._pending.clear()
            self._saved_counter = self.version.counter
        return source

    def _apply(self, changes: list[JsonObject]) -> None:
        """Raises CorruptFile."""
        try:
            for change in changes:
                if "put" in change:
                    config = self._config(an_object(change["put"]))
                    self._configs[config.name] = config
                else:
                    self._configs.pop(text(change.get("removed")), None)
        except WrongShape as problem:
            raise CorruptFile(f"the changes of {self._file.path} cannot be used: {problem}") from None

    def _save(self) -> bool:
        with self._lock:
            if not self._changed:
                return False
            base, changes, version = self._base, self._pending, self.version
            if base is not None and self._is_only_changes():
                self._pending, self._changed = [], False
            else:
                base = None
        if base is None:
            return self._save_whole()
        try:
            self._change_files.append(base, to_json(version), changes)
        except BaseException:
            with self._lock:
                self._base, self._changed = None, True
            raise
        self._saved_counter = version.counter
        return True

    def _is_only_changes(self) -> bool:
        changes = len(self._pending)
        return (
            len(self._configs) >= config_changes.FROM_ENTRIES
            and self.version.counter == self._saved_counter + changes
            and self._change_files.count + changes <= len(self._configs) // 2
        )

    def _save_whole(self) -> bool:
        self._base = None
        saved = super()._save()
        if saved:
            with self._lock:
                self._base, self._saved_counter = to_json(self._whole_version), self._whole_version.counter
            if self._change_files.count:
                self._change_files.clear()
        return saved

    def _before_save(self) -> None:
        self._pending = []
        self._whole_version = self.version

    def keep_whole(self) -> None:
        """Have the next save write the whole file, and remove those with changes."""
        with self._lock:
            if self._change_files.count or self._pending:
                self._base, self._changed = None, True

    def _replace(self, content: dict[str, Config]) -> None:
        self._base = None
        self._take(content)

    def _read(self, table: JsonObject) -> dict[str, Config]:
        return {name: self._read_one(name, form) for name, form in table.items()}

    def _read_one(self, name: str, form: Json) -> Config:
        try:
            config = self._config({self.NAME: name, **an_object(form)})
            expect(config.name == name, f"the name {name!r}", config.name)
        except WrongShape as problem:
            raise WrongShape(f"{self.TABLE}, {name}: {problem}") from None
        return config

    def _config(self, form: JsonObject) -> Config:
        raise NotImplementedError

    def _take(self, content: dict[str, Config]) -> None:
        self._configs = content

    def _table(self) -> JsonObject:
        return {name: to_json(config) for name, config in self._configs.items()}


class TopicTable(_Configs[TopicConfig]):
    """`topics.json`."""

    FILE = "topics.json"
    TABLE = "topicConfigTable"
    NAME = "topicName"

    def _config(self, form: JsonObject) -> TopicConfig:
        return from_json(TopicConfig, form)


class GroupTable(_Configs[GroupConfig]):
    """`subscriptionGroup.json`. Who may not read what (`forbiddenTable`) is kept for RocketMQ's tools."""

    FILE = "subscriptionGroup.json"
    TABLE = "subscriptionGroupTable"
    NAME = "groupName"
    FORBIDDEN: ClassVar[str] = "forbiddenTable"

    @property
    def forbidden(self) -> Mapping[str, Json]:
        """By group, then topic: RocketMQ's bits of what is forbidden."""
        return dict(self._rest.get(self.FORBIDDEN) or {})

    def forbid(self, group: str, topic: str, bits: int) -> None:
        """Set what is forbidden to a group in a topic; 0: nothing."""
        with self._lock:
            of_group = {**(self.forbidden.get(group) or {}), topic: bits}
            table = {**self.forbidden, group: {name: kept for name, kept in of_group.items() if kept}}
            self._rest = {**self._rest, self.FORBIDDEN: {name: kept for name, kept in table.items() if kept}}
            self._new_version()
            self._changed = True

    def _parse(self, document: JsonObject) -> tuple[DataVersion | None, dict[str, GroupConfig]]:
        forbidden = document.get(self.FORBIDDEN)
        expect(forbidden is None or isinstance(forbidden, dict), f"{self.FORBIDDEN}: an object", forbidden)
        return super()._parse(document)

    def _config(self, form: JsonObject) -> GroupConfig:
        return from_json(GroupConfig, form)

    def _forget(self, name: str) -> bool:
        # A later group of the same name must not inherit what this one was refused.
        is_forbidden = name in self.forbidden
        if is_forbidden:
            left = {group: topics for group, topics in self.forbidden.items() if group != name}
            self._rest = {**self._rest, self.FORBIDDEN: left}
        return is_forbidden


def _check_offset(queue: int, offset: int) -> None:
    # What came in could never be read again, and would stop every later save.
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


class ConsumerOffsets(_Table[dict[str, dict[int, int]]]):
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
        """What another broker's table says, by topic and group. Raises WrongShape."""
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
            for queue, offset in offsets.items():  # what was committed since is newer than the file
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


class DelayOffsets(_Table[dict[int, int]]):
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
