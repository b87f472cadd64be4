"""The servers under test: a name server and a broker of ours, as processes that a user would start.

`new_cluster()` gives ours. With PYROMQ_INTEROP_AGAINST=apache it gives Apache's own instead: the same stories must hold
there, which is how the stories themselves are checked. Both read the same RocketMQ `.conf` files.

Only processes started here are ended, by their own pid. Logs go to a temporary directory that is removed, after a copy
to the directory named by PYROMQ_INTEROP_LOGS if there is one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from interop.support.apache import LOOPBACK, SAID_CHARS, ApacheCluster, broker_conf, free_ports, keep_logs, namesrv_conf
from interop.support.loopback import enter_private_network

AGAINST = os.environ.get("PYROMQ_INTEROP_AGAINST", "pyromq")
#: The line that each of our servers prints once it serves.
READY = "PyroMQ is up"
START_TIMEOUT_S = 20
STOP_TIMEOUT_S = 20
POLL_INTERVAL_S = 0.02


class ServerFailed(Exception):
    """One of our servers did not start or did not stop."""


class Cluster(Protocol):
    """One name server and one broker; the addresses stay the same over restarts. Entering starts, leaving stops."""

    store_root: Path

    @property
    def namesrv_address(self) -> str: ...
    @property
    def broker_address(self) -> str: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def start_broker(self) -> None: ...
    def end_broker(self, how: signal.Signals) -> None: ...


def new_cluster(store_root: Path, conf: Mapping[str, str] | None = None) -> Cluster:
    """Not started yet. `conf` holds RocketMQ's own names and wins over what the tests usually set."""
    if AGAINST == "apache":
        return ApacheCluster(store_root, broker_conf=conf)
    assert AGAINST == "pyromq", f"PYROMQ_INTEROP_AGAINST is {AGAINST!r}: say pyromq or apache"
    return PyromqCluster(store_root, conf)


class PyromqServer:
    """One `pyromq …` process."""

    def __init__(self, arguments: Sequence[str], home: Path, env: Mapping[str, str] | None = None) -> None:
        self.out = home / f"{arguments[0]}.out"
        with self.out.open("ab") as out:
            began = out.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pyromq", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=home,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
                preexec_fn=enter_private_network(),
            )
        self._await_ready(began)

    def said(self, began: int = 0) -> str:
        return self.out.read_bytes()[began:].decode("utf-8", "replace")

    def end(self, how: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as late:
            self.process.kill()
            self.process.wait()
            raise ServerFailed(f"still running {STOP_TIMEOUT_S} s after {how.name}:\n{self._tail()}") from late

    def _await_ready(self, began: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while READY not in self.said(began):
            if self.process.poll() is not None:
                raise ServerFailed(f"ended with {self.process.returncode} instead of starting:\n{self._tail()}")
            if time.monotonic() > deadline:
                self.process.kill()
                self.process.wait()
                raise ServerFailed(f"did not say {READY!r} within {START_TIMEOUT_S} s:\n{self._tail()}")
            time.sleep(POLL_INTERVAL_S)

    def _tail(self) -> str:
        return self.said()[-SAID_CHARS:]


class PyromqCluster:
    """`pyromq nameserver` and `pyromq broker`, each with the `.conf` file that Apache's servers would be given."""

    def __init__(self, store_root: Path, conf: Mapping[str, str] | None = None) -> None:
        self.store_root = store_root
        self._conf = dict(conf or {})
        #: Settings of the broker that RocketMQ has no names for.
        self.env: dict[str, str] = {}
        self._ports = free_ports()
        self._home: Path | None = None
        self._namesrv: PyromqServer | None = None
        self._broker: PyromqServer | None = None

    @property
    def namesrv_address(self) -> str:
        return f"{LOOPBACK}:{self._ports.namesrv}"

    @property
    def broker_address(self) -> str:
        return f"{LOOPBACK}:{self._ports.broker}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A test that already failed must not have its error replaced.
        if kind is None:
            self.stop()
        else:
            self.kill()

    def start(self) -> None:
        assert self._home is None, "already running"
        self._home = Path(tempfile.mkdtemp(prefix="pyromq-interop-"))
        try:
            conf = _written(self._home / "namesrv.conf", namesrv_conf(self._ports, self._home))
            self._namesrv = PyromqServer(["nameserver", "--config", conf], self._home)
            self.start_broker()
        except BaseException:
            self.kill()
            raise

    def start_broker(self) -> None:
        assert self._home is not None, "the name server is not running"
        settings = {**broker_conf(self._ports, self.store_root), **self._conf}
        conf = _written(self._home / "broker.conf", settings)
        self._broker = PyromqServer(["broker", "--config", conf], self._home, self.env)

    def end_broker(self, how: signal.Signals) -> None:
        assert self._broker is not None, "the broker is not running"
        self._broker.end(how)
        self._broker = None

    def stop(self) -> None:
        try:
            if self._broker is not None:
                self.end_broker(signal.SIGTERM)
            if self._namesrv is not None:
                self._namesrv.end(signal.SIGTERM)
        finally:
            self.kill()

    def kill(self) -> None:
        for server in (self._broker, self._namesrv):
            if server is not None:
                server.end(signal.SIGKILL)
        self._broker = self._namesrv = None
        if self._home is not None:
            keep_logs(self._home)
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None


class PyromqUp(PyromqCluster):
    """`pyromq up`: both in one process, with nothing set but where it listens and keeps its data."""

    def start(self) -> None:
        assert self._home is None, "already running"
        self._home = Path(tempfile.mkdtemp(prefix="pyromq-interop-"))
        ports = ["--nameserver-port", str(self._ports.namesrv), "--broker-port", str(self._ports.broker)]
        try:
            self._broker = PyromqServer(["up", "--data-dir", str(self.store_root), *ports], self._home)
        except BaseException:
            self.kill()
            raise


def _written(file: Path, settings: Mapping[str, str]) -> str:
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), "utf-8")
    return str(file)
