"""The columns that a frame may have to be written as messages, checked when the query is planned.

    body          BINARY or STRING   required; a row whose body is null or empty is refused, for brokers take no such
                                     message
    topic         STRING             or the option topic, which serves the rows that have none
    tags          STRING             one word that consumers choose by
    keys          STRING or ARRAY<STRING>   what the message can be found by; several with spaces between them
    properties    MAP<STRING,STRING> the program's own; names that RocketMQ keeps for itself are left out, so that a
                                     message that was read can be written as it is
    queue_id      INT or BIGINT      which queue; the same number of another broker where several have it
    sharding_key  STRING             rows with the same key go to the same queue, in order
    delay_level   INT or BIGINT      holds the message back (1 to 18, as the broker has them)
    deliver_at    TIMESTAMP          holds it back until then; only Apache RocketMQ's brokers do this today, and others
                                     refuse the message with a sentence
    dedup_key     STRING             becomes the message's id, by which consumers drop what they have seen

A null anywhere but in the body means: this message has none.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from pyromq.config.fields import nearest
from pyromq.errors import ConfigError
from pyromq.spark.sink.options import Mode, SinkOptions

_TEXT = (StringType,)
_WHOLE = (ShortType, IntegerType, LongType)

#: The allowed types by name, for people and for Spark.
_ALLOWED: dict[str, tuple[str, tuple[type[DataType], ...]]] = {
    "body": ("BINARY or STRING", (BinaryType, StringType)),
    "topic": ("STRING", _TEXT),
    "tags": ("STRING", _TEXT),
    "keys": ("STRING or ARRAY<STRING>", _TEXT),
    "properties": ("MAP<STRING,STRING>", ()),
    "queue_id": ("INT", _WHOLE),
    "sharding_key": ("STRING", _TEXT),
    "delay_level": ("INT", _WHOLE),
    "deliver_at": ("TIMESTAMP", (TimestampType,)),
    "dedup_key": ("STRING", _TEXT),
}
NAMES = tuple(_ALLOWED)
DELAYS = ("delay_level", "deliver_at")


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raises ConfigError for a frame that cannot be written."""
    names = schema.names
    for name in names:
        if name not in _ALLOWED:
            raise ConfigError(
                f"a message has no column {name!r}: what can be written is {', '.join(NAMES)}; drop it, or put it into "
                f"the body or the properties{nearest(name, NAMES)}",
                name,
            )
    if len(set(names)) != len(names):
        raise ConfigError(f"a column is there twice: {', '.join(names)}", "columns")
    if "body" not in names:
        raise ConfigError("the column body is missing: it is what the messages carry, BINARY or STRING", "body")
    if "topic" not in names and options.topic is None:
        raise ConfigError("no topic is given: use the option topic, or have a column topic", "topic")
    for field in schema.fields:
        _check_type(field.name, field.dataType)
    _check_delays(names, options.mode)


def _check_type(name: str, found: DataType) -> None:
    said, kinds = _ALLOWED[name]
    is_map = isinstance(found, MapType) and _are_strings(found.keyType, found.valueType)
    is_list = isinstance(found, ArrayType) and _are_strings(found.elementType)
    if isinstance(found, kinds) or (name == "properties" and is_map) or (name == "keys" and is_list):
        return
    raise ConfigError(f"the column {name} is {said}, not {found.simpleString()}: cast it before it is written", name)


def _are_strings(*kinds: DataType) -> bool:
    return all(isinstance(kind, StringType) for kind in kinds)


def _check_delays(names: Sequence[str], mode: Mode) -> None:
    held_back = [name for name in DELAYS if name in names]
    if held_back and mode is not Mode.AT_LEAST_ONCE:
        raise ConfigError(
            f"the column {held_back[0]} cannot be written with mode {mode.value}: a message that is held back is "
            "stored elsewhere first, and nobody could tell a repeat; use mode atLeastOnce",
            held_back[0],
        )
