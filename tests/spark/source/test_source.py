"""Topics as tables: `spark.read.format("pyromq")` with a real Spark and a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession

from pyromq import testing
from pyromq.clock import SystemClock
from pyromq.model.queue import MessageQueue
from pyromq.spark.connecting import Cluster
from pyromq.spark.decode.columns import NAMES
from pyromq.spark.progress.lag import report_progress
from pyromq.sync import Message
from pyromq.testing import BrokerProcess
from pyromq.testing.brokers.asking import ask
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.admin import DeleteExpiredLog
from pyromq.wire.requests.client import GetMinOffset
from spark.support.filling import fill, fill_evenly, numbered
from spark.support.reading import numbers, table

pytestmark = pytest.mark.spark

QUEUES = 4
EACH = 500


@pytest.fixture(scope="module")
def topic(mq: BrokerProcess) -> str:
    """2000 messages: number n is at offset n // 4 of queue n % 4."""
    mq.create_topic("read-me", QUEUES)
    fill_evenly(mq.name_servers, "read-me", QUEUES, EACH)
    return "read-me"


def test_a_topic_is_a_table(spark: SparkSession, mq: BrokerProcess, topic: str) -> None:
    frame = table(spark, mq.name_servers, topic)
    assert frame.columns == list(NAMES)
    assert numbers(frame) == list(range(QUEUES * EACH))


def test_what_the_columns_hold(spark: SparkSession, mq: BrokerProcess, topic: str) -> None:
    (row,) = table(spark, mq.name_servers, topic).where("queue_id = 2 and queue_offset = 10").collect()
    assert (row.topic, row.broker, row.queue_id, row.queue_offset) == (topic, "broker-a", 2, 10)
    assert (bytes(row.body), row.tags, row.keys) == (b"42", "a", "42")
    assert row.properties["number"] == "42"
    assert row.msg_id == row.properties["UNIQ_KEY"]
    assert 0 <= (row.store_ts - row.born_ts).total_seconds() < 3600
    assert abs(row.store_ts.timestamp() - SystemClock().now_ms() / 1000) < 3600
    assert row.born_host.startswith("127.0.0.1:")
    assert row.store_size > 0
    assert row.reconsume_times == 0


def test_only_some_columns(spark: SparkSession, mq: BrokerProcess, topic: str) -> None:
    by_option = table(spark, mq.name_servers, topic, columns="tags, queue_offset")
    assert by_option.columns == ["tags", "queue_offset"]
    assert by_option.groupBy("tags").count().count() == 3
    reader = spark.read.format("pyromq").option("namesrv", mq.name_servers).option("subscribe", topic)
    by_schema = reader.schema("keys STRING, tags STRING").load()
    assert by_schema.where("keys = '41'").collect() == [("41", "c")]
    with pytest.raises(AnalysisException, match="the column body is BINARY, not string"):
        reader.schema("body STRING").load().count()


def test_from_offset_to_offset(spark: SparkSession, mq: BrokerProcess, topic: str) -> None:
    frame = table(
        spark, mq.name_servers, topic,
        startingOffsets='{"read-me@broker-a@0": 100, "read-me": -2}',
        endingOffsets='{"read-me": {"broker-a": {"0": 110, "1": 5, "2": 0, "3": -1}}}',
    )  # fmt: skip
    wanted = [4 * at for at in range(100, 110)] + [4 * at + 1 for at in range(5)] + [4 * at + 3 for at in range(EACH)]
    assert numbers(frame) == sorted(wanted)


def test_one_queue(spark: SparkSession, mq: BrokerProcess, topic: str) -> None:
    frame = table(spark, mq.name_servers, assign='["read-me@broker-a@3"]')
    assert numbers(frame) == list(range(3, QUEUES * EACH, 4))


def test_from_time_to_time(spark: SparkSession, mq: BrokerProcess) -> None:
    mq.create_topic("timed", 2)
    queues = [MessageQueue("timed", "broker-a", number) for number in range(2)]
    times = []
    for part in range(3):
        for queue in queues:
            fill(mq.name_servers, queue, numbered("timed", part * 10, part * 10 + 10))
        last = max(
            row.store_ts.replace(tzinfo=row.store_ts.tzinfo or UTC)
            for row in table(spark, mq.name_servers, "timed", columns="store_ts").collect()
        )
        times.append(int(last.timestamp() * 1000) + 1)
        while SystemClock().now_ms() <= times[-1]:
            pass
    between = table(spark, mq.name_servers, "timed", startingTimestamp=str(times[0]), endingTimestamp=str(times[1]))
    assert numbers(between) == sorted([*range(10, 20)] * 2)
    since = datetime.fromtimestamp(times[1] / 1000, UTC).isoformat()
    assert numbers(table(spark, mq.name_servers, "timed", startingTimestamp=since)) == sorted([*range(20, 30)] * 2)


def test_where_a_group_is(spark: SparkSession, mq: BrokerProcess, topic: str) -> None:
    done = {MessageQueue(topic, "broker-a", number): 490 for number in range(QUEUES)}
    report_progress(Cluster(mq.name_servers), "readers", done)
    frame = table(spark, mq.name_servers, topic, startingOffsets="group", group="readers")
    assert numbers(frame) == list(range(490 * QUEUES, EACH * QUEUES))


def test_the_broker_leaves_out_what_is_not_wanted(spark: SparkSession, mq: BrokerProcess, topic: str) -> None:
    every = range(QUEUES * EACH)
    by_tag = table(spark, mq.name_servers, topic, tags="a || c", columns="body")
    assert numbers(by_tag) == [number for number in every if number % 3 != 1]
    by_sql = table(spark, mq.name_servers, topic, sql="TAGS = 'b' AND number BETWEEN 100 AND 200")
    assert numbers(by_sql) == [number for number in every if number % 3 == 1 and 100 <= number <= 200]


def test_topics_by_pattern(spark: SparkSession, mq: BrokerProcess) -> None:
    for number, name in enumerate(["logs-eu", "logs-us", "nologs"]):
        mq.create_topic(name, 1)
        fill(mq.name_servers, MessageQueue(name, "broker-a", 0), numbered(name, number, number + 1))
    frame = table(spark, mq.name_servers, subscribePattern="logs-.*")
    assert numbers(frame) == [0, 1]
    assert numbers(table(spark, mq.name_servers, "nologs,logs-us")) == [1, 2]
    assert numbers(table(spark, mq.name_servers, subscribePattern="none-.*")) == []


@pytest.mark.parametrize(
    ("options", "tasks"),
    [({}, 2), ({"minPartitions": "10"}, 10), ({"maxRecordsPerPartition": "100"}, 20)],
)
def test_tasks(spark: SparkSession, mq: BrokerProcess, topic: str, options: dict[str, str], tasks: int) -> None:
    frame = table(spark, mq.name_servers, topic, columns="body", **options)
    assert frame.rdd.getNumPartitions() >= tasks
    assert numbers(frame) == list(range(QUEUES * EACH))


def test_large_and_compressed_bodies(spark: SparkSession, mq: BrokerProcess) -> None:
    mq.create_topic("large", 1)
    bodies = [bytes([number]) * (200_000 * number) for number in range(1, 12)]
    fill(mq.name_servers, MessageQueue("large", "broker-a", 0), (Message("large", body) for body in bodies))
    frame = table(spark, mq.name_servers, "large", columns="body,store_size,body_crc", verifyCrc="true")
    rows = frame.collect()
    assert [bytes(row.body) for row in rows] == bodies


def test_what_is_wrong_is_said(spark: SparkSession, mq: BrokerProcess, topic: str) -> None:
    wrong = {
        "did you mean startingOffsets": {"startingOfset": "earliest"},
        "cannot be 'soon'": {"startingOffsets": "soon"},
        "begins at the end is empty": {"startingOffsets": "latest"},
        "startingOffsets names read-me@broker-a@9": {"startingOffsets": '{"read-me@broker-a@9": 1}'},
        "spark.readStream": {"maxOffsetsPerTrigger": "5"},
    }
    for words, options in wrong.items():
        with pytest.raises(AnalysisException) as caught:
            table(spark, mq.name_servers, topic, **options).count()
        assert words in str(caught.value)
        assert str(caught.value).count("File ") <= 5
    with pytest.raises(AnalysisException, match="there is no topic 'never-made'"):
        table(spark, mq.name_servers, "never-made").count()
    with pytest.raises(AnalysisException, match="no name server answers"):
        table(spark, "127.0.0.1:1", "x", **{"fetchOffset.numRetries": "0"}).count()


def test_no_path(spark: SparkSession, mq: BrokerProcess) -> None:
    reader = spark.read.format("pyromq").option("namesrv", mq.name_servers).option("subscribe", "x")
    with pytest.raises(AnalysisException, match="takes no path"):
        reader.load("/data/orders")


def test_an_sql_table(spark: SparkSession, mq: BrokerProcess, topic: str) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW orders USING pyromq OPTIONS (namesrv '{mq.name_servers}', subscribe '{topic}')")
    assert spark.sql("SELECT tags, count(*) FROM orders GROUP BY tags ORDER BY tags").collect() == [
        ("a", 667), ("b", 667), ("c", 666),
    ]  # fmt: skip
    spark.catalog.dropTempView("orders")


# --- loss ------------------------------------------------------------------------------------------------------------

MIB = 1 << 20


@pytest.fixture(scope="module")
def forgetful() -> Iterator[BrokerProcess]:
    """A broker that deletes everything except the last segment on request."""
    config = {
        "store.segment_bytes": MIB, "store.retention.max_age_hours": 0.00001, "store.retention.interval_ms": 3_600_000,
        "store.max_body_bytes": 512 << 10,
    }  # fmt: skip
    with testing.broker(process=True, config=config, flush="sync") as running:
        yield running


def forget(mq: BrokerProcess, queue: MessageQueue) -> int:
    """Have the oldest segments removed, which are a moment old by then; the offset that the queue begins at then."""
    first = 0
    while first == 0:
        assert ask(mq.broker_address, DeleteExpiredLog()).code == ResponseCode.SUCCESS
        first = int(ask(mq.broker_address, GetMinOffset(topic=queue.topic, queue_id=0)).fields["offset"])
    return first


def test_messages_that_are_gone(spark: SparkSession, forgetful: BrokerProcess) -> None:
    forgetful.create_topic("short-lived", 1)
    queue = MessageQueue("short-lived", "broker-a", 0)
    fill(forgetful.name_servers, queue, numbered(queue.topic, 0, 4000, size=1000))
    first = forget(forgetful, queue)
    gone = {"startingOffsets": '{"short-lived": 7}'}
    with pytest.raises(AnalysisException, match=r"from offset 7 on and begins at .* now.*failOnDataLoss"):
        table(spark, forgetful.name_servers, queue.topic, **gone).count()
    left = table(spark, forgetful.name_servers, queue.topic, failOnDataLoss="false", **gone)
    found = numbers(left)
    assert found == list(range(found[0], 4000))
    assert found[0] >= first


def test_messages_that_go_between_planning_and_reading(spark: SparkSession, forgetful: BrokerProcess) -> None:
    forgetful.create_topic("soon-gone", 1)
    queue = MessageQueue("soon-gone", "broker-a", 0)
    fill(forgetful.name_servers, queue, numbered(queue.topic, 0, 100, size=1000))
    planned = table(spark, forgetful.name_servers, queue.topic)
    planned.rdd  # noqa: B018 - Spark plans it now
    fill(forgetful.name_servers, queue, numbered(queue.topic, 100, 4000, size=1000))
    forget(forgetful, queue)
    with pytest.raises(PythonException, match="from offset 0 on and begins at"):
        planned.collect()
