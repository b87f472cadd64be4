"""`format("pyromq-segments")` in a real Spark: stores as tables, compared with consumers of the same topics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from pyromq import Decision, Message
from pyromq.model.message import Draft
from pyromq.records import layout
from pyromq.records.compression import compress
from pyromq.sync import PullConsumer, TransactionProducer
from pyromq.testing import BrokerProcess
from spark.support.logs_on_disk import some_drafts, write_log
from spark.support.records_in_blocks import ordinary
from store.small_store import make_store, open_store

pytestmark = pytest.mark.spark

DURABLE_SECONDS = 30.0
V6_HOST = bytes(15) + b"\x01\0\0\x1f\x90"


@contextmanager
def refused(words: str) -> Iterator[None]:
    """Spark puts long traces around what we say, but what we say is in it."""
    with pytest.raises(PySparkException) as raised:
        yield
    assert words in str(raised.value)


def table(spark: SparkSession, place: Path | str, **options: object) -> DataFrame:
    reader = spark.read.format("pyromq-segments")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(str(place))


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.queue_offset for row in frame.select("queue_offset").collect())


def test_a_cold_store_with_several_segments(spark: SparkSession, tmp_path: Path) -> None:
    make_store(tmp_path)
    frame = table(spark, tmp_path, broker="broker-a")
    rows = frame.collect()
    assert {row.topic for row in rows} == {"orders"}
    assert {row.broker for row in rows} == {"broker-a"}
    assert {row.tags for row in rows} == {"TagA", "TagÄ"}
    assert all(row.properties["UNIQ_KEY"] == row.msg_id for row in rows)
    everything = table(spark, tmp_path, includeSystem=True, minPartitions=4)
    assert everything.rdd.getNumPartitions() >= 4
    assert everything.count() == 300
    assert everything.select(sql.countDistinct("commit_log_offset")).first()[0] == 300  # type: ignore[index]


def test_only_some_columns_are_decoded_when_the_query_says_which(spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path, some_drafts(60))
    by_schema = spark.read.format("pyromq-segments").schema("tags STRING").load(str(tmp_path))
    counts = {row.tags: row["count"] for row in by_schema.groupBy("tags").count().collect()}
    assert counts == {"tag0": 20, "tag1": 20, "tag2": 20}
    by_option = table(spark, tmp_path, columns="queue_offset,store_ts")
    assert by_option.columns == ["queue_offset", "store_ts"]
    assert by_option.filter(sql.col("store_ts") < "2023-11-14 22:13:20.133").count() == 10


def test_ipv6_compressed_bodies_and_halves_of_transactions(spark: SparkSession, tmp_path: Path) -> None:
    body, flags = compress(b"again and " * 50, "zstd")
    half = ordinary(3)
    half.storage_flags = layout.FLAG_PREPARED
    drafts = [
        Draft(b"orders", 0, body, born_host=V6_HOST, store_host=V6_HOST, storage_flags=flags),
        Draft(b"orders", 0, b"not compressed", storage_flags=flags),
        Draft(b"L" * 200, 0, b"a long topic", b"TAGS\x01\xff\xfe", born_timestamp_ms=2**62),
        half,
    ]
    write_log(tmp_path, drafts)
    first, second, third = table(spark, tmp_path).orderBy("commit_log_offset").collect()
    assert (bytes(first.body), first.born_host) == (b"again and " * 50, "[::1]:8080")
    assert (bytes(second.body), second.sys_flag) == (b"not compressed", flags)
    assert (third.topic, third.tags, third.born_ts) == ("L" * 200, "��", None)
    assert table(spark, tmp_path, includeSystem=True).count() == 4


def test_topics_times_and_single_files(spark: SparkSession, tmp_path: Path) -> None:
    paths = write_log(tmp_path, [ordinary(n, topic=[b"a", b"b"][n % 2]) for n in range(60)])
    assert offsets(table(spark, tmp_path, subscribe="b")) == list(range(1, 60, 2))
    assert offsets(table(spark, tmp_path, topics="a,b", startingTimestamp=1_700_000_000_123 + 50)) == list(
        range(50, 60)
    )
    several = spark.read.format("pyromq-segments").load([str(path) for path in paths])
    assert offsets(several) == list(range(60))
    assert several.rdd.getNumPartitions() <= len(paths)


def test_what_cannot_be_read_is_said_in_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    with refused("there is no option 'topic'; did you mean topics"):
        table(spark, tmp_path, topic="x")
    with refused("neither a store nor a backup"):
        table(spark, tmp_path).count()
    with refused("there is no column 'price'"):
        spark.read.format("pyromq-segments").schema("price INT").load(str(tmp_path)).count()
    paths = write_log(tmp_path, some_drafts(60))
    data = bytearray(paths[0].read_bytes())
    data[4:8] = b"\1\2\3\4"
    paths[0].write_bytes(data)
    with refused("the magic number is 0x01020304 at position 0"):
        table(spark, tmp_path).count()
    assert table(spark, tmp_path, failOnDataLoss=False).count() > 10


def test_a_store_without_a_message_is_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    open_store(tmp_path / "store").close()
    assert table(spark, tmp_path / "store").count() == 0


def test_a_live_store_has_what_a_consumer_of_the_topic_sees(spark: SparkSession, mq: BrokerProcess) -> None:
    mq.create_topic("segments-live", 3)
    with TransactionProducer(mq.name_servers, group="segments", check=lambda _: Decision.UNKNOWN) as producer:
        for number in range(198):
            body = b"body %d" % number * (2000 if number % 50 == 0 else 1)  # some are compressed on their way
            producer.send("segments-live", body, tags=f"tag{number % 4}", keys=[f"key-{number}"])
        for _ in range(2):
            producer.send_in_transaction(Message("segments-live", b"paid"), lambda _: Decision.COMMIT)
        producer.send_in_transaction(Message("segments-live", b"not paid"), lambda _: Decision.ROLLBACK)
    seen: set[tuple[object, ...]] = set()
    with PullConsumer(mq.name_servers, group="segments-reader") as consumer:
        consumer.assign(consumer.queues("segments-live"))
        for queue in consumer.assigned:
            consumer.seek_to_begin(queue)
        while len(seen) < 200:
            messages = consumer.poll(timeout_s=10)
            assert messages
            seen |= {(m.queue.queue_id, m.queue_offset, m.message_id, m.body, m.tags) for m in messages}
    assert len(seen) == 200
    deadline = time.monotonic() + DURABLE_SECONDS  # the broker records the durable end once a second
    while True:
        frame = table(spark, mq.data_dir / "store", topics="segments-live")
        found = {(r.queue_id, r.queue_offset, r.msg_id, bytes(r.body), r.tags) for r in frame.collect()}
        if found == seen or time.monotonic() > deadline:
            break
    assert found == seen
