"""The names that RocketMQ gives to its own topics and groups, and which names clients may use."""

from __future__ import annotations

import re

from pyromq.errors import IllegalName, NoPermission

#: New topics are made after this one.
DEFAULT_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_DONE_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_TOPICS = (HALF_TOPIC, HALF_DONE_TOPIC)
CHECKED_TOO_OFTEN_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC = "BenchmarkTest"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
SYSTEM_PREFIX = "rmq_sys_"

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
TOOLS_GROUP = "TOOLS_CONSUMER"
SYSTEM_GROUPS = (
    "SELF_TEST_C_GROUP", "CID_ONSAPI_OWNER", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_PULL", "CID_ONS-HTTP-PROXY",
    "FILTERSRV_CONSUMER", TOOLS_GROUP, TRANSACTION_GROUP,
)  # fmt: skip
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

#: Their messages are the broker's own bookkeeping.
_NOT_FOR_SENDING = {
    SCHEDULE_TOPIC, HALF_TOPIC, HALF_DONE_TOPIC, CHECKED_TOO_OFTEN_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC,
    TIMER_TOPIC,
}  # fmt: skip
SYSTEM_TOPICS = _NOT_FOR_SENDING | {DEFAULT_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}

MAX_TOPIC = 127
MAX_GROUP = 255
#: The broker puts a prefix before a group to name its retry topic.
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return DEAD_LETTER_PREFIX + group


def reply_topic(cluster: str) -> str:
    return f"{cluster}_REPLY_TOPIC"


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def is_system_group(group: str) -> bool:
    return group.startswith(SYSTEM_GROUP_PREFIX) or group in SYSTEM_GROUPS


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def check_topic(topic: str) -> None:
    """Raise IllegalName for what cannot be the name of a topic: it becomes the name of a directory."""
    limit = MAX_GROUP if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) else MAX_TOPIC
    _check(topic, "topic", limit)


def check_group(group: str) -> None:
    _check(group, "group", MAX_GROUP - len(RETRY_PREFIX))


def _check(name: str, what: str, limit: int) -> None:
    if not name.strip():
        raise IllegalName(f"the name of a {what} must not be empty")
    if len(name) > limit:
        raise IllegalName(f"the name of the {what} has {len(name)} characters, the limit is {limit}")
    if _NAME.fullmatch(name) is None:
        raise IllegalName(f"the {what} {name!r} may have only letters, digits, and the characters % | _ -")


def may_send(topic: str) -> bool:
    return topic not in _NOT_FOR_SENDING


def check_may_send(topic: str) -> None:
    """Raise NoPermission for a topic that the broker alone writes to."""
    if not may_send(topic):
        raise NoPermission(f"the topic {topic} is the broker's own: nobody else sends to it")
