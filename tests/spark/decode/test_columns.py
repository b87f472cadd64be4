"""The columns: names and types that agree with each other, and refused ones."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import IntegerType, LongType, MapType, StringType, StructType

from pyromq.errors import ConfigError
from pyromq.spark.decode.columns import COLUMNS, NAMES, arrow_schema, ddl, names_in, parse_columns


def test_spark_and_arrow_mean_the_same_types() -> None:
    schema = from_arrow_schema(arrow_schema(NAMES), prefer_timestamp_ntz=False)
    assert ", ".join(f"{field.name} {field.dataType.simpleString().upper()}" for field in schema) == ddl()
    assert names_in(schema) == NAMES


def test_every_column_is_there_once() -> None:
    assert len(COLUMNS) == len(set(NAMES)) == 18
    assert arrow_schema(("body", "queue_id")) == pa.schema([("body", pa.binary()), ("queue_id", pa.int32())])


def test_columns_are_named_with_commas_between_them() -> None:
    assert parse_columns("body, tags,queue_id") == ("body", "tags", "queue_id")
    assert ddl(("tags", "properties")) == "tags STRING, properties MAP<STRING,STRING>"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no name in it"),
        ("body,bdy", "there is no column 'bdy': messages have topic"),
        ("tags,tags", "named twice"),
    ],
)
def test_columns_that_are_none(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_columns(text)


def test_a_schema_has_columns_of_ours_with_our_types() -> None:
    """No Spark runs here, as none does where Spark makes a reader."""
    wanted = StructType().add("queue_offset", LongType()).add("properties", MapType(StringType(), StringType()))
    assert names_in(wanted) == ("queue_offset", "properties")
    with pytest.raises(ConfigError, match="the column queue_id is INT, not bigint: read it as it is"):
        names_in(StructType().add("queue_id", LongType()))
    with pytest.raises(ConfigError, match="there is no column 'price'"):
        names_in(StructType().add("price", IntegerType()))
