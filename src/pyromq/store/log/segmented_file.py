"""One long run of bytes kept in files of equal length, each named by the position of its first byte.

Used for the commit log and for every consume queue. Files are mapped when they are first looked at. Removing a file
takes it from the run and from the directory; a view of its bytes stays valid.
"""

from __future__ import annotations

from pathlib import Path

from pyromq.errors import CorruptStore, StoreClosed
from pyromq.files.disk import Disk, MappedFile

NAME_DIGITS = 20


def run_names(disk: Disk, directory: Path) -> list[str]:
    """The files in a run's directory, oldest first. Directories are not of the run: a file system has some of its own,
    such as `lost+found`, and RocketMQ leaves them alone as well."""
    return [name for name in disk.names(directory) if is_position(name) or not disk.is_dir(directory / name)]


def is_position(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


class Segment:
    """One file of the run."""

    __slots__ = (
        "_disk", "_file", "_is_closed", "_keeps_descriptor", "_small_pages", "_writable", "base", "path", "size",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        path: Path,
        base: int,
        size: int,
        *,
        writable: bool = True,
        small_pages: bool = False,
        keeps_descriptor: bool = True,
    ) -> None:
        self._keeps_descriptor = keeps_descriptor
        self._disk = disk
        self._file: MappedFile | None = None
        self._writable = writable
        self._small_pages = small_pages
        self._is_closed = False
        self.path = path
        self.base = base
        self.size = size

    @property
    def end(self) -> int:
        return self.base + self.size

    @property
    def file(self) -> MappedFile:
        if self._file is None:
            if self._is_closed:
                raise StoreClosed(f"{self.path} belongs to a store that is closed")
            self.adopt(self._disk.open_mapped(self.path, writable=self._writable))
            assert self._file is not None
        return self._file

    @property
    def buffer(self) -> memoryview:
        return self.file.buffer

    def data_end(self, start: int) -> int:
        """Behind the last byte that may not be zero. Looking at the bytes themselves would bring in every page."""
        return min(self.file.data_end(start), self.size) if start < self.size else self.size

    @property
    def is_mapped(self) -> bool:
        return self._file is not None

    def adopt(self, file: MappedFile) -> Segment:
        """Take a mapping that was made elsewhere (by the allocating thread)."""
        self._file = file
        if not self._keeps_descriptor:
            file.let_descriptor_go()
        if self._small_pages:
            file.keep_pages_small()
        return self

    def close(self) -> None:
        self._is_closed = True
        if self._file is not None:
            self._file.close()
            self._file = None


class SegmentedFile:
    """The files of one run, oldest first, without gaps."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        file_bytes: int,
        *,
        writable: bool = True,
        small_pages: bool = False,
        keeps_descriptors: bool = True,
    ) -> None:
        self.disk = disk
        self.keeps_descriptors = keeps_descriptors
        self.small_pages = small_pages
        self.directory = directory
        self.file_bytes = file_bytes
        self.writable = writable
        self.segments: list[Segment] = []
        #: A file without bytes was found, and removed.
        self.had_empty_file = False
        #: The segments' bytes, for loops that go through many; None: not looked at yet (see `map`).
        self.buffers: list[memoryview | None] = []

    def load(self, given_up_below: int = 0) -> None:
        """Find the files. Raises CorruptStore for names, lengths or gaps that no run of ours has.

        Removing a file is not durable at once: a crash may bring back some of those that were removed, and not others.
        Those below `given_up_below` are removed again, and so are files behind a gap that begin with zeroes.
        """
        names = run_names(self.disk, self.directory)
        if names and not self.disk.size(self.directory / names[-1]) and self.writable:
            # Made by a writer that was stopped before it gave the file its length: there is nothing in it.
            self.disk.remove(self.directory / names.pop())
            self.had_empty_file = True
        self.segments = [self._segment(name) for name in names]
        self.buffers = [None] * len(self.segments)
        while self.segments and self.segments[0].end <= given_up_below and self.writable:
            self.remove_first()
        gap = next((n for n in range(1, len(self.segments)) if self.segments[n - 1].end != self.segments[n].base), None)
        if gap is not None and self.writable and not any(any(each.buffer[:8]) for each in self.segments[gap:]):
            self.remove_from(self.segments[gap].base)
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            if before.end != after.base:
                raise CorruptStore(
                    after.path,
                    before.end,
                    f"no file holds the bytes from {before.end} to {after.base}",
                    "put the missing file back, from a backup or a replica; or move the files behind it elsewhere and "
                    f"give up what they held with `pyromq store recover --truncate-at {before.end}`",
                )

    def _segment(self, name: str) -> Segment:
        path = self.directory / name
        if not is_position(name):
            raise CorruptStore(path, 0, "the file's name is not a position of 20 digits", "move it elsewhere")
        size = self.disk.size(path)
        base = int(name)
        if size != self.file_bytes or base % self.file_bytes:
            raise CorruptStore(
                path,
                base,
                f"the file has {size} bytes where the configuration says {self.file_bytes}",
                "open the store with the file length that it was written with, or restore the file",
            )
        return self._new(path, base, size, writable=self.writable)

    def _new(self, path: Path, base: int, size: int, *, writable: bool = True) -> Segment:
        return Segment(
            self.disk, path, base, size, writable=writable, small_pages=self.small_pages,
            keeps_descriptor=self.keeps_descriptors,
        )  # fmt: skip

    def adopt(self, bases: list[int]) -> None:
        """Consist of the files that begin at these positions, which follow each other."""
        self.segments = [self._segment(f"{base:0{NAME_DIGITS}d}") for base in bases]
        self.buffers = [None] * len(self.segments)

    def path_of(self, base: int) -> Path:
        return self.directory / f"{base:0{NAME_DIGITS}d}"

    @property
    def start(self) -> int:
        return self.segments[0].base if self.segments else 0

    @property
    def end(self) -> int:
        """Behind the last byte of the last file, written or not."""
        return self.segments[-1].end if self.segments else 0

    def find(self, position: int) -> Segment | None:
        if not self.segments or not self.start <= position < self.end:
            return None
        return self.segments[(position - self.start) // self.file_bytes]

    def map(self, position: int) -> bool:
        """Put the bytes around a position into `buffers`; False when they are there, or nowhere."""
        segment = self.find(position)
        if segment is None:
            return False
        number = (position - self.start) // self.file_bytes
        if self.buffers[number] is not None:
            return False
        self.buffers[number] = segment.buffer
        return True

    def create(self, base: int, *, reserve: bool, durable: bool = True) -> Segment:
        """A new file of zeroes, not yet part of the run: safe to call from another thread."""
        path = self.path_of(base)
        file = self.disk.create_mapped(path, self.file_bytes, reserve=reserve, durable=durable)
        return self._new(path, base, self.file_bytes).adopt(file)

    def add(self, segment: Segment) -> None:
        assert not self.segments or segment.base == self.end, (segment.base, self.end)
        self.segments.append(segment)
        self.buffers.append(None)

    def prepend(self, segment: Segment) -> None:
        """Put a file before the first one."""
        assert self.segments, "there is nothing to put it before"
        assert segment.end == self.start, (segment.end, self.start)
        self.segments.insert(0, segment)
        self.buffers = [None, *self.buffers]

    def forget_first(self) -> Segment:
        """Take the oldest file out of the run. The caller removes it from the directory."""
        self.buffers = self.buffers[1:]  # a reader that has the old list and the run's start can still use both
        return self.segments.pop(0)

    def remove_first(self) -> None:
        self._remove(self.forget_first())

    def remove_from(self, position: int) -> int:
        """Remove the files that begin at or behind a position; how many they were."""
        removed = 0
        while self.segments and self.segments[-1].base >= position:
            self.buffers.pop()
            self._remove(self.segments.pop())
            removed += 1
        return removed

    def _remove(self, segment: Segment) -> None:
        # Not closed: a thread may be reading from it. The file goes when its last reader does.
        self.disk.remove(segment.path)

    def close(self) -> None:
        self.buffers = [None] * len(self.segments)
        for segment in self.segments:
            segment.close()
