"""A small table in a JSON file, written atomically, with a checksum and a previous copy.

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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pyromq.errors import CorruptFile, NotJson, WrongShape
from pyromq.files.disk import Disk
from pyromq.files.json_checks import CHECKSUM, decode_checked, encode_checked
from pyromq.model.json_form import (
    JsonObject,
)

log = logging.getLogger("pyromq.store")


class Source(enum.Enum):
    """The file from which a value was loaded."""

    CURRENT = "the file"
    PREVIOUS = "the previous copy"


@dataclass(frozen=True, slots=True)
class Loaded:
    value: JsonObject
    source: Source


@dataclass(frozen=True, slots=True)
class _Copy:
    """One of the two files, as it was found: a value, or its fault."""

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
        """Return the content if it equals the last write: valid without a check of each entry of a large table."""
        if self._written is None:
            return None
        try:
            raw = self._disk.read_bytes(self.path)
        except OSError:
            return None
        return raw if hashlib.sha256(raw).digest() == self._written else None

    def problem(self) -> str | None:
        """Return the fault of the file itself, regardless of its copy; None if it is good or absent."""
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
