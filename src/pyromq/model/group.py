"""A broker's configuration of a consumer group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyromq.model.json_form import (
    INT32,
    INT64,
    Json,
    a_name,
    an_object,
    in_json,
    some_objects,
    texts_by_name,
    true_or_false,
)


def _default_retry_policy() -> dict[str, Json]:
    return {"type": "CUSTOMIZED"}


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """RocketMQ's SubscriptionGroupConfig. The defaults are what RocketMQ takes for a field that is absent."""

    name: str = field(metadata=in_json("groupName", a_name))
    consume_enabled: bool = field(default=True, metadata=in_json("consumeEnable", true_or_false))
    #: A new group may start at the oldest message still stored.
    consume_from_min_enabled: bool = field(default=True, metadata=in_json("consumeFromMinEnable", true_or_false))
    broadcast_enabled: bool = field(default=True, metadata=in_json("consumeBroadcastEnable", true_or_false))
    orderly: bool = field(default=False, metadata=in_json("consumeMessageOrderly", true_or_false))
    #: Queues of the group's retry topic.
    retry_queues: int = field(default=1, metadata=in_json("retryQueueNums", INT32))
    #: Deliveries after the first before a message goes to the dead-letter topic.
    max_retries: int = field(default=16, metadata=in_json("retryMaxTimes", INT32))
    #: Delays between deliveries: RocketMQ's object, unchanged (type CUSTOMIZED or EXPONENTIAL).
    retry_policy: Mapping[str, Json] = field(
        default_factory=_default_retry_policy, metadata=in_json("groupRetryPolicy", an_object)
    )
    broker_id: int = field(default=0, metadata=in_json("brokerId", INT64))
    #: The broker a consumer is sent to when it reads what no longer is in memory.
    broker_when_slow: int = field(default=1, metadata=in_json("whichBrokerWhenConsumeSlowly", INT64))
    #: Tell the members when one comes or goes.
    notify_members: bool = field(default=True, metadata=in_json("notifyConsumerIdsChangedEnable", true_or_false))
    system_flag: int = field(default=0, metadata=in_json("groupSysFlag", INT32))
    consume_timeout_minutes: int = field(default=15, metadata=in_json("consumeTimeoutMinute", INT32))
    #: The subscriptions the group is held to, as RocketMQ's objects; None: any.
    subscriptions: tuple[Mapping[str, Json], ...] | None = field(
        default=None, metadata=in_json("subscriptionDataSet", some_objects)
    )
    attributes: Mapping[str, str] = field(default_factory=dict, metadata=in_json("attributes", texts_by_name))
    #: Fields that only a newer RocketMQ knows.
    unknown: Mapping[str, Json] = field(default_factory=dict)
