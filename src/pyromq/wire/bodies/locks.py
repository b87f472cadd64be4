"""Which queues a consumer wants to lock, and which it got."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import orjson

from pyromq.errors import WrongShape
from pyromq.model.json_form import INT32, INT32_MAX, Json, expect, from_json, in_json, text, true_or_false
from pyromq.wire.bodies.reading import read_body

MAX_BYTES = 4 << 20
#: Queues in one request: four topics of the largest size. More would keep the broker from its work for too long.
MAX_QUEUES = 16_384
#: Each lock keeps the id of its holder.
MAX_CLIENT_ID = 4096

#: A queue has a topic, a broker and a number.
FIELDS = 3
_NOTHING: Mapping[str, Json] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MessageQueue:
    """A queue of one broker, as clients name it."""

    topic: str = field(metadata=in_json("topic", text))
    broker_name: str = field(metadata=in_json("brokerName", text))
    queue_id: int = field(metadata=in_json("queueId", INT32))
    unknown: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


def _queues(value: Json) -> tuple[MessageQueue, ...]:
    expect(isinstance(value, (list, tuple)), "a list", value)
    if len(value) > MAX_QUEUES:
        raise WrongShape(f"{len(value)} queues, the limit is {MAX_QUEUES}: lock them in parts")
    return tuple(map(_queue, value))


def _queue(one: Json) -> MessageQueue:
    """One queue; the usual form without looking at each field by its rule."""
    if type(one) is dict and len(one) == FIELDS:
        topic: Json = one.get("topic")
        broker_name: Json = one.get("brokerName")
        queue_id: Json = one.get("queueId")
        is_usual = type(topic) is type(broker_name) is str and type(queue_id) is int
        if is_usual and 0 <= queue_id <= INT32_MAX and topic.isascii() and broker_name.isascii():
            return MessageQueue(topic, broker_name, queue_id, _NOTHING)
    return from_json(MessageQueue, one)


def _client_id(value: Json) -> str:
    client_id = text(value)
    if len(client_id) > MAX_CLIENT_ID:
        raise WrongShape(f"a name of {len(client_id)} characters, the limit is {MAX_CLIENT_ID}")
    return client_id


@dataclass(frozen=True, slots=True)
class LockRequest:
    group: str = field(metadata=in_json("consumerGroup", text))
    client_id: str = field(metadata=in_json("clientId", _client_id))
    queues: tuple[MessageQueue, ...] = field(default=(), metadata=in_json("mqSet", _queues))
    only_this_broker: bool = field(default=False, metadata=in_json("onlyThisBroker", true_or_false))
    unknown: Mapping[str, Json] = field(default_factory=dict)


def decode_lock_request(body: bytes) -> LockRequest:
    """Raises BadRequest."""
    return read_body(LockRequest, body, "the list of queues to lock", MAX_BYTES)


def encode_locked(queues: Iterable[MessageQueue]) -> bytes:
    return orjson.dumps({"lockOKMQSet": [queue.to_json() for queue in queues]})


# --- as a client says and hears it -----------------------------------------------------------------------------------


def encode_lock_request(group: str, client_id: str, queues: Iterable[tuple[str, str, int]]) -> bytes:
    """RocketMQ's LockBatchRequestBody, for locking and unlocking; queues are topic, broker name and number."""
    return orjson.dumps(
        {
            "clientId": client_id,
            "consumerGroup": group,
            "mqSet": [MessageQueue(*queue).to_json() for queue in queues],
            "onlyThisBroker": False,
        }
    )


@dataclass(frozen=True, slots=True)
class _Locked:
    queues: tuple[MessageQueue, ...] = field(default=(), metadata=in_json("lockOKMQSet", _queues))
    unknown: Mapping[str, Json] = field(default_factory=dict)


def decode_locked(body: bytes) -> frozenset[tuple[str, str, int]]:
    """The queues that were locked. Raises BadRequest."""
    locked = read_body(_Locked, body, "the list of locked queues", MAX_BYTES)
    return frozenset((queue.topic, queue.broker_name, queue.queue_id) for queue in locked.queues)
