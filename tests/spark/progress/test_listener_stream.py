"""Real streams and their listener: every batch is reported, the last one included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyromq.spark.progress.lag import QueueStand
from pyromq.spark.progress.lag_history import LAG_DDL
from pyromq.spark.progress.listener import GroupProgress
from pyromq.sync import Admin, Producer
from pyromq.testing import BrokerProcess

MESSAGES = 60


@pytest.mark.spark
def test_every_batch_is_told_and_the_true_lag_is_kept(spark: SparkSession, mq: BrokerProcess, tmp_path: Path) -> None:
    mq.create_topic("listened-to", 2)
    with Producer(mq.name_servers, group="producers") as producer:
        for number in range(MESSAGES):
            producer.send("listened-to", b"%d" % number)
    is_done = threading.Event()

    def heard(stands: Sequence[QueueStand]) -> None:
        if sum(one.committed for one in stands) == MESSAGES:
            is_done.set()

    listener = GroupProgress(mq.name_servers, "listeners", query="heard", on_lag=heard, history=tmp_path / "lag")
    spark.streams.addListener(listener)
    try:
        stream = spark.readStream.format("pyromq").option("namesrv", mq.name_servers).option("subscribe", "listened-to")
        stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 20)
        writer = (
            stream.load().writeStream.queryName("heard").format("noop").option("checkpointLocation", tmp_path / "c")
        )
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        assert is_done.wait(60)
    finally:
        spark.streams.removeListener(listener)

    with Admin(mq.name_servers) as admin:
        found = admin.consumers.lag("listeners", "listened-to")
    assert (sum(one.consumer_offset for one in found.queues), found.lag) == (MESSAGES, 0)

    lines = [json.loads(line) for line in next((tmp_path / "lag").iterdir()).read_text().splitlines()]
    by_time: dict[str, int] = defaultdict(int)
    for line in lines:
        by_time[line["time"]] += line["lag"]
    assert {line["group"] for line in lines} == {"listeners"}
    assert list(by_time.values())[-1] == 0
    assert len([one for one in query.recentProgress if one["numInputRows"]]) == 3
    assert set(by_time.values()) <= {0, 20, 40}
    assert max(by_time.values()) > 0, "there was more to do when the first batch was done, and it is seen"
    assert spark.read.schema(LAG_DDL).json(str(tmp_path / "lag")).where("lag > 0").count() > 0


@pytest.mark.spark
def test_the_option_group_alone_shows_the_last_batch_too(
    spark: SparkSession, mq: BrokerProcess, tmp_path: Path
) -> None:
    mq.create_topic("group-only", 2)
    with Producer(mq.name_servers, group="producers") as producer:
        for number in range(MESSAGES):
            producer.send("group-only", b"%d" % number)
    stream = spark.readStream.format("pyromq").option("namesrv", mq.name_servers).option("subscribe", "group-only")
    stream = stream.option("startingOffsets", "earliest").option("group", "quiet").option("maxOffsetsPerTrigger", 30)
    writer = stream.load().writeStream.format("noop").option("checkpointLocation", tmp_path / "c")
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    with Admin(mq.name_servers) as admin:
        found = admin.consumers.lag("quiet", "group-only")
    assert (sum(one.consumer_offset for one in found.queues), found.lag) == (MESSAGES, 0)


CONNECTED = """
import sys
from pyspark.sql import SparkSession
from pyromq.spark.progress.listener import GroupProgress

name_servers, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
listener = GroupProgress(name_servers, "connected")
spark.streams.addListener(listener)
stream = spark.readStream.format("pyromq").option("namesrv", name_servers).option("subscribe", "far-away")
stream = stream.option("startingOffsets", "earliest").load()
query = stream.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
assert query.awaitTermination(120)
listener.report(query.lastProgress)
assert listener.flush()
spark.stop()
"""


@pytest.mark.spark
def test_a_client_of_spark_connect_tells_the_same(mq: BrokerProcess, tmp_path: Path) -> None:
    mq.create_topic("far-away", 2)
    with Producer(mq.name_servers, group="producers") as producer:
        for number in range(MESSAGES):
            producer.send("far-away", b"%d" % number)
    command = [sys.executable, "-c", CONNECTED, mq.name_servers, str(tmp_path)]
    # A process of its own, as a session of the other kind is here; this variable gives its server a port that is free.
    environment = os.environ | {"SPARK_TESTING": "1"}
    done = subprocess.run(command, timeout=300, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    with Admin(mq.name_servers) as admin:
        found = admin.consumers.lag("connected", "far-away")
    assert (sum(one.consumer_offset for one in found.queues), found.lag) == (MESSAGES, 0)
