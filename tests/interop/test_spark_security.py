"""Spark with access keys and over TLS, against Apache RocketMQ's servers that want them; and who gets to see the keys.

python -m interop.test_spark_security CASES DIRECTORY      CASES is JSON: by name, the options of a cluster

One Spark, in the network of the servers, writes and reads as tables and as streams. All that it says or keeps is looked
through for the secret: plans, progress, errors, the log at its most talkative, the event log, checkpoints.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from interop.support.apache import ApacheCluster
from interop.support.loopback import enter_private_network
from interop.test_python_security import SECRET, WRONG_SECRET, Papers, guarded, papers, sealed
from pyromq.spark.connecting import Cluster
from pyromq.spark.source.options import connection_of
from pyromq.sync import Admin

__all__ = ["guarded", "papers", "sealed"]

pytestmark = [pytest.mark.interop, pytest.mark.spark]

#: A Spark session and some queries for each cluster, on a machine that is busy.
SPARK_S = 500
ROWS = 300


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def done(
    guarded: ApacheCluster,
    sealed: ApacheCluster,
    papers: Papers,
    directory: Path,
) -> subprocess.CompletedProcess[str]:
    keys = {"acl.accessKey": "alice", "acl.secretKey": SECRET}
    cases = {
        "keys": {"namesrv": guarded.namesrv_address, **keys},
        "tls": {"namesrv": sealed.namesrv_address, "client.tls": "true", "client.tlsCa": str(papers.authority)},
        "both": {"namesrv": guarded.namesrv_address, **keys, "client.tlsCa": str(papers.authority)},
    }
    run = subprocess.run(
        [sys.executable, "-m", "interop.test_spark_security", json.dumps(cases), str(directory)],
        capture_output=True, text=True, timeout=SPARK_S, check=False, preexec_fn=enter_private_network(),
        cwd=Path(__file__).resolve().parents[1], env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    return run


@pytest.fixture(scope="module")
def found(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    cases: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return cases


@pytest.mark.parametrize("case", ["keys", "tls", "both"])
def test_tables_and_streams_are_written_and_read(found: dict[str, Any], case: str) -> None:
    assert found[case]["table"] == [*range(ROWS)]
    assert found[case]["streamed"] == [*range(ROWS)]


def test_whoever_is_not_let_in_is_told_why(found: dict[str, Any]) -> None:
    for said in (found["keys"]["wrong secret, read"], found["keys"]["wrong secret, write"]):
        assert "the secret key is not the one that belongs to this access key" in said
    assert "give credentials" in found["keys"]["no keys"]
    assert "certificate verify failed" in found["tls"]["nobody vouches"]


def test_nobody_gets_to_see_a_secret(
    done: subprocess.CompletedProcess[str], found: dict[str, Any], directory: Path
) -> None:
    shown = {"said": done.stdout + done.stderr, **{f"plan {n}": plan for n, plan in enumerate(found["keys"]["plans"])}}
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert any("events" in path.parts for path in files), "Spark has kept an event log"
    shown |= {str(path): path.read_bytes().decode("utf-8", "replace") for path in files}
    assert "pyromq" in found["keys"]["plans"][0].lower()
    secrets = (SECRET, WRONG_SECRET)
    told = [
        f"{name}: {line[:300]}"
        for name, text in shown.items()
        for line in text.splitlines()
        # Spark's parser tells at this level what it is asked to parse: a statement that has the secret in it.
        if any(secret in line for secret in secrets) and "SparkSqlParser: Parsing command: CREATE" not in line
    ]
    assert told == []


# --- the application -------------------------------------------------------------------------------------------------


class Case:
    """One cluster, as its options say."""

    def __init__(self, spark: Any, name: str, options: dict[str, str], directory: Path) -> None:
        self.spark = spark
        self.name = name
        self.options = options
        self.directory = directory

    def make_topics(self) -> None:
        cluster: Cluster = connection_of(self.options)
        with Admin(
            cluster.name_servers, credentials=cluster.credentials(), tls=cluster.tls_context()
        ) as admin:  # fmt: skip
            for topic in self.topics:
                admin.topics.create(topic, queues=2)

    @property
    def topics(self) -> tuple[str, str]:
        return f"{self.name}-table", f"{self.name}-stream"

    def run(self) -> dict[str, Any]:
        self.make_topics()
        table, stream = self.topics
        self.write(table, self.options)
        frame = self.read(table, self.options)
        query = self.stream(table, stream)
        return {
            "table": bodies(frame),
            "streamed": bodies(self.read(stream, self.options)),
            "plans": [
                explained(frame), explained(frame.groupBy("tags").count()), json.dumps(query.lastProgress, default=str),
                str(query.recentProgress), repr(frame), str(self.options_in_sql(table)),
            ],
        }  # fmt: skip

    def write(self, topic: str, options: dict[str, str]) -> None:
        rows = self.spark.range(ROWS).selectExpr("CAST(id AS STRING) AS body")
        rows.write.format("pyromq").options(**options).option("topic", topic).mode("append").save()

    def read(self, topic: str, options: dict[str, str]) -> Any:
        return self.spark.read.format("pyromq").options(**options).option("subscribe", topic).load()

    def stream(self, source: str, target: str) -> Any:
        rows = (
            self.spark.readStream.format("pyromq").options(**self.options).option("subscribe", source)
            .option("startingOffsets", "earliest").load()
        )  # fmt: skip
        checkpoint = str(self.directory / "checkpoints" / self.name)
        query = (
            rows.select("body").writeStream.format("pyromq").options(**self.options).option("topic", target)
            .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        return query

    def options_in_sql(self, topic: str) -> list[Any]:
        given = ", ".join(f"`{name}` '{value}'" for name, value in {**self.options, "subscribe": topic}.items())
        self.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW messages USING pyromq OPTIONS ({given})")
        found = self.spark.sql("EXPLAIN EXTENDED SELECT tags FROM messages WHERE queue_id = 1").collect()
        return [*found, *self.spark.sql("DESCRIBE EXTENDED messages").collect()]

    def refused(self, options: dict[str, str]) -> tuple[str, str]:
        """Return the errors of reading and of writing with these options."""
        quick = {**options, "fetchOffset.numRetries": "0"}
        return (
            error_of(lambda: self.read(self.topics[0], quick).collect()),
            error_of(lambda: self.write(self.topics[0], {**options, "retries": "1", "sendTimeoutMs": "3000"})),
        )


def bodies(frame: Any) -> list[int]:
    return sorted(int(row.body) for row in frame.select("body").collect())


def explained(frame: Any) -> str:
    return str(frame._jdf.queryExecution().toString())


def error_of(work: Any) -> str:
    from pyspark.errors import PySparkException

    try:
        work()
    except PySparkException as error:
        return f"{error}\n{error!r}"
    raise AssertionError("nobody refused it")


def application(cases: dict[str, dict[str, str]], directory: Path) -> dict[str, Any]:
    from pyromq.spark.session import spark_session

    events = directory / "events"
    events.mkdir()
    conf = {
        "spark.driver.memory": "1g", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(),
    }  # fmt: skip
    with spark_session(master="local[2]", name="security", conf=conf) as spark:
        spark.sparkContext.setLogLevel("DEBUG")
        made = {name: Case(spark, name, options, directory) for name, options in cases.items()}
        found = {name: case.run() for name, case in made.items()}
        keys, tls = made["keys"], made["tls"]
        wrong = {**keys.options, "acl.secretKey": WRONG_SECRET}
        found["keys"]["wrong secret, read"], found["keys"]["wrong secret, write"] = keys.refused(wrong)
        found["keys"]["no keys"] = keys.refused({"namesrv": keys.options["namesrv"]})[0]
        found["tls"]["nobody vouches"] = tls.refused({"namesrv": tls.options["namesrv"], "client.tls": "true"})[0]
        return found


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    sys.stdout.write(json.dumps(application(json.loads(sys.argv[1]), Path(sys.argv[2]))) + "\n")
