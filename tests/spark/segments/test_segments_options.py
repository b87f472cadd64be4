"""The options of the segments' format: their meaning, and the messages of refusals."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StringType, StructType

from pyromq.errors import ConfigError
from pyromq.spark.decode.columns import NAMES
from pyromq.spark.segments.data_source import SegmentsReader, schema_of
from pyromq.spark.segments.options import KNOWN, segments_options


def test_a_path_is_enough() -> None:
    options = segments_options({"path": "/data/store"})
    assert options.places == ("/data/store",)
    assert options.columns == NAMES
    assert options.topics is None
    assert (options.include_system, options.verify_crc, options.fail_on_data_loss) == (False, False, True)


def test_every_option() -> None:
    """Spark writes their names in lower case, and all values as text."""
    options = segments_options({
        "paths": '["/a", "/b"]', "topics": "orders, payments", "columns": "body,tags", "startingtimestamp": "1000",
        "endingtimestamp": "1970-01-01T00:00:02Z", "splitbytes": "64m", "minpartitions": "8", "verifycrc": "true",
        "includesystem": "TRUE", "broker": "broker-a", "failondataloss": "false",
    })  # fmt: skip
    assert options.places == ("/a", "/b")
    assert options.topics == {"orders", "payments"}
    assert options.columns == ("body", "tags")
    assert (options.from_ms, options.until_ms) == (1000, 2000)
    assert (options.split_bytes, options.min_partitions) == (64 << 20, 8)
    assert (options.verify_crc, options.include_system, options.fail_on_data_loss) == (True, True, False)
    assert options.broker == "broker-a"


def test_topics_may_be_called_subscribe_as_with_the_other_format() -> None:
    assert segments_options({"path": "/a", "subscribe": "orders"}).topics == {"orders"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "the option path is missing"),
        ({"path": "/a", "topic": "x"}, "there is no option 'topic'; did you mean topics"),
        ({"path": "/a", "zzz": "x"}, "pyromq-segments has the options path, topics, subscribe, columns"),
        ({"path": "/a", "topics": ","}, "the option topics cannot be ','"),
        ({"path": "/a", "topics": "a", "subscribe": "a"}, "cannot be given together"),
        ({"path": "/a", "paths": '["/b"]'}, "cannot be given together"),
        ({"paths": "[]"}, "it is a list in JSON"),
        ({"paths": "/a"}, "it is a list in JSON"),
        ({"path": "/a", "columns": "bodie"}, "there is no column 'bodie'"),
        ({"path": "/a", "splitBytes": "10"}, "of at least 1024 bytes"),
        ({"path": "/a", "minPartitions": "0"}, "a whole number from 1 to"),
        ({"path": "/a", "verifyCrc": "maybe"}, "it is true or false"),
        ({"path": "/a", "startingTimestamp": "yesterday"}, "it is a time as in"),
        ({"path": "/a", "startingTimestamp": "2", "endingTimestamp": "1"}, "nothing is between them"),
    ],
)
def test_what_is_wrong_is_refused_with_a_sentence(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("[", r"\[")):
        segments_options(options)


def test_the_error_names_the_option() -> None:
    with pytest.raises(ConfigError) as raised:
        segments_options({"path": "/a", "splitBytes": "much"})
    assert raised.value.setting in KNOWN


def test_the_schema_is_what_the_columns_say() -> None:
    assert schema_of({"path": "/a", "columns": "tags,queue_offset"}) == "tags STRING, queue_offset BIGINT"


def test_columns_are_said_by_an_option_or_by_a_schema_but_not_differently_by_both() -> None:
    schema = StructType().add("tags", StringType())
    SegmentsReader({"path": "/a"}, schema)
    SegmentsReader({"path": "/a", "columns": "tags"}, schema)
    with pytest.raises(ConfigError, match="said twice"):
        SegmentsReader({"path": "/a", "columns": "body"}, schema)
