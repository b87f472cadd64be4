"""From what a batch reads to the pieces that tasks read. Pure.

One task reads one queue, unless `minPartitions` or `maxRecordsPerPartition` ask for more of them. Tasks cost some
milliseconds each, so a few messages here and there are read by one task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyromq.spark.source.offsets import Span

#: Queues with less than this share a task.
SMALL = 1000


def split(
    spans: Sequence[Span], *, min_pieces: int | None = None, max_records: int | None = None
) -> list[tuple[Span, ...]]:
    """Return the ranges of each task: every message once, in the order of its queue."""
    spans = [span for span in spans if span.count > 0]
    pieces = [piece for span in spans for piece in _cut(span, max_records or span.count)]
    if min_pieces is not None:
        return [(piece,) for piece in _at_least(pieces, min_pieces)]
    return list(_packed(pieces, max_records or SMALL))


def _cut(span: Span, most: int) -> Iterator[Span]:
    """Parts of nearly the same size, none above `most`."""
    return _in_parts(span, -(-span.count // most))


def _in_parts(span: Span, parts: int) -> Iterator[Span]:
    for number in range(parts):
        start, end = (span.start + span.count * edge // parts for edge in (number, number + 1))
        if start < end:
            yield Span(span.queue, start, end)


def _at_least(pieces: Sequence[Span], wanted: int) -> list[Span]:
    """Cut the long ones until there are enough, if there are enough messages."""
    total = sum(piece.count for piece in pieces)
    if len(pieces) >= wanted or total == 0:
        return list(pieces)
    # Rounded up, so that there are at least as many parts as requested; no part is empty.
    return [part for piece in pieces for part in _in_parts(piece, min(-(-piece.count * wanted // total), piece.count))]


def _packed(pieces: Sequence[Span], most: int) -> Iterator[tuple[Span, ...]]:
    together: list[Span] = []
    for piece in sorted(pieces, key=lambda piece: piece.count):
        if together and sum(one.count for one in together) + piece.count > min(SMALL, most):
            yield tuple(sorted(together))
            together = []
        together.append(piece)
    if together:
        yield tuple(sorted(together))
