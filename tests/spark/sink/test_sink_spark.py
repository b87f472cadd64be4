"""The sink in Spark: frames and streams, all modes, batches that fail and come again."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from pyromq.spark.sink.decisions import STAMP, parse_stamp
from pyromq.spark.sink.options import Mode
from pyromq.testing import BrokerProcess
from spark.support.sink_scene import Scene

pytestmark = pytest.mark.spark

ALL = [mode.value for mode in Mode]
ONCE = ["idempotent", "transactional"]


def numbers(spark: SparkSession, count: int, partitions: int = 3) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(F.format_string("%08d", F.col("id")).alias("body"))


def save(frame: DataFrame, mq: BrokerProcess, how: str = "append", **options: str) -> None:
    frame.write.format("pyromq").option("namesrv", mq.name_servers).options(**options).mode(how).save()


# --- frames ----------------------------------------------------------------------------------------------------------


def test_a_frame_becomes_messages(spark: SparkSession, mq: BrokerProcess, scene: Scene, topic: str) -> None:
    frame = numbers(spark, 1000).select(
        F.col("body").cast("binary"),
        F.lit(topic).alias("topic"),
        F.when(F.col("body").endswith("0"), "round").alias("tags"),
        F.array(F.concat(F.lit("k"), F.col("body"))).alias("keys"),
        F.create_map(F.lit("number"), F.col("body"), F.lit("TAGS"), F.lit("left out")).alias("properties"),
        (F.col("body").cast("int") % 4).alias("queue_id"),
        F.concat(F.lit("d"), F.col("body")).alias("dedup_key"),
    )
    save(frame, mq)
    found = {int(message.body): message for message in scene.messages(topic)}
    assert sorted(found) == list(range(1000))
    seven, ten = found[7], found[10]
    assert (seven.tags, seven.keys, seven.message_id) == (None, ("k00000007",), "d00000007")
    assert (seven.properties, seven.queue.queue_id) == ({"number": "00000007"}, 3)
    assert ten.tags == "round"


@pytest.mark.parametrize("mode", ONCE)
def test_a_job_that_runs_again_writes_nothing_twice(
    spark: SparkSession, mq: BrokerProcess, scene: Scene, topic: str, mode: str
) -> None:
    for _ in range(2):
        save(numbers(spark, 900), mq, topic=topic, mode=mode, writerId="nightly")
    save(numbers(spark, 100), mq, topic=topic, mode=mode, writerId="nightly", batchId="1")
    counts = Counter(scene.bodies(topic))
    assert counts == Counter(range(900)) + Counter(range(100))


def test_a_transaction_without_a_name_is_all_or_nothing(
    spark: SparkSession, mq: BrokerProcess, scene: Scene, topic: str
) -> None:
    """One partition fails when the other is written."""
    broken = numbers(spark, 600, 2).withColumn(
        "body", F.when(F.col("body") == "00000599", F.lit("")).otherwise(F.col("body"))
    )
    with pytest.raises(PySparkException, match=r"row 299 of this task has no body"):
        save(broken, mq, topic=topic, mode="transactional")
    assert scene.bodies(topic) == []
    save(numbers(spark, 600, 2), mq, topic=topic, mode="transactional")
    assert sorted(scene.bodies(topic)) == list(range(600))


def test_what_is_wrong_is_told_before_anything_runs(spark: SparkSession, mq: BrokerProcess, topic: str) -> None:
    frame = numbers(spark, 10)
    wrong: list[tuple[DataFrame, dict[str, Any], str]] = [
        (frame, {"topic": topic, "compresion": "lz4"}, "did you mean compression"),
        (frame, {"topic": topic, "mode": "idempotent"}, "needs the option writerId"),
        (frame.withColumn("color", F.lit("red")), {"topic": topic}, "a message has no column 'color'"),
        (frame.withColumn("tags", F.lit(1)), {"topic": topic}, "the column tags is STRING, not int"),
        (frame, {}, "no topic is given"),
        (frame, {"topic": "nowhere", "mode": "transactional"}, "no broker has the topic 'nowhere'"),
    ]
    for given, options, said in wrong:
        with pytest.raises(AnalysisException) as refused:
            save(given, mq, **options)
        assert said in str(refused.value)
    with pytest.raises(AnalysisException, match="messages cannot be overwritten"):
        save(frame, mq, "overwrite", topic=topic)


# --- streams ---------------------------------------------------------------------------------------------------------


class Stream:
    """Files that appear one after the other, each a batch, written to a topic."""

    def __init__(self, spark: SparkSession, mq: BrokerProcess, home: Path, topic: str, mode: str) -> None:
        self._spark = spark
        self._mq = mq
        self.files = home / "files"
        self.files.mkdir()
        self.checkpoint = home / "checkpoint"
        self._topic = topic
        self._mode = mode

    def add(self, first: int, count: int) -> None:
        lines = "".join(f"{number:08d}\n" for number in range(first, first + count))
        (self.files / f"{first:08d}.txt").write_text(lines)

    def run(self, fail_at: int | None = None) -> str:
        """Until everything is written; the query's id. `fail_at`: a row at which its task dies."""
        rows = self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.files))
        frame = rows.select(F.col("value").alias("body"))
        if fail_at is not None:
            dies = F.when(F.col("body") == f"{fail_at:08d}", F.raise_error(F.lit("the task dies"))).otherwise(
                F.col("body")
            )
            frame = frame.select(dies.cast("string").alias("body"))
        query = (
            frame.writeStream.format("pyromq").option("namesrv", self._mq.name_servers).option("topic", self._topic)
            .option("mode", self._mode).option("transactionPatience", "1s").option("batchBytes", "4k")
            .option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        return str(query.id)

    def forget_last_commit(self) -> None:
        """As if the driver had died before Spark noted that the batch is done: it is replayed."""
        commits = self.checkpoint / "commits"
        last = max(int(entry.name) for entry in commits.iterdir() if entry.name.isdigit())
        for name in (f"{last}", f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)


@pytest.fixture
def stream(
    request: pytest.FixtureRequest, spark: SparkSession, mq: BrokerProcess, tmp_path: Path, topic: str
) -> Stream:
    return Stream(spark, mq, tmp_path, topic, request.getfixturevalue("mode"))


@pytest.mark.parametrize("mode", ALL)
def test_a_stream_becomes_messages(stream: Stream, scene: Scene, topic: str, mode: str) -> None:
    for batch in range(3):
        stream.add(batch * 1000, 1000)
    stream.run()
    assert sorted(scene.bodies(topic)) == list(range(3000))


@pytest.mark.parametrize("mode", ALL)
def test_a_batch_that_is_replayed_is_there_once(stream: Stream, scene: Scene, topic: str, mode: str) -> None:
    stream.add(0, 1000)
    stream.add(1000, 1000)
    stream.run()
    stream.forget_last_commit()
    stream.add(2000, 1000)
    stream.run()
    found = scene.bodies(topic)
    assert set(found) == set(range(3000))
    if mode != "atLeastOnce":
        assert len(found) == 3000


@pytest.fixture
def small_frames(spark: SparkSession) -> Iterator[None]:
    """So that a task has written some of its rows when it dies."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "500")
    yield
    spark.conf.set(name, before)


@pytest.mark.usefixtures("small_frames")
@pytest.mark.parametrize("mode", ALL)
def test_a_task_that_dies_in_the_middle_is_repeated(stream: Stream, scene: Scene, topic: str, mode: str) -> None:
    stream.add(0, 1000)
    stream.add(1000, 5000)
    with pytest.raises(StreamingQueryException, match="the task dies"):
        stream.run(fail_at=4000)
    stream.run()
    found = scene.bodies(topic)
    assert set(found) == set(range(6000))
    if mode != "atLeastOnce":
        assert len(found) == 6000


@pytest.mark.parametrize("mode", ["transactional"])
def test_a_task_knows_its_query_and_its_batch(stream: Stream, scene: Scene, topic: str, mode: str) -> None:
    """`write` receives neither; Spark's local properties have both."""
    stream.add(0, 10)
    stream.add(10, 10)
    query = stream.run()
    stamps = [parse_stamp(message.get_property(STAMP) or "") for message in scene.messages(topic)]
    assert {stamp.query for stamp in stamps} == {query}
    assert Counter(stamp.batch for stamp in stamps) == {0: 10, 1: 10}


@pytest.mark.parametrize("mode", ["idempotent"])
def test_another_checkpoint_is_another_query(stream: Stream, scene: Scene, topic: str, mode: str) -> None:
    stream.add(0, 100)
    stream.run()
    shutil.rmtree(stream.checkpoint)
    stream.run()
    assert Counter(scene.bodies(topic)) == dict.fromkeys(range(100), 2)
