"""A session for jobs: its Java, its Python, and where its noise goes. It is started by the tests that use one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from pyromq.errors import ConfigError
from pyromq.spark import session
from pyromq.spark.session import require_java, spark_session


def test_no_java_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="Spark needs Java 17 or newer, and there is none on the path"):
        require_java()


def test_no_java_where_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"there is none in JAVA_HOME \\({tmp_path}\\)"):
        require_java()


def test_a_java_that_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def exits(*_: object) -> object:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(session, "_builder", exits)
    log = tmp_path / "spark.log"
    with pytest.raises(ConfigError, match=f"did not start; what it said is in {log}"), spark_session(log=log):
        pass


def test_what_is_started_meanwhile_writes_to_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "spark.log"
    with session._output_to(log):
        subprocess.run(["sh", "-c", "echo noise; echo more noise >&2"], check=True)
    print("a result", file=sys.stdout, flush=True)
    print("a sentence", file=sys.stderr, flush=True)
    assert log.read_text(encoding="utf-8") == "noise\nmore noise\n"
    assert capfd.readouterr() == ("a result\n", "a sentence\n")


def test_workers_run_with_this_python_unless_another_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    session._builder("local[1]", "name", {})
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    session._builder("local[1]", "name", {"spark.pyspark.python": "/opt/python"})
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"


@pytest.mark.spark
def test_a_session_that_runs_is_used_and_left_alone(spark: SparkSession) -> None:
    with spark_session(master="local[7]", name="another") as used:
        assert used.sparkContext.appName == spark.sparkContext.appName
    assert spark.range(3).count() == 3, "it still runs"
