"""The options and columns of a sink: planning the query reports each fault in a sentence."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyromq.errors import ConfigError
from pyromq.spark.sink.columns import check_columns
from pyromq.spark.sink.data_sink import new_stream_writer, new_writer
from pyromq.spark.sink.options import Mode, SinkOptions, sink_options

NAMES = {"namesrv": "localhost:9876"}


def batch_options(**more: str) -> SinkOptions:
    return sink_options({**NAMES, "topic": "orders", **more}, is_stream=False)


def test_what_nobody_says_has_a_default() -> None:
    options = batch_options()
    assert (options.mode, options.topic, options.group) == (Mode.AT_LEAST_ONCE, "orders", "pyromq-spark")
    assert options.batch_bytes == 512 << 10
    assert not options.compresses


def test_options_are_read_whatever_their_case() -> None:
    options = batch_options(MODE="Transactional", batchBytes="1m", inflight="9", sendTimeoutMs="1500", retries="0")
    assert options.mode is Mode.TRANSACTIONAL
    assert (options.batch_bytes, options.in_flight, options.halves_in_flight) == (1 << 20, 9, 9)
    assert (options.send_timeout_s, options.retries) == (1.5, 0)


def test_options_travel_to_executors() -> None:
    options = batch_options(mode="idempotent", writerId="nightly", batchId="7")
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"topik": "x"}, "there is no option 'topik'; did you mean topic"),
        ({"mode": "exactlyOnce"}, "the option mode cannot be 'exactlyOnce': it is atLeastOnce or idempotent or"),
        ({"batchBytes": "12"}, "the option batchBytes cannot be '12'"),
        ({"inFlight": "0"}, "the option inFlight cannot be '0'"),
        ({"topic": "a b"}, "the option topic cannot be 'a b'"),
        ({"group": "a b"}, "the option group cannot be 'a b'"),
        ({"compression": "gzip"}, "the option compression cannot be 'gzip': it is none or zlib or lz4 or zstd"),
        ({"mode": "idempotent"}, "mode idempotent needs the option writerId"),
        ({"writerId": "a/b"}, "the option writerId cannot be 'a/b'"),
        ({"writerId": "a" * 65}, "it has at most 64 characters"),
        ({"path": "orders"}, "take no path: name the topic with the option topic"),
        ({"namesrv": ""}, "the option namesrv is missing"),
    ],
)
def test_a_wrong_option_is_refused_in_a_sentence(more: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        batch_options(**more)
    assert said in str(refused.value)


def test_a_stream_is_named_by_its_checkpoint() -> None:
    with pytest.raises(ConfigError, match=r"the option writerId is for df\.write"):
        sink_options({**NAMES, "topic": "orders", "writerId": "x"}, is_stream=True)
    assert (
        sink_options({**NAMES, "mode": "idempotent", "checkpointLocation": "/tmp/c"}, is_stream=True).writer_id is None
    )


# --- columns ---------------------------------------------------------------------------------------------------------


BINARY, STRING, INT, TIMESTAMP = BinaryType(), StringType(), IntegerType(), TimestampType()
WORDS, TABLE = ArrayType(STRING), MapType(STRING, STRING)


def schema_of(columns: dict[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def check(columns: dict[str, DataType], **more: str) -> None:
    check_columns(schema_of(columns), sink_options({**NAMES, **more}, is_stream=True))


def test_all_columns_that_a_message_has_can_be_written() -> None:
    check({
        "body": BINARY, "topic": STRING, "tags": STRING, "keys": STRING, "properties": TABLE, "queue_id": INT,
        "sharding_key": STRING, "delay_level": INT, "deliver_at": TIMESTAMP, "dedup_key": STRING,
    })  # fmt: skip
    check({"body": STRING, "keys": WORDS, "queue_id": LongType()}, topic="orders")


@pytest.mark.parametrize(
    ("columns", "more", "said"),
    [
        ({"body": BINARY, "tag": STRING}, {"topic": "o"}, "a message has no column 'tag'"),
        ({"body": BINARY, "tag": STRING}, {"topic": "o"}, "did you mean tags"),
        ({"tags": STRING}, {"topic": "o"}, "the column body is missing"),
        ({"body": BINARY}, {}, "no topic is given: use the option topic, or have a column topic"),
        ({"body": INT}, {"topic": "o"}, "the column body is BINARY or STRING, not int: cast it before it is written"),
        (
            {"body": BINARY, "properties": MapType(STRING, INT)},
            {"topic": "o"},
            "the column properties is MAP<STRING,STRING>",
        ),
        (
            {"body": BINARY, "keys": ArrayType(INT)},
            {"topic": "o"},
            "the column keys is STRING or ARRAY<STRING>, not array<int>",
        ),
        ({"body": BINARY, "deliver_at": STRING}, {"topic": "o"}, "the column deliver_at is TIMESTAMP, not string"),
        ({"body": BINARY, "delay_level": INT}, {"topic": "o", "mode": "idempotent"}, "use mode atLeastOnce"),
        ({"body": BINARY, "deliver_at": TIMESTAMP}, {"topic": "o", "mode": "transactional"}, "use mode atLeastOnce"),
    ],
)
def test_a_frame_that_cannot_be_written_is_refused_in_a_sentence(
    columns: dict[str, DataType], more: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check(columns, **more)
    assert said in str(refused.value)


def test_messages_cannot_be_overwritten() -> None:
    schema = schema_of({"body": BINARY})
    with pytest.raises(ConfigError, match=r'use mode\("append"\)'):
        new_writer({**NAMES, "topic": "o"}, schema, overwrite=True)
    with pytest.raises(ConfigError, match=r'use outputMode\("append"\)'):
        new_stream_writer({**NAMES, "topic": "o"}, schema, overwrite=True)
