"""`pyromq …` as a process of its own, the way a person or a supervisor runs it. Waiting is for lines, not for time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self

from pyromq.config.secret_file import VARIABLE

#: Far more than anything takes: when it is over, something hangs.
SECONDS = 30.0
#: What this machine's own programs are told.
FOREIGN = ("PYROMQ_", "NAMESRV_")


def environment(**more: str) -> dict[str, str]:
    """This one, without what would set something."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN) or name == VARIABLE}
    return {**kept, "NO_COLOR": "1", "COLUMNS": "80", **more}


def command(arguments: Sequence[str | Path]) -> list[str]:
    return [sys.executable, "-m", "pyromq", *map(str, arguments)]


class Done(NamedTuple):
    code: int
    out: str
    err: str


def run(*arguments: str | Path, cwd: Path, stdin: bytes = b"", **more: str) -> Done:
    """A command that ends by itself."""
    done = subprocess.run(
        command(arguments), cwd=cwd, env=environment(**more), input=stdin, capture_output=True, timeout=SECONDS,
        check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def _without_nohup() -> None:
    """A test run under nohup has what it starts ignore SIGHUP."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Program:
    """A command that runs until it is told to stop; leaving the block ends it if nobody has."""

    def __init__(self, *arguments: str | Path, cwd: Path, **more: str) -> None:
        self.process = subprocess.Popen(
            command(arguments), cwd=cwd, env=environment(**more), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, preexec_fn=_without_nohup,
        )  # fmt: skip
        assert self.process.stdout
        assert self.process.stderr
        self._changed = threading.Condition()
        self._lines: dict[str, list[str]] = {"out": [], "err": []}
        self._open = 2
        self._readers = [
            threading.Thread(target=self._read, args=(stream, name), daemon=True)
            for name, stream in (("out", self.process.stdout), ("err", self.process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self._finish()

    @property
    def out(self) -> str:
        return "".join(self._lines["out"])

    @property
    def err(self) -> str:
        return "".join(self._lines["err"])

    def until(self, pattern: str, seconds: float = SECONDS) -> re.Match[str]:
        """Wait until it says so, on either stream."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._find(pattern) or not self._open, seconds)
        match = self._find(pattern)
        assert match, f"{'ended' if found else 'still running'} without {pattern!r}:\n{self.out}\n{self.err}"
        return match

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(SECONDS)
        self._finish()
        return code

    def _finish(self) -> None:
        self.process.wait(SECONDS)
        for reader in self._readers:
            reader.join(SECONDS)

    def _find(self, pattern: str) -> re.Match[str] | None:
        return re.search(pattern, self.out) or re.search(pattern, self.err)

    def _read(self, stream: IO[bytes], name: str) -> None:
        with stream:
            for line in stream:
                with self._changed:
                    self._lines[name].append(line.decode())
                    self._changed.notify_all()
        with self._changed:
            self._open -= 1
            self._changed.notify_all()


def up(home: Path, *arguments: str | Path, **more: str) -> Program:
    """`pyromq up` in this directory, on ports that were free."""
    return Program("up", "--nameserver-port", "0", "--broker-port", "0", *arguments, cwd=home, **more)


def name_server_of(program: Program) -> str:
    return program.until(r"name server +(127\.0\.0\.1:\d+)\n")[1]


def last_processor_seconds(pid: int) -> float:
    """User and system time of a running process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
