"""The connected clients, as admin tools see them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyromq.model.json_form import JsonObject
from pyromq.wire import fastjson


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """One connection of one client, of a producer's or a consumer's group."""

    client_id: str
    address: str
    language: str
    version: int
    last_seen_ms: int = 0

    def to_json(self) -> JsonObject:
        """RocketMQ's Connection."""
        return {
            "clientAddr": self.address,
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }

    def as_producer(self) -> JsonObject:
        """RocketMQ's ProducerInfo."""
        return {
            "clientId": self.client_id,
            "language": self.language,
            "lastUpdateTimestamp": self.last_seen_ms,
            "remoteIP": self.address,
            "version": self.version,
        }


def subscription_json(
    topic: str, expression: str, kind: str, version: int, tags: Iterable[str], codes: Iterable[int]
) -> JsonObject:
    """RocketMQ's SubscriptionData."""
    return {
        "classFilterMode": False,
        "codeSet": sorted(codes),
        "expressionType": kind,
        "subString": expression,
        "subVersion": version,
        "tagsSet": sorted(tags),
        "topic": topic,
    }


@dataclass(frozen=True, slots=True)
class ConsumerConnections:
    """RocketMQ's ConsumerConnection: the members of a group and what they want."""

    connections: Sequence[ClientConnection]
    subscriptions: Mapping[str, JsonObject]
    consume_type: str
    message_model: str
    consume_from: str

    def encode(self) -> bytes:
        return fastjson.dumps_standard(
            {
                "connectionSet": [one.to_json() for one in self.connections],
                "consumeFromWhere": self.consume_from,
                "consumeType": self.consume_type,
                "messageModel": self.message_model,
                "subscriptionTable": dict(self.subscriptions),
            }
        )


def encode_producer_connections(connections: Iterable[ClientConnection]) -> bytes:
    """RocketMQ's ProducerConnection."""
    return fastjson.dumps_standard({"connectionSet": [one.to_json() for one in connections]})


def encode_all_producers(groups: Mapping[str, Sequence[ClientConnection]]) -> bytes:
    """RocketMQ's ProducerTableInfo."""
    table = {group: [one.as_producer() for one in connections] for group, connections in groups.items()}
    return fastjson.dumps_standard({"data": table})


def encode_subscription(group: str, topic: str | None, subscription: JsonObject | None) -> bytes:
    """RocketMQ's QuerySubscriptionResponseBody."""
    form: JsonObject = {"group": group}
    if topic is not None:
        form["topic"] = topic
    if subscription is not None:
        form["subscriptionData"] = subscription
    return fastjson.dumps_standard(form)
