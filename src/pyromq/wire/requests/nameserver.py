"""Requests to a name server, by brokers, clients and admin tools, and the fields of its answers.

Field names on the wire are given once, with the attributes: see `fields`. The bodies are in `bodies.routes`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.wire.codes import RequestCode
from pyromq.wire.fields import boolean, int32, int64, text
from pyromq.wire.requests.client import Request, register
from pyromq.wire.responses import Response

# --- brokers ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class RegisterBroker(Request):
    """A broker is there, with these topics (the body): sent at start, now and then, and when its topics change."""

    CODE = RequestCode.REGISTER_BROKER

    broker_name: str = text("brokerName")
    address: str = text("brokerAddr")
    cluster: str = text("clusterName")
    #: The replication address for its slaves.
    ha_address: str = text("haServerAddr", default="")
    broker_id: int = int64("brokerId")
    #: The broker expires after this silence; None: after the name server's own time.
    timeout_ms: int | None = int64("heartbeatTimeoutMillis", default=None)
    #: True if a slave may stand in for a missing master. None: the broker is older than that feature.
    acting_master: bool | None = boolean("enableActingMaster", default=None)
    compressed: bool = boolean("compressed", default=False)
    #: CRC-32 of the body without its sign bit; 0: not calculated.
    body_crc: int = int32("bodyCrc32", default=0)
    zone: str | None = text("__ZONE_NAME", default=None)


@dataclass(slots=True, kw_only=True)
class UnregisterBroker(Request):
    CODE = RequestCode.UNREGISTER_BROKER

    broker_name: str = text("brokerName")
    address: str = text("brokerAddr")
    cluster: str = text("clusterName")
    broker_id: int = int64("brokerId")


@dataclass(slots=True, kw_only=True)
class QueryDataVersion(Request):
    """Does the name server have this version of a broker's topics (the body)? Counts as a sign of life too."""

    CODE = RequestCode.QUERY_DATA_VERSION

    broker_name: str = text("brokerName")
    address: str = text("brokerAddr")
    cluster: str = text("clusterName")
    broker_id: int = int64("brokerId")


@dataclass(slots=True, kw_only=True)
class BrokerHeartbeat(Request):
    """A sign of life. What else it says is for controllers, which elect masters."""

    CODE = RequestCode.BROKER_HEARTBEAT

    cluster: str = text("clusterName")
    address: str = text("brokerAddr")
    broker_name: str = text("brokerName")
    broker_id: int | None = int64("brokerId", default=None)
    epoch: int | None = int32("epoch", default=None)
    max_offset: int | None = int64("maxOffset", default=None)
    confirm_offset: int | None = int64("confirmOffset", default=None)
    timeout_ms: int | None = int64("heartbeatTimeoutMills", default=None)
    election_priority: int | None = int32("electionPriority", default=None)


@dataclass(slots=True, kw_only=True)
class GetMemberGroup(Request):
    """Which brokers share this name?"""

    CODE = RequestCode.GET_BROKER_MEMBER_GROUP

    cluster: str = text("clusterName", default="")
    broker_name: str = text("brokerName")


@dataclass(slots=True, kw_only=True)
class RegisterTopic(Request):
    """Put a topic's queues (the body: a route) into the table, without a broker's registration."""

    CODE = RequestCode.REGISTER_TOPIC_IN_NAMESRV

    topic: str = text("topic")


# --- routes and lists ------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class GetRoute(Request):
    CODE = RequestCode.GET_ROUTEINFO_BY_TOPIC

    topic: str = text("topic")
    standard_json_only: bool = boolean("acceptStandardJsonOnly", default=False)


@dataclass(slots=True, kw_only=True)
class GetClusterInfo(Request):
    CODE = RequestCode.GET_BROKER_CLUSTER_INFO


@dataclass(slots=True, kw_only=True)
class GetTopicList(Request):
    CODE = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER


@dataclass(slots=True, kw_only=True)
class GetTopicsOfCluster(Request):
    CODE = RequestCode.GET_TOPICS_BY_CLUSTER

    cluster: str = text("cluster")


@dataclass(slots=True, kw_only=True)
class GetSystemTopics(Request):
    CODE = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS


@dataclass(slots=True, kw_only=True)
class GetUnitTopics(Request):
    """Topics of one of several data centres that share a service."""

    CODE = RequestCode.GET_UNIT_TOPIC_LIST


@dataclass(slots=True, kw_only=True)
class GetUnitSubscribedTopics(Request):
    """Topics that such a data centre subscribes to."""

    CODE = RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST


@dataclass(slots=True, kw_only=True)
class GetUnitSubscribedCommonTopics(Request):
    """Topics that such a data centre subscribes to and that belong to none."""

    CODE = RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST


# --- admin -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class DeleteTopicFromNameServer(Request):
    CODE = RequestCode.DELETE_TOPIC_IN_NAMESRV

    topic: str = text("topic")
    #: Only from the brokers of this cluster; None or empty: from all.
    cluster: str | None = text("clusterName", default=None)


@dataclass(slots=True, kw_only=True)
class WipeWritePermission(Request):
    CODE = RequestCode.WIPE_WRITE_PERM_OF_BROKER

    broker_name: str = text("brokerName")


@dataclass(slots=True, kw_only=True)
class AddWritePermission(Request):
    CODE = RequestCode.ADD_WRITE_PERM_OF_BROKER

    broker_name: str = text("brokerName")


@dataclass(slots=True, kw_only=True)
class PutKv(Request):
    CODE = RequestCode.PUT_KV_CONFIG

    namespace: str = text("namespace")
    key: str = text("key")
    value: str = text("value")


@dataclass(slots=True, kw_only=True)
class GetKv(Request):
    CODE = RequestCode.GET_KV_CONFIG

    namespace: str = text("namespace")
    key: str = text("key")


@dataclass(slots=True, kw_only=True)
class DeleteKv(Request):
    CODE = RequestCode.DELETE_KV_CONFIG

    namespace: str = text("namespace")
    key: str = text("key")


@dataclass(slots=True, kw_only=True)
class GetKvList(Request):
    CODE = RequestCode.GET_KVLIST_BY_NAMESPACE

    namespace: str = text("namespace")


@dataclass(slots=True, kw_only=True)
class UpdateNameServerConfig(Request):
    CODE = RequestCode.UPDATE_NAMESRV_CONFIG


@dataclass(slots=True, kw_only=True)
class GetNameServerConfig(Request):
    CODE = RequestCode.GET_NAMESRV_CONFIG


register(
    RegisterBroker, UnregisterBroker, QueryDataVersion, BrokerHeartbeat, GetMemberGroup, RegisterTopic, GetRoute,
    GetClusterInfo, GetTopicList, GetTopicsOfCluster, GetSystemTopics, GetUnitTopics, GetUnitSubscribedTopics,
    GetUnitSubscribedCommonTopics, DeleteTopicFromNameServer, WipeWritePermission, AddWritePermission, PutKv, GetKv,
    DeleteKv, GetKvList, UpdateNameServerConfig, GetNameServerConfig,
)  # fmt: skip


# --- answers ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class RegisterAnswer(Response):
    """To a slave: where its master is. The body has the order settings of all topics."""

    ha_address: str | None = text("haServerAddr", default=None)
    master_address: str | None = text("masterAddr", default=None)


@dataclass(slots=True, kw_only=True)
class DataVersionAnswer(Response):
    """The body has the version that the name server knows, if it knows one."""

    changed: bool = boolean("changed")


@dataclass(slots=True, kw_only=True)
class WipeAnswer(Response):
    topics: int = int32("wipeTopicCount")


@dataclass(slots=True, kw_only=True)
class AddAnswer(Response):
    topics: int = int32("addTopicCount")


@dataclass(slots=True, kw_only=True)
class KvAnswer(Response):
    value: str = text("value")
