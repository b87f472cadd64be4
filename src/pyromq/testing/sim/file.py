"""The model of a file that a power cut may hit: its durable bytes, and every version of a sector since the last sync.

A sector is in doubt from the mark that first sees it changed until a sync has returned; what a failed sync was to
write stays in doubt until it changes again. Knows no names and draws nothing: `sim_disk` does the one,
`crash_choice` the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

#: The unit that a disk writes whole or not at all.
SECTOR = 512
#: The unit in which room is taken, and in which a failed sync forgets what it was to write.
PAGE = 4096
#: Versions kept of one unsynced sector. One that is rewritten all the time would otherwise keep every state
#: it ever had; the oldest go first, for the durable one stands in for them.
MAX_VERSIONS = 64


_inodes = count(1)


class SimFile:
    """A file's bytes, whatever its name is."""

    __slots__ = ("doubtful", "durable", "inode", "memory", "modified_ms", "pages", "seen", "versions")

    def __init__(self, durable: bytes, modified_ms: int, *, pages: int) -> None:
        self.inode = next(_inodes)
        #: The state after a power cut that takes everything it may.
        self.durable = durable
        #: The bytes as of the last mark. Equal to `durable` except in the sectors that `versions` has.
        self.seen = durable
        #: The mapping, after its first use: until then nothing can have changed.
        self.memory: bytearray | None = None
        #: Sector -> what it was since the last sync, oldest first, each with the moment of its mark.
        self.versions: dict[int, list[tuple[int, bytes]]] = {}
        #: Page -> what it was when a sync failed to write it.
        self.doubtful: dict[int, bytes] = {}
        #: The pages that have room on the disk, one bit each.
        self.pages = pages
        self.modified_ms = modified_ms

    @classmethod
    def written(cls, data: bytes, moment: int, modified_ms: int) -> SimFile:
        """A new file with these bytes, none of them synced."""
        file = cls(bytes(len(data)), modified_ms, pages=pages_between(0, len(data)))
        file._note_all(data, moment)
        return file

    @property
    def size(self) -> int:
        return len(self.seen)

    @property
    def content(self) -> bytes:
        return self.seen if self.memory is None else bytes(self.memory)

    @property
    def changed(self) -> bool:
        """True when it was written to since the last mark."""
        return self.memory is not None and self.memory != self.seen

    def map(self) -> bytearray:
        if self.memory is None:
            self.memory = bytearray(self.seen)
        return self.memory

    def note(self, moment: int) -> bool:
        """Remember what changed since the last time; True when something did."""
        if not self.changed:
            return False
        self._note_all(self.content, moment)
        return True

    def _note_all(self, now: bytes, moment: int) -> None:
        for sector in _changed_sectors(self.seen, now):
            versions = self.versions.setdefault(sector, [])
            if len(versions) == MAX_VERSIONS:
                del versions[0]
            versions.append((moment, now[sector * SECTOR : (sector + 1) * SECTOR]))
        self.seen = now

    def sync(self) -> None:
        if self.changed:
            self.seen = self.content
        lost = {page for page, failed in self.doubtful.items() if _page(self.seen, page) == failed}
        self.doubtful = {page: self.doubtful[page] for page in lost}
        self.versions = {n: each for n, each in self.versions.items() if n * SECTOR // PAGE in lost}
        if not lost:
            self.durable = self.seen
            return
        durable = bytearray(self.seen)
        for page in lost:
            durable[page * PAGE : (page + 1) * PAGE] = _page(self.durable, page)
        self.durable = bytes(durable)

    def fail_sync(self, moment: int) -> None:
        """The pages on their way are forgotten: they may have got there, and look clean from now on."""
        self.note(moment)
        pages = {sector * SECTOR // PAGE for sector in self.versions}
        self.doubtful = {page: _page(self.seen, page) for page in sorted(pages)}

    def flip(self, position: int, bit: int) -> None:
        """Damage one bit wherever it is kept."""
        sector, offset = divmod(position, SECTOR)
        versions = self.versions.get(sector, [])
        versions[:] = [(moment, _flipped(each, offset, bit)) for moment, each in versions]
        self.durable = _flipped(self.durable, position, bit)
        self.seen = _flipped(self.seen, position, bit)
        if self.memory is not None:
            self.memory[position] ^= 1 << bit

    def copy(self) -> SimFile:
        """The file as of the last mark, with all that it may still lose."""
        twin = SimFile(self.durable, self.modified_ms, pages=self.pages)
        twin.seen = self.seen
        twin.versions = {sector: list(each) for sector, each in self.versions.items()}
        twin.doubtful = dict(self.doubtful)
        return twin

    def after(self, sectors: dict[int, bytes]) -> SimFile:
        """The durable file with these sectors written over it."""
        content = self.durable
        if sectors:
            written = bytearray(content)
            for sector, data in sectors.items():
                written[sector * SECTOR : sector * SECTOR + len(data)] = data
            content = bytes(written)
        return SimFile(content, self.modified_ms, pages=self.pages)


def _changed_sectors(old: bytes, new: bytes) -> Iterator[int]:
    for page in range(0, len(new), PAGE):  # most pages are alike, and comparing bytes is quick
        if old[page : page + PAGE] != new[page : page + PAGE]:
            for start in range(page, min(page + PAGE, len(new)), SECTOR):
                if old[start : start + SECTOR] != new[start : start + SECTOR]:
                    yield start // SECTOR


def _page(data: bytes, page: int) -> bytes:
    return data[page * PAGE : (page + 1) * PAGE]


def pages_between(start: int, end: int) -> int:
    """The pages that these bytes lie in, one bit each."""
    first, last = start // PAGE, -(-end // PAGE)
    return ((1 << max(last - first, 0)) - 1) << first


def _flipped(data: bytes, position: int, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[position] ^= 1 << bit
    return bytes(damaged)
