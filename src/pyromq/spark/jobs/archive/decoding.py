"""Bodies as values: JSON or Avro, by a schema that is given, without a registry. Pure.

A body is good or bad, nothing between: it parses to its last byte, and every field is what the schema says or null.
A bad body is reported with a sentence that names the field. Fields outside the schema are ignored. In JSON, times and
dates are ISO text, binary is base64, decimals are numbers or text.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any

import orjson
import pyarrow as pa

from pyromq.errors import ConfigError
from pyromq.spark.jobs.archive.decoding_avro import arrow_type_of

#: Turns a parsed value into what Arrow takes, or raises ValueError with a sentence.
Reader = Callable[[Any, str], Any]


@dataclass(frozen=True, slots=True)
class Decoder:
    """The decoding of bodies; executors receive it."""

    #: "json" or "avro".
    kind: str
    #: Of the column `value`, a struct.
    type: pa.DataType
    #: Avro's, as JSON.
    avro: str = ""


def json_decoder(value_type: pa.DataType) -> Decoder:
    return Decoder("json", value_type)


def avro_decoder(schema_text: str) -> Decoder:
    """Raise ConfigError if the schema is no record, or has types that a table cannot hold."""
    try:
        form = json.loads(schema_text)
    except ValueError as why:
        raise ConfigError(f"the Avro schema is not JSON: {why}", "schema") from why
    value_type = arrow_type_of(form)
    if not pa.types.is_struct(value_type):
        raise ConfigError("the Avro schema is no record: bodies become columns by its fields", "schema")
    return Decoder("avro", value_type, json.dumps(form))


def decoded(bodies: Sequence[bytes | None], decoder: Decoder) -> tuple[pa.Array, list[str | None]]:
    """Return the values, null for bad bodies, and an error text for each, None for good ones."""
    parse = _parse_json if decoder.kind == "json" else _avro_parser(decoder.avro)
    read = reader_of(decoder.type)
    values: list[Any] = []
    wrong: list[str | None] = []
    for body in bodies:
        try:
            values.append(read(parse(body or b""), "value"))
            wrong.append(None)
        except ValueError as why:
            values.append(None)
            wrong.append(str(why))
    return pa.array(values, decoder.type), wrong


def _parse_json(body: bytes) -> Any:
    if not body:
        raise ValueError("the body is empty")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as why:
        raise ValueError(f"no JSON: {why}") from None


@cache
def _avro_parser(schema_text: str) -> Callable[[bytes], Any]:
    import fastavro
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    form = json.loads(schema_text)
    schema = fastavro.parse_schema(form)
    #: A body may say by which schema it was written: two bytes, and the fingerprint of the schema.
    digest = fingerprint(to_parsing_canonical_form(form), "CRC-64-AVRO")
    marks = b"\xc3\x01" + bytes.fromhex(digest)

    def parse(body: bytes) -> Any:
        stream = io.BytesIO(body.removeprefix(marks))
        try:
            value = fastavro.schemaless_reader(stream, schema)
        except Exception as why:  # noqa: BLE001 - whatever a decoder says about bytes that are none of its own
            raise ValueError(f"no Avro of this schema: {type(why).__name__} {why}".rstrip()) from None
        left = len(stream.getbuffer()) - stream.tell()
        if left:
            raise ValueError(f"no Avro of this schema: {left} bytes are left behind the record")
        return value

    return parse


# --- values ----------------------------------------------------------------------------------------------------------


def reader_of(kind: pa.DataType) -> Reader:
    """Checks a value against a type of Arrow's. Null is good everywhere but as the whole value."""
    inner = _reader(kind)

    def read(value: Any, where: str) -> Any:
        if value is None:
            raise ValueError(f"{where} is null, not an object")
        return inner(value, where)

    return read


def _nullable(inner: Reader) -> Reader:
    return lambda value, where: None if value is None else inner(value, where)


def _reader(kind: pa.DataType) -> Reader:
    if pa.types.is_struct(kind):
        return _struct_reader(
            {kind.field(at).name: _nullable(_reader(kind.field(at).type)) for at in range(kind.num_fields)}
        )
    if pa.types.is_map(kind):
        return _map_reader(_nullable(_reader(kind.item_type)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_reader(_nullable(_reader(kind.value_type)))
    if pa.types.is_integer(kind):
        return _integer_reader(kind.bit_width)
    if pa.types.is_decimal(kind):
        return _decimal_reader(kind.precision, kind.scale)
    for matches, reader in _PLAIN:
        if matches(kind):
            return reader
    raise ConfigError(f"values of type {kind} cannot be read from bodies: use another type in the schema", "schema")


def _struct_reader(fields: Mapping[str, Reader]) -> Reader:
    def read(value: Any, where: str) -> Any:
        if type(value) is not dict:
            raise _wrong(value, where, "an object")
        return {name: inner(value.get(name), f"{where}.{name}") for name, inner in fields.items()}

    return read


def _map_reader(inner: Reader) -> Reader:
    def read(value: Any, where: str) -> Any:
        if type(value) is not dict:
            raise _wrong(value, where, "an object")
        return [(name, inner(item, f"{where}[{name!r}]")) for name, item in value.items()]

    return read


def _list_reader(inner: Reader) -> Reader:
    def read(value: Any, where: str) -> Any:
        if type(value) is not list:
            raise _wrong(value, where, "a list")
        return [inner(item, f"{where}[{at}]") for at, item in enumerate(value)]

    return read


def _integer_reader(bits: int) -> Reader:
    limit = 1 << (bits - 1)

    def read(value: Any, where: str) -> Any:
        if type(value) is not int or not -limit <= value < limit:
            raise _wrong(value, where, f"a whole number of {bits} bits")
        return value

    return read


def _float(value: Any, where: str) -> Any:
    if type(value) not in (int, float):
        raise _wrong(value, where, "a number")
    return float(value)


def _text(value: Any, where: str) -> Any:
    if type(value) is not str and type(value).__name__ != "UUID":
        raise _wrong(value, where, "text")
    return str(value)


def _boolean(value: Any, where: str) -> Any:
    if type(value) is not bool:
        raise _wrong(value, where, "true or false")
    return value


def _bytes(value: Any, where: str) -> Any:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise _wrong(value, where, "base64") from None


def _decimal_reader(precision: int, scale: int) -> Reader:
    most = Decimal(10) ** (precision - scale)

    def read(value: Any, where: str) -> Any:
        try:
            found = value if isinstance(value, Decimal) else Decimal(str(value))
            fits = abs(found) < most and found == round(found, scale)
        except (InvalidOperation, ValueError, OverflowError):
            fits = False
        if not fits or isinstance(value, bool):
            raise _wrong(value, where, f"a decimal number of {precision} digits, {scale} of them behind the point")
        return round(found, scale)

    return read


def _moment(value: Any, where: str) -> Any:
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise _wrong(value, where, "a time as in 2026-01-31T12:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _day(value: Any, where: str) -> Any:
    try:
        return value if type(value) is date else date.fromisoformat(value)
    except (TypeError, ValueError):
        raise _wrong(value, where, "a date as in 2026-01-31") from None


_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], Reader], ...] = (
    (pa.types.is_floating, _float),
    (pa.types.is_string, _text),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_binary, _bytes),
    (pa.types.is_timestamp, _moment),
    (pa.types.is_date, _day),
)


def _wrong(value: Any, where: str, wanted: str) -> ValueError:
    return ValueError(f"{where} is {str(value)[:60]!r}, not {wanted}")
