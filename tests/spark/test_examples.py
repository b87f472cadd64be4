"""The examples do what their READMEs say, against a broker of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow.parquet import read_table

from pyromq import testing
from pyromq.sync import Admin
from pyromq.testing import BrokerProcess

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LIMIT_SECONDS = 400


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    """The examples name their topics, so they have a broker to themselves."""
    with testing.broker(process=True) as running:
        running.create_topic("orders", 4)
        running.create_topic("large-orders", 4)
        yield running


def run(broker: BrokerProcess, *command: str | Path, cwd: Path) -> str:
    environment = os.environ | {
        "PYROMQ_NAMESRV": broker.name_servers,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        [str(one) for one in command], cwd=cwd, env=environment, timeout=LIMIT_SECONDS, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def lag(broker: BrokerProcess, group: str) -> tuple[int, int]:
    """Return the numbers of a group's consumed and unconsumed messages."""
    with Admin(broker.name_servers) as admin:
        found = admin.consumers.lag(group, "orders")
        return sum(one.consumer_offset for one in found.queues), found.lag


def announced(broker: BrokerProcess) -> list[int]:
    with Admin(broker.name_servers) as admin:
        return sorted(json.loads(one.body)["id"] for one in admin.messages.peek("large-orders", count=1000))


def large(count: int) -> list[int]:
    """Every fifth kind of item costs 120, and another one 890."""
    return [number for number in range(count) if number * 7 % 5 >= 3]


@pytest.mark.spark
def test_the_stream_counts_orders_and_is_seen_as_a_group(broker: BrokerProcess, tmp_path: Path) -> None:
    run(broker, sys.executable, EXAMPLES / "send_orders.py", "40", cwd=tmp_path)
    stream = (sys.executable, EXAMPLES / "orders_stream.py", "--until-now", "--checkpoint", tmp_path / "checkpoint")
    shown = run(broker, *stream, cwd=tmp_path)
    assert "|open|   10|" in shown
    assert "|paid|   30|" in shown
    assert lag(broker, "orders-by-tag") == (40, 0)


@pytest.mark.spark
def test_the_pipeline_reads_what_is_new_and_announces_it_once(broker: BrokerProcess, tmp_path: Path) -> None:
    home = tmp_path / "pipeline"
    shutil.copytree(EXAMPLES / "pipeline", home)
    spec = home / "spark-pipeline.yml"
    storage = f"storage: file://{tmp_path}/storage\n"
    lines = spec.read_text().splitlines(keepends=True)
    spec.write_text("".join(storage if line.startswith("storage:") else line for line in lines))
    pipeline = (
        "spark-pipelines",
        "run",
        "--conf",
        "spark.sql.catalogImplementation=hive",
        "--conf",
        "spark.ui.enabled=false",
    )

    for sent in (40, 10):
        run(broker, sys.executable, EXAMPLES / "send_orders.py", str(sent), cwd=tmp_path)
        run(broker, *pipeline, cwd=home)
    assert announced(broker) == sorted(large(40) + large(10))
    assert lag(broker, "orders-pipeline") == (50, 0)
    sales = {one["item"]: one["orders"] for one in read_table(str(home / "spark-warehouse/sales_by_item")).to_pylist()}
    assert sales == dict.fromkeys(("tea", "coffee", "kettle", "grinder", "espresso machine"), 10)
