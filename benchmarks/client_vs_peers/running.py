"""One worker at a time: started with the Python that has its client, inside the servers' network, and read."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client_vs_peers.contestants import Contestant, Line
from client_vs_peers.workers.shape import Task
from interop.support.loopback import enter_private_network

WORKERS = Path(__file__).resolve().parent / "workers"
#: Beyond the seconds that a task has: imports, connections, a slow peer's stragglers.
PATIENCE_S = 180.0
SAID_CHARS = 1500


class WorkerFailed(Exception):
    """A worker did not say what it measured; what it said instead is in the message."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one round gave for one contestant on one line: figures by name, or why there are none."""

    line: str
    contestant: str
    round: int
    figures: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""


def figures_of(line: Line, said: Mapping[str, Any]) -> dict[str, float]:
    """A worker's words as the figures of a line. A lost message is a failure, not a slow one."""
    if lost := int(said.get("lost", 0)):
        raise WorkerFailed(f"{lost} messages did not reach the handler")
    if line.figures == ("rate",):
        if not said["count"]:
            raise WorkerFailed("nothing was done in time")
        return {"rate": said["count"] / said["seconds"], "cpu_us": said["cpu_seconds"] * 1e6 / said["count"]}
    return {name: float(said[name]) for name in line.figures}


class Worker:
    """A started worker; its home is a directory that goes away, for clients that write logs there."""

    def __init__(self, python: Path, contestant: Contestant, task: Task) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="client-bench-")
        self._errors = Path(self._home.name) / "worker.err"
        self.started = time.perf_counter()
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [str(python), str(WORKERS / contestant.driver), *task.as_arguments()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=self._home.name,
                env={**_environment(), "HOME": self._home.name},
                preexec_fn=enter_private_network(),
            )
        self._patience_s = task.warm + task.seconds + PATIENCE_S

    @property
    def pid(self) -> int:
        return self._process.pid

    def await_ready(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise WorkerFailed(self._said())

    def say_go(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died; `result` tells why
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        try:
            said, _ = self._process.communicate(timeout=self._patience_s)
        except subprocess.TimeoutExpired as late:
            raise WorkerFailed(f"nothing was said for {late.timeout:.0f} s: {self._said()}") from late
        if self._process.returncode or not said.strip():
            raise WorkerFailed(self._said())
        result: dict[str, Any] = json.loads(said.splitlines()[-1])
        return result

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
        self._home.cleanup()

    def _said(self) -> str:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        said = self._errors.read_text("utf-8", errors="replace")[-SAID_CHARS:].strip()
        return f"ended with {self._process.returncode}: {said}"


@contextlib.contextmanager
def worker(python: Path, contestant: Contestant, task: Task) -> Iterator[Worker]:
    started = Worker(python, contestant, task)
    try:
        yield started
    finally:
        started.end()


def _environment() -> dict[str, str]:
    """Ours without the paths that the harness needs: a worker imports its own client only."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
