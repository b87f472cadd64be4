"""`pyromq` processes that a test starts, looks at from outside, kills and starts again in the same place."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from late import before
from pyromq.testing.brokers.ports import free_broker_port

READY = b"PyroMQ is up"
START_SECONDS = 30.0
#: Small files, so that a test needs little of the disk and rolls segments; a full disk is no subject of most tests.
SETTINGS = """
auto_create_topics = true
auto_create_groups = true
offsets_flush_interval_ms = 200
config_flush_interval_ms = 200
[store]
segment_bytes = 16777216
queue_file_entries = 20000
index_slots = 5000
index_entries = 20000
prefault_bytes = 0
[store.retention]
refuse_at = 1.0
resume_below = 0.99
"""


class Server:
    """`pyromq broker` (or another `program`) with a directory and a port of its own. Each start goes on where the last
    one ended."""

    def __init__(
        self,
        home: Path,
        more: str = "",
        *,
        settings: str = SETTINGS,
        store: Path | None = None,
        before: Sequence[str] = (),
        program: str = "broker",
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
        step_in: Callable[[], None] | None = None,
    ) -> None:
        """`more` are settings at the end of the file, which is TOML; `before` stands before the command; `step_in` is
        what the new process does first, to be on a machine of its own."""
        self.home = home
        self.store = store or home / "store"
        self.port = port or free_broker_port()
        self.said = home / "said"
        self._config = home / "broker.toml"
        self._config.write_text(settings + more)
        self._before = list(before)
        self._program = program
        self._environment = environment or {}
        self._step_in = step_in
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0

    def start(self) -> Self:
        self.begin()
        self._await_ready()
        return self

    def begin(self) -> None:
        """Start it, and do not wait until it serves."""
        self._began = self.said.stat().st_size if self.said.exists() else 0
        self._spawn()

    @property
    def is_ready(self) -> bool:
        """It has said that it serves."""
        return READY in self.said.read_bytes()[self._began :]

    def kill_while_it_starts(self, seconds: float) -> None:
        self._spawn()
        time.sleep(seconds)
        self.kill()

    def _spawn(self) -> None:
        command = [*self._before, sys.executable, "-m", "pyromq", self._program, "--config", str(self._config)]
        command += ["--port", str(self.port)]
        if self._program == "broker":
            command += ["--store", str(self.store)]
        with self.said.open("ab") as output:
            environment = {**os.environ, "PYTHONUNBUFFERED": "1", "NAMESRV_ADDR": "", **self._environment}
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=self.home,
                env=environment, preexec_fn=self._step_in,
            )  # fmt: skip

    def _await_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self.is_ready:
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.tail()}"
            before(deadline, f"not up after {START_SECONDS} s:\n{self.tail()}")
            time.sleep(0.01)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it is not running"
        return self._process

    @property
    def pid(self) -> int:
        """Of the broker itself, also when another program runs it."""
        if not self._before:
            return self.process.pid
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def tail(self) -> str:
        return self.said.read_text("utf-8", "replace")[-3000:]

    def log_lines(self) -> list[str]:
        return self.said.read_text("utf-8", "replace").splitlines()

    # --- ends --------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """`kill -9`."""
        if self.is_running():
            with contextlib.suppress(IndexError, ProcessLookupError, FileNotFoundError):
                os.kill(self.pid, signal.SIGKILL)
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> int:
        """As `systemctl stop` does; what it returned."""
        if self.is_running():
            os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def wait(self, seconds: float = 30.0) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {seconds} s:\n{self.tail()}") from None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()
        if kind is not None:
            print(self.tail())

    # --- from outside ------------------------------------------------------------------------------------------------

    def anonymous_kib(self) -> int:
        """Memory that is its own: the mapped files of the store are not."""
        return self._status("RssAnon")

    def peak_kib(self) -> int:
        return self._status("VmHWM")

    def _status(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
        raise AssertionError(f"the system does not tell {name}")

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def processor_seconds(self) -> float:
        """What it has used so far, to the system's own precision of some milliseconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def children(self) -> list[int]:
        return [
            int(child)
            for task in Path(f"/proc/{self.pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
