"""What a client says of itself every half minute: the groups it is in and what they subscribe to.

Clients differ in what they write; what cannot be understood in one entry is an error of the whole heartbeat, so that
nobody believes to be subscribed who is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyromq.errors import BadRequest, NotJson, WrongShape
from pyromq.model.json_form import INT64, Json, an_object, from_json, in_json, some_objects, text, true_or_false
from pyromq.model.lenient_json import loads

#: Groups of one client and topics of one group: far above what anybody uses, and each costs the broker memory.
MAX_GROUPS = 1024
MAX_SUBSCRIPTIONS = 4096


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """One topic that a consumer wants."""

    topic: str = field(metadata=in_json("topic", text))
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
    return tuple(from_json(SubscriptionData, one) for one in _few(value, MAX_SUBSCRIPTIONS, "subscriptions"))


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
    return tuple(text(an_object(one).get("groupName")) for one in _few(value, MAX_GROUPS, "producer groups"))


def _consumers(value: Json) -> tuple[ConsumerData, ...]:
    return tuple(from_json(ConsumerData, one) for one in _few(value, MAX_GROUPS, "consumer groups"))


@dataclass(frozen=True, slots=True)
class HeartbeatData:
    client_id: str = field(metadata=in_json("clientID", text))
    producer_groups: tuple[str, ...] = field(default=(), metadata=in_json("producerDataSet", _producers))
    consumers: tuple[ConsumerData, ...] = field(default=(), metadata=in_json("consumerDataSet", _consumers))
    #: Of all subscriptions; a client that knows that the broker has them sends the number alone.
    fingerprint: int = field(default=0, metadata=in_json("heartbeatFingerprint", INT64))
    without_subscriptions: bool = field(default=False, metadata=in_json("withoutSub", true_or_false))
    unknown: Mapping[str, Json] = field(default_factory=dict)


def decode_heartbeat(body: bytes) -> HeartbeatData:
    """Raises BadRequest."""
    try:
        return from_json(HeartbeatData, loads(body))
    except (NotJson, WrongShape) as problem:
        raise BadRequest(f"the heartbeat cannot be read: {problem}") from None
