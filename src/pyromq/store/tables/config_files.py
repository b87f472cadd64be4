"""Topics and groups, as RocketMQ keeps them in `config/topics.json` and `config/subscriptionGroup.json`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

from pyromq.clock import Clock
from pyromq.errors import CorruptFile, WrongShape
from pyromq.files.disk import Disk
from pyromq.files.json_file import Source
from pyromq.model.data_version import DataVersion
from pyromq.model.group import GroupConfig
from pyromq.model.json_form import (
    Json,
    JsonObject,
    an_object,
    expect,
    from_json,
    text,
    to_json,
)
from pyromq.model.topic import TopicConfig
from pyromq.store.tables import config_changes
from pyromq.store.tables.config_changes import ChangeFiles
from pyromq.store.tables.table import Table

log = logging.getLogger("pyromq.store")


Config = TypeVar("Config", TopicConfig, GroupConfig)


class _Configs(Table[dict[str, Config]]):
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
        """By group, then topic: RocketMQ's bits of forbidden operations."""
        return dict(self._rest.get(self.FORBIDDEN) or {})

    def forbid(self, group: str, topic: str, bits: int) -> None:
        """Set the forbidden operations of a group in a topic; 0 forbids nothing."""
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
