"""A Spark session for PyroMQ's own jobs: any master, the Python that runs now, and nothing that asks the outside.

    with spark_session(master="local[*]", name="archive") as spark: ...

A session that runs already in this process is used and left as it is; one made here is stopped at the end. With `log`
everything that Spark, its JVM and its Python workers have to say goes to that file and not to the terminal.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from pyromq.errors import ConfigError

#: Defaults for the jobs; `conf` overrides them.
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Arrow batches of some thousand rows of 1 KiB: measured best between Python and the JVM.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "5000",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
#: The Python of the workers in Spark's settings. Where a program starts Spark, Spark looks only at the environment.
WORKERS_PYTHON = "spark.pyspark.python"
JAVA = "Spark needs Java 17 or newer"


@contextmanager
def spark_session(
    *,
    master: str = "local[*]",
    name: str = "pyromq",
    conf: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Iterator[SparkSession]:
    """Raises ConfigError where there is no Java, or where it does not start."""
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    spark = _started(master, name, {**DEFAULTS, **(conf or {})}, log)
    try:
        yield spark
    finally:
        spark.stop()


def _started(master: str, name: str, conf: Mapping[str, str], log: Path | None) -> SparkSession:
    require_java()
    try:
        if log is None:
            return _builder(master, name, conf).getOrCreate()
        with _output_to(log):
            return _builder(master, name, conf).getOrCreate()
    except PySparkRuntimeError as error:
        if "JAVA_GATEWAY_EXITED" not in str(error):
            raise
        where = f"; what it said is in {log}" if log is not None else ""
        raise ConfigError(f"{JAVA}, and the one that is here ({_java()}) did not start{where}") from None


def require_java() -> None:
    """Raises ConfigError where there is none."""
    if _java() is None:
        home = os.environ.get("JAVA_HOME")
        looked = (
            f"there is none in JAVA_HOME ({home})" if home else "there is none on the path, and JAVA_HOME is not set"
        )
        raise ConfigError(f"{JAVA}, and {looked}: install one (Debian, Ubuntu: apt install default-jre-headless)")


def _java() -> str | None:
    """The one that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")


def _builder(master: str, name: str, conf: Mapping[str, str]) -> SparkSession.Builder:
    # Spark looks for its formats, and runs its workers, with this Python: the package is installed in it.
    if WORKERS_PYTHON in conf:
        os.environ["PYSPARK_PYTHON"] = conf[WORKERS_PYTHON]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Send the output of processes started in the block to this file, and that of this process during the block."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        yield
    finally:
        for number, old in enumerate(kept, 1):
            os.dup2(old, number)
            os.close(old)
