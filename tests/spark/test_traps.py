"""The traps of Spark's Python data sources, each one seen before it was a test: T1 to T9, but for T7, the sink's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from pyromq.model.queue import MessageQueue
from pyromq.spark.session import DEFAULTS
from pyromq.sync import Admin
from pyromq.testing import BrokerProcess
from spark.kills.processes import descendants, wait_until_gone
from spark.support.filling import fill, numbered
from spark.support.reading import PATIENCE_S, Stream, await_numbers, numbers, table

pytestmark = pytest.mark.spark


def filled(mq: BrokerProcess, topic: str, first: int, end: int) -> None:
    fill(mq.name_servers, MessageQueue(topic, "broker-a", 0), numbered(topic, first, end))


@contextlib.contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before or "")


@pytest.mark.parametrize("fails_in", [0, 1])
def test_t1_a_crash_in_the_first_batches_loses_nothing(
    spark: SparkSession, mq: BrokerProcess, tmp_path: Path, fails_in: int
) -> None:
    """`initialOffset` is not kept, and asked for again: a stream from the latest on must not begin later then."""
    topic = f"trap-1-{fails_in}"
    mq.create_topic(topic, 1)
    filled(mq, topic, 0, 5)
    seen: list[int] = []

    def run(fails: bool) -> None:
        def keep(frame: DataFrame, number: int) -> None:
            rows = numbers(frame)
            if fails and number == fails_in:
                raise RuntimeError("the sink failed")
            seen.extend(rows)

        frame = spark.readStream.format("pyromq").options(namesrv=mq.name_servers, subscribe=topic).load()
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path))
        assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE_S)

    if fails_in == 1:
        run(fails=False)
        filled(mq, topic, 5, 8)
    with pytest.raises(StreamingQueryException):
        run(fails=True)
    filled(mq, topic, 8, 20)
    run(fails=False)
    run(fails=False)
    assert seen == [*range(8 if fails_in == 0 else 5, 20)]


def test_t2_an_idle_stream_runs_no_batches(spark: SparkSession, mq: BrokerProcess, tmp_path: Path) -> None:
    """Offsets are compared as text: the same place in another order of queues would be a new batch."""
    mq.create_topic("trap-2", 5)
    filled(mq, "trap-2", 0, 10)
    stream = Stream(spark, mq.name_servers, tmp_path, subscribe="trap-2", startingOffsets="earliest", offsetPollMs="0")
    with stream.running() as query:
        assert await_numbers(stream, query, 10) == [*range(10)]
        for _ in range(20):
            query.processAllAvailable()
        assert len([one for one in query.recentProgress if one.numInputRows]) == 1
    assert [one.name for one in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")] == ["0"]


def test_t3_progress_needs_no_commit(spark: SparkSession, mq: BrokerProcess, tmp_path: Path) -> None:
    """`commit` never comes for the last batch of a query that ends."""
    mq.create_topic("trap-3", 1)
    filled(mq, "trap-3", 0, 10)
    Stream(spark, mq.name_servers, tmp_path, subscribe="trap-3", startingOffsets="earliest", group="trap-3").run()
    with Admin(mq.name_servers) as admin:
        (lag,) = admin.consumers.lag("trap-3", "trap-3").queues
    assert (lag.consumer_offset, lag.lag) == (10, 0)


def test_t4_what_there_is_now_is_asked_for_before_the_beginning(
    spark: SparkSession, mq: BrokerProcess, tmp_path: Path
) -> None:
    mq.create_topic("trap-4", 1)
    filled(mq, "trap-4", 0, 10)
    stream = Stream(spark, mq.name_servers, tmp_path, subscribe="trap-4", maxOffsetsPerTrigger="1")
    assert stream.run() == [0]
    assert stream.run() in ([], [0])


def test_t5_an_idle_stream_does_not_ask_all_the_time(spark: SparkSession, mq: BrokerProcess, tmp_path: Path) -> None:
    """Spark asks a hundred times a second. For as long as `offsetPollMs` says, it hears what it heard before."""
    mq.create_topic("trap-5", 1)
    filled(mq, "trap-5", 0, 10)
    options = {"subscribe": "trap-5", "startingOffsets": "earliest", "offsetPollMs": "3600000"}
    stream = Stream(spark, mq.name_servers, tmp_path, **options)
    with stream.running() as query:
        assert await_numbers(stream, query, 10) == [*range(10)]
        filled(mq, "trap-5", 10, 20)
        for _ in range(10):
            query.processAllAvailable()
        assert stream.found() == [*range(10)]
    assert stream.run() == [10]


@pytest.mark.parametrize("pushes", ["true", "false"])
def test_t6_filters_work_whether_spark_pushes_them_or_not(spark: SparkSession, mq: BrokerProcess, pushes: str) -> None:
    """A source that takes filters fails where the setting is off, which it is by default; so this one takes none."""
    topic = f"trap-6-{pushes}"
    mq.create_topic(topic, 1)
    filled(mq, topic, 0, 30)
    with setting(spark, "spark.sql.python.filterPushdown.enabled", pushes):
        frame = table(spark, mq.name_servers, topic).where("tags = 'a' and queue_offset >= 12")
        assert numbers(frame) == [12, 15, 18, 21, 24, 27]


def _counting() -> StatefulProcessor:
    """Counts rows by key, in state that is forgotten after a while. Within a function, or workers would import it."""

    class Counting(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._count = handle.getValueState("count", "count BIGINT", ttlDurationMs=60_000)

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N803
            before = self._count.get()[0] if self._count.exists() else 0
            count = before + sum(1 for _ in rows)
            self._count.update((count,))
            yield Row(tags=key[0], count=count)

        def close(self) -> None: ...

    return Counting()


def test_t8_state_with_time_to_live_ends_with_our_settings(
    spark: SparkSession, mq: BrokerProcess, tmp_path: Path
) -> None:
    """A stateful query in processing time runs empty batches for ever, unless there are none for no data."""
    pytest.importorskip("grpc", reason="transformWithState needs the connect extra of pyspark")
    mq.create_topic("trap-8", 1)
    filled(mq, "trap-8", 0, 9)
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    name = "spark.sql.streaming.noDataMicroBatches.enabled"
    with setting(spark, name, DEFAULTS[name]), setting(spark, "spark.sql.streaming.stateStore.providerClass", provider):
        frame = spark.readStream.format("pyromq").options(
            namesrv=mq.name_servers, subscribe="trap-8", startingOffsets="earliest", columns="tags"
        ).load()  # fmt: skip
        counted = frame.groupBy("tags").transformWithState(
            _counting(), "tags STRING, count BIGINT", "Update", "ProcessingTime"
        )
        writer = counted.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).outputMode("update")
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(PATIENCE_S)
        finally:
            query.stop()
    assert sum(one.numInputRows for one in query.recentProgress) == 9


# --- T9 --------------------------------------------------------------------------------------------------------------

APPLICATION = """
import sys
from pyromq.spark.session import spark_session
with spark_session(master="local[1]", conf={"spark.driver.memory": "512m"}) as spark:
    frame = spark.readStream.format("pyromq").options(
        namesrv=sys.argv[1], subscribe=sys.argv[2], startingOffsets="earliest").load()
    query = frame.writeStream.format("noop").option("checkpointLocation", sys.argv[3]).start()
    query.processAllAvailable()
    print("running", spark.sparkContext._gateway.proc.pid, flush=True)
    query.awaitTermination()
"""


@pytest.mark.parametrize("victim", ["python", "java"])
def test_t9_when_one_half_is_killed_the_other_ends(mq: BrokerProcess, tmp_path: Path, victim: str) -> None:
    topic = f"trap-9-{victim}"
    mq.create_topic(topic, 1)
    filled(mq, topic, 0, 10)
    command = [sys.executable, "-c", APPLICATION, mq.name_servers, topic, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as application:
        assert application.stdout is not None
        said = next((line for line in application.stdout if line.startswith("running")), "")
        assert said, "the application did not start"
        java = int(said.split()[1])
        everybody = descendants([application.pid])
        os.kill(application.pid if victim == "python" else java, signal.SIGKILL)
        application.wait(PATIENCE_S)
    assert java in {one.pid for one in everybody}
    assert wait_until_gone(everybody) == []


def test_the_beginning_of_another_query_is_not_ours(spark: SparkSession, mq: BrokerProcess, tmp_path: Path) -> None:
    """A checkpoint that some other source has written is refused in words."""
    mq.create_topic("trap-0", 1)
    stream: Any = Stream(spark, mq.name_servers, tmp_path, subscribe="trap-0", startingOffsets="earliest")
    filled(mq, "trap-0", 0, 3)
    stream.run()
    (written,) = (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")
    lines = written.read_text("utf-8").splitlines()
    written.write_text("\n".join([*lines[:-1], '{"orders":{"0":17}}']), "utf-8")
    written.with_name(f".{written.name}.crc").unlink()
    with pytest.raises(StreamingQueryException, match="not one of format pyromq"):
        stream.run()
