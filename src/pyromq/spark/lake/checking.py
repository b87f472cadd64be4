"""Check that a commit's files have every offset of its ranges exactly once. Pure.

Offsets of a queue have no holes: transactions and delays use queues of their own. Holes appear only on
request: a filter by tags or SQL. Topics in which other brokers make holes (compaction by key, several
messages under one offset) are archived with the check switched off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyromq.errors import LakeError
from pyromq.spark.lake.model import DataFile, Span

#: Of a queue: first offset, and the one behind the last.
Ranges = Mapping[str, tuple[int, int]]


def gathered(files: Iterable[DataFile]) -> dict[str, Span]:
    """Return the offsets of each queue in all files."""
    found: dict[str, Span] = {}
    for file in files:
        for queue, span in file.queues.items():
            known = found.get(queue, span._replace(rows=0))
            found[queue] = Span(min(known.first, span.first), max(known.last, span.last), known.rows + span.rows)
    return found


def check_ranges(ranges: Ranges, files: Iterable[DataFile], *, holes: bool) -> None:
    """Raise LakeError when rows are missing (unless there may be holes), doubled, or not of the ranges at all."""
    found = gathered(files)
    for queue in found.keys() - ranges.keys():
        raise LakeError(f"rows of {queue} came, and nobody asked for that queue; nothing was committed")
    for queue, (start, end) in ranges.items():
        span = found.get(queue, Span(start, start - 1, 0))
        wrong = _complaint(span, start, end, holes)
        if wrong:
            raise LakeError(f"{queue}: {wrong}; nothing was committed, and running again starts from the last commit")


def _complaint(span: Span, start: int, end: int, holes: bool) -> str | None:
    if span.rows > end - start:
        return f"{span.rows} rows came for the {end - start} offsets from {start} to {end - 1}: some are there twice"
    if span.rows and (span.first < start or span.last >= end):
        return f"offsets {span.first} to {span.last} came, asked for were {start} to {end - 1}"
    if not holes and span.rows < end - start:
        return f"{span.rows} rows came for the {end - start} offsets from {start} to {end - 1}: some are missing"
    return None
