"""Offsets by queue or by group, as admin tools and clients exchange them. See `stats` for the dialect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyromq.errors import BadRequest, NotJson, WrongShape
from pyromq.model.data_version import DataVersion
from pyromq.model.json_form import INT64, Json, JsonObject, from_json, to_json
from pyromq.wire import fastjson
from pyromq.wire.bodies.locks import MessageQueue

#: Fields of ours in addition to the offsets: a token for the next request, whether these are only changes, and a
#: token that changes with the offsets of delays.
CHANGES, IS_DELTA, DELAY_CHANGES = "changes", "isDelta", "delayChanges"


def encode_reset(offsets: Iterable[tuple[MessageQueue, int]]) -> bytes:
    """RocketMQ's ResetOffsetBody: the queues that were set, and where to."""
    table = fastjson.ObjectKeyed(tuple((queue.to_json(), offset) for queue, offset in offsets))
    return fastjson.dumps({"offsetTable": table})


def encode_correction(offsets: Mapping[int, int]) -> bytes:
    """RocketMQ's QueryCorrectionOffsetBody, by queue."""
    return fastjson.dumps({"correctionOffsets": dict(offsets)})


def all_offsets_pieces(
    version: DataVersion, offsets: Mapping[str, Mapping[Any, int]], more: Mapping[str, Json] | None = None
) -> Iterator[bytes]:
    """RocketMQ's ConsumerOffsetSerializeWrapper, by `topic@group` and queue; `more`: fields of ours. In pieces.

    With queues as text it is standard JSON.
    """
    yield b'{"dataVersion":%b,"offsetTable":' % fastjson.dumps(to_json(version))
    yield from fastjson.map_pieces((name, dict(queues)) for name, queues in offsets.items())
    yield b"".join(b",%b:%b" % (fastjson.dumps(name), fastjson.dumps(value)) for name, value in (more or {}).items())
    yield b"}"


def encode_delay_offsets(
    version: DataVersion, offsets: Mapping[int, int], more: Mapping[str, Json] | None = None
) -> bytes:
    """RocketMQ's DelayOffsetSerializeWrapper, by level; `more`: fields of ours."""
    return fastjson.dumps({"dataVersion": to_json(version), "offsetTable": dict(offsets), **(more or {})})


def decode_client_status(body: bytes) -> Json:
    """Return the offsets in a client's answer, unchanged; empty if unreadable, because other clients answer too."""
    try:
        form = fastjson.loads(body)
    except NotJson:
        return {}
    found = form.get("messageQueueTable") if isinstance(form, dict) else None
    return found if isinstance(found, fastjson.ObjectKeyed) else {}


def encode_consumer_status(clients: Mapping[str, Json]) -> bytes:
    """RocketMQ's GetConsumerStatusBody, by client id."""
    form: JsonObject = {"consumerTable": dict(clients), "messageQueueTable": {}}
    return fastjson.dumps(form)


# --- as a client hears and says it -----------------------------------------------------------------------------------


def decode_reset(body: bytes) -> dict[tuple[str, str, int], int]:
    """Return the new offsets of a consumer, by topic, broker name and queue. Raises BadRequest."""
    try:
        form = fastjson.loads(body)
        table = form.get("offsetTable") if isinstance(form, dict) else None
        pairs = table.pairs if isinstance(table, fastjson.ObjectKeyed) else ()
        queues = ((from_json(MessageQueue, key), offset) for key, offset in pairs)
        return {(queue.topic, queue.broker_name, queue.queue_id): INT64(offset) for queue, offset in queues}
    except (NotJson, WrongShape) as problem:
        raise BadRequest(f"the offsets to go on from cannot be read: {problem}") from None


def encode_client_status(offsets: Iterable[tuple[MessageQueue, int]]) -> bytes:
    """RocketMQ's GetConsumerStatusBody, as a client answers it."""
    table = fastjson.ObjectKeyed(tuple((queue.to_json(), offset) for queue, offset in offsets))
    return fastjson.dumps({"messageQueueTable": table})
