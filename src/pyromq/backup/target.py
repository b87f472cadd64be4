"""The storage of a backup: names and bytes, on any medium. And the plainest one, a directory.

A target may be sent to another process. What it promises:

- `write` shows nothing under the name until all bytes are there and durable; then all at once. An existing file
  is replaced.
- `create` does the same, and refuses a name that is taken. Of two that create it at once, one is refused; except where
  the system below cannot do that (object stores, some file systems): run one backup at a time there.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol
from uuid import uuid4

from pyromq.errors import BackupError

#: The suffix of files that are being written, and of no others.
UNFINISHED = ".unfinished"

#: Errors of file systems without hard links.
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)

Part = bytes | memoryview


class Target(Protocol):
    """Named bytes. Names have `/` between their parts. All raise OSError."""

    def names(self, directory: str) -> list[str]:
        """Return the names directly in a directory, sorted; none if there is no such directory."""

    def read(self, name: str) -> bytes: ...

    def size(self, name: str) -> int: ...

    def open(self, name: str) -> AbstractContextManager[BinaryIO]:
        """To be read from any place."""

    def write(self, name: str, parts: Iterable[Part]) -> None: ...

    def create(self, name: str, data: bytes) -> None:
        """Raises FileExistsError when the name is taken."""

    def remove(self, name: str) -> None:
        """Fine when it is not there."""

    def shown(self, name: str = "") -> str:
        """Return the name for people."""


#: The result of a failed run.
NOTHING_ADDED = "Nothing of this run was added to the backup"


@contextlib.contextmanager
def saving(target: Target, name: str, *, kept: str = NOTHING_ADDED) -> Iterator[None]:
    """Turn an OSError of a write to the backup into a BackupError. `kept`: the state of the backup then, in words."""
    try:
        yield
    except OSError as error:
        raise BackupError(
            f"{target.shown(name)} cannot be written: {error.strerror or error}. {kept}; put that right and run it "
            "again"
        ) from error


@dataclass(frozen=True, slots=True)
class LocalTarget:
    """A directory of a file system: this machine's, or one that several share."""

    directory: Path

    def names(self, directory: str) -> list[str]:
        try:
            found = sorted(entry.name for entry in os.scandir(self.directory / directory))
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            if self.directory.is_dir():
                return []
            raise BackupError(f"{self.directory} is a file, and a backup is a directory: name another place") from None
        return [name for name in found if not name.endswith(UNFINISHED)]

    def read(self, name: str) -> bytes:
        return (self.directory / name).read_bytes()

    def size(self, name: str) -> int:
        return (self.directory / name).stat().st_size

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        with (self.directory / name).open("rb") as file:
            yield file

    def write(self, name: str, parts: Iterable[Part]) -> None:
        with self._draft(name, parts) as (draft, path):
            draft.replace(path)

    def create(self, name: str, data: bytes) -> None:
        with self._draft(name, [data]) as (draft, path):
            try:
                os.link(draft, path)  # unlike a renaming, this refuses a name that is taken
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                if path.exists():
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
                draft.replace(path)

    @contextlib.contextmanager
    def _draft(self, name: str, parts: Iterable[Part]) -> Iterator[tuple[Path, Path]]:
        """A durable file of another name, and where it belongs. The name is durable when the caller has given it."""
        path = self.directory / name
        new = [parent for parent in path.parents if not parent.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        # Two that write the same at once (a task that runs twice) do not write into each other's.
        draft = path.with_name(f"{path.name}.{uuid4().hex}{UNFINISHED}")
        try:
            with draft.open("wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            yield draft, path
        finally:
            draft.unlink(missing_ok=True)
        for directory in (path.parent, *(parent.parent for parent in new)):
            _sync_directory(directory)

    def remove(self, name: str) -> None:
        (self.directory / name).unlink(missing_ok=True)

    def shown(self, name: str = "") -> str:
        return str(self.directory / name)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some shared file systems do not sync directories
            raise
    finally:
        os.close(fd)
