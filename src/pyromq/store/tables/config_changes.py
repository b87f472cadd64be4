"""`config/<table>.changes.<n>.json`: changes of a large table since its file was written as a whole.

A table of 200,000 topics takes seconds to write, and each new topic waits for the disk. So changes of a large table are
added to small files, in the same form as the other tables (JSON with `pyromqCrc`), so that backups and `pyromq store
verify` know them:

    {"base": {dataVersion of the whole file}, "version": {dataVersion}, "changes": [{"put": {…}}, {"removed": "name"}]}

They count only on top of the whole file with exactly the version `base`. The whole file is written, and they are
removed, when there are many of them and at every clean stop: what RocketMQ finds then is complete.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from pyromq.errors import CorruptFile, NotJson, WrongShape
from pyromq.files.disk import Disk
from pyromq.files.json_checks import decode_checked, encode_checked
from pyromq.model.json_form import JsonObject, an_object, expect

#: Changes in one file, which is written again for each save until it has this many.
PER_FILE = 256
#: Smaller tables are written as a whole.
FROM_ENTRIES = 1000


class Changes(NamedTuple):
    base: JsonObject
    version: JsonObject
    changes: list[JsonObject]


class ChangeFiles:
    """Of one table. One thread at a time."""

    def __init__(self, disk: Disk, table: Path) -> None:
        self._disk = disk
        self._directory = table.parent
        self._name = re.compile(re.escape(table.stem) + r"\.changes\.(\d{1,9})\.json")
        self._stem = table.stem
        self._number = 0
        self._open: list[JsonObject] = []
        #: All changes in the files.
        self.count = 0

    def load(self) -> list[Changes]:
        """Return what the files hold, oldest first. Raises CorruptFile."""
        numbers = sorted(self._numbers())
        found = [self._read(self._path(number)) for number in numbers]
        self._number = numbers[-1] + 1 if numbers else 0
        self.count = sum(len(one.changes) for one in found)
        return found

    def append(self, base: JsonObject, version: JsonObject, changes: list[JsonObject]) -> None:
        """Return when the changes are durable. Raises OSError."""
        if len(self._open) >= PER_FILE:
            self._number, self._open = self._number + 1, []
        together = [*self._open, *changes]
        data = encode_checked({"base": base, "version": version, "changes": together})
        self._disk.replace_bytes(self._path(self._number), data)
        self._open = together
        self.count += len(changes)

    def clear(self) -> None:
        """Remove the files, newest first: a crash in between leaves a beginning of them, which does not count."""
        for number in sorted(self._numbers(), reverse=True):
            self._disk.remove(self._path(number))
        self._number, self._open, self.count = 0, [], 0

    def _numbers(self) -> list[int]:
        matches = (self._name.fullmatch(name) for name in self._disk.names(self._directory))
        return [int(match[1]) for match in matches if match]

    def _path(self, number: int) -> Path:
        return self._directory / f"{self._stem}.changes.{number:06d}.json"

    def _read(self, path: Path) -> Changes:
        try:
            value = decode_checked(self._disk.read_bytes(path))
            changes = value.get("changes")
            expect(isinstance(changes, list), "changes: a list", changes)
            return Changes(
                an_object(value.get("base")), an_object(value.get("version")), [an_object(one) for one in changes or ()]
            )
        except (NotJson, WrongShape) as problem:
            raise CorruptFile(
                f"{path} cannot be used: {problem}. Nothing was changed. Put it back from a backup; or remove it and "
                f"the files of this table with higher numbers: the last changes of {self._stem} are lost then"
            ) from None
