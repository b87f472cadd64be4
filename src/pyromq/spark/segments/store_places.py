"""Places with a scheme (`s3://bucket/store`), through pyarrow's file systems; and which places are this machine's.

An address may have settings behind a `?`, which pyarrow reads (`s3://bucket/store?endpoint_override=…&region=…`), and
keys before an `@`. Neither is ever shown: `shown_place`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NoReturn
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from pyromq.backup.target import Part
from pyromq.errors import StoreError


def is_remote(place: str) -> bool:
    scheme, found, _ = place.partition("://")
    return bool(found) and scheme.lower() != "file" and "/" not in scheme


def local_path(place: str) -> Path:
    """Of a path, or of the address of one: `file:///data/store`. Absolute: executors have another directory."""
    if place.lower().startswith("file:"):
        return Path(unquote(urlsplit(place).path))
    path = Path(place)
    with contextlib.suppress(RuntimeError):  # an unknown user: the name is literal
        path = path.expanduser()
    return path.absolute()


def below(place: str, name: str) -> str:
    """A name in a place: what stands behind a `?` stays behind it."""
    address, mark, settings = place.partition("?") if is_remote(place) else (place, "", "")
    return f"{address.rstrip('/')}/{name}{mark}{settings}" if name else place


def last_name(place: str) -> str:
    return _address(place).rpartition("/")[2]


def directory_of(place: str) -> str:
    return _address(place).rpartition("/")[0]


def _address(place: str) -> str:
    return (place.partition("?")[0] if is_remote(place) else place).rstrip("/")


def shown_place(place: str) -> str:
    """Return the address without keys and settings, for people."""
    if not is_remote(place):
        return place
    scheme, _, rest = place.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    before, at, behind = host.rpartition("@")
    if has_keys(place):  # of Azure's addresses, the container stays
        before = "" if scheme.lower() == "s3" else before.partition(":")[0]
    return f"{scheme}://{before}{at if before else ''}{behind}{slash}{path}"


def has_keys(place: str) -> bool:
    """Azure has the container before an `@`, others have keys there."""
    scheme, _, rest = place.partition("://")
    before, at, _ = rest.partition("/")[0].rpartition("@")
    return bool(at) and (":" in before or scheme.lower() == "s3")


def why_not(place: str, error: Exception) -> str:
    """Return pyarrow's error about an address, which it quotes."""
    return str(error).replace(place, shown_place(place))


def file_system(uri: str) -> tuple[Any, str]:
    """Return the file system of the scheme, and the path in it."""
    found: tuple[Any, str] = fs.FileSystem.from_uri(uri)
    return found


class RemotePlace:
    """A directory or a file somewhere else, to be read. Has what a backup is read with. Raises StoreError, OSError."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        try:
            self._files, self._path = file_system(uri)
        except (OSError, ValueError) as error:
            raise StoreError(f"{shown_place(uri)} cannot be reached: {why_not(uri, error)}") from None

    def _at(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}".rstrip("/") if name else self._path

    def is_file(self) -> bool:
        return bool(self._files.get_file_info(self._path).type == fs.FileType.File)

    def names(self, directory: str) -> list[str]:
        wanted = fs.FileSelector(self._at(directory), allow_not_found=True)
        return sorted(found.base_name for found in self._files.get_file_info(wanted))

    def size(self, name: str = "") -> int:
        size = self._files.get_file_info(self._at(name)).size
        if size is None:
            raise FileNotFoundError(self.shown(name))
        return int(size)

    def read(self, name: str) -> bytes:
        with self._files.open_input_stream(self._at(name)) as stream:
            return bytes(stream.read())

    def open_file(self) -> Any:
        """To be read from any place, with `read_at`."""
        return self._files.open_input_file(self._path)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        yield BytesIO(self.read(name))

    def shown(self, name: str = "") -> str:
        return shown_place(below(self.uri, name))

    def write(self, name: str, parts: Iterable[Part]) -> None:
        self._refuse(name)

    def create(self, name: str, data: bytes) -> None:
        self._refuse(name)

    def remove(self, name: str) -> None:
        self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        raise StoreError(f"{self.shown(name)} is only read here")
