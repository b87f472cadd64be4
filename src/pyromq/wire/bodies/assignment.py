"""Which queues a consumer asks for and is given, and whether a group pulls or pops a topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import orjson

from pyromq.errors import WrongShape
from pyromq.model.json_form import INT32, InJson, Json, JsonObject, a_name, an_object, from_json, in_json, text, to_json
from pyromq.wire.bodies.locks import MessageQueue
from pyromq.wire.bodies.reading import read_body

PULL, POP = "PULL", "POP"
BROADCASTING, CLUSTERING = "BROADCASTING", "CLUSTERING"

Body = TypeVar("Body", bound=InJson)


@dataclass(frozen=True, slots=True)
class AssignmentRequest:
    """RocketMQ's QueryAssignmentRequestBody."""

    topic: str = field(metadata=in_json("topic", a_name))
    group: str = field(metadata=in_json("consumerGroup", a_name))
    client_id: str = field(metadata=in_json("clientId", a_name))
    strategy: str = field(default="AVG", metadata=in_json("strategyName", text))
    message_model: str = field(default=CLUSTERING, metadata=in_json("messageModel", text))
    unknown: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestMode:
    """RocketMQ's SetMessageRequestModeRequestBody: how a group gets the messages of a topic."""

    topic: str = field(metadata=in_json("topic", a_name))
    group: str = field(metadata=in_json("consumerGroup", a_name))
    mode: str = field(default=PULL, metadata=in_json("mode", text))
    pop_share_queues: int = field(default=0, metadata=in_json("popShareQueueNum", INT32))
    unknown: Mapping[str, Json] = field(default_factory=dict)


#: By topic and group.
RequestModes = dict[str, dict[str, RequestMode]]

_MODES = "messageRequestModeMap"


def decode_assignment_request(body: bytes) -> AssignmentRequest:
    """Raises BadRequest."""
    return read_body(AssignmentRequest, body, "the question for queues")


def decode_request_mode(body: bytes) -> RequestMode:
    """Raises BadRequest."""
    return read_body(RequestMode, body, "the mode of a group")


def encode_assignments(queues: Iterable[MessageQueue] | None) -> bytes:
    """Encode the queues of a client from now on; with None the client keeps its present queues."""
    if queues is None:
        return b"{}"
    given = [{"messageQueue": queue.to_json(), "mode": PULL} for queue in queues]
    return orjson.dumps({"messageQueueAssignments": given})


def request_modes_to_json(modes: RequestModes) -> JsonObject:
    return {_MODES: {topic: {name: to_json(one) for name, one in groups.items()} for topic, groups in modes.items()}}


def request_modes_from_json(value: JsonObject) -> RequestModes:
    """Raises WrongShape."""
    if _MODES not in value:
        raise WrongShape(f"{_MODES} is missing")
    return {
        topic: {name: from_json(RequestMode, one) for name, one in an_object(groups).items()}
        for topic, groups in an_object(value[_MODES]).items()
    }
