"""The broker's current settings: those of its start, and on top those changed over the network since.

Only what `config.runtime` allows can be changed. Accepted changes are written to a small file before they hold, and are
applied again at the next start: they win over the file that the broker is started with. Remove a line from
`runtimeSettings.json` (and the checksum line with it) while the broker is down to take a change back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from pyromq.clock import Clock
from pyromq.config import BrokerConfig
from pyromq.config.properties import parse_properties
from pyromq.config.runtime import apply_runtime, describe
from pyromq.errors import BadRequest, ConfigError, NotNow
from pyromq.files.disk import Disk
from pyromq.files.json_file import JsonFile
from pyromq.files.platform import what_to_do
from pyromq.model.data_version import DataVersion
from pyromq.model.json_form import JsonObject, from_json, texts_by_name, to_json

log = logging.getLogger("pyromq.broker")

FILE = "runtimeSettings.json"
#: Many times what the allow-list has.
MAX_CHANGES = 200
#: Several times the longest name. An unknown one is compared with all that there are.
MAX_KEY_CHARS = 200


def _check(document: JsonObject) -> None:
    texts_by_name(document.get("settings") or {})
    from_json(DataVersion, document.get("dataVersion") or {})


class Settings:
    """The one place that knows which settings hold."""

    def __init__(self, config: BrokerConfig, disk: Disk, directory: Path, clock: Clock) -> None:
        self._config = config
        self._file = JsonFile(disk, directory / FILE, _check)
        self._clock = clock
        self._changed: dict[str, str] = {}
        self._lock = asyncio.Lock()
        #: Grows with each change.
        self.version = DataVersion(timestamp_ms=clock.now_ms())
        #: Told of new settings, once they hold.
        self.on_change: list[Callable[[BrokerConfig], None]] = []

    def current(self) -> BrokerConfig:
        return self._config

    def load(self) -> None:
        """Apply the settings changed before the last stop. One that no longer fits is left out. Raises CorruptFile."""
        loaded = self._file.load()
        if loaded is None:
            return
        self.version = from_json(DataVersion, loaded.value.get("dataVersion") or {})
        for key, value in texts_by_name(loaded.value.get("settings") or {}).items():
            try:
                self._config = apply_runtime(self._config, {key: value})
            except ConfigError as problem:
                log.warning("%s = %r of %s is left out: %s", key, value, FILE, problem)
            else:
                self._changed[key] = value
                log.info("%s = %s, as it was changed over the network before", key, value)

    async def change(self, changes: Mapping[str, str], who: str) -> None:
        """All of them or none. Raises ConfigError with the key that is refused, NotNow when it cannot be written."""
        async with self._lock:
            try:
                config = apply_runtime(self._config, changes)
            except ConfigError as refused:
                log.warning("%s wanted to change settings (%s): refused: %r", who, _named(changes), str(refused)[:300])
                raise
            changed = {**self._changed, **changes}
            version = self.version.next(self._clock.now_ms())
            await self._save({"dataVersion": to_json(version), "settings": changed})
            self._config, self._changed, self.version = config, changed, version
            log.warning("%s changed settings: %s", who, ", ".join(f"{key} = {changes[key]}" for key in changes))
        for tell in self.on_change:
            tell(config)

    async def _save(self, document: JsonObject) -> None:
        try:
            await asyncio.to_thread(self._file.save, document)
        except OSError as error:
            raise NotNow(f"settings cannot be written, and nothing was changed: {what_to_do(error)}") from error

    def describe(self) -> str:
        """All settings, as lines of key=value under RocketMQ's names."""
        return "".join(f"{key}={_escaped(value)}\n" for key, value in sorted(describe(self._config).items()))


def parse_changes(body: bytes) -> dict[str, str]:
    """Lines of key=value. Raises BadRequest."""
    try:
        entries = parse_properties(body.decode())
    except (UnicodeDecodeError, ConfigError) as problem:
        raise BadRequest(f"settings are lines of key=value in UTF-8: {problem}") from None
    changes = {entry.key: entry.value for entry in entries}
    if any(len(key) > MAX_KEY_CHARS for key in changes):
        raise BadRequest(f"the name of a setting has {MAX_KEY_CHARS} characters at most")
    if len(changes) > MAX_CHANGES:
        raise BadRequest(f"{len(changes)} settings at once are too many: {MAX_CHANGES} at most")
    return changes


def _named(changes: Mapping[str, str]) -> str:
    return ", ".join(repr(key[:100]) for key in list(changes)[:10])


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
