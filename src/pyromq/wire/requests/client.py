"""Requests of clients, brokers and tools, one dataclass each, and the table from codes to them.

`decode_request` turns a command into its typed form or raises `BadRequest` or `NotSupported`; `encode_request` makes a
command of one. Field names on the wire are given once, with the attributes: see `fields`. JSON bodies have their
types in `bodies`; here they are bytes.

Requests of administrators about transactions are here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from pyromq.errors import NotSupported
from pyromq.wire.codes import RequestCode, code_name
from pyromq.wire.command import FLAG_ONE_WAY, Command
from pyromq.wire.fields import boolean, int32, int64, read_fields, text, write_fields
from pyromq.wire.responses import Response


@dataclass(slots=True, kw_only=True)
class Request:
    """Any request. `command` is the envelope it came in: who asks, in which version of the protocol."""

    CODE: ClassVar[RequestCode]

    body: bytes = b""
    command: Command | None = None


# --- sending ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class SendMessage(Request):
    """One message, or several of one queue in a batch. The second form of the request has one-letter names."""

    CODE = RequestCode.SEND_MESSAGE_V2

    producer_group: str = text("producerGroup", short="a")
    topic: str = text("topic", short="b")
    default_topic: str = text("defaultTopic", short="c", default="TBW102")
    default_topic_queues: int = int32("defaultTopicQueueNums", short="d", default=4)
    queue_id: int = int32("queueId", short="e")
    storage_flags: int = int32("sysFlag", short="f", default=0)
    born_timestamp_ms: int = int64("bornTimestamp", short="g", default=0)
    user_flag: int = int32("flag", short="h", default=0)
    properties: str = text("properties", short="i", default="")
    reconsume_times: int = int32("reconsumeTimes", short="j", default=0)
    unit_mode: bool = boolean("unitMode", short="k", default=False)
    max_reconsume_times: int | None = int32("maxReconsumeTimes", short="l", default=None)
    batch: bool = boolean("batch", short="m", default=False)
    #: Ours: proves the identity of an idempotent writer. It is not stored.
    writer_token: str | None = text("writerToken", default=None)


@dataclass(slots=True, kw_only=True)
class IssueWriter(Request):
    """Ours: ask for the identity of an idempotent writer."""

    CODE = RequestCode.ISSUE_WRITER

    #: 64 hex digits that only the writer knows: the same ones give the same identity.
    seed: str = text("writerSeed")


@dataclass(slots=True, kw_only=True)
class WriterIssued(Response):
    #: The first part of `PYROMQ_WRITER`.
    writer: str = text("writer")
    token: str = text("writerToken")


@dataclass(slots=True, kw_only=True)
class SendReply(SendMessage):
    """The answer of a consumer to a request message: handed on to the producer that waits for it."""

    CODE = RequestCode.SEND_REPLY_MESSAGE_V2


@dataclass(slots=True, kw_only=True)
class PushReply(Request):
    """Broker to producer: the reply it waits for."""

    CODE = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT

    producer_group: str = text("producerGroup")
    topic: str = text("topic")
    default_topic: str = text("defaultTopic")
    default_topic_queues: int = int32("defaultTopicQueueNums")
    queue_id: int = int32("queueId")
    storage_flags: int = int32("sysFlag")
    born_timestamp_ms: int = int64("bornTimestamp")
    user_flag: int = int32("flag")
    properties: str = text("properties", default="")
    reconsume_times: int = int32("reconsumeTimes", default=0)
    unit_mode: bool = boolean("unitMode", default=False)
    born_host: str = text("bornHost")
    store_host: str = text("storeHost")
    store_timestamp_ms: int = int64("storeTimestamp")


@dataclass(slots=True, kw_only=True)
class SendBack(Request):
    """A consumer could not handle a message: deliver it again later, or put it among the dead letters."""

    CODE = RequestCode.CONSUMER_SEND_MSG_BACK

    position: int = int64("offset")
    group: str = text("group")
    delay_level: int = int32("delayLevel")
    origin_message_id: str | None = text("originMsgId", default=None)
    origin_topic: str | None = text("originTopic", default=None)
    unit_mode: bool = boolean("unitMode", default=False)
    max_reconsume_times: int | None = int32("maxReconsumeTimes", default=None)


@dataclass(slots=True, kw_only=True)
class EndTransaction(Request):
    CODE = RequestCode.END_TRANSACTION

    topic: str | None = text("topic", default=None)
    producer_group: str = text("producerGroup")
    half_offset: int = int64("tranStateTableOffset")
    half_position: int = int64("commitLogOffset")
    #: 0 unknown, 8 commit, 12 roll back.
    decision: int = int32("commitOrRollback")
    from_check: bool = boolean("fromTransactionCheck", default=False)
    message_id: str = text("msgId")
    transaction_id: str | None = text("transactionId", default=None)


@dataclass(slots=True, kw_only=True)
class CheckTransaction(Request):
    """Broker to producer: what became of this half message? The body is the whole record."""

    CODE = RequestCode.CHECK_TRANSACTION_STATE

    topic: str | None = text("topic", default=None)
    half_offset: int = int64("tranStateTableOffset")
    half_position: int = int64("commitLogOffset")
    message_id: str | None = text("msgId", default=None)
    transaction_id: str | None = text("transactionId", default=None)
    offset_message_id: str | None = text("offsetMsgId", default=None)
    broker_name: str | None = text("bname", default=None)


@dataclass(slots=True, kw_only=True)
class RecallMessage(Request):
    CODE = RequestCode.RECALL_MESSAGE

    producer_group: str | None = text("producerGroup", default=None)
    topic: str = text("topic")
    recall_handle: str = text("recallHandle")


# --- consuming -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class PullMessage(Request):
    CODE = RequestCode.PULL_MESSAGE

    group: str = text("consumerGroup")
    topic: str = text("topic")
    queue_id: int = int32("queueId")
    offset: int = int64("queueOffset")
    max_messages: int = int32("maxMsgNums")
    #: 1 carries a commit, 2 may be held, 4 carries a subscription, 8 class filter, 16 lite pull.
    flags: int = int32("sysFlag")
    commit_offset: int = int64("commitOffset", default=0)
    suspend_ms: int = int64("suspendTimeoutMillis", default=0)
    subscription: str | None = text("subscription", default=None)
    subscription_version: int = int64("subVersion", default=0)
    expression_type: str | None = text("expressionType", default=None)
    max_bytes: int | None = int32("maxMsgBytes", default=None)
    request_source: int | None = int32("requestSource", default=None)
    proxy_client_id: str | None = text("proxyFrowardClientId", default=None)


@dataclass(slots=True, kw_only=True)
class QueryConsumerOffset(Request):
    CODE = RequestCode.QUERY_CONSUMER_OFFSET

    group: str = text("consumerGroup")
    topic: str = text("topic")
    queue_id: int = int32("queueId")
    zero_if_not_found: bool = boolean("setZeroIfNotFound", default=True)


@dataclass(slots=True, kw_only=True)
class UpdateConsumerOffset(Request):
    CODE = RequestCode.UPDATE_CONSUMER_OFFSET

    group: str = text("consumerGroup")
    topic: str = text("topic")
    queue_id: int = int32("queueId")
    offset: int = int64("commitOffset")
    #: Between our brokers: less than is known changes nothing. RocketMQ's do not know the field.
    only_forward: bool = boolean("onlyForward", default=False)


@dataclass(slots=True, kw_only=True)
class SearchOffset(Request):
    CODE = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP

    topic: str = text("topic")
    queue_id: int = int32("queueId")
    timestamp_ms: int = int64("timestamp")
    #: LOWER or UPPER.
    boundary: str = text("boundaryType", default="LOWER")


@dataclass(slots=True, kw_only=True)
class GetMaxOffset(Request):
    CODE = RequestCode.GET_MAX_OFFSET

    topic: str = text("topic")
    queue_id: int = int32("queueId")
    committed: bool = boolean("committed", default=True)


@dataclass(slots=True, kw_only=True)
class GetMinOffset(Request):
    CODE = RequestCode.GET_MIN_OFFSET

    topic: str = text("topic")
    queue_id: int = int32("queueId")


@dataclass(slots=True, kw_only=True)
class GetEarliestStoreTime(Request):
    CODE = RequestCode.GET_EARLIEST_MSG_STORETIME

    topic: str = text("topic")
    queue_id: int = int32("queueId")


@dataclass(slots=True, kw_only=True)
class QueryMessage(Request):
    CODE = RequestCode.QUERY_MESSAGE

    topic: str = text("topic")
    key: str = text("key")
    max_messages: int = int32("maxNum")
    begin_ms: int = int64("beginTimestamp")
    end_ms: int = int64("endTimestamp")
    by_unique_key: bool = boolean("_UNIQUE_KEY_QUERY", default=False)


@dataclass(slots=True, kw_only=True)
class ViewMessage(Request):
    CODE = RequestCode.VIEW_MESSAGE_BY_ID

    topic: str | None = text("topic", default=None)
    position: int = int64("offset")


# --- clients ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Heartbeat(Request):
    CODE = RequestCode.HEART_BEAT


@dataclass(slots=True, kw_only=True)
class UnregisterClient(Request):
    CODE = RequestCode.UNREGISTER_CLIENT

    client_id: str = text("clientID")
    producer_group: str | None = text("producerGroup", default=None)
    consumer_group: str | None = text("consumerGroup", default=None)


@dataclass(slots=True, kw_only=True)
class CheckClientConfig(Request):
    CODE = RequestCode.CHECK_CLIENT_CONFIG


@dataclass(slots=True, kw_only=True)
class GetConsumerList(Request):
    CODE = RequestCode.GET_CONSUMER_LIST_BY_GROUP

    group: str = text("consumerGroup")


@dataclass(slots=True, kw_only=True)
class NotifyMembersChanged(Request):
    """Broker to consumer: a member joined or left the group."""

    CODE = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED

    group: str = text("consumerGroup")


@dataclass(slots=True, kw_only=True)
class LockQueues(Request):
    CODE = RequestCode.LOCK_BATCH_MQ


@dataclass(slots=True, kw_only=True)
class UnlockQueues(Request):
    CODE = RequestCode.UNLOCK_BATCH_MQ


# --- the table -------------------------------------------------------------------------------------------------------


class _Entry(NamedTuple):
    kind: type[Request]
    #: One-letter names.
    short: bool = False


_TABLE: dict[int, _Entry] = {}


def register(*kinds: type[Request]) -> None:
    """Make requests known under their codes: the other modules that define some call this once."""
    for kind in kinds:
        assert kind.CODE not in _TABLE, f"{kind.CODE.name} has two meanings"
        _TABLE[kind.CODE] = _Entry(kind)


register(
    IssueWriter, PushReply, SendBack, EndTransaction, CheckTransaction, RecallMessage, PullMessage, QueryConsumerOffset,
    UpdateConsumerOffset, SearchOffset, GetMaxOffset, GetMinOffset, GetEarliestStoreTime, QueryMessage, ViewMessage,
    Heartbeat, UnregisterClient, CheckClientConfig, GetConsumerList, NotifyMembersChanged, LockQueues, UnlockQueues,
)  # fmt: skip
_TABLE[RequestCode.SEND_MESSAGE] = _Entry(SendMessage)
_TABLE[RequestCode.SEND_MESSAGE_V2] = _Entry(SendMessage, short=True)
_TABLE[RequestCode.SEND_BATCH_MESSAGE] = _Entry(SendMessage, short=True)
_TABLE[RequestCode.SEND_REPLY_MESSAGE] = _Entry(SendReply)
_TABLE[RequestCode.SEND_REPLY_MESSAGE_V2] = _Entry(SendReply, short=True)
_TABLE[RequestCode.LITE_PULL_MESSAGE] = _Entry(PullMessage)


def known_requests() -> dict[int, type[Request]]:
    """Every code that has a typed form, and its form."""
    return {code: entry.kind for code, entry in _TABLE.items()}


def decode_request(command: Command) -> Request:
    """The typed form of a command. Raises NotSupported for an unknown code, BadRequest for fields that do not fit."""
    entry = _TABLE.get(command.code)
    if entry is None:
        raise NotSupported(f"{code_name(command.code)} is not supported")
    return entry.kind(body=command.body, command=command, **read_fields(entry.kind, command.fields, short=entry.short))


def encode_request(request: Request, correlation_id: int, *, one_way: bool = False) -> Command:
    """The command that carries a request."""
    return Command(
        code=request.CODE,
        fields=write_fields(request, short=_TABLE[request.CODE].short),
        body=request.body,
        correlation_id=correlation_id,
        flags=FLAG_ONE_WAY if one_way else 0,
    )


@dataclass(slots=True, kw_only=True)
class ResumeCheck(Request):
    """Ask again for a half message, as if it had never been asked for."""

    CODE = RequestCode.RESUME_CHECK_HALF_MESSAGE

    topic: str | None = text("topic", default=None)
    #: The id that names its position in the log.
    message_id: str | None = text("msgId", default=None)


register(ResumeCheck)
