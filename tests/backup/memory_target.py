"""A target in memory that can be stopped before any step, as a machine that loses power."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from pyromq.backup.target import Part


class PowerCut(BaseException):
    """The machine is gone: no handler catches this."""


class MemoryTarget:
    """Named bytes. `cut_after` steps (a write, a creation, a removal) nothing more happens."""

    def __init__(self, files: dict[str, bytes] | None = None, cut_after: int | None = None) -> None:
        self.files = files if files is not None else {}
        self.steps = 0
        self._cut_after = cut_after

    def _step(self) -> None:
        if self._cut_after is not None and self.steps >= self._cut_after:
            raise PowerCut
        self.steps += 1

    def names(self, directory: str) -> list[str]:
        inside = (name[len(directory) + 1 :] for name in self.files if name.startswith(f"{directory}/"))
        return sorted({name.split("/")[0] for name in inside})

    def read(self, name: str) -> bytes:
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def size(self, name: str) -> int:
        return len(self.read(name))

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        yield io.BytesIO(self.read(name))

    def write(self, name: str, parts: Iterable[Part]) -> None:
        data = b"".join(map(bytes, parts))
        self._step()
        self.files[name] = data

    def create(self, name: str, data: bytes) -> None:
        if name in self.files:
            raise FileExistsError(name)
        self.write(name, [data])

    def remove(self, name: str) -> None:
        self._step()
        self.files.pop(name, None)

    def shown(self, name: str = "") -> str:
        return f"memory:{name}"
