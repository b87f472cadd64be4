"""The location of a lake: a directory, or a path in an object store that Arrow supports. Names are relative to it.

Everything that a lake does to files goes through a `Place`, so tests can cut it short at every step. What `create`
promises is what commits rest on:

    here       a whole file or none, on the disk, and False when one of that name is there: two creators, one winner
    elsewhere  a whole object or none. Arrow has no conditional put, so the name is claimed first (`claims`): of two
               creators one is refused, or both are. Delta and Iceberg have a commit of their own.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pyarrow import fs

from pyromq.errors import ConfigError, LakeError
from pyromq.spark.claims import create_once
from pyromq.spark.segments.store_places import has_keys, shown_place, why_not

#: Object stores: a name with slashes is a name.
WITHOUT_DIRECTORIES = ("s3", "gcs", "abfs")
#: Names of files that are being made end so.
UNFINISHED = ".tmp"
#: In a path these are patterns to Spark, and parts of an address to Delta and to Iceberg's catalog.
NOT_IN_PATHS = "%#?*[]{}"


class Entry(NamedTuple):
    name: str
    size: int
    modified_ms: int


class Place(Protocol):
    uri: str

    def read(self, name: str) -> bytes | None:
        """The whole content; None when there is no such file."""

    def create(self, name: str, data: bytes) -> bool:
        """Make a file that is not there; False when it is."""

    def replace(self, name: str, data: bytes) -> None: ...

    def exists(self, name: str) -> bool: ...

    def entries(self, directory: str, *, recursive: bool = False) -> list[Entry]:
        """Files only; none when there is no such directory."""

    def directories(self, directory: str) -> list[str]:
        """The names of those directly below."""

    def move(self, source: str, target: str) -> None:
        """Raises FileNotFoundError when the source is not there."""

    def remove(self, name: str) -> None:
        """Gone is gone: no error when it was not there."""

    def remove_tree(self, directory: str) -> None: ...

    def output(self, name: str) -> Any:
        """A stream that makes the file when it is closed."""

    def input(self, name: str) -> Any: ...

    def sync(self, name: str) -> None:
        """Make the file's content survive a power cut."""

    def location(self, name: str) -> str:
        """Return the location as Spark and table formats expect it."""


def place_at(uri: str) -> Place:
    """A directory (`/data/lake`, `file:///data/lake`) or `s3://bucket/lake` and its like. Raises ConfigError."""
    if uri.startswith("file://"):
        uri = uri.removeprefix("file://")
    if "://" not in uri:
        found = [character for character in NOT_IN_PATHS if character in uri]
        if found:
            raise ConfigError(
                f"the path {uri} cannot be that of a lake: Spark does not read {found[0]} as it is", "path"
            )
        return LocalPlace(str(Path(uri).expanduser().absolute()))
    _refuse_settings(uri)
    try:
        filesystem, root = fs.FileSystem.from_uri(uri)
    except (ValueError, OSError) as why:
        raise ConfigError(f"{shown_place(uri)} cannot be reached: {why_not(uri, why)}", "path") from None
    return ArrowPlace(filesystem, root, uri.rstrip("/"))


def _refuse_settings(uri: str) -> None:
    """The path of a lake is also read by Spark, by Delta and by Iceberg, and stands in what they write."""
    if "?" in uri or has_keys(uri):
        raise ConfigError(
            f"the path {shown_place(uri)} of a lake is given with keys or settings in it: give them in the environment "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL), where all readers look for them",
            "path",
        )


@contextmanager
def told(uri: str) -> Iterator[None]:
    """Turn an error of a disk or an object store into a sentence. Raises LakeError."""
    try:
        yield
    except OSError as why:
        said = os.strerror(why.errno) if why.errno else str(why)
        raise LakeError(f"the lake {uri} cannot be read or written: {said}; what is committed stays as it is") from why


class ArrowPlace:
    """A path in a file system of Arrow's."""

    def __init__(self, filesystem: fs.FileSystem, root: str, uri: str) -> None:
        self.uri = uri
        self._files = filesystem
        self._root = root.rstrip("/")

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def read(self, name: str) -> bytes | None:
        try:
            with self._files.open_input_stream(self._at(name)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> bool:
        return create_once(self._files, self._at(name), lambda: self.replace(name, data), suffix=UNFINISHED)

    def replace(self, name: str, data: bytes) -> None:
        with self.output(name) as stream:
            stream.write(data)

    def exists(self, name: str) -> bool:
        return bool(self._files.get_file_info(self._at(name)).type == fs.FileType.File)

    def entries(self, directory: str, *, recursive: bool = False) -> list[Entry]:
        return [
            Entry(info.path[len(self._root) + 1 :], info.size, int((info.mtime_ns or 0) // 1_000_000))
            for info in self._infos(directory, recursive=recursive)
            if info.type == fs.FileType.File
        ]

    def directories(self, directory: str) -> list[str]:
        infos = self._infos(directory, recursive=False)
        return sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)

    def _infos(self, directory: str, *, recursive: bool) -> Any:
        selector = fs.FileSelector(self._at(directory), recursive=recursive, allow_not_found=True)
        return self._files.get_file_info(selector)

    def move(self, source: str, target: str) -> None:
        self._make_directory_of(target)
        self._files.move(self._at(source), self._at(target))

    def remove(self, name: str) -> None:
        if self.exists(name):
            self._files.delete_file(self._at(name))

    def remove_tree(self, directory: str) -> None:
        if self._files.get_file_info(self._at(directory)).type == fs.FileType.Directory:
            self._files.delete_dir(self._at(directory))

    def output(self, name: str) -> Any:
        self._make_directory_of(name)
        return self._files.open_output_stream(self._at(name))

    def input(self, name: str) -> Any:
        return self._files.open_input_file(self._at(name))

    def sync(self, name: str) -> None:
        """A closed object is durable."""

    def location(self, name: str) -> str:
        return f"{self.uri}/{name}" if name else self.uri

    def _make_directory_of(self, name: str) -> None:
        if self._files.type_name not in WITHOUT_DIRECTORIES:
            self._files.create_dir(self._at(name).rpartition("/")[0], recursive=True)


class LocalPlace(ArrowPlace):
    """A directory of this machine, or one that it shares with others."""

    def __init__(self, root: str) -> None:
        super().__init__(fs.LocalFileSystem(), root, root.rstrip("/"))

    def create(self, name: str, data: bytes) -> bool:
        beside = self._written_beside(name, data)
        try:
            os.link(beside, self._at(name))  # unlike a rename, it fails when the name is taken
        except FileExistsError:
            return False
        finally:
            beside.unlink()
        _sync_directory(beside.parent)
        return True

    def replace(self, name: str, data: bytes) -> None:
        beside = self._written_beside(name, data)
        beside.replace(self._at(name))
        _sync_directory(beside.parent)

    def _written_beside(self, name: str, data: bytes) -> Path:
        self._make_directory_of(name)
        beside = Path(f"{self._at(name)}.{secrets.token_hex(6)}{UNFINISHED}")
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return beside

    def move(self, source: str, target: str) -> None:
        self._make_directory_of(target)
        Path(self._at(source)).rename(self._at(target))

    def sync(self, name: str) -> None:
        path = Path(self._at(name))
        with path.open("rb") as file:
            os.fsync(file.fileno())
        _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
