"""Requests of `mqadmin` and dashboards to a broker, and of that broker to its clients. See `requests` for the form.

Importing this module makes the requests known under their codes.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.wire.codes import RequestCode
from pyromq.wire.fields import boolean, int32, int64, text
from pyromq.wire.requests.client import Request, register
from pyromq.wire.responses import Response

# --- topics ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class UpdateTopic(Request):
    """Make or change a topic."""

    CODE = RequestCode.UPDATE_AND_CREATE_TOPIC

    topic: str = text("topic")
    default_topic: str | None = text("defaultTopic", default=None)
    read_queues: int = int32("readQueueNums")
    write_queues: int = int32("writeQueueNums")
    permission: int = int32("perm")
    filter_type: str = text("topicFilterType", default="SINGLE_TAG")
    system_flag: int = int32("topicSysFlag", default=0)
    order: bool = boolean("order", default=False)
    #: `+key=value` sets, `-key` removes, separated by commas.
    attributes: str = text("attributes", default="")


@dataclass(slots=True, kw_only=True)
class UpdateTopicList(Request):
    """Several topics at once; the body has them."""

    CODE = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST


@dataclass(slots=True, kw_only=True)
class DeleteTopic(Request):
    CODE = RequestCode.DELETE_TOPIC_IN_BROKER

    topic: str = text("topic")


@dataclass(slots=True, kw_only=True)
class GetAllTopics(Request):
    """All topics, or a page of them: `first` counts from 0, and holds for the version that is named."""

    CODE = RequestCode.GET_ALL_TOPIC_CONFIG

    first: int | None = int32("topicSeq", default=None)
    version: str | None = text("dataVersion", default=None)
    most: int | None = int32("maxTopicNum", default=None)


@dataclass(slots=True, kw_only=True)
class AllTopicsAnswer(Response):
    total: int = int32("totalTopicNum")


@dataclass(slots=True, kw_only=True)
class GetTopic(Request):
    CODE = RequestCode.GET_TOPIC_CONFIG

    topic: str = text("topic")


@dataclass(slots=True, kw_only=True)
class GetTopicStats(Request):
    CODE = RequestCode.GET_TOPIC_STATS_INFO

    topic: str = text("topic")


@dataclass(slots=True, kw_only=True)
class GetBrokerSystemTopics(Request):
    CODE = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER


@dataclass(slots=True, kw_only=True)
class QueryGroupsOfTopic(Request):
    CODE = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO

    topic: str = text("topic")


@dataclass(slots=True, kw_only=True)
class QueryTopicsOfGroup(Request):
    CODE = RequestCode.QUERY_TOPICS_BY_CONSUMER

    group: str = text("group")


@dataclass(slots=True, kw_only=True)
class QuerySubscription(Request):
    CODE = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER

    group: str = text("group")
    topic: str | None = text("topic", default=None)


@dataclass(slots=True, kw_only=True)
class QueryTimeSpan(Request):
    CODE = RequestCode.QUERY_CONSUME_TIME_SPAN

    topic: str = text("topic")
    group: str = text("group")


@dataclass(slots=True, kw_only=True)
class QueryQueue(Request):
    """Entries of a consume queue."""

    CODE = RequestCode.QUERY_CONSUME_QUEUE

    topic: str = text("topic")
    queue_id: int = int32("queueId")
    first: int = int64("index", default=0)
    count: int = int32("count", default=10)
    group: str | None = text("consumerGroup", default=None)


@dataclass(slots=True, kw_only=True)
class CleanExpiredQueues(Request):
    CODE = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE


@dataclass(slots=True, kw_only=True)
class CleanUnusedTopics(Request):
    CODE = RequestCode.CLEAN_UNUSED_TOPIC


@dataclass(slots=True, kw_only=True)
class DeleteExpiredLog(Request):
    CODE = RequestCode.DELETE_EXPIRED_COMMITLOG


@dataclass(slots=True, kw_only=True)
class TriggerDeleteFiles(Request):
    CODE = RequestCode.TRIGGER_DELETE_FILES


# --- groups ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class UpdateGroup(Request):
    """Make or change a consumer group; the body has it."""

    CODE = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


@dataclass(slots=True, kw_only=True)
class UpdateGroupList(Request):
    CODE = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST


@dataclass(slots=True, kw_only=True)
class GetAllGroups(Request):
    """All groups, or a page of them, as `GetAllTopics`."""

    CODE = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG

    first: int | None = int32("groupSeq", default=None)
    version: str | None = text("dataVersion", default=None)
    most: int | None = int32("maxGroupNum", default=None)


@dataclass(slots=True, kw_only=True)
class AllGroupsAnswer(Response):
    total: int = int32("totalGroupNum")


@dataclass(slots=True, kw_only=True)
class GetGroup(Request):
    CODE = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG

    group: str = text("group")


@dataclass(slots=True, kw_only=True)
class DeleteGroup(Request):
    CODE = RequestCode.DELETE_SUBSCRIPTIONGROUP

    group: str = text("groupName")
    clean_offsets: bool = boolean("cleanOffset", default=False)


@dataclass(slots=True, kw_only=True)
class UpdateForbidden(Request):
    """May a group read a topic? Without `readable` it is only told."""

    CODE = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN

    group: str = text("group")
    topic: str = text("topic")
    readable: bool | None = boolean("readable", default=None)


# --- offsets ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class GetConsumeStats(Request):
    CODE = RequestCode.GET_CONSUME_STATS

    group: str = text("consumerGroup")
    topic: str | None = text("topic", default=None)
    #: Several, separated by semicolons.
    topics: str | None = text("topicList", default=None)


@dataclass(slots=True, kw_only=True)
class GetBrokerConsumeStats(Request):
    CODE = RequestCode.GET_BROKER_CONSUME_STATS

    only_ordered: bool = boolean("isOrder", default=False)


@dataclass(slots=True, kw_only=True)
class GetAllOffsets(Request):
    CODE = RequestCode.GET_ALL_CONSUMER_OFFSET

    #: A field of ours: only what changed after this token, which an earlier answer had, in standard JSON; everything if
    #: it is empty. RocketMQ tells everything.
    changed_since: str | None = text("changedSince", default=None)


@dataclass(slots=True, kw_only=True)
class GetAllDelayOffsets(Request):
    CODE = RequestCode.GET_ALL_DELAY_OFFSET


@dataclass(slots=True, kw_only=True)
class ResetOffset(Request):
    """Set a group's offsets by time, of all queues or one; a time below 0 means the end. Or one queue to an offset."""

    CODE = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET

    group: str = text("group")
    topic: str = text("topic")
    queue_id: int = int32("queueId", default=-1)
    #: -1: none is given.
    offset: int = int64("offset", default=-1)
    timestamp_ms: int = int64("timestamp", default=0)
    #: Forwards too. Without it a group is only ever set back.
    force: bool = boolean("isForce", default=False)


@dataclass(slots=True, kw_only=True)
class QueryCorrectionOffset(Request):
    CODE = RequestCode.QUERY_CORRECTION_OFFSET

    topic: str = text("topic")
    compare_group: str = text("compareGroup")
    #: Groups to leave out, separated by commas.
    filter_groups: str | None = text("filterGroups", default=None)


@dataclass(slots=True, kw_only=True)
class CloneOffsets(Request):
    CODE = RequestCode.CLONE_GROUP_OFFSET

    source: str = text("srcGroup")
    target: str = text("destGroup")
    topic: str | None = text("topic", default=None)
    #: Take also topics that the group does not subscribe to now.
    offline: bool = boolean("offline", default=False)


# --- clients ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class GetConsumerConnections(Request):
    CODE = RequestCode.GET_CONSUMER_CONNECTION_LIST

    group: str = text("consumerGroup")


@dataclass(slots=True, kw_only=True)
class GetProducerConnections(Request):
    CODE = RequestCode.GET_PRODUCER_CONNECTION_LIST

    group: str = text("producerGroup")


@dataclass(slots=True, kw_only=True)
class GetAllProducers(Request):
    CODE = RequestCode.GET_ALL_PRODUCER_INFO


@dataclass(slots=True, kw_only=True)
class GetRunningInfo(Request):
    """To the broker, and from it on to the client in the same form."""

    CODE = RequestCode.GET_CONSUMER_RUNNING_INFO

    group: str = text("consumerGroup")
    client_id: str = text("clientId")
    with_stacks: bool = boolean("jstackEnable", default=False)


@dataclass(slots=True, kw_only=True)
class ConsumeDirectly(Request):
    """A client shall consume this message now. To the broker, and from it on to the client with the message as body."""

    CODE = RequestCode.CONSUME_MESSAGE_DIRECTLY

    group: str = text("consumerGroup")
    client_id: str | None = text("clientId", default=None)
    message_id: str | None = text("msgId", default=None)
    broker_name: str | None = text("brokerName", default=None)
    topic: str | None = text("topic", default=None)
    topic_flags: int | None = int32("topicSysFlag", default=None)
    group_flags: int | None = int32("groupSysFlag", default=None)


@dataclass(slots=True, kw_only=True)
class GetConsumerStatus(Request):
    """How far is each client of a group?"""

    CODE = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS

    topic: str = text("topic")
    group: str = text("group")
    #: Ask this client only.
    client_id: str | None = text("clientAddr", default=None)


@dataclass(slots=True, kw_only=True)
class AskConsumerStatus(Request):
    """Broker to client: how far are you?"""

    CODE = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT

    topic: str = text("topic")
    group: str = text("group")


@dataclass(slots=True, kw_only=True)
class ResetClientOffsets(Request):
    """Broker to client: go on from these offsets. The body has them by queue."""

    CODE = RequestCode.RESET_CONSUMER_CLIENT_OFFSET

    topic: str = text("topic")
    group: str = text("group")
    timestamp_ms: int = int64("timestamp", default=0)
    force: bool = boolean("isForce", default=False)


# --- who consumes what -----------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class QueryAssignment(Request):
    """Which queues of a topic are this consumer's? The body has who asks and for what."""

    CODE = RequestCode.QUERY_ASSIGNMENT


@dataclass(slots=True, kw_only=True)
class SetRequestMode(Request):
    """Shall a group pull or pop a topic? The body has it."""

    CODE = RequestCode.SET_MESSAGE_REQUEST_MODE


@dataclass(slots=True, kw_only=True)
class GetRequestModes(Request):
    CODE = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE


# --- figures and settings --------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class GetRuntimeInfo(Request):
    CODE = RequestCode.GET_BROKER_RUNTIME_INFO


@dataclass(slots=True, kw_only=True)
class ViewStats(Request):
    CODE = RequestCode.VIEW_BROKER_STATS_DATA

    name: str = text("statsName")
    key: str = text("statsKey")


@dataclass(slots=True, kw_only=True)
class GetReplication(Request):
    """How far are the copies of this broker?"""

    CODE = RequestCode.GET_BROKER_HA_STATUS


@dataclass(slots=True, kw_only=True)
class GetBrokerConfig(Request):
    CODE = RequestCode.GET_BROKER_CONFIG


@dataclass(slots=True, kw_only=True)
class BrokerConfigAnswer(Response):
    #: A data version in JSON.
    version: str = text("version")


@dataclass(slots=True, kw_only=True)
class UpdateBrokerConfig(Request):
    """Lines of key=value."""

    CODE = RequestCode.UPDATE_BROKER_CONFIG


register(
    UpdateTopic, UpdateTopicList, DeleteTopic, GetAllTopics, GetTopic, GetTopicStats, GetBrokerSystemTopics,
    QueryGroupsOfTopic, QueryTopicsOfGroup, QuerySubscription, QueryTimeSpan, QueryQueue, CleanExpiredQueues,
    CleanUnusedTopics, DeleteExpiredLog, TriggerDeleteFiles, UpdateGroup, UpdateGroupList, GetAllGroups, GetGroup,
    DeleteGroup, UpdateForbidden, GetConsumeStats, GetBrokerConsumeStats, GetAllOffsets, GetAllDelayOffsets,
    ResetOffset, QueryCorrectionOffset, CloneOffsets, GetConsumerConnections, GetProducerConnections, GetAllProducers,
    GetRunningInfo, ConsumeDirectly, GetConsumerStatus, AskConsumerStatus, GetRuntimeInfo, ViewStats, GetBrokerConfig,
    UpdateBrokerConfig, QueryAssignment, SetRequestMode, GetRequestModes, GetReplication, ResetClientOffsets,
)  # fmt: skip
