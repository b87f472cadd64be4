"""`pyromq up` as a process of its own, which a test can kill, pause and start again where it was.

It starts this Python with PyroMQ itself and nothing else, without a shell, and no server imports it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyromq.errors import ConfigError, NotNow
from pyromq.testing.brokers.broker_options import FOR_TESTS, BrokerOptions
from pyromq.testing.brokers.local_broker import LocalBroker

#: The line of `pyromq up` when it serves.
READY = b"PyroMQ is up"
START_SECONDS = 30.0
STOP_SECONDS = 30.0
#: The length of the log quoted in an error.
QUOTED_BYTES = 2000


class BrokerProcess(LocalBroker):
    """A broker and its name server in a child process."""

    def __init__(self, options: BrokerOptions) -> None:
        super().__init__(options)
        self._process: subprocess.Popen[bytes] | None = None
        #: The test has ended it, one way or the other.
        self._was_ended = False

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def log_file(self) -> Path:
        """Its stderr, over all starts."""
        return self.data_dir / "broker.log"

    def kill(self) -> None:
        """`kill -9`: the state of a crash. `start` continues from it."""
        self._finish(signal.SIGKILL)

    def pause(self) -> None:
        """Stop it in the middle of whatever it does, as a machine that stalls would."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise NotNow("this broker's process does not run: start() it")
        return self._process

    # --- life --------------------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        self._release()
        process, self._was_ended = self._spawn(), False
        self._process = process
        weakref.finalize(self, _end_forgotten, process)
        assert process.stdout is not None
        with _killed_after(START_SECONDS, process):
            first = process.stdout.readline()
        if READY not in first:
            code = self._finish(signal.SIGKILL)
            raise ConfigError(f"the broker's process did not start (exit code {code}); it said:\n{self._tail()}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        home = self.data_dir
        settings = home / "broker.toml"
        settings.write_text(_toml({**FOR_TESTS, **self._options.settings_in(home)}), encoding="utf-8")
        command = [
            sys.executable, "-m", "pyromq", "up", "--config", str(settings), "--data-dir", str(home),
            "--nameserver-port", str(self._name_server_port), "--broker-port", str(self._broker_port),
        ]  # fmt: skip
        with self.log_file.open("ab") as log:
            return subprocess.Popen(  # noqa: S603  no shell, and every word is ours
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=_environment()
            )

    def _end(self) -> None:
        process = self._running()
        process.send_signal(signal.SIGCONT)  # a paused one hears nothing else
        code = self._finish(signal.SIGTERM)
        if code != 0:
            raise NotNow(f"the broker's process did not stop cleanly (exit code {code}); it said:\n{self._tail()}")

    def _finish(self, how: signal.Signals) -> int:
        process = self._process
        if process is None:
            raise NotNow("this broker's process was never started")
        self._was_ended = True
        process.send_signal(how)
        with _killed_after(STOP_SECONDS, process):
            code = process.wait()
        self._release()
        return code

    def _release(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def _tail(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self.log_file.read_bytes()[-QUOTED_BYTES:].decode("utf-8", "replace").strip()
        return "nothing"

    def close(self) -> None:
        """Raise NotNow if the process has ended by itself: no test may pass unnoticed without its broker."""
        died = self._process is not None and not self.is_running and not self._was_ended
        why = f"the broker's process ended by itself; it said:\n{self._tail()}" if died else ""
        try:
            super().close()
        finally:
            self._release()
            self._was_ended = True
        if why:
            raise NotNow(why)


@contextlib.contextmanager
def _killed_after(seconds: float, process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Limit every wait for the process inside the block to this time."""
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _end_forgotten(process: subprocess.Popen[bytes]) -> None:
    """A broker whose block never ended must not outlive the program that started it."""
    if process.poll() is None:
        process.kill()
        process.wait()


def _environment() -> dict[str, str]:
    """Settings that the machine has for its own brokers are not for this one."""
    foreign = ("PYROMQ_BROKER_", "PYROMQ_NAMESERVER_", "NAMESRV_ADDR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "PYTHONUNBUFFERED": "1"}


def _toml(settings: Mapping[str, object]) -> str:
    """Paths of settings as dotted keys. Text, numbers, booleans and lists are written in TOML as in JSON."""
    return "".join(f"{path} = {json.dumps(_plain(value))}\n" for path, value in settings.items() if value is not None)


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
