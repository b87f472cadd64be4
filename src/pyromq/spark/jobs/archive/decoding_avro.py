"""Types of Avro's as types of a table. Pure.

A union is read when it is a type and null; of several types nothing can be made that every format of a lake holds.
Types that contain themselves are refused as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pyromq.errors import ConfigError
from pyromq.spark.decode.columns import TIMESTAMP

_PRIMITIVE = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
    ("int", "date"): pa.date32(),
    ("string", "uuid"): pa.string(),
}
_NAMED = ("record", "enum", "fixed")


def arrow_type_of(schema: Any) -> pa.DataType:
    """Raises ConfigError."""
    return _type_of(schema, {}, "the schema")


def _type_of(schema: Any, named: dict[str, pa.DataType | None], where: str) -> pa.DataType:
    if isinstance(schema, list):
        return _union(schema, named, where)
    if isinstance(schema, str):
        return _by_name(schema, named, where)
    if not isinstance(schema, Mapping) or "type" not in schema:
        raise ConfigError(f"{where} is no Avro type: {schema!r}", "schema")
    kind = schema["type"]
    if isinstance(kind, Mapping | list):
        return _type_of(kind, named, where)
    if "logicalType" in schema:
        return _logical(schema, where)
    if kind in _NAMED:
        return _new_name(schema, named, where)
    if kind == "array":
        return pa.list_(_type_of(schema.get("items"), named, f"{where}[]"))
    if kind == "map":
        return pa.map_(pa.string(), _type_of(schema.get("values"), named, f"{where}[]"))
    return _by_name(kind, named, where)


def _union(choices: list[Any], named: dict[str, pa.DataType | None], where: str) -> pa.DataType:
    real = [choice for choice in choices if choice != "null"]
    if len(real) != 1:
        raise ConfigError(f"{where} is a union of {len(real)} types: a column has one type, or that and null", "schema")
    return _type_of(real[0], named, where)


def _by_name(name: str, named: Mapping[str, pa.DataType | None], where: str) -> pa.DataType:
    if name in _PRIMITIVE:
        return _PRIMITIVE[name]
    short = name.rpartition(".")[2]
    if short not in named:
        raise ConfigError(f"{where} is of the Avro type {name!r}, which a lake cannot hold", "schema")
    known = named[short]
    if known is None:
        raise ConfigError(f"{where}: the record {name!r} contains itself, which no table can", "schema")
    return known


def _new_name(schema: Mapping[str, Any], named: dict[str, pa.DataType | None], where: str) -> pa.DataType:
    name = str(schema.get("name", "")).rpartition(".")[2]
    named[name] = None
    if schema["type"] == "record":
        fields = schema.get("fields", [])
        kind = pa.struct([(one["name"], _type_of(one["type"], named, f"{where}.{one['name']}")) for one in fields])
    else:
        kind = pa.string() if schema["type"] == "enum" else pa.binary()
    named[name] = kind
    return kind


def _logical(schema: Mapping[str, Any], where: str) -> pa.DataType:
    kind, logical = schema["type"], schema["logicalType"]
    if logical == "decimal":
        return pa.decimal128(int(schema["precision"]), int(schema.get("scale", 0)))
    if (kind, logical) not in _LOGICAL:
        raise ConfigError(
            f"{where} is {kind} as {logical}, which a lake cannot hold: leave the logical type out", "schema"
        )
    return _LOGICAL[kind, logical]
