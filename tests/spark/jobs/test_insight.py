"""The job: counted by Spark from messages as they are, and compared with what plain Python counts."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyromq import ConsumeFrom
from pyromq.client.received import ReceivedMessage
from pyromq.client.trace import FIELD_END, LINE_END
from pyromq.clock import ManualClock
from pyromq.errors import ConfigError, TopicNotFound
from pyromq.spark.connecting import Cluster
from pyromq.spark.decode.columns import NAMES, ddl
from pyromq.spark.jobs.insight.job import InsightPlan, InsightReport, insight, insight_of
from pyromq.spark.jobs.insight.sources import FrameSource, connection_options
from pyromq.spark.jobs.progress import silent
from pyromq.spark.source.options import connection_of
from pyromq.sync import Producer, PullConsumer, PushConsumer
from pyromq.testing import BrokerProcess

BEGIN = datetime(2026, 1, 10, tzinfo=UTC)
CLOCK = ManualClock(int((BEGIN + timedelta(hours=2)).timestamp() * 1000))
ANYWHERE = Cluster("127.0.0.1:1")


# --- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ({"output": "out"}, "source"),
        ({"output": "out", "store": "a", "lake": "b"}, "source"),
        ({"output": "", "store": "a"}, "output"),
        ({"output": "out", "store": "a", "window_s": 0.5}, "window"),
        ({"output": "out", "store": "a", "since": BEGIN, "until": BEGIN}, "until"),
        ({"output": "s3a://bucket/out", "store": "a"}, "page"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_before_spark_starts(given: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError) as error:
        InsightPlan(**given)
    assert error.value.setting == setting


def test_a_lag_history_that_is_not_there_is_told_before_anything_is_counted(tmp_path: Path) -> None:
    plan = InsightPlan(output="out", store="a", lag=str(tmp_path / "lag"))
    with pytest.raises(ConfigError, match="there is no lag history"):
        insight(None, plan)  # type: ignore[arg-type]


def test_a_plan_knows_where_its_page_goes() -> None:
    assert InsightPlan(output="out", store="a").page_path == Path("out/insight.html")
    assert InsightPlan(output="file:///tmp/out", store="a").page_path == Path("/tmp/out/insight.html")
    assert InsightPlan(output="s3a://b/out", store="a", page="here.html").page_path == Path("here.html")


def test_a_cluster_is_the_same_one_for_spark() -> None:
    cluster = Cluster("a:1;b:2", "key", "secret", tls=True, tls_ca="ca.pem", call_timeout_s=3.0, connect_timeout_s=1.5)
    assert connection_of(connection_options(cluster)) == cluster
    assert connection_of(connection_options(ANYWHERE)) == ANYWHERE


# --- counted by Spark ------------------------------------------------------------------------------------------------


def message(topic: str, seconds: float, queue_id: int = 0, latency_ms: int = 2, **more: Any) -> tuple[Any, ...]:
    stored = BEGIN + timedelta(seconds=seconds)
    row: dict[str, Any] = {
        "topic": topic, "broker": "broker-a", "queue_id": queue_id, "store_ts": stored, "store_size": 200,
        "born_ts": stored - timedelta(milliseconds=latency_ms), "msg_id": f"{topic}-{seconds}", "properties": {},
        "reconsume_times": 0, "body": b"",
    }  # fmt: skip
    row |= more
    return tuple(row.get(name) for name in NAMES)


def trace(*lines: tuple[object, ...]) -> bytes:
    return "".join(FIELD_END.join(map(str, line)) + LINE_END for line in lines).encode()


def traced(number: int, wait_ms: int, went_well: bool) -> list[tuple[object, ...]]:
    """The three steps of one message."""
    sent = 1_768_000_000_000 + number
    return [
        ("Pub", sent, "r", "producers", "orders", f"id{number}", "t", "k", "h", 9, 3, 0, "o", "true"),
        ("SubBefore", sent + wait_ms, "r", "billing", f"req{number}", f"id{number}", 0, "k"),
        ("SubAfter", f"req{number}", f"id{number}", 7, str(went_well).lower(), "k", 0),
    ]


def rows() -> list[tuple[Any, ...]]:
    chance = random.Random(5)
    orders = [
        message(
            "orders", number % 1200, 3 if number % 2 else chance.randrange(8), 1500 if number % 50 == 0 else 3,
            tags="created" if number % 3 else None,
        )
        for number in range(3000)
    ]  # fmt: skip
    emails = [message("emails", 600 + number, number % 2, -5 if number < 4 else 20) for number in range(200)]
    retried = {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "first"}
    dead = {"RETRY_TOPIC": "orders", "DLQ_ORIGIN_TOPIC": "orders", "DLQ_ORIGIN_MESSAGE_ID": "first"}
    return [
        *orders,
        *emails,
        *(message("%RETRY%billing", 100 + n, properties=retried, reconsume_times=n) for n in range(5)),
        *(message("%DLQ%billing", 900 + n, properties=dead, reconsume_times=16, keys=f"k{n}") for n in range(2)),
        message("RMQ_SYS_TRACE_TOPIC", 50, body=trace(*traced(1, 40, True), *traced(2, 60, False))),
        message("RMQ_SYS_TRACE_TOPIC", 51, body=b"\xff\x02no line\x02Pub\x01x\x02SubBefore\x01\x01\x02"),
        message("SCHEDULE_TOPIC_XXXX", 10),
    ]


@pytest.fixture(scope="module")
def messages(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(rows(), ddl())


@pytest.fixture(scope="module")
def report(spark: SparkSession, messages: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> InsightReport:
    home = tmp_path_factory.mktemp("insight")
    history = home / "lag"
    history.mkdir()
    (history / "lag-2026-01-10.jsonl").write_text(
        "".join(
            json.dumps({"time": f"2026-01-10T00:{minute:02}:30.000Z", "query": "q", "group": group, "topic": "orders",
                        "broker": "a", "queue": queue, "committed": 1, "max": 9, "lag": 100 * minute}) + "\n"
            for minute in (1, 2, 10) for queue in (0, 1) for group in ("reports", "another")
        ) + '{"time": "20'
    )  # fmt: skip
    plan = InsightPlan(output=str(home / "out"), cluster=ANYWHERE, lag=str(history), group="reports")
    return insight_of(spark, FrameSource("the frame", messages), plan, silent, CLOCK)


@pytest.mark.spark
def test_topics_are_counted(report: InsightReport) -> None:
    found = report.findings
    assert [(one.topic, one.messages, one.bytes, one.early) for one in found.topics] == [
        ("orders", 3000, 600_000, 0), ("emails", 200, 40_000, 4),
    ]  # fmt: skip
    assert (found.window_ms, len(found.starts)) == (10_000, 120)
    by_window = Counter(number % 1200 // 10 for number in range(3000))
    assert found.messages["orders"] == [by_window[window] for window in range(120)]
    assert sum(found.bytes) == 640_000
    assert [(one.topic, one.tag, one.messages) for one in found.tags] == [("orders", "created", 2000)]


@pytest.mark.spark
def test_percentiles_are_right_within_their_ranges(report: InsightReport) -> None:
    orders, emails = (one.latency for one in report.findings.topics)
    assert orders is not None
    assert emails is not None
    assert (orders.p50, orders.p90) == (3, 3)
    assert orders.p99 == pytest.approx(1500, rel=0.05)
    assert orders.most == 1500
    assert emails.p50 == pytest.approx(20, rel=0.05)
    assert any(one is not None for one in report.findings.latency)


@pytest.mark.spark
def test_queues_are_measured_by_their_fair_share(report: InsightReport) -> None:
    orders = [one for one in report.findings.queues if one.topic == "orders"]
    expected = Counter(row[NAMES.index("queue_id")] for row in rows() if row[0] == "orders")
    assert [(one.queue_id, one.messages) for one in orders] == sorted(expected.items())
    assert orders[3].times_fair == pytest.approx(8 * expected[3] / 3000)
    assert sum(one.times_fair for one in orders) == pytest.approx(8)


@pytest.mark.spark
def test_what_failed_is_found_by_group_and_origin(report: InsightReport) -> None:
    found = report.findings
    (retry,), (dead,) = found.retries, found.dead
    assert (retry.group, retry.topic, retry.messages, retry.most_tries) == ("billing", "orders", 5, 4)
    assert (dead.group, dead.topic, dead.messages, dead.most_tries) == ("billing", "orders", 2, 16)
    assert [(one.message_id, one.keys) for one in found.letters] == [("first", "k1"), ("first", "k0")]


@pytest.mark.spark
def test_the_message_trace_tells_how_long_messages_wait(report: InsightReport) -> None:
    (billing,) = report.findings.consuming
    assert (billing.topic, billing.messages, billing.failed) == ("orders", 2, 1)
    assert billing.wait is not None
    assert billing.handling is not None
    assert (billing.wait.p50, billing.wait.most, billing.handling.p50) == (50, 60, 7)


@pytest.mark.spark
def test_the_lag_history_is_drawn_for_the_group_that_was_named(report: InsightReport) -> None:
    (lag,) = report.findings.lag
    assert (lag.group, lag.topic, lag.last, lag.most) == ("reports", "orders", 2000, 2000)
    assert [value for value in lag.values if value is not None] == [200, 400, 2000]


@pytest.mark.spark
def test_the_page_and_the_tables_say_the_same(spark: SparkSession, report: InsightReport) -> None:
    written = Path(report.page).read_text(encoding="utf-8")
    assert report.sentences()[0].startswith("orders is 94 % of the volume: 3 k of 3.2 k messages in 2 topics")
    assert "2 messages ended in dead letters" in report.sentences()[1]
    assert "10 Jan 2026 02:00 UTC" in written
    assert set(report.tables) == {
        "cube", "volume", "topics", "tags", "queues", "latency", "latency_all", "failed", "failures", "consuming",
        "lag",
    }  # fmt: skip
    kinds = {row["topic"]: row["kind"] for row in spark.read.parquet(report.tables["topics"]).collect()}
    assert kinds == {
        "orders": "user", "emails": "user", "%RETRY%billing": "retry", "%DLQ%billing": "dead-letter",
        "RMQ_SYS_TRACE_TOPIC": "system", "SCHEDULE_TOPIC_XXXX": "system",
    }  # fmt: skip


@pytest.mark.spark
def test_a_span_a_topic_and_a_window_limit_what_is_counted(
    spark: SparkSession, messages: DataFrame, tmp_path: Path
) -> None:
    narrow = messages.drop("born_ts", "store_size", "tags")  # a lake need not have kept all
    source = FrameSource("the frame", narrow, ["emails"])
    plan = InsightPlan(
        output=str(tmp_path), cluster=ANYWHERE, since=BEGIN + timedelta(seconds=610),
        until=(BEGIN + timedelta(seconds=650)).replace(tzinfo=None), window_s=20,
    )  # fmt: skip
    found = insight_of(spark, source, plan, silent, CLOCK).findings
    assert [(one.topic, one.messages, one.latency) for one in found.topics] == [("emails", 40, None)]
    assert found.messages == {"emails": [10, 20, 10]}
    with pytest.raises(ConfigError, match="longer"):
        insight_of(
            spark, FrameSource("all", messages.union(spark.createDataFrame([message("late", 90_000)], ddl()))),
            InsightPlan(output=str(tmp_path), cluster=ANYWHERE, window_s=1), silent, CLOCK,
        )  # fmt: skip
    empty = insight_of(
        spark, FrameSource("nothing", messages.limit(0)), InsightPlan(output=str(tmp_path), cluster=ANYWHERE),
        silent, CLOCK,
    )  # fmt: skip
    assert empty.sentences() == ["No messages were found in nothing."]


@pytest.mark.spark
def test_messages_that_nobody_would_send_and_a_clock_that_nobody_set(spark: SparkSession, tmp_path: Path) -> None:
    """A message's producer chooses its times, its names and, in a file, everything else."""
    ages = {"store_ts": datetime(2, 1, 1, tzinfo=UTC), "born_ts": datetime(9999, 12, 31, 23, tzinfo=UTC)}
    future = {"store_ts": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), "born_ts": datetime(2, 1, 1, tzinfo=UTC)}
    bad = "<script>alert(1)</script>\u202e\x00"
    hostile = [
        message(bad, 0, tags=bad, **ages),
        message(bad, 0, **future),
        message("orders", 0, store_ts=None, born_ts=None),
        message("orders", 1, queue_id=-1),
        message("orders", 2, queue_id=(1 << 31) - 1),
        message("orders", 3, broker=None, tags="", store_size=None),
        message("odd", 3, queue_id=-7),
        message("%RETRY%", 4, properties=None, reconsume_times=-1, **ages),
        message(f"%DLQ%{bad}", 5, properties={"DLQ_ORIGIN_TOPIC": bad}, keys=bad, msg_id=None, **future),
        message("RMQ_SYS_TRACE_TOPIC", 6, body=None),
    ]
    source = FrameSource(bad, spark.createDataFrame(hostile, ddl()))
    report = insight_of(spark, source, InsightPlan(output=str(tmp_path), cluster=ANYWHERE), silent, CLOCK)
    assert {(one.topic, one.messages) for one in report.findings.topics} == {(bad, 2), ("orders", 3), ("odd", 1)}
    assert report.findings.dead_count == report.findings.retry_count == 1
    written = Path(report.page).read_text(encoding="utf-8")
    assert "<script" not in written
    assert "31 Dec 9999" in written
    queues = {(one.topic, one.queue_id): one.times_fair for one in report.findings.queues}
    assert queues["orders", -1] == queues["orders", (1 << 31) - 1] == queues["odd", -7] == 1.0


@pytest.mark.spark
def test_one_message_and_a_topic_with_ten_thousand_queues(spark: SparkSession, tmp_path: Path) -> None:
    plan = InsightPlan(output=str(tmp_path), cluster=ANYWHERE)
    one = FrameSource("one", spark.createDataFrame([message("orders", 0)], ddl()))
    report = insight_of(spark, one, plan, silent, CLOCK)
    assert report.sentences()[0].startswith("orders is the only topic: 1 message, 1 a second")
    many = [message("wide", 0, queue_id=9000), message("wide", 0, queue_id=9000), message("wide", 0, queue_id=9999)]
    report = insight_of(spark, FrameSource("wide", spark.createDataFrame(many, ddl())), plan, silent, CLOCK)
    assert len(report.findings.queues) == 10_000
    written = Path(report.page).read_text(encoding="utf-8")
    assert "queue 9000: 2 messages" in written, "the busiest are shown, wherever they are"
    assert "the busiest 32." in written


@pytest.mark.spark
def test_what_a_consumer_did_not_manage(spark: SparkSession, mq: BrokerProcess, tmp_path: Path) -> None:
    """Sent back by a real client, given up by a real broker: not made up."""
    mq.create_topic("insight-poison", 1)
    with Producer(mq.name_servers, group="producers") as producer:
        for body in (b"bad", b"good", b"worse"):
            producer.send("insight-poison", body, keys=[body.decode()])
    handled: Queue[bytes] = Queue()

    def handle(received: ReceivedMessage) -> None:
        handled.put(received.body)
        if received.body != b"good":
            raise ValueError("not this one")

    consumer = PushConsumer(
        mq.name_servers, group="insight-eaters", max_attempts=2, retry_delay=1, consume_from=ConsumeFrom.FIRST
    )
    consumer.subscribe("insight-poison", handle)
    with consumer:
        assert Counter(handled.get(timeout=60) for _ in range(5)) == {b"bad": 2, b"good": 1, b"worse": 2}
        wait_for_letters(mq, "%DLQ%insight-eaters", 2)
    plan = InsightPlan(output=str(tmp_path), cluster=Cluster(mq.name_servers), topics=("insight-poison",))
    found = insight(spark, plan).findings
    (retry,) = [one for one in found.retries if one.group == "insight-eaters"]
    (dead,) = [one for one in found.dead if one.group == "insight-eaters"]
    assert (retry.topic, retry.messages, retry.most_tries) == ("insight-poison", 2, 1)
    assert (dead.topic, dead.messages, dead.most_tries) == ("insight-poison", 2, 2)
    assert {one.keys for one in found.letters if one.group == "insight-eaters"} == {"bad", "worse"}


def wait_for_letters(mq: BrokerProcess, topic: str, count: int) -> None:
    with PullConsumer(mq.name_servers, group="insight-graveyard", consume_from=ConsumeFrom.FIRST) as graveyard:
        graveyard.subscribe(topic)  # one that is not there yet is waited for
        while count > 0:
            count -= len(graveyard.poll(timeout_s=30))


@pytest.mark.spark
def test_a_cluster_and_its_files_tell_the_same(spark: SparkSession, mq: BrokerProcess, tmp_path: Path) -> None:
    mq.create_topic("insight-orders", 4)
    with Producer(mq.name_servers, group="producers") as producer:
        for number in range(40):
            producer.send("insight-orders", b"x" * 100, tags="created" if number % 2 else "paid")
    cluster = Cluster(mq.name_servers)
    plan = InsightPlan(output=str(tmp_path), cluster=cluster, topics=("insight-orders",))
    steps: list[str] = []
    report = insight(spark, plan, lambda what, done, total: steps.append(what))
    (topic,) = report.findings.topics
    assert (topic.topic, topic.messages) == ("insight-orders", 40)
    assert {(one.tag, one.messages) for one in report.findings.tags} == {("created", 20), ("paid", 20)}
    assert topic.latency is not None
    assert "counting messages" in steps
    cold = InsightPlan(output=str(tmp_path / "cold"), store=str(mq.data_dir / "store"), topics=("insight-orders",))
    from_files = insight(spark, cold).findings
    assert from_files.topics == report.findings.topics
    shares = [[one.times_fair for one in found.queues] for found in (from_files, report.findings)]
    assert shares[0] == shares[1] == [1.0] * 4
    with pytest.raises(TopicNotFound, match="no-such-topic"):
        insight(spark, InsightPlan(output=str(tmp_path), cluster=cluster, topics=("no-such-topic",)))
