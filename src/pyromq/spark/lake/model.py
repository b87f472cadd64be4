"""The model of a lake: files, the head of its history, and a change to commit. Plain values.

Offsets are kept as `topic@broker@id` → the next offset: everything below it is in the lake, or was left out on purpose.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from pyromq.spark.lake.place import Place

#: Added to the columns of messages: the day that the broker stored it, in UTC. The table is partitioned by it.
DATE = "date"
#: The columns of every lake: they identify a row and show missing ones.
KEPT = ("topic", "broker", "queue_id", "queue_offset", "store_ts")


class Span(NamedTuple):
    """The offsets of one queue in a file."""

    first: int
    last: int
    rows: int


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of one topic and one day."""

    #: Below the lake.
    path: str
    topic: str
    #: As 2025-12-31.
    date: str
    rows: int
    size: int
    #: The run that wrote it.
    run: str = ""
    #: The store times of its first and last message.
    first_ms: int = 0
    last_ms: int = 0
    #: By queue, as `topic@broker@id`. Only known of new files in formats that do not keep it.
    queues: Mapping[str, Span] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        form = {name: getattr(self, name) for name in self.__slots__ if name != "queues"}
        return form | {"queues": {queue: list(span) for queue, span in sorted(self.queues.items())}}

    @classmethod
    def of_json(cls, form: Mapping[str, Any]) -> DataFile:
        queues = {queue: Span(*numbers) for queue, numbers in form["queues"].items()}
        return cls(**{**form, "queues": queues})


@dataclass(frozen=True, slots=True)
class Head:
    """The newest commit."""

    #: Counts our commits: 0 is a lake without one.
    version: int
    offsets: Mapping[str, int]
    #: Of the table, with `date`; None before the first commit.
    schema: pa.Schema | None


@dataclass(frozen=True, slots=True)
class Change:
    """One commit to be: it holds on top of `base` and of nothing else."""

    base: Head
    run: str
    #: "archive" or "compact".
    why: str
    at_ms: int
    offsets: Mapping[str, int]
    schema: pa.Schema
    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """The target and format of the files of one run. Executors receive it."""

    uri: str
    run: str
    #: Below the lake.
    directory: str
    schema: pa.Schema
    #: Files lie in `topic=…/date=…` and do not have these two columns; otherwise they lie together and have them.
    hive: bool
    #: Begin another file when one is as large.
    file_bytes: int = 256 << 20


class Lake(Protocol):
    """A table in one of the formats."""

    place: Place

    def head(self) -> Head: ...

    def files(self) -> list[DataFile]:
        """Exactly what the newest commit has."""

    def locations(self) -> dict[str, str]:
        """Of each live file, by its path: where it is at this moment."""

    def target(self, run: str, schema: pa.Schema) -> Target: ...

    def commit(self, change: Change) -> Head:
        """All of it or nothing. Raises LakeConflict when `change.base` is not the head any more."""

    def end(self, run: str, committed: Collection[str]) -> None:
        """A run is over, and committed these files: the others that it wrote are removed, and its mark."""

    def settle(self) -> None:
        """Finish what a commit that was cut short left to do. Doing it again does nothing."""

    def clean(self, *, now_ms: int, safe_age_s: float, grace_s: float) -> int:
        """Remove what no commit speaks of: of runs that are dead or older than the safe age, and replaced files older
        than the grace time. Returns how many files."""
