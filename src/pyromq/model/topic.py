"""A broker's configuration of a topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag

from pyromq.model.json_form import COUNT, INT32, Json, a_name, in_json, text, texts_by_name, true_or_false


class Permission(IntFlag):
    """The operations that clients may perform on a topic, in RocketMQ's bits."""

    INHERIT = 1  # new topics are made after this one
    WRITE = 2
    READ = 4
    READ_WRITE = READ | WRITE


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """RocketMQ's TopicConfig. The defaults are what RocketMQ takes for a field that is absent."""

    name: str = field(metadata=in_json("topicName", a_name))
    #: Queues consumers read from; above `write_queues` while a topic shrinks and the rest is drained.
    read_queues: int = field(default=16, metadata=in_json("readQueueNums", COUNT))
    write_queues: int = field(default=16, metadata=in_json("writeQueueNums", COUNT))
    #: Bits of `Permission`; a plain number, so that a bit we do not know stays.
    permission: int = field(default=int(Permission.READ_WRITE), metadata=in_json("perm", COUNT))
    #: SINGLE_TAG or MULTI_TAG.
    filter_type: str = field(default="SINGLE_TAG", metadata=in_json("topicFilterType", text))
    system_flag: int = field(default=0, metadata=in_json("topicSysFlag", INT32))
    order: bool = field(default=False, metadata=in_json("order", true_or_false))
    #: For instance {"message.type": "FIFO"}.
    attributes: Mapping[str, str] = field(default_factory=dict, metadata=in_json("attributes", texts_by_name))
    #: Fields that only a newer RocketMQ knows.
    unknown: Mapping[str, Json] = field(default_factory=dict)

    @property
    def readable(self) -> bool:
        return bool(self.permission & Permission.READ)

    @property
    def writable(self) -> bool:
        return bool(self.permission & Permission.WRITE)
