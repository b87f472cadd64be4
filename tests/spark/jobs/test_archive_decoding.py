"""Bodies as values: good or bad, and why."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import ConfigError
from pyromq.spark.jobs.archive.decoding import Decoder, avro_decoder, decoded, json_decoder

ORDER = pa.struct(
    [
        ("id", pa.int64()),
        ("small", pa.int32()),
        ("price", pa.decimal128(6, 2)),
        ("weight", pa.float64()),
        ("name", pa.string()),
        ("paid", pa.bool_()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("blob", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("who", pa.struct([("age", pa.int32())])),
    ]
)
FULL = {
    "id": 1, "small": 2, "price": 9.99, "weight": 3, "name": "é", "paid": True, "at": "2026-01-31T12:00:00+01:00",
    "day": "2026-01-31", "blob": "AAE=", "tags": ["a", None], "counts": {"x": 1}, "who": {"age": 7}, "unknown": [1],
}  # fmt: skip


def one(body: bytes | None, decoder: Decoder):
    values, wrong = decoded([body], decoder)
    return values.to_pylist()[0], wrong[0]


def test_a_good_body_becomes_a_value_of_the_schema() -> None:
    value, wrong = one(json.dumps(FULL).encode(), json_decoder(ORDER))
    assert wrong is None
    assert value == {
        "id": 1, "small": 2, "price": Decimal("9.99"), "weight": 3.0, "name": "é", "paid": True,
        "at": datetime(2026, 1, 31, 11, tzinfo=UTC), "day": date(2026, 1, 31), "blob": b"\0\1", "tags": ["a", None],
        "counts": [("x", 1)], "who": {"age": 7},
    }  # fmt: skip


def test_fields_that_are_missing_or_null_are_null() -> None:
    value, wrong = one(b'{"id": null}', json_decoder(ORDER))
    assert wrong is None
    assert set(value.values()) == {None}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is empty"),
        (None, "the body is empty"),
        (b'{"id": 1', "no JSON"),
        (b'{"id": 1} x', "no JSON"),
        (b'{"name": "\xff"}', "no JSON"),
        (b"null", "value is null, not an object"),
        (b"[]", "value is '[]', not an object"),
        (b'{"id": "1"}', "value.id is '1', not a whole number of 64 bits"),
        (b'{"id": 1.5}', "value.id"),
        (b'{"id": true}', "value.id is 'True'"),
        (b'{"small": 3000000000}', "value.small is '3000000000', not a whole number of 32 bits"),
        (b'{"price": 1.234}', "value.price is '1.234', not a decimal number of 6 digits, 2 of them"),
        (b'{"price": 12345.6}', "value.price"),
        (b'{"price": "NaN"}', "value.price"),
        (b'{"price": [1]}', "value.price"),
        (b'{"weight": "heavy"}', "value.weight is 'heavy', not a number"),
        (b'{"name": 5}', "value.name is '5', not text"),
        (b'{"paid": 1}', "value.paid is '1', not true or false"),
        (b'{"at": "noon"}', "value.at is 'noon', not a time"),
        (b'{"at": 5}', "value.at"),
        (b'{"day": "31.1."}', "value.day is '31.1.', not a date"),
        (b'{"blob": "!"}', "value.blob is '!', not base64"),
        (b'{"tags": "a"}', "value.tags is 'a', not a list"),
        (b'{"tags": [1]}', "value.tags[0] is '1', not text"),
        (b'{"counts": []}', "value.counts is '[]', not an object"),
        (b'{"counts": {"x": "y"}}', "value.counts['x'] is 'y'"),
        (b'{"who": {"age": "old"}}', "value.who.age is 'old'"),
    ],
)
def test_a_bad_body_says_what_is_wrong(body, said: str) -> None:
    value, wrong = one(body, json_decoder(ORDER))
    assert value is None
    assert wrong is not None
    assert said in wrong


def test_good_and_bad_ones_keep_their_places() -> None:
    values, wrong = decoded([b'{"id": 1}', b"{", b'{"id": 3}'], json_decoder(pa.struct([("id", pa.int64())])))
    assert values.to_pylist() == [{"id": 1}, None, {"id": 3}]
    assert [reason is None for reason in wrong] == [True, False, True]


@given(st.lists(st.binary(max_size=30), max_size=5))
def test_no_bytes_whatever_break_the_decoder(bodies) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "string"]}]}
    for decoder in (json_decoder(ORDER), avro_decoder(json.dumps(schema))):
        values, wrong = decoded(bodies, decoder)
        assert len(values) == len(wrong) == len(bodies)
        assert [reason is None for reason in wrong] == [value is not None for value in values.to_pylist()]


# --- Avro ------------------------------------------------------------------------------------------------------------

AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}},
        {"name": "second", "type": ["null", "Color"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "digest", "type": {"type": "fixed", "name": "Four", "size": 4}},
    ],
}
VALUE = {
    "id": 5, "name": None, "at": datetime(2026, 1, 31, tzinfo=UTC), "day": date(2026, 1, 31), "price": Decimal("1.50"),
    "color": "RED", "second": "BLUE", "tags": ["x"], "counts": {"a": 1}, "digest": b"abcd",
}  # fmt: skip


def avro_body(value=VALUE) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), value)
    return stream.getvalue()


def test_avro_becomes_columns() -> None:
    value, wrong = one(avro_body(), avro_decoder(json.dumps(AVRO)))
    assert wrong is None
    assert value == {**VALUE, "counts": [("a", 1)]}


def test_a_body_may_name_its_schema() -> None:
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    marks = b"\xc3\x01" + bytes.fromhex(fingerprint(to_parsing_canonical_form(AVRO), "CRC-64-AVRO"))
    assert one(marks + avro_body(), avro_decoder(json.dumps(AVRO)))[1] is None


@pytest.mark.parametrize("body", [b"", avro_body()[:-2], avro_body() + b"x", b"\xff" * 40])
def test_other_bytes_are_no_avro_of_this_schema(body: bytes) -> None:
    value, wrong = one(body, avro_decoder(json.dumps(AVRO)))
    assert value is None
    assert wrong is not None
    assert "no Avro of this schema" in wrong


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "not JSON"),
        ('"string"', "no record"),
        ('{"type": "record", "name": "r", "fields": [{"name": "a", "type": ["int", "string"]}]}', "union of 2 types"),
        ('{"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "r"]}]}', "contains itself"),
        ('{"type": "record", "name": "r", "fields": [{"name": "a", "type": "mystery"}]}', "'mystery'"),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "a", "type": '
            '{"type": "int", "logicalType": "time-millis"}}]}',
            "time-millis",
        ),
    ],
)
def test_schemas_that_a_table_cannot_hold_are_refused(schema: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        avro_decoder(schema)
    assert caught.value.setting == "schema"
