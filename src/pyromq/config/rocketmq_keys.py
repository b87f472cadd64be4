"""RocketMQ's keys and the settings they set: one table per program, used in both directions.

`Form.take` parses RocketMQ's text, `Form.give` formats a value as RocketMQ does. Values that RocketMQ silently clamps
are clamped here, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyromq.config.fields import (
    BadValue,
    to_bool,
    to_int,
    to_ints,
    to_optional_path,
    to_optional_text,
    to_path,
    to_text,
    to_texts,
)


@dataclass(frozen=True, slots=True)
class Form:
    """RocketMQ's notation for a type of value."""

    take: Callable[[str], object]
    give: Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Key:
    """One of RocketMQ's settings and the path of the same setting here."""

    name: str
    path: str
    form: Form


def _one_of(words: dict[str, object]) -> Callable[[str], object]:
    def take(text: str) -> object:
        if text.strip().upper() not in words:
            raise BadValue(f"it is {' or '.join(words)}")
        return words[text.strip().upper()]

    return take


def _percent(least: int, most: int) -> Form:
    """Convert a whole percentage, clamped to the range as RocketMQ does."""

    def take(text: str) -> float:
        percent = to_int(text)
        if not 0 <= percent <= 100:
            raise BadValue("it is a percentage, 0 to 100")
        return min(max(percent, least), most) / 100

    return Form(take, lambda share: str(round(share * 100)))


def _bool(text: str) -> bool:
    """Accept `true` only as true, as RocketMQ does, and refuse words that look like it, such as "yes"."""
    if text.strip().lower() not in ("true", "false"):
        raise BadValue("it is true or false here; RocketMQ takes every other word for false")
    return to_bool(text)


def _clamped(least: int, most: int) -> Form:
    return Form(lambda text: min(max(to_int(text), least), most), str)


def _queue_entries(text: str) -> int:
    """Convert RocketMQ's file length into entries of 20 bytes."""
    return -(-to_int(text) // 20)


def _one_directory(text: str) -> Path | None:
    """Refuse a comma-separated list: RocketMQ spreads a log over several directories, PyroMQ does not."""
    if "," in text:
        raise BadValue("the log is in one directory here; move the files of all of them into one, and give that")
    return to_optional_path(text.strip())


def _hours(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


BOOL = Form(_bool, lambda value: "true" if value else "false")
INT = Form(to_int, str)
SECONDS = Form(lambda text: to_int(text) * 1000, lambda value: str(value // 1000))
HOURS = Form(to_int, _hours)
HOURS_OF_DAY = Form(to_ints, lambda hours: ";".join(f"{hour:02}" for hour in hours))
TEXT = Form(to_text, str)
HOST = Form(to_optional_text, lambda value: value or "")
ADDRESSES = Form(to_texts, ";".join)
DIRECTORY = Form(to_path, str)
FILE = Form(to_optional_path, lambda value: str(value or ""))
FLUSH = Form(
    _one_of({"ASYNC_FLUSH": False, "SYNC_FLUSH": True}), lambda value: "SYNC_FLUSH" if value else "ASYNC_FLUSH"
)
ROLE = Form(_one_of({role: role for role in ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")}), str)
LOG_DIRECTORY = Form(_one_directory, lambda value: str(value or ""))
QUEUE_FILE = Form(_queue_entries, lambda entries: str(entries * 20))

_NETWORK_KEYS = (
    Key("bindAddress", "listen_host", TEXT),
    Key("listenPort", "listen_port", INT),
    Key("serverChannelMaxIdleTimeSeconds", "limits.idle_close_ms", SECONDS),
)

#: RocketMQ's files name the log's directory even if it is the default one.
COMMIT_LOG_KEY = "storePathCommitLog"

BROKER_KEYS = (
    *_NETWORK_KEYS,
    Key("brokerName", "name", TEXT),
    Key("brokerClusterName", "cluster", TEXT),
    Key("brokerId", "broker_id", INT),
    Key("brokerRole", "role", ROLE),
    Key("brokerIP1", "advertise_host", HOST),
    Key("namesrvAddr", "name_servers", ADDRESSES),
    Key("registerNameServerPeriod", "register_interval_ms", _clamped(10_000, 60_000)),
    Key("autoCreateTopicEnable", "auto_create_topics", BOOL),
    Key("defaultTopicQueueNums", "default_topic_queues", INT),
    Key("autoCreateSubscriptionGroup", "auto_create_groups", BOOL),
    Key("brokerPermission", "permission", INT),
    Key("enablePropertyFilter", "sql_filters", BOOL),
    Key("longPollingEnable", "long_polling", BOOL),
    Key("maxTransferCountOnMessageInMemory", "max_pull_messages", INT),
    Key("maxTransferBytesOnMessageInMemory", "max_pull_bytes", INT),
    Key("rejectTransactionMessage", "reject_transactions", BOOL),
    Key("transactionTimeOut", "transaction.timeout_ms", INT),
    Key("transactionCheckMax", "transaction.check_max", INT),
    Key("transactionCheckInterval", "transaction.check_interval_ms", INT),
    Key("msgTraceTopicName", "trace_topic", TEXT),
    Key("traceTopicEnable", "trace_topic_enabled", BOOL),
    Key("traceOn", "trace_on", BOOL),
    Key("regionId", "region", TEXT),
    Key("storeReplyMessageEnable", "store_replies", BOOL),
    Key("notifyConsumerIdsChangedEnable", "notify_members", BOOL),
    Key("channelExpiredTimeout", "client_expiry_ms", INT),
    Key("flushConsumerOffsetInterval", "offsets_flush_interval_ms", INT),
    Key("flushDelayOffsetInterval", "config_flush_interval_ms", INT),
    Key("waitTimeMillsInSendQueue", "overload.loop_lag_ms", INT),
    Key("haListenPort", "replication.listen_port", INT),
    Key("brokerIP2", "replication.advertise_host", HOST),
    Key("haMasterAddress", "replication.primary", HOST),
    Key("inSyncReplicas", "replication.copies", INT),
    Key("totalReplicas", "replication.total", INT),
    Key("minInSyncReplicas", "replication.min_in_sync", INT),
    Key("allAckInSyncStateSet", "replication.all_in_sync", BOOL),
    Key("enableAutoInSyncReplicas", "replication.adapts", BOOL),
    Key("slaveTimeout", "replication.timeout_ms", INT),
    Key("haSendHeartbeatInterval", "replication.heartbeat_ms", INT),
    Key("haHousekeepingInterval", "replication.peer_timeout_ms", INT),
    Key("haTransferBatchSize", "replication.batch_bytes", INT),
    Key("haMaxGapNotInSync", "replication.max_gap_bytes", INT),
    Key("slaveReadEnable", "replication.read_from_slaves", BOOL),
    Key("accessMessageInMemoryMaxRatio", "replication.memory_percent", INT),
    Key("storePathRootDir", "store.root", DIRECTORY),
    Key(COMMIT_LOG_KEY, "store.commit_log", LOG_DIRECTORY),
    Key("mappedFileSizeCommitLog", "store.segment_bytes", INT),
    Key("mappedFileSizeConsumeQueue", "store.queue_file_entries", QUEUE_FILE),
    Key("messageIndexEnable", "store.index_enabled", BOOL),
    Key("maxHashSlotNum", "store.index_slots", INT),
    Key("maxIndexNum", "store.index_entries", INT),
    Key("maxMessageSize", "store.max_body_bytes", INT),
    Key("enabledAppendPropCRC", "store.record_crc", BOOL),
    Key("messageDelayLevel", "store.delay_levels", TEXT),
    Key("transientStorePoolEnable", "store.transient_pool", BOOL),
    Key("flushDiskType", "store.flush.sync", FLUSH),
    Key("flushIntervalCommitLog", "store.flush.interval_ms", INT),
    Key("fileReservedTime", "store.retention.max_age_hours", HOURS),
    Key("deleteWhen", "store.retention.delete_hours", HOURS_OF_DAY),
    Key("diskMaxUsedSpaceRatio", "store.retention.delete_above", _percent(10, 95)),
    Key("diskSpaceWarningLevelRatio", "store.retention.refuse_at", _percent(35, 90)),
    Key("cleanFileForciblyEnable", "store.retention.delete_unexpired", BOOL),
    Key("cleanResourceInterval", "store.retention.interval_ms", INT),
)

NAME_SERVER_KEYS = (
    *_NETWORK_KEYS,
    Key("kvConfigPath", "kv_config_path", FILE),
    Key("orderMessageEnable", "order_messages_enabled", BOOL),
    Key("enableAllTopicList", "topic_lists_enabled", BOOL),
    Key("deleteTopicWithBrokerRegistration", "delete_topics_with_registration", BOOL),
)

#: Keys of missing features that operators rely on. If one is switched on, the warning names the feature.
RELIED_ON = {
    "aclEnable": "authentication",
    "authenticationEnabled": "authentication",
    "authorizationEnabled": "authorization",
    "enableControllerMode": "a controller that chooses masters (here `pyromq broker promote` does)",
    "enableDLegerCommitLog": "a log that is replicated by Raft (here slaves copy it: brokerRole)",
    "useTLS": "encryption",
}
