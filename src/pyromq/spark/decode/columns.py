"""The columns that messages have in Spark: their names, their types here and there, and which of them are asked for.

Only requested columns are decoded. Spark does not tell a Python source which columns a query uses, so the
query says it: with `.schema("tags STRING, body BINARY")` or with the option `columns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.types import StructType

from pyromq.errors import ConfigError

TIMESTAMP = pa.timestamp("us", tz="UTC")


class Column(NamedTuple):
    name: str
    #: As in a `CREATE TABLE`.
    sql_type: str
    arrow_type: pa.DataType


COLUMNS = (
    Column("topic", "STRING", pa.string()),
    Column("broker", "STRING", pa.string()),
    Column("queue_id", "INT", pa.int32()),
    Column("queue_offset", "BIGINT", pa.int64()),
    Column("commit_log_offset", "BIGINT", pa.int64()),
    Column("msg_id", "STRING", pa.string()),
    Column("tags", "STRING", pa.string()),
    Column("keys", "STRING", pa.string()),
    Column("properties", "MAP<STRING,STRING>", pa.map_(pa.string(), pa.string())),
    Column("body", "BINARY", pa.binary()),
    Column("born_ts", "TIMESTAMP", TIMESTAMP),
    Column("store_ts", "TIMESTAMP", TIMESTAMP),
    Column("born_host", "STRING", pa.string()),
    Column("sys_flag", "INT", pa.int32()),
    Column("flag", "INT", pa.int32()),
    Column("reconsume_times", "INT", pa.int32()),
    Column("body_crc", "INT", pa.int32()),
    Column("store_size", "INT", pa.int32()),
)
NAMES = tuple(column.name for column in COLUMNS)
_BY_NAME = {column.name: column for column in COLUMNS}


def parse_columns(text: str) -> tuple[str, ...]:
    """The option `columns`: names with commas between them. Raises ConfigError."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ConfigError(f"columns has no name in it: name some of {', '.join(NAMES)}", "columns")
    return _checked(names)


def _checked(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in _BY_NAME:
            raise ConfigError(f"there is no column {name!r}: messages have {', '.join(NAMES)}", "columns")
    if len(set(names)) != len(names):
        raise ConfigError(f"a column is named twice: {', '.join(names)}", "columns")
    return tuple(names)


def ddl(names: Iterable[str] = NAMES) -> str:
    """The schema of these columns, as Spark reads it."""
    return ", ".join(f"{name} {_BY_NAME[name].sql_type}" for name in names)


def names_in(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that Spark hands over, the user's perhaps. Raises ConfigError when one is not ours."""
    names = _checked(schema.names)
    for field in schema.fields:
        # Not with Spark's own parser: it needs a session, and there is none where sources are planned.
        if field.dataType.simpleString() != _BY_NAME[field.name].sql_type.lower():
            raise ConfigError(
                f"the column {field.name} is {_BY_NAME[field.name].sql_type}, not {field.dataType.simpleString()}: "
                "read it as it is and cast it after",
                field.name,
            )
    return names


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    return pa.schema([(name, _BY_NAME[name].arrow_type) for name in names])
