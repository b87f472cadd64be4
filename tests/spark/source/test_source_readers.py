"""The methods that Spark calls, without Spark: schemas, limits, and errors at the moment Spark shows them best."""

from __future__ import annotations

import pickle
import traceback

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from pyromq.errors import ConfigError
from pyromq.model.queue import MessageQueue
from pyromq.spark.decode.columns import NAMES
from pyromq.spark.formats import PyromqFormat
from pyromq.spark.plain_errors import plainly
from pyromq.spark.source.data_source import Part, TopicReader, TopicStreamReader, _limits, default_limit, schema_of
from pyromq.spark.source.offsets import Span
from pyromq.spark.source.options import Limits, stream_options

LEAST = {"namesrv": "127.0.0.1:1", "subscribe": "orders"}
NARROW = StructType().add("body", BinaryType()).add("queue_offset", LongType())


def test_the_columns_before_anything_is_asked() -> None:
    assert schema_of(LEAST).count(",") == len(NAMES)  # a map has a comma of its own
    assert schema_of(LEAST | {"columns": "tags,body"}) == "tags STRING, body BINARY"
    assert PyromqFormat(LEAST).schema() == schema_of(LEAST)
    with pytest.raises(ConfigError, match="did you mean subscribe"):
        schema_of({"namesrv": "a:1", "subscrib": "x"})


def test_options_or_a_schema_say_which_columns() -> None:
    TopicReader(LEAST | {"columns": "queue_offset,body"}, NARROW)
    with pytest.raises(ConfigError, match="give one of the two"):
        TopicReader(LEAST | {"columns": "tags"}, NARROW)
    with pytest.raises(ConfigError, match="there is no column 'bodies'"):
        TopicReader(LEAST, StructType().add("bodies", BinaryType()))
    with pytest.raises(ConfigError, match="the column body is BINARY, not string"):
        TopicReader(LEAST, StructType().add("body", StringType()))


def test_a_stream_reader_says_what_is_wrong_when_it_is_asked_and_not_before() -> None:
    reader = TopicStreamReader(LEAST | {"endingOffsets": "latest"}, NARROW)
    with pytest.raises(ConfigError, match="a stream has no end"):
        reader.initialOffset()
    with pytest.raises(ConfigError, match="a stream has no end"):
        reader.getDefaultReadLimit()


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "1k"}, ReadMaxBytes(1024)),
        ({"minOffsetsPerTrigger": "5"}, ReadMinRows(5)),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "9"}, ReadMaxRows(9)),
        ({"maxBytesPerTrigger": "1k", "maxOffsetsPerTrigger": "9"}, ReadMaxRows(9)),
    ],
)
def test_one_limit_for_spark(options: dict[str, str], limit: object) -> None:
    limits = stream_options(LEAST | options).limits
    assert default_limit(limits) == limit
    assert TopicStreamReader(LEAST | options, NARROW).getDefaultReadLimit() == limit
    if not isinstance(limit, ReadAllAvailable):
        back = _limits(limits, default_limit(limits))
        assert (back.max_offsets, back.max_bytes, back.min_offsets) == (
            limits.max_offsets, limits.max_bytes, limits.min_offsets,
        )  # fmt: skip


def test_a_trigger_that_wants_all_there_is_gets_it() -> None:
    assert _limits(Limits(max_offsets=5, min_offsets=2), ReadAllAvailable()) == Limits()


def test_what_travels_to_executors() -> None:
    span = Span(MessageQueue("orders", "broker-a", 0), 5, 5)
    part = Part(stream_options(LEAST).pulling, (span,), ("body",))
    travelled = pickle.loads(pickle.dumps(part))
    assert (travelled.spans, travelled.names, travelled.pulling) == (part.spans, part.names, part.pulling)
    for reader in (TopicReader(LEAST, NARROW), TopicStreamReader(LEAST, NARROW)):
        assert list(pickle.loads(pickle.dumps(reader)).read(travelled)) == []
        assert list(reader.read(InputPartition(None))) == []


def test_a_stream_that_is_stopped_or_committed_keeps_nothing() -> None:
    reader = TopicStreamReader(LEAST, NARROW)
    reader.commit({"v": 1, "q": {}})
    reader.stop()


def test_errors_come_without_the_way_there() -> None:
    def deep(depth: int) -> None:
        if depth:
            deep(depth - 1)
        raise ConfigError("the option is wrong")

    with pytest.raises(ConfigError) as caught:
        plainly(deep)(50)
    assert len(traceback.format_exception(caught.value)) < 6
