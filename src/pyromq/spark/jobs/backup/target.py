"""A backup in an object store, or anything else that pyarrow reaches by a URI: `s3://bucket/broker-a`, `hdfs://…`.

`target_of` takes a directory or a URI. On an object store a file appears when its last byte is written; on a file
system it is written under another name first. A name that is to be new is claimed first (`claims`): of two concurrent
backups one or both are refused, and existing files stay whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import BinaryIO, cast
from uuid import uuid4

from pyarrow import fs

from pyromq.backup.target import UNFINISHED, LocalTarget, Part, Target
from pyromq.errors import ConfigError
from pyromq.spark.claims import create_once
from pyromq.spark.segments.store_places import below, is_remote, local_path, shown_place, why_not

#: Stores in which a file appears when it is complete. Renaming copies there.
OBJECT_STORES = ("s3", "gcs", "abfs")


def target_of(place: str) -> Target:
    """Return the target for a directory or a URI. Raises ConfigError for an unknown scheme."""
    if not is_remote(place):
        return LocalTarget(local_path(place))
    _file_system(place)
    return ArrowTarget(place)


@cache
def _file_system(uri: str) -> tuple[fs.FileSystem, str]:
    """Once in each process: it keeps connections."""
    try:
        system, path = fs.FileSystem.from_uri(uri)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{shown_place(uri)} is no place for a backup: {why_not(uri, error)}", "target") from None
    return system, path.rstrip("/")


@dataclass(frozen=True, slots=True, repr=False)
class ArrowTarget:
    """Named bytes behind a URI, which may have keys in it: they are never shown."""

    uri: str

    def __repr__(self) -> str:
        return f"ArrowTarget({self.shown()})"

    @property
    def _system(self) -> fs.FileSystem:
        return _file_system(self.uri)[0]

    def _path(self, name: str) -> str:
        base = _file_system(self.uri)[1]
        return f"{base}/{name}" if name else base

    def names(self, directory: str) -> list[str]:
        selector = fs.FileSelector(self._path(directory), allow_not_found=True)
        found = sorted(info.base_name for info in self._system.get_file_info(selector))
        return [name for name in found if not name.endswith(UNFINISHED)]

    def read(self, name: str) -> bytes:
        with self._system.open_input_stream(self._path(name)) as file:
            return bytes(file.read())

    def size(self, name: str) -> int:
        info = self._system.get_file_info(self._path(name))
        if info.type is not fs.FileType.File:
            raise FileNotFoundError(self.shown(name))
        return int(info.size)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        with self._system.open_input_file(self._path(name)) as file:
            yield cast("BinaryIO", file)

    def write(self, name: str, parts: Iterable[Part]) -> None:
        path, system = self._path(name), self._system
        at_once = system.type_name in OBJECT_STORES
        draft = path if at_once else f"{path}.{uuid4().hex}{UNFINISHED}"
        if not at_once:
            system.create_dir(path.rpartition("/")[0], recursive=True)
        try:
            with system.open_output_stream(draft, compression=None) as file:
                for part in parts:
                    file.write(part)
        except BaseException:
            with contextlib.suppress(OSError):  # no manifest names it, so the rest is harmless
                system.delete_file(draft)
            raise
        if not at_once:
            system.move(draft, path)

    def create(self, name: str, data: bytes) -> None:
        if not create_once(self._system, self._path(name), lambda: self.write(name, [data]), suffix=UNFINISHED):
            raise FileExistsError(self.shown(name))

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._system.delete_file(self._path(name))

    def shown(self, name: str = "") -> str:
        return shown_place(below(self.uri, name))
