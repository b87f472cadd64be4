"""The readable form of the decoder: record by record, value by value. It defines what the compiled form does.

Starts of records are offsets into the buffer. `find` follows the lengths of every record; everything else takes starts
that were found, looks at the lengths again, and raises BadRecord where they do not add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from pyromq.errors import BadRecord
from pyromq.records import layout, record
from pyromq.records.java_hash import java_text
from pyromq.records.layout import HEAD, STORED_AT, TAIL
from pyromq.records.record import Spans
from pyromq.records.scan import Stop, before_record
from pyromq.spark.decode import rules
from pyromq.spark.decode.columns import arrow_schema

_HIGHEST_SIZE = 0x7FFFFFFF


class Row(NamedTuple):
    """One record, its lengths followed, with the fields before its first host."""

    buffer: memoryview
    start: int
    spans: Spans
    head: tuple[int, ...]


def find(
    buffer: memoryview, start: int, limit: int, base: int | None, at_most: int
) -> tuple[list[int], int, Stop | None]:
    """Starts of the records from `start` on, where that ended, and why (None: these are enough).

    With `base`, the position of the buffer's first byte in the log, a record that says it is elsewhere is none.
    """
    starts: list[int] = []
    at = start
    while True:
        stop = before_record(buffer, at, limit)
        if stop is not None:
            return starts, at, stop
        spans = spans_of(buffer, at, limit)
        if isinstance(spans, str) or (base is not None and layout.position_of(buffer, at) != base + at):
            return starts, at, Stop.BAD
        if len(starts) == at_most:
            return starts, at, None
        starts.append(at)
        at += spans.total_size


def spans_of(buffer: memoryview, start: int, limit: int) -> Spans | str:
    """Follow the lengths of the record at `start`; the reason why not when they do not add up."""
    if start < 0:
        return "this is before the first byte"
    spans = record.spans_of(buffer, start, limit)
    if not isinstance(spans, str) and spans.total_size > _HIGHEST_SIZE:
        return f"the size {spans.total_size} is impossible here"
    return spans


def rows_of(buffer: memoryview, starts: Iterable[int]) -> list[Row]:
    return [_row(buffer, int(start)) for start in starts]


def _row(buffer: memoryview, start: int) -> Row:
    spans = spans_of(buffer, start, len(buffer))
    if isinstance(spans, str):
        raise BadRecord(start, spans)
    return Row(buffer, start, spans, HEAD.unpack_from(buffer, start))


def first_damaged(rows: Sequence[Row]) -> int:
    """The index of the first record whose CRC is wrong; -1: none."""
    for index, row in enumerate(rows):
        if isinstance(record.verify(row.buffer, row.start, len(row.buffer), row.head[6]), str):
            return index
    return -1


def topic_codes(rows: Sequence[Row]) -> tuple[list[int], list[bytes]]:
    """For each record the number of its topic, and the topics by number, in the order of their first record."""
    names: dict[bytes, int] = {}
    codes = [names.setdefault(_topic(row), len(names)) for row in rows]
    return codes, list(names)


def decode(rows: Sequence[Row], names: Sequence[str], broker: str | None, at_most: int) -> pa.RecordBatch:
    schema = arrow_schema(names)
    arrays = []
    for field in schema:
        if field.name == "broker":
            values: list[Any] = [broker] * len(rows)
        else:
            values = [VALUES[field.name](row) for row in rows]
        if field.name == "body" and len(rows) > 1 and sum(map(len, values)) > at_most:
            raise OverflowError(f"the bodies of {len(rows)} messages have more than {at_most} bytes")
        arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# --- one function for each column ------------------------------------------------------------------------------------


def _head(index: int) -> Callable[[Row], Any]:
    return lambda row: row.head[index]


def _topic(row: Row) -> bytes:
    return bytes(row.buffer[row.spans.topic : row.spans.topic_end])


def _properties(row: Row) -> dict[str, str]:
    return rules.properties_of(bytes(row.buffer[row.spans.properties : row.spans.properties_end]))


def _body(row: Row) -> bytes:
    return rules.unpacked(bytes(row.buffer[row.spans.body : row.spans.body_end]), row.spans.storage_flags)


def _message_id(row: Row) -> str:
    """Return the producer's message id, else the id of the position: broker address and log position."""
    store_host = bytes(row.buffer[row.spans.store_timestamp_at + STORED_AT.size : row.spans.tail_at])
    position = bytes(row.buffer[row.start + layout.POSITION_AT : row.start + layout.POSITION_AT + 8])
    return _properties(row).get("UNIQ_KEY") or (store_host + position).hex().upper()


def _stored_ms(row: Row) -> int:
    stored_ms: int = STORED_AT.unpack_from(row.buffer, row.spans.store_timestamp_at)[0]
    return stored_ms


def _signed(value: int) -> int:
    """The same 32 bits with a sign: Spark's INT has one."""
    return value - (1 << 32) if value >> 31 else value


VALUES: dict[str, Callable[[Row], Any]] = {
    "topic": lambda row: java_text(_topic(row)),
    "queue_id": _head(3),
    "queue_offset": _head(5),
    "commit_log_offset": _head(6),
    "msg_id": _message_id,
    "tags": lambda row: _properties(row).get("TAGS"),
    "keys": lambda row: _properties(row).get("KEYS"),
    "properties": lambda row: list(_properties(row).items()),
    "body": _body,
    "born_ts": lambda row: rules.micros(row.head[8]),
    "store_ts": lambda row: rules.micros(_stored_ms(row)),
    "born_host": lambda row: rules.shown_host(bytes(row.buffer[row.start + HEAD.size : row.spans.store_timestamp_at])),
    "sys_flag": _head(7),
    "flag": _head(4),
    "reconsume_times": lambda row: TAIL.unpack_from(row.buffer, row.spans.tail_at)[0],
    "body_crc": lambda row: _signed(row.head[2]),
    "store_size": _head(0),
    "store_ms": _stored_ms,
}
