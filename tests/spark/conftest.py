"""One Spark session and one broker for all tests of the pipeline: a session takes seconds to start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from pyromq import testing
from pyromq.testing import BrokerProcess

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
