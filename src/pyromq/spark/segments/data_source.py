"""`format("pyromq-segments")`: the files of commit logs as a table, without a broker.

    spark.read.format("pyromq-segments").option("topics", "orders").load("/data/store")

Store directories, live or cold, single segments, archives and backups; see `store_files`. Rows are what consumers of
the topics can see: what the broker writes for itself is left out unless `includeSystem` is true.

The driver finds the files and splits them (`segments_split`), executors read them (`segments_read`), so both must see
them under the same path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyromq.errors import ConfigError
from pyromq.spark.decode.columns import NAMES, ddl, names_in
from pyromq.spark.segments.options import SegmentsOptions, segments_options
from pyromq.spark.segments.read import PieceReader
from pyromq.spark.segments.split import split
from pyromq.spark.segments.store_files import Piece, find_pieces
from pyromq.spark.segments.store_places import directory_of
from pyromq.spark.worker_heap import set_aside

#: A clock that was set back makes times in a log go back. By less than this, and a piece is not left out for it.
CLOCK_MARGIN_MS = 600_000


def schema_of(options: Mapping[str, str]) -> str:
    return ddl(segments_options(options).columns)


class SegmentsReader(DataSourceReader):
    """Sent to executors; each partition is a few pieces of the log."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = segments_options(options)
        self._names = names_in(schema)
        if self._options.columns != NAMES and self._options.columns != self._names:
            raise ConfigError("the columns are said twice, and not the same: by a schema and by an option", "columns")

    def partitions(self) -> list[InputPartition]:
        # Of none Spark makes one that says nothing.
        return [InputPartition(pieces) for pieces in plan(self._options) or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        set_aside()
        reader = PieceReader(self._options, self._names)
        for piece in partition.value:
            yield from reader.read(piece)


def plan(options: SegmentsOptions) -> list[tuple[Piece, ...]]:
    """Return the partitions. Raises StoreError."""
    found = find_pieces(options.places, must_be_whole=options.fail_on_data_loss)
    return split(in_time(found, options.from_ms, options.until_ms), options.split_bytes, options.min_partitions)


def in_time(pieces: Sequence[Piece], from_ms: int | None, until_ms: int | None) -> list[Piece]:
    """Without those whose every record was stored too early or too late, as the times of first records tell."""
    kept = []
    for piece, behind in zip_longest(pieces, pieces[1:]):
        ends_ms = behind.first_ms if behind is not None and _goes_on(piece, behind) else None
        is_early = from_ms is not None and ends_ms is not None and ends_ms < from_ms - CLOCK_MARGIN_MS
        is_late = until_ms is not None and piece.first_ms is not None and piece.first_ms >= until_ms + CLOCK_MARGIN_MS
        if not is_late and not is_early:
            kept.append(piece)
    return kept


def _goes_on(piece: Piece, behind: Piece) -> bool:
    """Is it a later part of the same log?"""
    return behind.start >= piece.end and directory_of(behind.file) == directory_of(piece.file)
