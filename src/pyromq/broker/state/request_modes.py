"""The request modes of groups for topics, as operators set them: kept in RocketMQ's `messageRequestMode.json`."""

from __future__ import annotations

import threading
from pathlib import Path

from pyromq.files.disk import Disk
from pyromq.files.json_file import JsonFile, Source
from pyromq.wire.bodies.assignment import RequestMode, RequestModes, request_modes_from_json, request_modes_to_json

FILE = "messageRequestMode.json"


class RequestModeTable:
    """In memory at once; on the disk with `save`, which may run in another thread."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._file = JsonFile(disk, directory / FILE, request_modes_from_json)
        self._modes: RequestModes = {}
        self._changed = False
        self._lock = threading.Lock()

    def load(self) -> None:
        """Take what an earlier run saved. Raises CorruptFile."""
        loaded = self._file.load()
        if loaded is not None:
            self._modes = request_modes_from_json(loaded.value)
            self._changed = loaded.source is Source.PREVIOUS  # the next save repairs the file

    def put(self, mode: RequestMode) -> None:
        with self._lock:
            self._modes.setdefault(mode.topic, {})[mode.group] = mode
            self._changed = True

    def adopt(self, modes: RequestModes) -> bool:
        """Become what another broker's table is; False: nothing has changed. Nothing is not taken for something."""
        with self._lock:
            if not modes or modes == self._modes:
                return False
            self._modes, self._changed = modes, True
            return True

    def get(self, topic: str, group: str) -> RequestMode | None:
        return self._modes.get(topic, {}).get(group)

    def __len__(self) -> int:
        return sum(map(len, self._modes.values()))

    def all(self) -> RequestModes:
        return {topic: dict(groups) for topic, groups in self._modes.items()}

    def save(self) -> bool:
        """Write the file if something changed. Returns when it is durable. Raises OSError."""
        with self._lock:
            if not self._changed:
                return False
            document, self._changed = request_modes_to_json(self._modes), False
        try:
            self._file.save(document)
        except BaseException:
            self._changed = True
            raise
        return True
