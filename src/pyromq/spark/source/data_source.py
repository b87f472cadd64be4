"""`spark.read` and `spark.readStream` of `format("pyromq")`: what Spark calls, and when.

Spark makes a reader where it plans and another one where it reads: all that a task needs is in its `Part`. The planning
one of a stream lives as long as the query, in a process of its own; `stop` and `commit` may never be called, so
nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyromq.errors import ConfigError
from pyromq.spark.decode.columns import NAMES, ddl, names_in
from pyromq.spark.plain_errors import plainly
from pyromq.spark.source.offsets import Form, Span
from pyromq.spark.source.options import (
    Limits,
    Pulling,
    SourceOptions,
    batch_options,
    check_options,
    columns_of,
    source_given,
    stream_options,
)
from pyromq.spark.source.planning import BatchPlan, StreamPlan
from pyromq.spark.source.ranges import split
from pyromq.spark.source.remote import read_span
from pyromq.spark.worker_heap import set_aside


@plainly
def schema_of(options: Mapping[str, str]) -> str:
    """Return the schema before the first read. Raises ConfigError."""
    check_options(options)
    return ddl(columns_of(source_given(options)) or NAMES)


class Part(InputPartition):
    """The input of one task."""

    def __init__(self, pulling: Pulling, spans: tuple[Span, ...], names: tuple[str, ...]) -> None:
        super().__init__(None)
        self.pulling = pulling
        self.spans = spans
        self.names = names

    def read(self) -> Iterator[pa.RecordBatch]:
        for span in self.spans:
            yield from read_span(self.pulling, span, self.names)


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Spark makes a partition of nothing when there is none."""
    set_aside()
    return partition.read() if isinstance(partition, Part) else iter(())


def _names(options: SourceOptions, schema: StructType) -> tuple[str, ...]:
    names = names_in(schema)
    if options.columns is not None and set(options.columns) != set(names):
        raise ConfigError(
            f"the option columns names {', '.join(options.columns)} and .schema() names {', '.join(names)}: give one "
            "of the two",
            "columns",
        )
    return names


def _parts(options: SourceOptions, spans: Sequence[Span], names: tuple[str, ...]) -> list[Part]:
    pieces = split(spans, min_pieces=options.min_partitions, max_records=options.max_records)
    return [Part(options.pulling, piece, names) for piece in pieces]


class TopicReader(DataSourceReader):
    """A batch: from where to where is found out once, when it is planned, so that a task that is repeated reads the
    same."""

    @plainly
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = batch_options(options)
        self._names = _names(self._options, schema)

    @plainly
    def partitions(self) -> Sequence[InputPartition]:
        return _parts(self._options, BatchPlan(self._options).spans(), self._names)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Where it is, is in Spark's checkpoint and nowhere else."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(options)
        self._schema = schema
        #: Made where the stream is planned: it has connections.
        self._made: StreamPlan | None = None

    # Spark replaces an error of the constructor with one of its own, so options are checked in the first call.
    @cached_property
    def _options(self) -> SourceOptions:
        return stream_options(self._given)

    @property
    def _plan(self) -> StreamPlan:
        if self._made is None:
            self._made = StreamPlan(self._options)
        return self._made

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's names, here and below
        self._plan.stop_at_now()

    @plainly
    def initialOffset(self) -> Form:  # noqa: N802
        return self._plan.initial()

    @plainly
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return default_limit(self._options.limits)

    @plainly
    def latestOffset(self, start: Form, limit: ReadLimit) -> Form:  # noqa: N802
        return self._plan.next(start, _limits(self._options.limits, limit))

    @plainly
    def reportLatestOffset(self) -> Form | None:  # noqa: N802
        return self._plan.newest()

    @plainly
    def partitions(self, start: Form, end: Form) -> Sequence[InputPartition]:
        return _parts(self._options, self._plan.spans(start, end), _names(self._options, self._schema))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)

    def commit(self, end: Form) -> None:
        """Comes a batch late, and never for the last one."""

    def stop(self) -> None:
        self._made = None


def default_limit(limits: Limits) -> ReadLimit:
    """Return the limit that Spark passes to each call, unless a trigger sets another."""
    if limits.max_offsets is not None:
        return ReadMaxRows(limits.max_offsets)
    if limits.max_bytes is not None:
        return ReadMaxBytes(limits.max_bytes)
    return ReadAllAvailable() if limits.min_offsets is None else ReadMinRows(limits.min_offsets)


def _limits(given: Limits, limit: ReadLimit) -> Limits:
    """The limits of one batch: a trigger that wants all there is overrides the options."""
    if isinstance(limit, ReadAllAvailable):
        return Limits()
    # Spark hands one limit back; where both are given, the bytes are the one that it did not hear of.
    return Limits(
        max_offsets=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
        max_bytes=limit.max_bytes if isinstance(limit, ReadMaxBytes) else given.max_bytes,
        min_offsets=given.min_offsets,
        max_delay_s=given.max_delay_s,
    )
