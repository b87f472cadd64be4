"""An archived message as it is sent again. Pure.

Body, tags, keys, sharding key and the program's own properties are kept. Properties that brokers and clients wrote are
not sent again: the old queue position, a past delay, an ended transaction, a reply address. Two are added, so that a
replayed message differs from the first one:

    REPLAYED_FROM   topic@broker@id:offset of where it was
    REPLAYED_ID     the id that its producer gave it; it gets a new one, or consumers that drop repeats would drop it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from pyromq.records import property_names as names

REPLAYED_FROM = "REPLAYED_FROM"
REPLAYED_ID = "REPLAYED_ID"

SCHEMA = pa.schema(
    [
        ("body", pa.binary()),
        ("topic", pa.string()),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("queue_id", pa.int32()),
        ("sharding_key", pa.string()),
    ]
)
#: The same for Spark.
DDL = (
    "body BINARY, topic STRING, tags STRING, keys STRING, properties MAP<STRING,STRING>, queue_id INT, "
    "sharding_key STRING"
)


class Goal(NamedTuple):
    """Return the target topic."""

    topic: str
    #: A queue keeps its number, modulo this; 0: the sink chooses.
    queues: int = 0
    #: All messages of a queue go to one queue by a common sharding key, where numbers are not enough.
    by_source_queue: bool = False


def is_kept(name: str) -> bool:
    """Return whether a property is sent again. Idempotence properties belong to the first send."""
    return name not in names.RESERVED and not name.startswith(names.OWN_PREFIX)


def replayed_properties(
    properties: Iterable[tuple[str, str | None]], origin: str, message_id: str | None
) -> list[tuple[str, str]]:
    known = {name: value for name, value in properties if value is not None}
    kept = {name: value for name, value in known.items() if is_kept(name)}
    kept[REPLAYED_FROM] = origin
    first_id = known.get(names.UNIQUE_KEY) or message_id
    if first_id:
        kept[REPLAYED_ID] = first_id
    return list(kept.items())


def to_messages(rows: pa.RecordBatch, goals: Mapping[str, Goal]) -> pa.RecordBatch:
    """Rows of the lake as the sink takes them."""
    topics, brokers = _column(rows, "topic"), _column(rows, "broker")
    queues, offsets = _column(rows, "queue_id"), _column(rows, "queue_offset")
    origins = [f"{topic}@{broker}@{queue}" for topic, broker, queue in zip(topics, brokers, queues, strict=True)]
    properties = [properties or () for properties in _column(rows, "properties")]
    replayed = [
        replayed_properties(own, f"{origin}:{offset}", message_id)
        for own, origin, offset, message_id in zip(properties, origins, offsets, _column(rows, "msg_id"), strict=True)
    ]
    chosen = [goals[topic] for topic in topics]
    columns = {
        "body": rows.column("body"),
        "topic": [goal.topic for goal in chosen],
        "tags": _column(rows, "tags"),
        "keys": _column(rows, "keys"),
        "properties": replayed,
        "queue_id": [queue % goal.queues if goal.queues else None for queue, goal in zip(queues, chosen, strict=True)],
        "sharding_key": [
            origin if goal.by_source_queue else dict(own).get(names.SHARDING_KEY)
            for origin, own, goal in zip(origins, properties, chosen, strict=True)
        ],
    }
    arrays = [_as(columns[field.name], field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _column(rows: pa.RecordBatch, name: str) -> list:  # type: ignore[type-arg]
    """Nothing in every row for a column that was not archived."""
    return rows.column(name).to_pylist() if name in rows.schema.names else [None] * rows.num_rows


def _as(values: object, kind: pa.DataType) -> pa.Array:
    return values.cast(kind) if isinstance(values, pa.Array) else pa.array(values, kind)
