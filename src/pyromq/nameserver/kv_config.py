"""Key-value settings by namespace, which clients and admin tools share through a name server.

The one namespace that matters to messages is `ORDER_TOPIC_CONFIG`: the brokers and queue counts of ordered topics.
With a path they are kept there, in RocketMQ's kvConfig.json; a change is answered when it is durable. Changes
that come while a save is under way share the next one.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from pyromq.errors import StoreError
from pyromq.files.disk import Disk, OsDisk
from pyromq.files.json_file import JsonFile
from pyromq.model.json_form import JsonObject, an_object, text, texts_by_name
from pyromq.nameserver.bounds import MAX_KV_CHARS, MAX_NAME_CHARS, MAX_TOPIC_CHARS, require_name, require_room

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"
_TABLE = "configTable"


class KvConfig:
    """Settings in memory, and in a file if there is one."""

    def __init__(self, path: Path | None = None, disk: Disk | None = None) -> None:
        self._file = JsonFile(disk or OsDisk(path.parent), path, _parse) if path is not None else None
        self._unknown: JsonObject = {}
        self._table: dict[str, dict[str, str]] = {}
        self._chars = 0
        self._changes = 0
        self._saved = 0
        self._saving = asyncio.Lock()

    def load(self) -> None:
        """Take what an earlier run saved. Raises CorruptFile."""
        loaded = self._file.load() if self._file is not None else None
        if loaded is not None:
            self._table = _parse(loaded.value)
            self._unknown = {key: value for key, value in loaded.value.items() if key != _TABLE}
            self._chars = sum(
                _cost(space, key, value) for space, table in self._table.items() for key, value in table.items()
            )

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All of one namespace; None when there is no such."""
        table = self._table.get(namespace)
        return dict(table) if table is not None else None

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set one value. Call `save` to keep it."""
        require_name("the namespace", namespace, MAX_NAME_CHARS)
        require_name("the key", key, MAX_TOPIC_CHARS)
        old = self.get(namespace, key)
        grown = _cost(namespace, key, value) - (_cost(namespace, key, old) if old is not None else 0)
        require_room(self._chars + grown <= MAX_KV_CHARS, "characters of key-value settings", MAX_KV_CHARS)
        if old != value:
            self._table.setdefault(namespace, {})[key] = value
            self._changed(grown)

    def delete(self, namespace: str, key: str) -> None:
        """Remove one value, and with its last value a namespace. Call `save` to keep it so."""
        old = self._table.get(namespace, {}).pop(key, None)
        if old is not None:
            if not self._table[namespace]:
                del self._table[namespace]
            self._changed(-_cost(namespace, key, old))

    def _changed(self, grown: int) -> None:
        self._chars += grown
        self._changes += 1

    async def save(self) -> None:
        """Returns when every change so far is durable. Raises StoreError when the disk does not take it."""
        if self._file is None:
            return
        wanted = self._changes
        async with self._saving:
            if self._saved >= wanted:
                return
            state, content = self._changes, self._document()
            try:
                await asyncio.to_thread(self._file.save, content)
            except OSError as error:
                raise StoreError(
                    f"the setting holds until this name server stops, but {self._file.path.name} could not be "
                    f"written ({error.strerror or error}): make room or repair the disk, then set it again"
                ) from error
            self._saved = state

    def _document(self) -> JsonObject:
        return {**self._unknown, _TABLE: {space: dict(table) for space, table in self._table.items()}}


def _parse(document: JsonObject) -> dict[str, dict[str, str]]:
    spaces = document.get(_TABLE)
    return {text(space): texts_by_name(table) for space, table in an_object({} if spaces is None else spaces).items()}


def _cost(namespace: str, key: str, value: str) -> int:
    return len(namespace) + len(key) + len(value)
