"""Bodies of admin requests: as RocketMQ's classes write and read them, letter by letter; and whatever else may come."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import BadRequest
from pyromq.model.data_version import DataVersion
from pyromq.model.group import GroupConfig
from pyromq.model.topic import TopicConfig
from pyromq.wire import fastjson
from pyromq.wire.bodies.connections import (
    ClientConnection,
    ConsumerConnections,
    encode_all_producers,
    encode_producer_connections,
    encode_subscription,
    subscription_json,
)
from pyromq.wire.bodies.locks import MessageQueue
from pyromq.wire.bodies.offsets import (
    all_offsets_pieces,
    decode_client_status,
    encode_consumer_status,
    encode_correction,
    encode_delay_offsets,
    encode_reset,
)
from pyromq.wire.bodies.stats import (
    ConsumeStats,
    QueueEntryInfo,
    QueueProgress,
    QueueRange,
    Rate,
    TimeSpan,
    broker_consume_stats_pieces,
    consume_stats_pieces,
    encode_queue_entries,
    encode_rates,
    time_span_pieces,
    topic_stats_pieces,
)
from pyromq.wire.bodies.topics_and_groups import (
    decode_group,
    encode_forbidden,
    encode_group,
    encode_group_names,
    encode_topic,
    group_table_pieces,
    groups_in,
    topics_in,
)
from pyromq.wire.command import Command
from pyromq.wire.requests import admin
from pyromq.wire.requests.admin import ResetOffset, UpdateTopic
from pyromq.wire.requests.client import Request, decode_request, encode_request, known_requests

QUEUE = MessageQueue("orders", "broker-a", 0)
QUEUE_FORM = b'{"brokerName":"broker-a","queueId":0,"topic":"orders"}'
STATS = ConsumeStats([(QUEUE, QueueProgress(9, 4, 6, 77))], 1.5)
STATS_FORM = (
    b'{"consumeTps":1.5,"offsetTable":{%b:'
    b'{"brokerOffset":9,"consumerOffset":4,"lastTimestamp":77,"pullOffset":6}}}' % QUEUE_FORM
)
CLIENT = ClientConnection("c1", "10.0.0.1:7", "JAVA", 513, 99)
CLIENT_FORM = b'{"clientAddr":"10.0.0.1:7","clientId":"c1","language":"JAVA","version":513}'
SUBSCRIPTION = subscription_json("orders", "B || A", "TAG", 3, {"B", "A"}, {66, 65})
SUBSCRIPTION_FORM = (
    b'{"classFilterMode":false,"codeSet":[65,66],"expressionType":"TAG","subString":"B || A","subVersion":3,'
    b'"tagsSet":["A","B"],"topic":"orders"}'
)
VERSION = DataVersion(5, 6, 7)
VERSION_FORM = b'{"timestamp":5,"counter":6,"stateVersion":7}'

#: Our JSON, and the letters that RocketMQ's classes (named next to each) read.
WRITTEN = {
    "TopicStatsTable": (
        b"".join(topic_stats_pieces([(QUEUE, QueueRange(1, 9, 77))], 2)),
        b'{"offsetTable":{%b:{"lastUpdateTimestamp":77,"maxOffset":9,"minOffset":1}},"topicPutTps":2.0}' % QUEUE_FORM,
    ),
    "TopicStatsTable, empty": (b"".join(topic_stats_pieces([], 0)), b'{"offsetTable":{},"topicPutTps":0.0}'),
    "ConsumeStats": (b"".join(consume_stats_pieces(STATS.queues, STATS.tps)), STATS_FORM),
    "ConsumeStatsList": (
        b"".join(broker_consume_stats_pieces("10.0.0.9:10911", [("shop", [STATS]), ("idle", [])])),
        b'{"brokerAddr":"10.0.0.9:10911","consumeStatsList":[{"shop":[%b]},{"idle":[]}],"totalDiff":5,'
        b'"totalInflightDiff":2}' % STATS_FORM,
    ),
    "QueryConsumeTimeSpanBody": (
        b"".join(time_span_pieces([TimeSpan(QUEUE, 1, 2, 3, 4)])),
        b'{"consumeTimeSpanSet":[{"consumeTimeStamp":3,"delayTime":4,"maxTimeStamp":2,"messageQueue":%b,'
        b'"minTimeStamp":1}]}' % QUEUE_FORM,
    ),
    "BrokerStatsData": (
        encode_rates(Rate(6, 0.1, 2), Rate(), Rate(7)),
        b'{"statsDay":{"avgpt":0.0,"sum":7,"tps":0.0},"statsHour":{"avgpt":0.0,"sum":0,"tps":0.0},'
        b'"statsMinute":{"avgpt":2.0,"sum":6,"tps":0.1}}',
    ),
    "QueryConsumeQueueResponseBody": (
        encode_queue_entries([QueueEntryInfo(100, 20, -5)], 1, 2, subscription=SUBSCRIPTION, filter_data="null"),
        b'{"maxQueueIndex":2,"minQueueIndex":1,"queueData":[{"eval":false,"physicOffset":100,"physicSize":20,'
        b'"tagsCode":-5}],"subscriptionData":%b,"filterData":"null"}' % SUBSCRIPTION_FORM,
    ),
    "ResetOffsetBody": (encode_reset([(QUEUE, 42)]), b'{"offsetTable":{%b:42}}' % QUEUE_FORM),
    "QueryCorrectionOffsetBody": (encode_correction({0: 4, 1: 9}), b'{"correctionOffsets":{0:4,1:9}}'),
    "ConsumerOffsetSerializeWrapper": (
        b"".join(all_offsets_pieces(VERSION, {"orders@shop": {0: 4}})),
        b'{"dataVersion":%b,"offsetTable":{"orders@shop":{0:4}}}' % VERSION_FORM,
    ),
    "DelayOffsetSerializeWrapper": (
        encode_delay_offsets(VERSION, {3: 12}),
        b'{"dataVersion":%b,"offsetTable":{3:12}}' % VERSION_FORM,
    ),
    "GetConsumerStatusBody": (
        encode_consumer_status({"c1": decode_client_status(b'{"messageQueueTable":{%b:7}}' % QUEUE_FORM)}),
        b'{"consumerTable":{"c1":{%b:7}},"messageQueueTable":{}}' % QUEUE_FORM,
    ),
    "ConsumerConnection": (
        ConsumerConnections(
            [CLIENT], {"orders": SUBSCRIPTION}, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET"
        ).encode(),
        b'{"connectionSet":[%b],"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY",'
        b'"messageModel":"CLUSTERING","subscriptionTable":{"orders":%b}}' % (CLIENT_FORM, SUBSCRIPTION_FORM),
    ),
    "ProducerConnection": (encode_producer_connections([CLIENT]), b'{"connectionSet":[%b]}' % CLIENT_FORM),
    "ProducerTableInfo": (
        encode_all_producers({"makers": [CLIENT]}),
        b'{"data":{"makers":[{"clientId":"c1","language":"JAVA","lastUpdateTimestamp":99,"remoteIP":"10.0.0.1:7",'
        b'"version":513}]}}',
    ),
    "QuerySubscriptionResponseBody": (
        encode_subscription("shop", "orders", SUBSCRIPTION),
        b'{"group":"shop","topic":"orders","subscriptionData":%b}' % SUBSCRIPTION_FORM,
    ),
    "TopicConfigAndQueueMapping": (
        encode_topic(TopicConfig("orders", 4, 8, 6, attributes={"message.type": "FIFO"})),
        b'{"topicName":"orders","readQueueNums":4,"writeQueueNums":8,"perm":6,"topicFilterType":"SINGLE_TAG",'
        b'"topicSysFlag":0,"order":false,"attributes":{"message.type":"FIFO"}}',
    ),
    "GroupList": (encode_group_names({"b", "a"}), b'{"groupList":["a","b"]}'),
    "GroupForbidden": (
        encode_forbidden("shop", "orders", readable=False),
        b'{"group":"shop","readable":false,"topic":"orders"}',
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_body_is_written_as_rocketmq_reads_it(name: str) -> None:
    ours, theirs = WRITTEN[name]
    assert ours.decode() == theirs.decode()


def test_groups_are_written_with_everything_that_rocketmq_knows_of_them() -> None:
    form = fastjson.loads(b"".join(group_table_pieces(VERSION, [GroupConfig("shop")], {"shop": {"orders": 4}})))
    assert form["forbiddenTable"] == {"shop": {"orders": 4}}
    assert form["dataVersion"] == {"timestamp": 5, "counter": 6, "stateVersion": 7}
    assert form["subscriptionGroupTable"]["shop"]["retryMaxTimes"] == 16
    assert decode_group(encode_group(GroupConfig("shop", max_retries=3))) == GroupConfig("shop", max_retries=3)


def test_lists_that_tools_send() -> None:
    body = b'{"topicConfigList":[{"order":false,"perm":6,"readQueueNums":2,"topicFilterType":"SINGLE_TAG",'
    body += b'"topicName":"a","topicSysFlag":0,"writeQueueNums":2,"attributes":{}}]}'
    assert tuple(topics_in(body)) == (TopicConfig("a", 2, 2),)
    assert tuple(groups_in(b'{"groupConfigList":[{"groupName":"g"}]}')) == (GroupConfig("g"),)
    assert tuple(groups_in(b"{}")) == ()


@given(st.binary(max_size=60) | st.sampled_from([b"{}", b"[]", b"null", b'{"groupName":1}', b'{"topicConfigList":7}']))
def test_whatever_comes_is_a_value_or_a_bad_request(body: bytes) -> None:
    decoders: list[Callable[[bytes], object]] = [
        lambda body: list(topics_in(body)),
        decode_group,
        lambda body: list(groups_in(body)),
    ]
    for decode in decoders:
        with contextlib.suppress(BadRequest):
            decode(body)
    decode_client_status(body)


ADMIN_REQUESTS = [kind for kind in known_requests().values() if kind.__module__ == admin.__name__]


@pytest.mark.parametrize("kind", ADMIN_REQUESTS, ids=lambda kind: kind.__name__)
def test_a_request_without_its_fields_is_a_bad_request_or_has_none(kind: type[Request]) -> None:
    with contextlib.suppress(BadRequest):
        assert isinstance(decode_request(Command(code=kind.CODE)), kind)


def test_a_reset_as_mqadmin_sends_it() -> None:
    fields = {"topic": "orders", "group": "shop", "timestamp": "-1", "isForce": "true", "offset": "-1", "queueId": "-1"}
    request = decode_request(Command(code=222, fields=fields))
    assert isinstance(request, ResetOffset)
    assert (request.timestamp_ms, request.force, request.offset, request.queue_id) == (-1, True, -1, -1)
    assert encode_request(request, 1).fields == fields


def test_a_topic_as_mqadmin_sends_it() -> None:
    fields = {
        "topic": "orders", "defaultTopic": "TBW102", "readQueueNums": "8", "writeQueueNums": "8", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": "+message.type=FIFO",
        "force": "false",
    }  # fmt: skip
    request = decode_request(Command(code=17, fields=fields))
    assert isinstance(request, UpdateTopic)
    assert (request.read_queues, request.attributes, request.order) == (8, "+message.type=FIFO", False)
