"""The sink of Spark against Apache RocketMQ: at least once and in transactions; what only our brokers know is refused.

python -m interop.test_spark_sink_apache NAMESRV TOPIC ROWS      writes a frame in a transaction, twice
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from interop.support.apache import ApacheCluster
from interop.support.loopback import enter_private_network, run_inside
from pyromq.admin.admin import Admin
from pyromq.client import blocking
from pyromq.client.blocking import Portal
from pyromq.errors import NotSupported
from pyromq.spark.sink.decisions import BatchDecision
from pyromq.spark.sink.halves import Written
from pyromq.spark.sink.options import Mode, SinkOptions
from pyromq.spark.sink.task import place_of
from spark.support.sink_scene import Scene, frames, scene_of

pytestmark = pytest.mark.interop

#: Questions after a second, and often; ends are noted before the next question.
CONF = {
    "transactionCheckInterval": "1000", "transactionTimeOut": "1000", "transactionOpBatchInterval": "100",
    "timerPrecisionMs": "100",
}  # fmt: skip
#: Longer than a broker takes to ask for everything once more.
QUIET_S = 6.0
SPARK_S = 180


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    with ApacheCluster(tmp_path_factory.mktemp("apache") / "store", broker_conf=CONF) as running:
        yield running
        running.kill()  # a clean end takes 13 s


def play(cluster: ApacheCluster, topic: str, story: Callable[[Scene], None]) -> None:
    """A story where the broker is, with a client whose thread is there too."""

    async def make() -> None:
        async with Admin(cluster.namesrv_address) as admin:
            await admin.topics.create(topic, queues=4)

    def inside() -> None:
        before, blocking._shared = blocking._shared, Portal()
        try:
            blocking._shared.wait(make())
            with scene_of(cluster.namesrv_address) as scene:
                story(scene)
        finally:
            blocking._shared.stop()
            blocking._shared = before

    run_inside(inside)


def test_rows_are_there_with_all_that_they_have(cluster: ApacheCluster, topic: str) -> None:
    def story(scene: Scene) -> None:
        options = scene.options(Mode.AT_LEAST_ONCE, topic, compression="zstd")
        scene.write(options, frames(0, 5000), "q-plain")
        # This broker shows messages a moment after it stored them.
        assert sorted(scene.wait_for(topic, 5000)) == list(range(5000))
        body = b"%5000d" % 5000
        rows = pa.record_batch({"body": pa.array([body]), "tags": pa.array(["t"]), "keys": pa.array(["k"])})
        scene.write(options, [rows], "q-plain")
        scene.wait_for(topic, 5001)
        found = next(message for message in scene.messages(topic) if message.tags)
        assert (found.body, found.tags, found.keys) == (body, "t", ("k",))

    play(cluster, topic, story)


def test_rows_can_wait_for_a_level_or_a_time(cluster: ApacheCluster, topic: str) -> None:
    def story(scene: Scene) -> None:
        options = scene.options(Mode.AT_LEAST_ONCE, topic)
        now_us = place_of(options).now_ms() * 1000
        when = pa.array([None, now_us + 2_000_000], pa.timestamp("us", tz="UTC"))
        rows = pa.record_batch({"body": pa.array([b"1", b"2"]), "delay_level": pa.array([1, None]), "deliver_at": when})
        scene.write(options, [rows], "q-delay")
        assert scene.bodies(topic) == []
        assert sorted(scene.wait_for(topic, 2)) == [1, 2]

    play(cluster, topic, story)


def test_brokers_that_store_repeats_are_refused(cluster: ApacheCluster, topic: str) -> None:
    def story(scene: Scene) -> None:
        options = scene.options(Mode.IDEMPOTENT, topic)
        with pytest.raises(NotSupported, match="cannot be written to with mode idempotent; use transactional"):
            scene.write(options, frames(0, 10), "q-numbers")
        assert scene.bodies(topic) == []

    play(cluster, topic, story)


def test_a_batch_is_seen_as_a_whole_and_once(cluster: ApacheCluster, topic: str) -> None:
    def story(scene: Scene) -> None:
        options = replace(scene.options(Mode.TRANSACTIONAL, topic), patience_s=60)
        parts = [scene.write(options, frames(part * 500, 500), "q-whole", 0, part) for part in range(2)]
        assert scene.bodies(topic) == []
        assert scene.commit(options, parts)
        assert not scene.commit(options, [scene.write(options, frames(0, 500), "q-whole")])
        assert sorted(scene.wait_for(topic, 1000)) == list(range(1000))
        assert_quiet(scene, topic, 1000)

    play(cluster, topic, story)


def test_the_broker_asks_for_what_a_dead_driver_decided(cluster: ApacheCluster, topic: str) -> None:
    def story(scene: Scene) -> None:
        options = scene.options(Mode.TRANSACTIONAL, topic)
        first = scene.write(options, frames(0, 50), "q-dead")
        decide_only(options, first)
        lost = scene.write(options, frames(0, 50), "q-dead")  # this transaction is never ended
        assert lost.rows == 50
        assert sorted(scene.wait_for(topic, 50)) == list(range(50))
        assert_quiet(scene, topic, 50)

    play(cluster, topic, story)


def test_a_batch_that_took_too_long_is_left_to_the_brokers_questions(cluster: ApacheCluster, topic: str) -> None:
    """It has begun to ask by then: to tell it as well could store a message twice."""

    def story(scene: Scene) -> None:
        options = scene.options(Mode.TRANSACTIONAL, topic)
        written = scene.write(options, frames(0, 50), "q-long")
        threading.Event().wait(3.0)
        assert scene.commit(options, [written])
        assert sorted(scene.wait_for(topic, 50)) == list(range(50))
        assert_quiet(scene, topic, 50)

    play(cluster, topic, story)


def decide_only(options: SinkOptions, written: Written) -> None:
    """The driver dies as soon as its decision is written."""
    assert written.attempt is not None
    place = place_of(options)
    decision = BatchDecision(written.query, 0, {0: written.attempt})
    place.portal.wait(place.decisions.decide(written.query, 0, decision))


def assert_quiet(scene: Scene, topic: str, count: int) -> None:
    """Nothing more comes."""
    threading.Event().wait(QUIET_S)
    assert len(scene.bodies(topic)) == count


@pytest.mark.spark
def test_spark_writes_to_it(cluster: ApacheCluster, topic: str) -> None:
    def story(scene: Scene) -> None:
        script = [sys.executable, "-m", "interop.test_spark_sink_apache", cluster.namesrv_address, topic, "600"]
        done = subprocess.run(
            script, capture_output=True, text=True, timeout=SPARK_S, check=False, preexec_fn=enter_private_network(),
            cwd=Path(__file__).resolve().parents[1], env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        assert sorted(scene.wait_for(topic, 600)) == list(range(600))
        assert_quiet(scene, topic, 600)

    play(cluster, topic, story)


def write_with_spark(name_servers: str, topic: str, count: int) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

    from pyromq.spark.session import spark_session

    conf = {"spark.driver.memory": "1g", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    with spark_session(master="local[2]", name="interop", conf=conf) as spark:
        rows = spark.range(0, count, 1, 2).select(F.format_string("%08d", F.col("id")).alias("body"))
        for _ in range(2):
            writer = rows.write.format("pyromq").option("namesrv", name_servers).option("topic", topic)
            writer.option("mode", "transactional").option("writerId", f"job-{topic}"[:60]).mode("append").save()


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    write_with_spark(sys.argv[1], sys.argv[2], int(sys.argv[3]))
