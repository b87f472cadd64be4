"""Topics as streams: `spark.readStream.format("pyromq")` with a real Spark and a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyromq.model.queue import MessageQueue
from pyromq.sync import Admin
from pyromq.testing import BrokerProcess
from pyromq.testing.brokers.asking import ask
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.admin import DeleteTopic
from spark.support.filling import fill, fill_evenly, numbered
from spark.support.reading import Stream, await_numbers

pytestmark = pytest.mark.spark


def queue(topic: str, number: int = 0) -> MessageQueue:
    return MessageQueue(topic, "broker-a", number)


def test_what_there_is_now_in_limited_batches(spark: SparkSession, mq: BrokerProcess, tmp_path: Path) -> None:
    mq.create_topic("limited", 4)
    fill_evenly(mq.name_servers, "limited", 4, 250)
    stream = Stream(
        spark, mq.name_servers, tmp_path,
        subscribe="limited", startingOffsets="earliest", maxOffsetsPerTrigger="300", group="limited-readers",
    )  # fmt: skip
    assert stream.run() == [300, 300, 300, 100]
    fill_evenly(mq.name_servers, "limited", 4, 5)
    assert stream.run() == [20]
    assert stream.found() == sorted([*range(1000), *range(20)])
    with Admin(mq.name_servers) as admin:
        lag = admin.consumers.lag("limited-readers", "limited")
    assert [one.consumer_offset for one in lag.queues] == [255] * 4


def test_batches_of_limited_size(spark: SparkSession, mq: BrokerProcess, tmp_path: Path) -> None:
    mq.create_topic("weighed", 2)
    fill_evenly(mq.name_servers, "weighed", 2, 200, size=1000)
    stream = Stream(
        spark, mq.name_servers, tmp_path, subscribe="weighed", startingOffsets="earliest", maxBytesPerTrigger="120k"
    )
    sizes = stream.run()
    assert sum(sizes) == 400
    assert all(80 <= size <= 122 for size in sizes[:-1])


def test_messages_that_come_while_it_runs(spark: SparkSession, mq: BrokerProcess, tmp_path: Path) -> None:
    """A new message, a new queue, a new topic; how far it is shows in the progress."""
    mq.create_topic("live-1", 1)
    fill(mq.name_servers, queue("live-1"), numbered("live-1", 0, 10))
    stream = Stream(spark, mq.name_servers, tmp_path, subscribePattern="live-.*", startingOffsets="earliest")
    with stream.running() as query:
        assert await_numbers(stream, query, 10) == [*range(10)]
        fill(mq.name_servers, queue("live-1"), numbered("live-1", 10, 20))
        assert await_numbers(stream, query, 20) == [*range(20)]
        mq.create_topic("live-1", 2)
        fill(mq.name_servers, queue("live-1", 1), numbered("live-1", 20, 30))
        assert await_numbers(stream, query, 30) == [*range(30)]
        mq.create_topic("live-2", 1)
        fill(mq.name_servers, queue("live-2"), numbered("live-2", 30, 40))
        assert await_numbers(stream, query, 40) == [*range(40)]
        source = query.lastProgress.sources[0]
    wanted = '"live-1@broker-a@0": 20, "live-1@broker-a@1": 10, "live-2@broker-a@0": 10'
    assert wanted.replace(" ", "") in source.latestOffset.replace(" ", "")


def test_a_stream_from_its_end_on_filtered(spark: SparkSession, mq: BrokerProcess, tmp_path: Path) -> None:
    mq.create_topic("from-now", 1)
    fill(mq.name_servers, queue("from-now"), numbered("from-now", 0, 30))
    stream = Stream(spark, mq.name_servers, tmp_path, subscribe="from-now", tags="a", columns="body")
    assert stream.run() == [0]
    fill(mq.name_servers, queue("from-now"), numbered("from-now", 30, 60))
    stream.run()
    assert stream.found() == [*range(30, 60, 3)]


def test_a_batch_waits_for_enough(spark: SparkSession, mq: BrokerProcess, tmp_path: Path) -> None:
    mq.create_topic("patient", 1)
    fill(mq.name_servers, queue("patient"), numbered("patient", 0, 10))
    stream = Stream(
        spark, mq.name_servers, tmp_path, subscribe="patient", startingOffsets="earliest", minOffsetsPerTrigger="15"
    )
    with stream.running() as query:
        query.processAllAvailable()
        assert not [progress for progress in query.recentProgress if progress.numInputRows]
        fill(mq.name_servers, queue("patient"), numbered("patient", 10, 20))
        assert await_numbers(stream, query, 20) == [*range(20)]
        assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [20]
    fill(mq.name_servers, queue("patient"), numbered("patient", 20, 22))
    assert stream.run() == [2], "nobody waits where all that there is now is wanted"


def test_a_topic_that_is_deleted(spark: SparkSession, mq: BrokerProcess, tmp_path: Path) -> None:
    mq.create_topic("doomed", 1)
    fill(mq.name_servers, queue("doomed"), numbered("doomed", 0, 10))
    options = {"subscribe": "doomed", "startingOffsets": "earliest"}
    stream = Stream(spark, mq.name_servers, tmp_path, **options)
    assert stream.run() == [10]
    assert ask(mq.broker_address, DeleteTopic(topic="doomed")).code == ResponseCode.SUCCESS
    mq.create_topic("doomed", 1)
    fill(mq.name_servers, queue("doomed"), numbered("doomed", 10, 13))
    with pytest.raises(StreamingQueryException, match=r"from offset 10 on and ends at 3 now.*made anew"):
        stream.run()
    forgiving = Stream(spark, mq.name_servers, tmp_path, failOnDataLoss="false", **options)
    assert sum(forgiving.run()) == 3
    assert forgiving.found() == [*range(13)]


def test_a_broker_that_restarts_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    from pyromq import testing

    with testing.broker(process=True) as mq:
        mq.create_topic("restarted", 1)
        fill(mq.name_servers, queue("restarted"), numbered("restarted", 0, 10))
        stream = Stream(spark, mq.name_servers, tmp_path, subscribe="restarted", startingOffsets="earliest")
        with stream.running() as query:
            assert await_numbers(stream, query, 10) == [*range(10)]
            mq.kill()
            mq.start()
            fill(mq.name_servers, queue("restarted"), numbered("restarted", 10, 20))
            assert await_numbers(stream, query, 20) == [*range(20)]


def test_options_of_a_batch_are_refused(spark: SparkSession, mq: BrokerProcess, tmp_path: Path) -> None:
    stream = Stream(spark, mq.name_servers, tmp_path, subscribe="x", endingOffsets="latest")
    with pytest.raises(StreamingQueryException, match="a stream has no end"):
        stream.run()
