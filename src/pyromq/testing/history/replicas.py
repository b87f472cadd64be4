"""H10 for the checker: replicas are the same byte by byte. It looks at their commit logs, while brokers write them too.

    one, other = LogFiles(master / "commitlog"), LogFiles(slave / "commitlog")
    same_to = one.same_as(other)
    same_to = one.same_as(other, same_to)           # only the new part

Two logs are compared as far as both go. Where one of them is empty space and the other has bytes, it is behind: files
are created at their full size. The caller knows the confirmed position: everything below must be the same.
"""

from __future__ import annotations

from pathlib import Path

#: Compared at a time.
STRETCH = 1 << 20
#: The number of bytes shown around a difference.
SHOWN = 16


class LogFiles:
    """A commit-log directory: files named after the position of their first byte."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def _files(self) -> list[tuple[int, Path]]:
        if not self._directory.is_dir():
            return []
        return sorted((int(file.name), file) for file in self._directory.iterdir() if file.name.isdigit())

    @property
    def start(self) -> int:
        """The first position; 0 for an empty directory."""
        return min((base for base, _ in self._files()), default=0)

    def read(self, position: int, most: int) -> bytes:
        """Return the bytes from a position on, at most to the end of its file; nothing after the last file."""
        for base, file in self._files():
            if base <= position < base + file.stat().st_size:
                with file.open("rb") as opened:
                    opened.seek(position - base)
                    return opened.read(most)
        return b""

    def same_as(self, other: LogFiles, since: int = 0) -> int:
        """Return the end of the common part, from `since` on. Raises AssertionError at a difference.

        The position may lie inside of a record: one of the two was just being written.
        """
        at = max(since, self.start, other.start)
        while True:
            size = min(len(self.read(at, STRETCH)), len(other.read(at, STRETCH)))
            both_go_on = self._is_written_from(at + size) and other._is_written_from(at + size)
            # Read afterwards: everything before it is complete then.
            one, two = self.read(at, STRETCH), other.read(at, STRETCH)
            if one[:size] != two[:size]:
                return self._first_difference(other, at, one[:size], two[:size], both_go_on=both_go_on)
            if not both_go_on:
                return at + len(one[:size].rstrip(b"\0"))
            at += size

    def _is_written_from(self, position: int) -> bool:
        """There is something, there or further on: empty space before it is the end of a file, or a hole."""
        later = (max(base, position) for base, file in self._files() if base + file.stat().st_size > position)
        return any(any(self.read(at, STRETCH)) for at in later)

    def _first_difference(self, other: LogFiles, at: int, one: bytes, two: bytes, *, both_go_on: bool) -> int:
        first = next(index for index, (left, right) in enumerate(zip(one, two, strict=True)) if left != right)
        if not both_go_on and not (any(one[first:]) and any(two[first:])):
            return at + len(one[:first].rstrip(b"\0"))
        ours, theirs = one[first : first + SHOWN].hex(" "), two[first : first + SHOWN].hex(" ")
        raise AssertionError(
            f"H10: the logs {self._directory} and {other._directory} differ at {at + first}: {ours}, and {theirs}"
        )
