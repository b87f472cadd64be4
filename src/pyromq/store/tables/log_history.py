"""Positions of a table together with the end of the log they depend on, so that a truncated log takes them back.

"Delay level 3 is delivered up to 41" is true only in a log that has the delivered copies. A table keeps its newest
positions and some older ones, each with the log end below which everything they rely on is. After a truncation the
newest ones that the log still supports count. No input or output.

    "pyromqLog": [{"end": 4096, "offsets": {"3": 40}}, {"end": 8192, "offsets": {"3": 41}}]

The field is ours; RocketMQ skips it, and leaves it out when it writes the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyromq.model.json_form import OFFSET, Json, JsonObject, an_object, expect

FIELD = "pyromqLog"
#: Kept entries. Old ones are thinned out, so that they reach back twice as far with every few.
MOST = 16
#: The newest entries are never thinned out.
NEWEST = 4


class Entry(NamedTuple):
    """Positions by name, and the log end that they depend on."""

    end: int
    offsets: Mapping[str, int]


class LogHistory:
    """Entries with growing log ends, the newest last."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries: list[Entry] = list(entries)

    @property
    def newest(self) -> Entry | None:
        return self.entries[-1] if self.entries else None

    def note(self, end: int, offsets: Mapping[str, int]) -> None:
        """Add positions that depend on the log up to `end`. Equal positions keep the smaller log end."""
        newest = self.newest
        if newest is not None and newest.offsets == offsets and newest.end <= end:
            return
        self.cut(end - 1)  # entries of a later log end were of a log that was truncated since
        self.entries.append(Entry(end, dict(offsets)))
        if len(self.entries) > MOST:
            self._thin_out()

    def _thin_out(self) -> None:
        """Drop the entry whose neighbours are nearest to each other, measured by their distance from the newest."""
        newest = self.entries[-1].end

        def gap(place: int) -> float:
            older, newer = self.entries[place - 1].end, self.entries[place + 1].end
            return (newer - older) / max(newest - older, 1)

        del self.entries[min(range(1, len(self.entries) - NEWEST), key=gap)]

    def within(self, end: int) -> Entry | None:
        """Return the newest entry that a log of this end supports; `None` if there is none."""
        return next((entry for entry in reversed(self.entries) if entry.end <= end), None)

    def cut(self, end: int) -> None:
        """Drop the entries that a log of this end does not support."""
        self.entries = [entry for entry in self.entries if entry.end <= end]


def to_json(history: LogHistory) -> Json:
    return [{"end": entry.end, "offsets": dict(entry.offsets)} for entry in history.entries]


def from_document(document: JsonObject) -> LogHistory:
    """Return the history that a table's document has; empty if it has none. Raises WrongShape."""
    found = document.get(FIELD)
    if found is None:
        return LogHistory()
    expect(isinstance(found, list) and len(found) <= MOST, f"{FIELD}: a list of at most {MOST}", found)
    entries = [_entry(an_object(one)) for one in found]
    ends = [entry.end for entry in entries]
    expect(ends == sorted(set(ends)), f"{FIELD}: growing log ends", ends)
    return LogHistory(entries)


def _entry(form: JsonObject) -> Entry:
    offsets = an_object(form.get("offsets"))
    return Entry(OFFSET(form.get("end")), {name: OFFSET(offset) for name, offset in offsets.items()})
