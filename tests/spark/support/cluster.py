"""A standalone Spark cluster on this machine, from nothing but the installed `pyspark`: a master and some workers.

Its programs run with a Python in which PyroMQ was installed from its wheel, never with the source tree, as on a user's
cluster. Everything listens on the loopback, on ports that the system chose.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from wheels import build_wheel, install

SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 120.0
STOP_SECONDS = 30.0


def environment(**more: str) -> dict[str, str]:
    """Without what would lead to this process's Python or to the source tree."""
    unwanted = ("PYTHON", "PYSPARK_", "SPARK_", "PYROMQ_", "NAMESRV_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return {**kept, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", **more}


def environment_of(python: Path, **more: str) -> dict[str, str]:
    """For a driver: Spark looks for formats and runs workers with this Python."""
    return environment(PYSPARK_PYTHON=str(python), PYSPARK_DRIVER_PYTHON=str(python), **more)


def python_with_the_wheel(directory: Path, *, compiled: bool = False) -> Path:
    """A fresh environment with PyroMQ from its wheel; what it depends on is borrowed from here."""
    without = {} if compiled else {"PYROMQ_NO_EXTENSIONS": "1"}  # compiling takes as long as all the rest
    return install(build_wheel(directory, **without), directory) / "python"


class Daemon:
    """A program of Spark's that serves until it is ended. What it says goes to a file, and can be waited for."""

    def __init__(self, words: list[str], log: Path, **more: str) -> None:
        self.log = log
        # `spark-class` becomes the Java process, so the pid is that one's.
        self.process = subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-class"), *words], env=environment(SPARK_DAEMON_MEMORY="256m", **more),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._is_open = True
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def until(self, pattern: str) -> re.Match[str]:
        """Wait until it says so."""
        with self._changed:
            self._changed.wait_for(lambda: self._find(pattern) or not self._is_open, START_SECONDS)
            found = self._find(pattern)
            assert found, f"no {pattern!r} in {self.log}:\n{''.join(self._lines[-30:])}"
            return found

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait(STOP_SECONDS)
        self._reader.join(STOP_SECONDS)

    def _find(self, pattern: str) -> re.Match[str] | None:
        return next((found for line in self._lines if (found := re.search(pattern, line))), None)

    def _read(self) -> None:
        assert self.process.stderr
        with self.process.stderr as stream, self.log.open("wb") as file:
            for line in stream:
                file.write(line)
                file.flush()
                with self._changed:
                    self._lines.append(line.decode(errors="replace"))
                    self._changed.notify_all()
        with self._changed:
            self._is_open = False
            self._changed.notify_all()


class SparkCluster:
    """A master and workers of one core each. Leaving the block ends all of them."""

    def __init__(self, directory: Path, python: Path, workers: int = 2) -> None:
        self.directory = directory
        self.python = python
        self.master_url = ""
        self.master: Daemon | None = None
        self.workers: list[Daemon] = []
        self._wanted = workers

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.master = Daemon(
            ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"],
            self.directory / "master.log", SPARK_MASTER_OPTS="-Dspark.master.rest.enabled=false",
        )  # fmt: skip
        self.master_url = self.master.until(r"(spark://127\.0\.0\.1:\d+)")[1]
        self.workers = [self._worker(number) for number in range(self._wanted)]
        for worker in self.workers:
            worker.until("Successfully registered with master")

    def _worker(self, number: int) -> Daemon:
        return Daemon(
            [
                "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0",
                "--cores", "1", "--memory", "1g", "--work-dir", str(self.directory / f"work{number}"), self.master_url,
            ],
            self.directory / f"worker{number}.log", SPARK_LOCAL_DIRS=str(self.directory / f"local{number}"),
        )  # fmt: skip

    def stop(self) -> None:
        for daemon in [*self.workers, *([self.master] if self.master else [])]:
            daemon.stop()


@contextmanager
def running_cluster(directory: Path, workers: int = 2, *, compiled: bool = False) -> Iterator[SparkCluster]:
    """The wheel is built and installed, then the cluster started."""
    python = python_with_the_wheel(directory, compiled=compiled)
    with SparkCluster(directory / "cluster", python, workers) as cluster:
        yield cluster


if __name__ == "__main__":  # to look at one by hand
    with running_cluster(Path(sys.argv[1])) as by_hand:
        print(by_hand.master_url, by_hand.python)
        signal.pause()
