"""Spark reads topics of Apache RocketMQ's broker: one Spark, in the network of the servers, and what it found.

python -m interop.test_spark_apache NAMESRV DIRECTORY      fills topics, reads them in several ways, prints JSON
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.support.apache import ApacheCluster
from interop.support.java_client import CONF
from interop.support.loopback import enter_private_network
from pyromq.model.queue import MessageQueue
from pyromq.sync import Admin
from spark.support.filling import fill, numbered

pytestmark = [pytest.mark.interop, pytest.mark.spark]

#: A Spark session and some queries, on a machine that is busy.
SPARK_S = 400
QUEUES = 2
EACH = 1500


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    with ApacheCluster(tmp_path_factory.mktemp("apache") / "store", broker_conf=CONF) as running:
        yield running
        running.kill()  # a clean end takes 13 s


@pytest.fixture(scope="module")
def found(cluster: ApacheCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Spark's results, by the name of the case."""
    directory = tmp_path_factory.mktemp("spark")
    script = [sys.executable, "-m", "interop.test_spark_apache", cluster.namesrv_address, str(directory)]
    done = subprocess.run(
        script, capture_output=True, text=True, timeout=SPARK_S, check=False, preexec_fn=enter_private_network(),
        cwd=Path(__file__).resolve().parents[1], env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    cases: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return cases


EVERY = range(QUEUES * EACH)


def test_a_topic_is_a_table(found: dict[str, Any]) -> None:
    assert found["all"] == [*EVERY]


def test_what_the_columns_hold(found: dict[str, Any]) -> None:
    assert found["row"] == {
        "topic": "orders", "queue_id": 1, "queue_offset": 10, "tags": "a", "keys": "21", "body": "21", "number": "21",
        "is_id": True, "is_new": True,
    }  # fmt: skip


def test_from_offset_to_offset(found: dict[str, Any]) -> None:
    assert found["range"] == [*range(200, 300, 2)]


def test_from_a_time_on(found: dict[str, Any]) -> None:
    assert found["late"] == [*range(5000, 5010)]


def test_the_broker_leaves_out_what_is_not_wanted(found: dict[str, Any]) -> None:
    assert found["tags"] == [number for number in EVERY if number % 3 == 2]
    assert found["sql"] == [number for number in EVERY if 100 <= number <= 200]


def test_a_stream_reads_on_where_it_was(found: dict[str, Any]) -> None:
    assert found["batches"] == [[1000, 1000, 1000], [10]]


def test_a_group_shows_how_far_it_is(found: dict[str, Any]) -> None:
    assert found["group"] == {"0": EACH, "1": EACH + 10}


# --- the application -------------------------------------------------------------------------------------------------


def application(name_servers: str, directory: Path) -> dict[str, Any]:
    from pyromq.spark.session import spark_session

    with Admin(name_servers) as admin:
        admin.topics.create("orders", queues=QUEUES)
        (broker,) = {queue.broker_name for queue in admin.messages.queues("orders")}
    queues = [MessageQueue("orders", broker, number) for number in range(QUEUES)]
    every = list(numbered("orders", 0, QUEUES * EACH))
    for queue in queues:
        fill(name_servers, queue, every[queue.queue_id :: QUEUES])
    conf = {"spark.driver.memory": "1g", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    with spark_session(master="local[2]", name="interop", conf=conf) as spark:
        return Cases(spark, name_servers, directory, queues).run()


class Cases:
    def __init__(self, spark: Any, name_servers: str, directory: Path, queues: list[MessageQueue]) -> None:
        self.spark = spark
        self.servers = name_servers
        self.directory = directory
        self.queues = queues

    def run(self) -> dict[str, Any]:
        from spark.support.reading import Stream, numbers, table

        def read(**options: str) -> list[int]:
            return numbers(table(self.spark, self.servers, "orders", **options))

        broker = self.queues[0].broker_name
        cases: dict[str, Any] = {
            "all": read(),
            "row": self.row(table(self.spark, self.servers, "orders")),
            "range": read(
                startingOffsets=json.dumps({f"orders@{broker}@0": 100, f"orders@{broker}@1": 0}),
                endingOffsets=json.dumps({f"orders@{broker}@0": 150, f"orders@{broker}@1": 0}),
            ),
            "tags": read(tags="c"),
            "sql": read(sql="number BETWEEN 100 AND 200"),
        }
        options = {
            "subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "1000", "group": "readers",
        }  # fmt: skip
        stream = Stream(self.spark, self.servers, self.directory, **options)
        first = stream.run()
        since = self.last_time(table(self.spark, self.servers, "orders", columns="store_ts"))
        fill(self.servers, self.queues[1], numbered("orders", 5000, 5010))
        cases["batches"] = [first, stream.run()]
        cases["late"] = [number for number in read(startingTimestamp=str(since + 1)) if number >= len(EVERY)]
        with Admin(self.servers) as admin:
            cases["group"] = {
                one.queue.queue_id: one.consumer_offset for one in admin.consumers.lag("readers", "orders").queues
            }
        return cases

    def row(self, frame: Any) -> dict[str, Any]:
        (row,) = frame.where("queue_id = 1 and queue_offset = 10").collect()
        return {
            "topic": row.topic, "queue_id": row.queue_id, "queue_offset": row.queue_offset, "tags": row.tags,
            "keys": row.keys, "body": bytes(row.body).decode(), "number": row.properties["number"],
            "is_id": row.msg_id == row.properties["UNIQ_KEY"],
            "is_new": row.store_ts >= row.born_ts.replace(microsecond=0),
        }  # fmt: skip

    def last_time(self, frame: Any) -> int:
        (row,) = frame.selectExpr("unix_millis(max(store_ts)) AS last").collect()
        return int(row.last)


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    sys.stdout.write(json.dumps(application(sys.argv[1], Path(sys.argv[2]))) + "\n")
