"""Topics and groups with their settings, in lists and tables, as admin tools exchange them.

Whatever the bytes are, decoding returns values or raises `BadRequest`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from pyromq.errors import BadRequest, NotJson, WrongShape
from pyromq.model.data_version import DataVersion
from pyromq.model.group import GroupConfig
from pyromq.model.json_form import InJson, Json, JsonObject, an_object, from_json, some_objects, to_json
from pyromq.model.lenient_json import loads
from pyromq.model.topic import TopicConfig
from pyromq.wire import fastjson
from pyromq.wire.bodies.reading import read_body

Config = TypeVar("Config", bound=InJson)


def topics_in(body: bytes) -> Iterator[TopicConfig]:
    """Yield the topics of RocketMQ's CreateTopicListRequestBody one by one: there may be thousands."""
    return _read_list(TopicConfig, body, "topicConfigList")


def decode_group(body: bytes) -> GroupConfig:
    """RocketMQ's SubscriptionGroupConfig."""
    return read_body(GroupConfig, body, "the group")


def groups_in(body: bytes) -> Iterator[GroupConfig]:
    """Yield the groups of RocketMQ's SubscriptionGroupList one by one."""
    return _read_list(GroupConfig, body, "groupConfigList")


def _read_list(kind: type[Config], body: bytes, key: str) -> Iterator[Config]:
    try:
        for one in some_objects(an_object(loads(body)).get(key) or []):
            yield from_json(kind, one)
    except (NotJson, WrongShape) as problem:
        raise BadRequest(f"{key} cannot be read: {problem}") from None


def encode_topic(topic: TopicConfig) -> bytes:
    """Encode RocketMQ's TopicConfig, without the mapping of a static topic."""
    return fastjson.dumps_standard(to_json(topic))


def encode_group(group: GroupConfig) -> bytes:
    return fastjson.dumps_standard(to_json(group))


def group_table_pieces(
    version: DataVersion, groups: Iterable[GroupConfig], forbidden: Mapping[str, Json]
) -> Iterator[bytes]:
    """RocketMQ's SubscriptionGroupWrapper, in pieces."""
    yield b'{"dataVersion":%b,"forbiddenTable":' % fastjson.dumps_standard(to_json(version))
    yield from fastjson.map_pieces(forbidden.items())
    yield b',"subscriptionGroupTable":'
    yield from fastjson.map_pieces((group.name, to_json(group)) for group in groups)
    yield b"}"


def encode_group_names(groups: Iterable[str]) -> bytes:
    """RocketMQ's GroupList."""
    return fastjson.dumps_standard({"groupList": sorted(groups)})


def encode_forbidden(group: str, topic: str, *, readable: bool) -> bytes:
    """RocketMQ's GroupForbidden."""
    form: JsonObject = {"group": group, "readable": readable, "topic": topic}
    return fastjson.dumps_standard(form)
