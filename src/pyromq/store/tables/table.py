"""The common parts of the tables of `config/*.json`: a lock, a data version, unknown fields; see `files.json_file`."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from pyromq.clock import Clock
from pyromq.errors import WrongShape
from pyromq.files.disk import Disk
from pyromq.files.json_file import JsonFile, Source
from pyromq.model.data_version import DataVersion
from pyromq.model.json_form import (
    JsonObject,
    an_object,
    from_json,
    to_json,
)
from pyromq.store.tables import log_history
from pyromq.store.tables.log_history import LogHistory

log = logging.getLogger("pyromq.store")

DATA_VERSION = "dataVersion"

Content = TypeVar("Content")


class Table(Generic[Content]):
    """A table with a file, a version, and preserved unknown fields; only changes are saved."""

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
        """Count as changed although no entry is, because related data elsewhere has changed."""
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
