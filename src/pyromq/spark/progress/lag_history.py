"""The lag of queries over time, kept as lines of JSON: one file for each day, written at its end only.

    {"time": "2026-01-31T12:00:00.000Z", "query": "reports", "group": "reports", "topic": "orders", "broker": "a",
     "queue": 0, "committed": 17, "max": 20, "lag": 3}

`spark.read.schema(LAG_DDL).json(directory)` reads it. A crash can leave half a line at the end of a file; the next one
begins on a line of its own. Files of old days may be deleted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pyromq.errors import ConfigError
from pyromq.spark.progress.lag import QueueStand

LAG_DDL = (
    "time TIMESTAMP, query STRING, `group` STRING, topic STRING, broker STRING, queue INT, committed BIGINT, "
    "max BIGINT, lag BIGINT"
)
PREFIX = "lag-"
SUFFIX = ".jsonl"


def line_of(stand: QueueStand) -> str:
    topic, broker, queue_id = stand.queue
    form = {
        "time": _moment(stand.at_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "query": stand.query,
        "group": stand.group,
        "topic": topic,
        "broker": broker,
        "queue": queue_id,
        "committed": stand.committed,
        "max": stand.end,
        "lag": stand.lag,
    }
    return json.dumps(form, separators=(",", ":"))


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


class LagHistory:
    """Appends to a directory of this machine. Several queries and processes may write to the same one."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        if "://" in os.fspath(directory):
            raise ConfigError(f"the lag history {directory} is no directory of this machine: name one", "history")
        self._directory = Path(directory)

    def __call__(self, stands: Sequence[QueueStand]) -> None:
        if not stands:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{PREFIX}{_moment(stands[0].at_ms):%Y-%m-%d}{SUFFIX}"
        with path.open("ab") as file:
            broken = file.tell() > 0 and not _ends_a_line(path)
            text = "\n" * broken + "".join(f"{line_of(one)}\n" for one in stands)
            file.write(text.encode())  # one write, at the end of the file: lines of others do not get between


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
