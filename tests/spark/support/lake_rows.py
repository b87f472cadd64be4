"""Rows, places and steps for tests of the lake and of the jobs that use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pyromq.spark.decode.columns import NAMES, arrow_schema
from pyromq.spark.lake.model import DATE, Change, DataFile, Head, Lake
from pyromq.spark.lake.place import Place, place_at
from pyromq.spark.lake.writing import TableWriter

#: 2026-01-31T12:00:00Z.
NOON_MS = 1_769_860_800_000
DAY_MS = 86_400_000
SCHEMA = arrow_schema(NAMES).append(pa.field(DATE, pa.date32()))


def a_row(topic: str, queue: int, offset: int, *, broker: str = "a", body: bytes | None = None, at_ms: int = NOON_MS):
    """All columns of a message."""
    at_us = (at_ms + offset) * 1000
    return {
        "topic": topic, "broker": broker, "queue_id": queue, "queue_offset": offset,
        "commit_log_offset": offset * 100, "msg_id": f"id-{topic}-{queue}-{offset}", "tags": f"t{offset % 3}",
        "keys": f"k{offset}", "properties": [("UNIQ_KEY", f"uniq-{offset}"), ("color", "red")],
        "body": f"{topic}/{queue}/{offset}".encode() if body is None else body, "born_ts": at_us, "store_ts": at_us,
        "born_host": "127.0.0.1:1", "sys_flag": 0, "flag": 0, "reconsume_times": 0, "body_crc": 7, "store_size": 99,
    }  # fmt: skip


def a_batch(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=arrow_schema(NAMES))


def some_rows(topic: str, queue: int, start: int, end: int, **more: Any) -> list[dict[str, Any]]:
    return [a_row(topic, queue, offset, **more) for offset in range(start, end)]


def added(lake: Lake, run: str, ranges: Mapping[str, tuple[int, int]], attempt: str = "0") -> list[DataFile]:
    """Write what a task would write of these ranges."""
    writer = TableWriter(place_at(lake.place.uri), lake.target(run, SCHEMA), f"{run}-{attempt}")
    for queue, (start, end) in ranges.items():
        topic, broker, number = queue.split("@")
        writer.write(a_batch(some_rows(topic, int(number), start, end, broker=broker)))
    return writer.close()


def change(base: Head, run: str, files: Sequence[DataFile], offsets: Mapping[str, int], **more: Any) -> Change:
    return Change(base, run, more.pop("why", "archive"), more.pop("at_ms", NOON_MS), offsets, SCHEMA, files, **more)


class PulledPlug(Exception):
    """The process was killed here."""


class FragilePlace:
    """A place where the process dies before or after its n-th change to a file. The next process uses a new one."""

    CHANGES = ("create", "replace", "move", "remove", "remove_tree")

    def __init__(self, place: Place, dies_at: int, *, after: bool = False) -> None:
        self._place = place
        self._left = dies_at
        self._after = after
        self.uri = place.uri

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._place, name)
        return self._breaking(real) if name in self.CHANGES else real

    def _breaking(self, real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            self._left -= 1
            if self._left < 0 and not self._after:
                raise PulledPlug
            result = real(*arguments)
            if self._left < 0:
                raise PulledPlug
            return result

        return call
