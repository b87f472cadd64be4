"""The sink of `format("pyromq")`: frames and streams written to topics.

    df.write.format("pyromq").option("namesrv", "localhost:9876").option("topic", "orders").mode("append").save()

`sink_columns` says which columns a frame may have, `sink_options` which options there are. A task succeeds when all its
rows are acknowledged. What happens when one fails, and Spark repeats it, is for the option `mode` to say:

    atLeastOnce    nothing is lost; rows may be there twice. The default, and the fastest.
    idempotent     brokers of PyroMQ know each row by its number and store it once. The rows of a batch must come again
                   in the same partitions and in the same order: as they do from a source that reads offsets, and not
                   behind a shuffle, where a row could be taken for another. Use transactional there. A job of
                   `df.write` is named by the option `writerId`: other rows need another name, or a higher `batchId`.
    transactional  all rows of a batch become visible, once, when the whole batch has been written (see
                   `sink_transactions`). Works with Apache RocketMQ as well, and costs two requests for each row.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyromq.errors import ConfigError, PyroMQError
from pyromq.spark.sink.brokers import check_knows_writers
from pyromq.spark.sink.columns import check_columns
from pyromq.spark.sink.halves import Written
from pyromq.spark.sink.identity import identity_of
from pyromq.spark.sink.options import Mode, SinkOptions, sink_options
from pyromq.spark.sink.outlet import Patience, patiently
from pyromq.spark.sink.task import WRITERS, Place, place_of

T = TypeVar("T")

#: A plan waits at most this long for a broker: every batch of a stream is planned, and brokers restart.
PLANNING_SECONDS = 15.0


def new_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """Of `df.write`. Raises ConfigError, and what asking the cluster raises."""
    checked = _in_short(lambda: _planned(options, schema, overwrite, is_stream=False))
    return TopicWriter(checked, checked.writer_id or f"job-{secrets.token_hex(8)}")


def new_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
    """Of `df.writeStream`. Raises ConfigError, and what asking the cluster raises."""
    return TopicStreamWriter(_in_short(lambda: _planned(options, schema, overwrite, is_stream=True)))


def _planned(options: Mapping[str, str], schema: StructType, overwrite: bool, *, is_stream: bool) -> SinkOptions:
    if overwrite:
        raise ConfigError(
            "topics are written with append: messages cannot be overwritten; "
            + ('use outputMode("append")' if is_stream else 'use mode("append")'),
            "mode",
        )
    checked = sink_options(options, is_stream=is_stream)
    check_columns(schema, checked)
    if checked.mode is not Mode.AT_LEAST_ONCE:
        _prepare(checked)
    return checked


def _prepare(options: SinkOptions) -> None:
    """Check the options on the driver, before tasks run."""
    place = place_of(options)
    patience = Patience(min(PLANNING_SECONDS, options.send_timeout_s), options.retries)
    place.portal.wait(patiently(lambda: _look_at_brokers(place, options), patience))


async def _look_at_brokers(place: Place, options: SinkOptions) -> None:
    if options.topic is not None:
        queues = await place.outlet.existing_queues(options.topic)
        if options.mode is Mode.IDEMPOTENT:
            await check_knows_writers(place.session, (queue.broker_name for queue in queues))
    await place.ensure_decisions()


class _Writing:
    """The common part of Spark's two writers. Executors receive them: they hold plain values."""

    options: SinkOptions

    def _write(self, batches: Iterator[pa.RecordBatch], batch_job: tuple[str, int] | None) -> Written:
        options = self.options
        identity = identity_of(TaskContext.get(), batch_job, secrets.token_hex(8))
        return _in_short(lambda: WRITERS[options.mode](options, identity).write(batches))

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        if self.options.mode is Mode.TRANSACTIONAL:
            place = place_of(self.options)
            place.portal.wait(place.transactions().commit([one for one in _written(messages) if one], batch))

    def _abort(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        if self.options.mode is Mode.TRANSACTIONAL:
            place = place_of(self.options)
            place.portal.wait(place.transactions().abort(_written(messages), batch))


class TopicWriter(DataSourceArrowWriter, _Writing):
    def __init__(self, options: SinkOptions, name: str) -> None:
        self.options = options
        self._name = name

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, (self._name, self.options.batch_id))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages, self.options.batch_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages, self.options.batch_id)


class TopicStreamWriter(DataSourceStreamArrowWriter, _Writing):
    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, None)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._abort(messages, batchId)


def _in_short(work: Callable[[], T]) -> T:
    """Spark shows people the whole way that an error took: of ours they need the sentence."""
    try:
        return work()
    except PyroMQError as error:
        raise error.with_traceback(None) from None


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written | None]:
    return [one if isinstance(one, Written) else None for one in messages]
