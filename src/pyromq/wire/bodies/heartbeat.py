"""A client's heartbeat, every 30 s: its groups and their subscriptions.

Clients differ in what they write. One unreadable entry is an error of the whole heartbeat, so that no client wrongly
believes itself subscribed. Every entry costs the broker time and memory, so there are limits, far above all real use;
they are checked before anything is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from pyromq.errors import WrongShape
from pyromq.filters.subscription import parse_tags
from pyromq.model.json_form import (
    INT64,
    Json,
    JsonObject,
    an_object,
    from_json,
    in_json,
    some_objects,
    text,
    true_or_false,
)
from pyromq.wire.bodies.connections import subscription_json
from pyromq.wire.bodies.reading import read_body

#: Of one client, and in one heartbeat.
MAX_BYTES = 1 << 20
MAX_GROUPS = 1024
MAX_SUBSCRIPTIONS = 4096
#: Of all the expressions together.
MAX_EXPRESSION_CHARS = 256 * 1024
#: The names of groups, clients and topics.
MAX_NAME = 4096


def _name(value: Json) -> str:
    name = text(value)
    if len(name) > MAX_NAME:
        raise WrongShape(f"a name of {len(name)} characters, the limit is {MAX_NAME}")
    return name


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """One topic that a consumer wants."""

    topic: str = field(metadata=in_json("topic", _name))
    expression: str | None = field(default=None, metadata=in_json("subString", text))
    kind: str | None = field(default=None, metadata=in_json("expressionType", text))
    version: int = field(default=0, metadata=in_json("subVersion", INT64))
    class_filter: bool = field(default=False, metadata=in_json("classFilterMode", true_or_false))
    unknown: Mapping[str, Json] = field(default_factory=dict)


def _few(value: Json, limit: int, what: str) -> tuple[Mapping[str, Json], ...]:
    objects = some_objects(value)
    if len(objects) > limit:
        raise WrongShape(f"{len(objects)} {what}, the limit is {limit}")
    return objects


def _subscriptions(value: Json) -> tuple[SubscriptionData, ...]:
    return tuple(from_json(SubscriptionData, one) for one in some_objects(value))


@dataclass(frozen=True, slots=True)
class ConsumerData:
    group: str = field(metadata=in_json("groupName", text))
    #: CONSUME_ACTIVELY (pull), CONSUME_PASSIVELY (push) or CONSUME_POP.
    consume_type: str = field(default="CONSUME_PASSIVELY", metadata=in_json("consumeType", text))
    message_model: str = field(default="CLUSTERING", metadata=in_json("messageModel", text))
    consume_from: str = field(default="CONSUME_FROM_LAST_OFFSET", metadata=in_json("consumeFromWhere", text))
    subscriptions: tuple[SubscriptionData, ...] = field(
        default=(), metadata=in_json("subscriptionDataSet", _subscriptions)
    )
    unit_mode: bool = field(default=False, metadata=in_json("unitMode", true_or_false))
    unknown: Mapping[str, Json] = field(default_factory=dict)


def _producers(value: Json) -> tuple[str, ...]:
    return tuple(_name(an_object(one).get("groupName")) for one in _few(value, MAX_GROUPS, "producer groups"))


def _consumers(value: Json) -> tuple[ConsumerData, ...]:
    consumers = _few(value, MAX_GROUPS, "consumer groups")
    _check_subscriptions([each for one in consumers for each in _listed(one.get("subscriptionDataSet"))])
    return tuple(from_json(ConsumerData, one) for one in consumers)


def _listed(value: Json) -> list[Json]:
    """Return a list to count; anything else counts as empty, and is refused when it is read."""
    return value if isinstance(value, list) else []


def _check_subscriptions(found: list[Json]) -> None:
    """Raise WrongShape where all groups together want too much."""
    if len(found) > MAX_SUBSCRIPTIONS:
        raise WrongShape(f"{len(found)} subscriptions, the limit is {MAX_SUBSCRIPTIONS}")
    expressions = [one.get("subString") for one in found if isinstance(one, dict)]
    chars = sum(len(expression) for expression in expressions if isinstance(expression, str))
    if chars > MAX_EXPRESSION_CHARS:
        raise WrongShape(f"expressions of {chars} characters, the limit for all together is {MAX_EXPRESSION_CHARS}")


@dataclass(frozen=True, slots=True)
class HeartbeatData:
    client_id: str = field(metadata=in_json("clientID", _name))
    producer_groups: tuple[str, ...] = field(default=(), metadata=in_json("producerDataSet", _producers))
    consumers: tuple[ConsumerData, ...] = field(default=(), metadata=in_json("consumerDataSet", _consumers))
    #: Of all subscriptions; a client that knows that the broker has them sends the number alone.
    fingerprint: int = field(default=0, metadata=in_json("heartbeatFingerprint", INT64))
    without_subscriptions: bool = field(default=False, metadata=in_json("withoutSub", true_or_false))
    unknown: Mapping[str, Json] = field(default_factory=dict)


def decode_heartbeat(body: bytes) -> HeartbeatData:
    """Raises BadRequest."""
    return read_body(HeartbeatData, body, "the heartbeat", MAX_BYTES)


# --- as a client says it ---------------------------------------------------------------------------------------------


def encode_heartbeat(data: HeartbeatData) -> bytes:
    """The body, with every field that RocketMQ's own clients write."""
    return orjson.dumps(
        {
            "clientID": data.client_id,
            "consumerDataSet": [_consumer_json(one) for one in data.consumers],
            "heartbeatFingerprint": data.fingerprint,
            "producerDataSet": [{"groupName": group} for group in data.producer_groups],
            "withoutSub": data.without_subscriptions,
        }
    )


def _consumer_json(data: ConsumerData) -> JsonObject:
    return {
        "consumeFromWhere": data.consume_from,
        "consumeType": data.consume_type,
        "groupName": data.group,
        "messageModel": data.message_model,
        "subscriptionDataSet": [subscription_form(one) for one in data.subscriptions],
        "unitMode": data.unit_mode,
    }


def subscription_form(data: SubscriptionData) -> JsonObject:
    """Return RocketMQ's SubscriptionData: the expression, its tags and their codes. Raises FilterSyntaxError."""
    by_tag = parse_tags(data.expression or "") if (data.kind or "TAG") == "TAG" else None
    tags, codes = (by_tag.tags, by_tag.codes or ()) if by_tag is not None else ((), ())
    return subscription_json(data.topic, data.expression or "*", data.kind or "TAG", data.version, tags, codes)
