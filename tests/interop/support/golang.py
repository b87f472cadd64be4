"""The official Go remoting client as a child process, for tests of a broker.

`program()` builds the program in go/; `GoClient` runs it and asks it one question at a time. The client's version is
the one in go/go.mod and nothing here depends on another.

Remaining files: the built program under build/interop/ of this repository, and Go's own caches. Logs and the
offsets that broadcasting consumers keep go to a temporary directory that is removed, never to $HOME.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from interop.support.apache import CACHE, HERE, SAID_CHARS, ToolchainMissing
from interop.support.loopback import enter_private_network
from late import before

SOURCES = HERE / "go"

#: A first run downloads and compiles the client and what it needs.
BUILD_TIMEOUT_S = 600
STOP_TIMEOUT_S = 10
#: Timeout of expected events. Far more than they take: a busy machine must not fail a test.
PATIENCE_S = 30.0
POLL_INTERVAL_S = 0.05

#: At most this many characters of a request go into an error.
ASKED_CHARS = 500

#: The code of a good answer.
SUCCESS = 0

#: A JSON object as the program says it; its fields are those of go/*.go.
Line = dict[str, Any]


class GoFailed(Exception):
    """The Go compiler, the client or the broker behind it refused: a test must not skip over it."""


# --- Building ------------------------------------------------------------------------------------------------------


def program() -> Path:
    """The built program; quick when an earlier run left it in the cache."""
    go = shutil.which("go")
    if go is None:
        raise ToolchainMissing("go is not on PATH, the Go client cannot be built")
    sources = sorted([*SOURCES.glob("*.go"), SOURCES / "go.mod", SOURCES / "go.sum"])
    stamp = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()
    built = CACHE / f"go-{stamp[:16]}"
    if not built.exists():
        _build(go, built)
    return built


def _build(go: str, built: Path) -> None:
    """Build to a temporary name, then rename, so that a torn build is never taken for a good one."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="building-", dir=CACHE) as directory:
        fresh = Path(directory) / "program"
        compiled = subprocess.run(
            [go, "build", "-mod=readonly", "-o", str(fresh), "."],
            cwd=SOURCES,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
        if compiled.returncode != 0:
            # Only a host that cannot be reached is the network's fault.
            if re.search(r"dial tcp|no such host|i/o timeout", compiled.stdout):
                raise ToolchainMissing(f"Go's modules cannot be downloaded:\n{compiled.stdout}")
            raise GoFailed(f"go refused the program:\n{compiled.stdout}")
        fresh.rename(built)


# --- Asking --------------------------------------------------------------------------------------------------------


class GoClient:
    """One process with the Go client in it. A context manager; `kill()` is the death that clients must survive."""

    def __init__(self, namesrv_address: str, *, binary_headers: bool = False) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="go-client-")
        home = Path(self._home.name)
        self._errors: IO[bytes] = (home / "stderr").open("w+b")
        self._process = subprocess.Popen(
            [str(program()), namesrv_address, *(["binary"] if binary_headers else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_environment(home),
            cwd=home,
            encoding="utf-8",
            preexec_fn=enter_private_network(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        stdin, stdout = self._pipes()
        with contextlib.suppress(BrokenPipeError):  # it died first; the last request has raised already
            stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        stdout.close()
        self._errors.close()
        self._home.cleanup()

    def kill(self) -> None:
        """SIGKILL: no goodbye to the broker, and nothing more is acknowledged."""
        self._process.kill()
        self._process.wait()

    def ask(self, do: str, **fields: object) -> Any:
        """The result; GoFailed if the client or the broker refused."""
        stdin, stdout = self._pipes()
        with contextlib.suppress(BrokenPipeError):  # it has died; the empty read below tells why
            stdin.write(json.dumps({"do": do, **fields}) + "\n")
            stdin.flush()
        if not (text := stdout.readline()):
            self._process.wait()
            raise GoFailed(f"the Go program died over {do}:\n{self._said()}")
        answer: Line = json.loads(text)
        if "error" in answer:
            raise GoFailed(f"{do}: {answer['error']}\nafter {str(fields)[:ASKED_CHARS]}\n{self._said()}")
        return answer["result"]

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode("utf-8", "replace")[-SAID_CHARS:]

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    # The most frequent requests of the stories.

    def send(self, by: str, messages: Iterable[Line], how: str = "sync") -> list[Line]:
        """One result for each message; of a batch one in all, of one-way sends none."""
        return self.ask("send", name=by, how=how, messages=list(messages)) or []

    def heard(self, name: str, count: int, seconds: float = PATIENCE_S) -> list[Line]:
        """Everything that a push consumer has taken, as soon as it is `count`; AssertionError if that never comes."""
        everything = self.listener(name, count, seconds)["heard"]
        assert len(everything) >= count, f"{name} heard {len(everything)} of {count}\n{self._said()}"
        return list(everything)

    def listener(self, name: str, count: int = 0, seconds: float = 0.0) -> Line:
        """The messages a push consumer received and refused, and its greatest concurrency on one queue."""
        state: Line = self.ask("heard", name=name, count=count, timeoutMs=int(seconds * 1000))
        return state

    def invoke(self, address: str, code: int, **fields: str) -> str:
        """The body of the answer to a request that the client has no method for."""
        answer = self.ask("invoke", address=address, code=code, fields=fields)
        if answer["code"] != SUCCESS:
            raise GoFailed(f"{code} {fields}: {answer['code']} {answer['remark']}")
        return str(answer["body"])

    def create_topic(self, topic: str, broker_address: str, queues: int = 4) -> None:
        """Return once the name server knows the topic: the broker registers it after it has answered."""
        self.ask("create topic", topic=topic, broker=broker_address, queues=queues)
        until(lambda: topic in self.ask("topics"), f"the name server knows {topic}")


def until(happens: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        before(deadline, f"not within {seconds} s: {what}")
        time.sleep(POLL_INTERVAL_S)


def _environment(home: Path) -> dict[str, str]:
    """Ours without what would steer the client from outside."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NAMESRV", "ROCKETMQ"))}
    return {
        **kept,
        "HOME": str(home),
        "rocketmq.client.localOffsetStoreDir": str(home / "offsets"),
        "ROCKETMQ_GO_LOG_LEVEL": "warn",
    }
