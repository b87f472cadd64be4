"""Bodies of the name server: written and read back, as RocketMQ writes them, and whatever else may come."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import NotJson, WrongShape
from pyromq.model.data_version import DataVersion
from pyromq.model.topic import TopicConfig
from pyromq.wire.bodies import routes
from pyromq.wire.bodies.routes import (
    BrokerData,
    ClusterInfo,
    MemberGroup,
    QueueData,
    TopicConfigs,
    TopicList,
    TopicRoute,
    decode_data_version,
    decode_kv_table,
    decode_registration,
    encode_data_version,
    encode_kv_table,
    encode_registration,
)

NAMES = st.text(st.characters(codec="utf-8", exclude_characters=" "), min_size=1, max_size=10)
COUNTS = st.integers(0, 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
VERSIONS = st.builds(DataVersion, INT64, INT64, INT64)
TOPICS = st.builds(
    TopicConfig, NAMES, COUNTS, COUNTS, COUNTS, st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
    attributes=st.dictionaries(NAMES, st.text(st.characters(codec="utf-8"), max_size=5), max_size=2),
)  # fmt: skip
MAPPINGS = st.dictionaries(NAMES, st.integers(0, 9), max_size=2).map(
    lambda named: {topic: {"topic": topic, "totalQueues": count} for topic, count in named.items()}
)
CONFIGS = st.builds(
    TopicConfigs, VERSIONS, st.lists(TOPICS, max_size=4, unique_by=lambda topic: topic.name).map(tuple), MAPPINGS
)
QUEUES = st.builds(QueueData, NAMES, COUNTS, COUNTS, COUNTS, st.integers(-9, 9))
BROKERS = st.builds(
    BrokerData, NAMES, NAMES, st.dictionaries(INT64, NAMES, max_size=3), st.none() | NAMES, st.booleans()
)
ROUTES = st.builds(
    TopicRoute, st.lists(QUEUES, max_size=3).map(tuple), st.lists(BROKERS, max_size=3).map(tuple), st.none() | NAMES
)

NOW = 413  # RocketMQ 5.0.0


# --- as RocketMQ writes them -----------------------------------------------------------------------------------------

ROUTE = TopicRoute(
    (QueueData("broker-a", 8, 8, 6, 0),), (BrokerData("DefaultCluster", "broker-a", {0: "127.0.0.1:10911"}),)
)
#: RocketMQ's fastjson output for the same route.
BY_FASTJSON = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911"},"brokerName":"broker-a","cluster":"DefaultCluster",'
    b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
    b'"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}]}'
)


def test_a_route_of_rocketmq_is_read() -> None:
    assert TopicRoute.decode(BY_FASTJSON) == ROUTE


def test_a_route_has_bare_keys_for_old_clients_and_is_standard_json_for_new_ones() -> None:
    assert b'"brokerAddrs":{0:"127.0.0.1:10911"}' in ROUTE.encode(standard=False)
    form = json.loads(ROUTE.encode(standard=True))
    assert form["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.1:10911"}
    assert form["filterServerTable"] == {}
    assert "orderTopicConf" not in form


def test_a_registration_of_rocketmq_is_read() -> None:
    body = (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,"stateVersion":0,'
        b'"timestamp":1700000000000},"mappingDataVersion":{"counter":0,"stateVersion":0,"timestamp":1},'
        b'"topicConfigTable":{"T":{"attributes":{},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":'
        b'"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":4}},"topicQueueMappingDetailMap":{},'
        b'"topicQueueMappingInfoMap":{}}}'
    )
    configs = decode_registration(body, compressed=False, version=NOW)
    assert configs == TopicConfigs(DataVersion(1_700_000_000_000, 3), (TopicConfig("T", 4, 4, 6),))


def test_the_compressed_form_byte_by_byte() -> None:
    version = b'{"timestamp":1,"counter":2,"stateVersion":0}'
    topic = b'T 4 8 6 SINGLE_TAG {"a":"b c"}'
    mapping = b'{"topic":"T","currIdMap":{0:1}}'
    plain = b"".join(
        len(piece).to_bytes(4, "big") + piece if piece is not None else (1).to_bytes(4, "big")
        for piece in (version, None, topic, b"[]", None, mapping)
    )
    configs = decode_registration(zlib.compress(plain), compressed=True, version=NOW)
    assert configs == TopicConfigs(
        DataVersion(1, 2),
        (TopicConfig("T", 4, 8, 6, attributes={"a": "b c"}),),
        {"T": {"topic": "T", "currIdMap": {"0": 1}}},
    )


def test_an_older_broker_says_nothing_of_static_topics() -> None:
    configs = TopicConfigs(DataVersion(1, 2), (TopicConfig("T"),), {"T": {"topic": "T"}})
    data = encode_registration(configs, compressed=True)
    assert decode_registration(data, compressed=True, version=NOW - 1).mappings == {}


def test_a_very_old_broker_sends_its_topics_only() -> None:
    configs = TopicConfigs(DataVersion(1, 2), (TopicConfig("T"),))
    assert decode_registration(configs.encode(), compressed=False, version=36) == configs


def test_no_body_is_a_broker_without_topics() -> None:
    assert decode_registration(b"", compressed=False, version=NOW) == TopicConfigs(DataVersion())


def test_attributes_that_cannot_be_read_do_not_cost_the_topic() -> None:
    assert routes._read_topic_line(b"T 4 4 6 SINGLE_TAG {broken").attributes == {}
    assert routes._read_topic_line(b"T 4 4 6 SINGLE_TAG").name == "T"


# --- round trips -----------------------------------------------------------------------------------------------------


@given(CONFIGS, st.booleans())
def test_a_registration_is_read_back(configs: TopicConfigs, compressed: bool) -> None:
    data = encode_registration(configs, compressed=compressed)
    assert decode_registration(data, compressed=compressed, version=NOW) == configs


@given(ROUTES, st.booleans())
def test_a_route_is_read_back(route: TopicRoute, standard: bool) -> None:
    assert TopicRoute.decode(route.encode(standard=standard)) == route


@given(st.dictionaries(NAMES, BROKERS, max_size=3), st.dictionaries(NAMES, st.lists(NAMES).map(tuple)), st.booleans())
def test_cluster_info_is_read_back(
    brokers: dict[str, BrokerData], clusters: dict[str, tuple[str, ...]], standard: bool
) -> None:
    info = ClusterInfo(brokers, clusters)
    assert ClusterInfo.decode(info.encode(standard=standard)) == info


@given(st.lists(NAMES).map(tuple), st.none() | NAMES, st.dictionaries(NAMES, NAMES), VERSIONS)
def test_lists_tables_and_versions_are_read_back(
    topics: tuple[str, ...], address: str | None, table: dict[str, str], version: DataVersion
) -> None:
    assert TopicList.decode(TopicList(topics, address).encode()) == TopicList(topics, address)
    assert decode_kv_table(encode_kv_table(table)) == table
    assert decode_data_version(encode_data_version(version)) == version


def test_a_member_group_is_read_back() -> None:
    group = MemberGroup("c", "broker-a", {0: "h:1", 2: "h:2"})
    assert MemberGroup.decode(group.encode(standard=True)) == group
    assert group.encode(standard=False) == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"h:1",2:"h:2"},"brokerName":"broker-a","cluster":"c"}}'
    )


# --- hostile input ---------------------------------------------------------------------------------------------------

DECODERS: list[Callable[[bytes], object]] = [
    TopicRoute.decode,
    ClusterInfo.decode,
    MemberGroup.decode,
    TopicList.decode,
    TopicConfigs.decode,
    decode_kv_table,
    decode_data_version,
    lambda data: decode_registration(data, compressed=False, version=NOW),
    lambda data: decode_registration(data, compressed=True, version=NOW),
    lambda data: decode_registration(zlib.compress(data), compressed=True, version=NOW),
]
VALID = [BY_FASTJSON, encode_registration(TopicConfigs(DataVersion(1, 2), (TopicConfig("T"),)))]
JSON_OF_ANY_SHAPE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from([
            "brokerAddrs", "brokerAddrTable", "brokerDatas", "brokerMemberGroup", "brokerName", "clusterAddrTable",
            "counter", "dataVersion", "queueDatas", "table", "topicConfigSerializeWrapper", "topicConfigTable",
            "topicList", "topicName", "topicQueueMappingByBroker", "topicQueueMappingInfoMap", "0", "-",
        ]),
        inner,
        max_size=4,
    ),
)  # fmt: skip


@given(
    st.binary(max_size=80)
    | JSON_OF_ANY_SHAPE.map(lambda value: json.dumps(value).encode())
    | st.tuples(st.sampled_from(VALID), st.integers(0, 300), st.binary(max_size=3)).map(
        lambda cut: cut[0][: cut[1]] + cut[2] + cut[0][cut[1] + 1 :]
    )
)
def test_whatever_the_bytes_are_only_typed_errors(data: bytes) -> None:
    for decode in DECODERS:
        with contextlib.suppress(NotJson, WrongShape):
            decode(data)


def test_a_zip_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_INFLATED_BYTES", 1 << 20)
    bomb = zlib.compress(bytes(64 << 20))
    with pytest.raises(WrongShape, match="unpacks to more than 1048576 bytes"):
        decode_registration(bomb, compressed=True, version=NOW)


def test_half_of_a_compressed_body_is_refused() -> None:
    data = encode_registration(TopicConfigs(DataVersion(1, 2), (TopicConfig("T"),)), compressed=True)
    with pytest.raises(WrongShape, match="end is missing"):
        decode_registration(data[:-8], compressed=True, version=NOW)


@pytest.mark.parametrize("count", [-1, 2**31 - 1])
def test_a_count_that_cannot_be_is_refused_before_anything_is_kept_for_it(count: int) -> None:
    version = b'{"timestamp":1,"counter":2}'
    plain = len(version).to_bytes(4, "big") + version + count.to_bytes(4, "big", signed=True)
    with pytest.raises(WrongShape, match="bytes left"):
        decode_registration(zlib.compress(plain), compressed=True, version=NOW)


@pytest.mark.parametrize("compressed", [False, True])
def test_topics_without_end_are_refused_before_they_are_read(compressed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_TOPICS", 2)
    data = encode_registration(
        TopicConfigs(DataVersion(1, 2), tuple(TopicConfig(name) for name in "abc")), compressed=compressed
    )
    with pytest.raises(WrongShape, match="it has 3 topics; 2 are the limit"):
        decode_registration(data, compressed=compressed, version=NOW)
