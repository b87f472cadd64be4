"""Apache's own admin tool, unmodified: the essential content of what its commands print."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import pytest

from interop.support.cluster import Cluster
from interop.support.java_client import (
    BROKER_NAME,
    CLUSTER_NAME,
    JavaClient,
    Producer,
    bodies,
    eventually,
    everything,
    message,
    numbered,
)

pytestmark = pytest.mark.interop

MqAdmin = Callable[..., str]
#: The first line of a stack trace.
FAILED = re.compile(r"^(org\.apache|java)\S*Exception", re.MULTILINE)


@pytest.fixture
def mqadmin(java: JavaClient) -> MqAdmin:
    """Runs a command, and shows what it printed if that holds a stack trace."""

    def run(*arguments: str) -> str:
        said = java.mqadmin(*arguments)
        assert not FAILED.search(said), said
        return said

    return run


@pytest.fixture(scope="module")
def producer(java: JavaClient) -> Iterator[Producer]:
    with java.producer("mqadmin-producers") as opened:
        yield opened


def rows(said: str, first: str) -> list[list[str]]:
    """The words of each line that begins with `first`."""
    return [line.split() for line in said.splitlines() if line.split()[:1] == [first]]


# --- Topics ----------------------------------------------------------------------------------------


def test_update_topic_makes_one_and_changes_it(mqadmin: MqAdmin, cluster: Cluster, topic: str) -> None:
    made = mqadmin("updateTopic", "-b", cluster.broker_address, "-t", topic, "-r", "3", "-w", "3")
    assert f"create topic to {cluster.broker_address} success" in made
    assert '"readQueueNums":3' in mqadmin("topicRoute", "-t", topic).replace(" ", "")
    mqadmin("updateTopic", "-c", CLUSTER_NAME, "-t", topic, "-r", "5", "-w", "5")
    route = mqadmin("topicRoute", "-t", topic).replace(" ", "")
    assert '"readQueueNums":5' in route
    assert f'"brokerName":"{BROKER_NAME}"' in route
    assert cluster.broker_address in route


def test_topic_list_and_where_a_topic_lives(mqadmin: MqAdmin, java: JavaClient, topic: str) -> None:
    java.create_topic(topic)
    listed = mqadmin("topicList").split()
    assert topic in listed
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "SELF_TEST_TOPIC", CLUSTER_NAME} <= set(listed)
    assert mqadmin("topicClusterList", "-t", topic).split() == [CLUSTER_NAME]
    assert [CLUSTER_NAME, topic] in rows(mqadmin("topicList", "-c"), CLUSTER_NAME)


def test_topic_status_shows_every_queue(mqadmin: MqAdmin, java: JavaClient, producer: Producer, topic: str) -> None:
    java.create_topic(topic, queues=2)
    producer.send_to_queue(1, *numbered(topic, 3))
    status = eventually(
        lambda: rows(mqadmin("topicStatus", "-t", topic), BROKER_NAME), lambda shown: shown[1][2:4] == ["0", "3"]
    )
    assert [row[1:4] for row in status] == [["0", "0", "0"], ["1", "0", "3"]]
    year = re.compile(r"\d{4}-\d{2}-\d{2}")
    assert year.match(status[1][4])


def test_a_topics_permission(mqadmin: MqAdmin, java: JavaClient, cluster: Cluster, topic: str) -> None:
    java.create_topic(topic)
    said = mqadmin("updateTopicPerm", "-b", cluster.broker_address, "-t", topic, "-p", "4")
    assert f"update topic perm from 6 to 4 in {cluster.broker_address} success" in said
    assert '"perm":4' in mqadmin("topicRoute", "-t", topic).replace(" ", "")
    assert "update topic perm from 4 to 6" in mqadmin("updateTopicPerm", "-c", CLUSTER_NAME, "-t", topic, "-p", "6")


def test_delete_topic(mqadmin: MqAdmin, java: JavaClient, producer: Producer, topic: str) -> None:
    java.create_topic(topic)
    producer.send(message(topic, "soon gone"))
    assert f"delete topic [{topic}] from cluster [{CLUSTER_NAME}] success" in mqadmin(
        "deleteTopic", "-c", CLUSTER_NAME, "-t", topic
    )
    assert topic not in mqadmin("topicList").split()
    assert "CODE: 17" in java.mqadmin("topicRoute", "-t", topic)


def test_order_and_kv_configuration(mqadmin: MqAdmin, java: JavaClient, topic: str) -> None:
    java.create_topic(topic, order=True)
    order = f"{BROKER_NAME}:4"
    assert "success" in mqadmin("updateOrderConf", "-t", topic, "-m", "put", "-v", order)
    assert f"orderConf=[{order}]" in mqadmin("updateOrderConf", "-t", topic, "-m", "get")
    assert "success" in mqadmin("updateOrderConf", "-t", topic, "-m", "delete")
    assert "success" in mqadmin("updateKvConfig", "-s", "MY_NAMESPACE", "-k", topic, "-v", "value")
    assert "success" in mqadmin("deleteKvConfig", "-s", "MY_NAMESPACE", "-k", topic)


# --- Broker and name server ------------------------------------------------------------------------


def test_cluster_list(mqadmin: MqAdmin, cluster: Cluster) -> None:
    [row] = rows(mqadmin("clusterList"), CLUSTER_NAME)
    assert row[:4] == [CLUSTER_NAME, BROKER_NAME, "0", cluster.broker_address]
    assert row[4].startswith("V")  # the version
    [more] = rows(mqadmin("clusterList", "-m"), CLUSTER_NAME)
    assert more[1] == BROKER_NAME


def test_broker_status(mqadmin: MqAdmin, cluster: Cluster) -> None:
    said = mqadmin("brokerStatus", "-b", cluster.broker_address)
    shown = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
    names = {name.strip() for name in shown}
    assert {
        "bootTimestamp",
        "brokerVersionDesc",
        "commitLogMaxOffset",
        "commitLogMinOffset",
        "getTotalTps",
        "msgPutTotalTodayNow",
        "msgGetTotalTodayNow",
        "putTps",
        "runtime",
        "commitLogDiskRatio",
        "consumeQueueDiskRatio",
        "remainHowManyDataToFlush",
    } <= names
    assert "bootTimestamp" in mqadmin("brokerStatus", "-c", CLUSTER_NAME)


def test_broker_settings_are_shown_and_only_some_are_changed(
    mqadmin: MqAdmin, java: JavaClient, cluster: Cluster
) -> None:
    broker = cluster.broker_address

    def setting(name: str) -> str:
        shown = mqadmin("getBrokerConfig", "-b", broker)
        [value] = re.findall(rf"^{name}\s*=\s*(.*?)\s*$", shown, re.MULTILINE)
        assert isinstance(value, str)
        return value

    assert setting("brokerName") == BROKER_NAME
    assert setting("brokerClusterName") == CLUSTER_NAME
    before = setting("fileReservedTime")
    said = mqadmin("updateBrokerConfig", "-b", broker, "-k", "fileReservedTime", "-v", "71")
    assert f"update broker config success, {broker}" in said
    assert setting("fileReservedTime") == "71"
    mqadmin("updateBrokerConfig", "-b", broker, "-k", "fileReservedTime", "-v", before)
    # Paths are among what no request may change.
    refused = java.mqadmin("updateBrokerConfig", "-b", broker, "-k", "brokerConfigPath", "-v", "/tmp/elsewhere")
    assert FAILED.search(refused), refused
    assert "elsewhere" not in mqadmin("getBrokerConfig", "-b", broker)


def test_name_server_settings(mqadmin: MqAdmin, cluster: Cluster) -> None:
    said = mqadmin("getNamesrvConfig", "-n", cluster.namesrv_address)
    assert f"={cluster.namesrv_address}=" in said
    assert re.search(rf"listenPort\s*=\s*{cluster.namesrv_address.split(':')[1]}", said)


def test_write_permission_is_wiped_and_given_back(
    mqadmin: MqAdmin, java: JavaClient, cluster: Cluster, topic: str
) -> None:
    java.create_topic(topic)
    try:
        wiped = mqadmin("wipeWritePerm", "-b", BROKER_NAME)
        assert f"wipe write perm of broker[{BROKER_NAME}] in name server[{cluster.namesrv_address}] OK" in wiped
        assert '"perm":4' in mqadmin("topicRoute", "-t", topic).replace(" ", "")
    finally:
        added = mqadmin("addWritePerm", "-b", BROKER_NAME)
    assert f"add write perm of broker[{BROKER_NAME}] in name server[{cluster.namesrv_address}] OK" in added
    assert '"perm":6' in mqadmin("topicRoute", "-t", topic).replace(" ", "")


def test_topics_that_are_made_later_do_not_end_a_wipe(mqadmin: MqAdmin, java: JavaClient, topic: str) -> None:
    java.create_topic(topic)
    mqadmin("wipeWritePerm", "-b", BROKER_NAME)
    try:
        mqadmin("updateTopic", "-c", CLUSTER_NAME, "-t", f"{topic}-later", "-r", "3", "-w", "3")
        assert '"perm":4' in mqadmin("topicRoute", "-t", topic).replace(" ", "")
    finally:
        mqadmin("addWritePerm", "-b", BROKER_NAME)


def test_replication_of_a_lone_master(mqadmin: MqAdmin, cluster: Cluster) -> None:
    for where in (("-b", cluster.broker_address), ("-c", CLUSTER_NAME)):
        said = mqadmin("haStatus", *where)
        assert re.search(r"#MasterAddr\s+" + re.escape(cluster.broker_address), said)
        assert re.search(r"#InSyncSlaveNum\s+0", said)


# --- Groups and their progress ---------------------------------------------------------------------


def test_a_group_is_set_to_pull(mqadmin: MqAdmin, java: JavaClient, cluster: Cluster, topic: str, group: str) -> None:
    java.create_topic(topic)
    mqadmin("updateSubGroup", "-b", cluster.broker_address, "-g", group)
    said = mqadmin("setConsumeMode", "-b", cluster.broker_address, "-t", topic, "-g", group, "-m", "PULL")
    assert f"set consume mode to {cluster.broker_address} success" in said


def test_a_group_is_made_shown_and_deleted(mqadmin: MqAdmin, java: JavaClient, cluster: Cluster, group: str) -> None:
    said = mqadmin("updateSubGroup", "-b", cluster.broker_address, "-g", group, "-r", "7", "-q", "2")
    assert "create subscription group to" in said
    shown = mqadmin("getConsumerConfig", "-g", group)
    assert re.search(r"retryMaxTimes\s*=\s*7\b", shown)
    assert re.search(r"retryQueueNums\s*=\s*2\b", shown)
    mqadmin("updateSubGroup", "-c", CLUSTER_NAME, "-g", group, "-r", "9")
    assert re.search(r"retryMaxTimes\s*=\s*9\b", mqadmin("getConsumerConfig", "-g", group))
    assert "success" in mqadmin("deleteSubGroup", "-b", cluster.broker_address, "-g", group)
    # If groups are created automatically, the request itself creates it again, as new.
    assert not re.search(r"retryMaxTimes\s*=\s*9\b", java.mqadmin("getConsumerConfig", "-g", group))


def test_a_live_groups_progress_connection_and_status(
    mqadmin: MqAdmin, java: JavaClient, producer: Producer, topic: str, group: str
) -> None:
    java.create_topic(topic, queues=2)
    settings = {"persistConsumerOffsetInterval": 500}
    with java.push(group, {"topic": topic, "tags": "A || B"}, set=settings) as consumer:
        producer.send_to_queue(0, *numbered(topic, 4, tags="A"))
        consumer.received(4)
        progress = eventually(
            lambda: mqadmin("consumerProgress", "-g", group),
            lambda said: [topic, BROKER_NAME, "0", "4", "4"] in [row[:5] for row in rows(said, topic)],
        )
        assert "Consume Diff Total: 0" in progress
        with_ips = mqadmin("consumerProgress", "-g", group, "-s", "true")
        assert "127.0.0.1" in with_ips
        assert any(row[0] == group for row in rows(mqadmin("consumerProgress"), group))

        connection = mqadmin("consumerConnection", "-g", group)
        [row] = rows(connection, consumer.client_id())
        assert row[1].startswith("127.0.0.1:")
        assert row[2] == "JAVA"
        assert "A || B" in connection
        assert "ConsumeType: CONSUME_PASSIVELY" in connection
        assert "MessageModel: CLUSTERING" in connection
        assert "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET" in connection

        status = mqadmin("consumerStatus", "-g", group)
        assert consumer.client_id() in status
        assert "Rebalance OK" in status
        running = mqadmin("consumerStatus", "-g", group, "-i", consumer.client_id())
        assert "#Consumer Subscription#" in running
        assert topic in running
        stack = mqadmin("consumerStatus", "-g", group, "-i", consumer.client_id(), "-s")
        assert "Consumer jstack" in stack or "TID" in stack


def test_producers_are_shown(
    mqadmin: MqAdmin, java: JavaClient, producer: Producer, cluster: Cluster, topic: str
) -> None:
    java.create_topic(topic)
    with java.producer("shown-producers", heartbeatBrokerInterval=500) as shown:
        shown.send(message(topic, "x"))
        said = eventually(
            lambda: java.mqadmin("producerConnection", "-g", "shown-producers", "-t", topic),
            lambda said: shown.name in said,
        )
        assert "127.0.0.1:" in said
        assert "JAVA" in said
        everybody = mqadmin("producer", "-b", cluster.broker_address)
        assert "producer group (shown-producers) instance" in everybody
        assert shown.name in everybody


def test_progress_is_set_back_cloned_and_skipped(
    mqadmin: MqAdmin, java: JavaClient, producer: Producer, topic: str, group: str
) -> None:
    java.create_topic(topic, queues=1)
    start = str(int(time.time() * 1000))
    producer.send(*numbered(topic, 6))
    with java.push(group, everything(topic)) as consumer:
        consumer.received(6)
        consumer.close()
    said = mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", start)
    assert [BROKER_NAME, "0", "0"] in rows(said, BROKER_NAME), said
    assert "Consume Diff Total: 6" in mqadmin("consumerProgress", "-g", group)

    heir = f"{group}-heir"
    java.create_group(heir)
    java.create_topic(f"%RETRY%{heir}", queues=1)  # the tool finds the group's brokers by this topic
    assert "success" in mqadmin("cloneGroupOffset", "-s", group, "-d", heir, "-t", topic)
    assert "Consume Diff Total: 6" in mqadmin("consumerProgress", "-g", heir)

    skipped = mqadmin("skipAccumulatedMessage", "-g", group, "-t", topic)
    assert [BROKER_NAME, "0", "6"] in rows(skipped, BROKER_NAME), skipped
    assert "Consume Diff Total: 0" in mqadmin("consumerProgress", "-g", group)
    with java.push(group, everything(topic)) as consumer:
        producer.send(message(topic, "new"))
        assert bodies(consumer.nothing_more(1)) == ["new"]


def test_consume_stats_and_daily_figures(
    mqadmin: MqAdmin, java: JavaClient, producer: Producer, cluster: Cluster, topic: str, group: str
) -> None:
    java.create_topic(topic, queues=1)
    producer.send(*numbered(topic, 5))
    with java.push(group, everything(topic)) as consumer:
        consumer.received(5)
        consumer.close()
    producer.send(message(topic, "unread"))
    stats = eventually(
        lambda: rows(mqadmin("brokerConsumeStats", "-b", cluster.broker_address), topic),
        lambda shown: bool(shown) and shown[0][4:7] == ["6", "5", "1"],
    )
    assert stats[0][1:4] == [group, BROKER_NAME, "0"]
    figures = mqadmin("statsAll", "-t", topic)
    assert [topic, group] in [row[:2] for row in rows(figures, topic)]
    assert [topic, group, "1"] in [row[:3] for row in rows(figures, topic)]  # the unread message


# --- Messages --------------------------------------------------------------------------------------


def test_a_message_is_found_in_every_way(mqadmin: MqAdmin, java: JavaClient, producer: Producer, topic: str) -> None:
    java.create_topic(topic, queues=1)
    [sent] = producer.send(message(topic, "find me", tags="T", keys="my-key"))
    by_key = eventually(
        lambda: java.mqadmin("queryMsgByKey", "-t", topic, "-k", "my-key"), lambda said: sent["msgId"] in said
    )
    assert [sent["msgId"], "0", "0"] in [row[:3] for row in rows(by_key, sent["msgId"])]

    for command, wanted in (
        (["queryMsgById", "-t", topic, "-i", sent["offsetMsgId"]], "OffsetID:"),
        (["queryMsgByUniqueKey", "-t", topic, "-i", sent["msgId"]], "Topic:"),
        (["queryMsgByOffset", "-t", topic, "-b", BROKER_NAME, "-i", "0", "-o", "0"], "OffsetID:"),
    ):
        said = mqadmin(*command)
        assert wanted in said
        for words in (topic, "[T]", "[my-key]", "UNIQ_KEY=" + sent["msgId"]):
            assert words in said, said


def test_send_print_and_consume_from_the_shell(mqadmin: MqAdmin, java: JavaClient, topic: str) -> None:
    java.create_topic(topic, queues=1)
    sent = mqadmin("sendMessage", "-t", topic, "-p", "from the shell", "-k", "K", "-c", "T")
    [row] = rows(sent, BROKER_NAME)
    assert row[1:3] == ["0", "SEND_OK"]
    printed = eventually(lambda: mqadmin("printMsg", "-t", topic, "-d", "true"), lambda said: row[3] in said)
    assert "minOffset=0, maxOffset=1" in printed
    assert "BODY: from the shell" in printed
    assert "BODY: from the shell" in mqadmin("printMsg", "-t", topic, "-s", "T", "-d", "true")
    assert "BODY" not in mqadmin("printMsg", "-t", topic, "-s", "other", "-d", "true")
    consumed = mqadmin("consumeMessage", "-t", topic, "-b", BROKER_NAME, "-i", "0", "-o", "0", "-c", "1")
    assert "BODY: from the shell" in consumed
