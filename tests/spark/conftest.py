"""One Spark session and one broker for all tests of the pipeline: a session takes seconds to start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pyromq import testing
from pyromq.testing import BrokerProcess

if TYPE_CHECKING:
    from spark.support.sink_scene import Scene

# Before anybody imports pyspark: Spark runs its workers with this Python, and binds to nothing but the loopback.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("pyromq-tests")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        # Programs that Spark would write and compile for each query cost more than they save with a few rows. The
        # examples, the guide and the tests against Apache's broker run with them.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def mq() -> Iterator[BrokerProcess]:
    """A broker in a process of its own, so that it does not share a lock with the tests."""
    with testing.broker(process=True) as running:
        yield running


@pytest.fixture
def scene(mq: BrokerProcess) -> Iterator[Scene]:
    """Tasks that write as Spark's would, to the broker of the test."""
    from spark.support.sink_scene import scene_of

    with scene_of(mq.name_servers) as found:
        yield found


@pytest.fixture
def topic(mq: BrokerProcess, request: pytest.FixtureRequest) -> str:
    """A topic of four queues that no other test uses."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:100]
    mq.create_topic(name, 4)
    return name
