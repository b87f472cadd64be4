"""The real Apache RocketMQ as a child process, for tests that compare us with it.

`toolchain()` finds Java and, through Maven, the jars named in pom.xml; `ApacheCluster` runs one name
server and one broker over a store directory; `JavaProgram` asks a cluster through the official Java
client, and `Referee` is the one that looks at a broker's store. The version is the one in pom.xml and
nothing here depends on another.

Remaining files: compiled classes and a class path under build/interop/ of this repository, and
whatever the broker wrote into the store directory it was given. Logs and settings go to a temporary
directory that is removed, never to $HOME. Only processes started here are ended, by their own pid.

Everything that answers to the network is bound to 127.0.0.1, and runs in a network of its own where the
system allows one (see `loopback`): the broker has no setting for the address of its replication port.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from interop.support.loopback import enter_private_network, run_inside
from pyromq.errors import CallFailed
from pyromq.testing.brokers import ports as loopback_ports
from pyromq.testing.brokers.asking import ask
from pyromq.wire.codes import ResponseCode
from pyromq.wire.requests.nameserver import GetClusterInfo

HERE = Path(__file__).resolve().parents[1]
POM = HERE / "pom.xml"
SOURCES = HERE / "java"
CACHE = HERE.parents[1] / "build" / "interop"

#: In full, because without a network Maven says of a short name only that there is no such plugin.
DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:2.8"

LOOPBACK = "127.0.0.1"
NAMESRV_MAIN = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER_MAIN = "org.apache.rocketmq.broker.BrokerStartup"
#: Both servers print a line with these words on stdout once they serve.
READY = "boot success"

#: By default each server makes itself a TLS key, which takes seconds.
WITHOUT_TLS = ("-Dtls.server.mode=disabled", "-Dtls.test.mode.enable=false")
#: A nearly full disk must neither delete files of the store nor refuse messages.
BROKER_OPTIONS = (
    *WITHOUT_TLS,
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.99",
)

#: By default a broker refuses requests that waited for 200 ms, which is short on a busy machine.
#: And it tells its name servers of itself as often as it can.
PATIENT = {"waitTimeMillsInSendQueue": "60000", "registerNameServerPeriod": "10000"}

#: A first run downloads some 200 MB of jars.
RESOLVE_TIMEOUT_S = 900
START_TIMEOUT_S = 60
#: A healthy broker needs a quarter of this.
STOP_TIMEOUT_S = 60
SETTLE_TIMEOUT_S = 30
POLL_INTERVAL_S = 0.05
#: At most this many characters of a program's output go into an error; the cause is at its end.
SAID_CHARS = 4000


class ToolchainMissing(Exception):
    """Java or Maven is absent, or Maven Central cannot be reached: a test may skip with this reason."""


class ApacheFailed(Exception):
    """An Apache process, Maven or javac ran and failed: a test must not skip over it."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The paths needed to start any of the Java programs."""

    java: str
    #: Joined with the platform's separator.
    jars: str
    #: The directory of the compiled program.
    classes: str

    @property
    def classpath(self) -> str:
        return os.pathsep.join([self.jars, self.classes])

    @property
    def archive(self) -> Path:
        """The class archive that `interop.support.kept_classes` makes of the jars, for this Java."""
        real = Path(self.java).resolve()
        parts = repr((self.jars, str(real), real.stat().st_mtime_ns))
        return CACHE / f"{hashlib.sha256(parts.encode()).hexdigest()[:16]}.jsa"

    def quick_start(self) -> list[str]:
        """Options for a Java with the jars first on its class path."""
        return [f"-XX:SharedArchiveFile={self.archive}", "-Xlog:disable"] if self.archive.exists() else []


# --- Finding Java and the jars -------------------------------------------------------------------


def toolchain(program: str = "Referee") -> Toolchain:
    """The jars and java/`program`.java compiled; quick when an earlier run left them in the cache."""
    java, javac, mvn = (_on_path(name) for name in ("java", "javac", "mvn"))
    parts = [POM, *sorted(SOURCES.glob("*.java"))]
    stamp = hashlib.sha256(b"\0".join([program.encode(), *(part.read_bytes() for part in parts)])).hexdigest()
    ready = CACHE / stamp[:16]
    with _one_at_a_time():
        if not _is_complete(ready):
            _build(ready, program, javac, mvn)
    return Toolchain(java, _jars(ready), str(ready / "classes"))


def _on_path(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise ToolchainMissing(f"{program} is not on PATH, Apache RocketMQ cannot be run")
    return found


def _jars(ready: Path) -> str:
    return (ready / "classpath.txt").read_text("utf-8").strip()


def _is_complete(ready: Path) -> bool:
    """Return True if every jar still exists: they are in Maven's own repository, which may be emptied."""
    if not (ready / "classpath.txt").exists():
        return False
    return all(Path(jar).exists() for jar in _jars(ready).split(os.pathsep))


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Several test processes may need the same program at once: one builds it, the others wait and find it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(ready: Path, program: str, javac: str, mvn: str) -> None:
    """Fill a fresh directory, then rename it into place: a torn build is never taken for a good one."""
    fresh = Path(tempfile.mkdtemp(prefix="building-", dir=CACHE))
    try:
        _resolve(mvn, fresh / "classpath.txt")
        (fresh / "classes").mkdir()
        command = [javac, "-nowarn", "-encoding", "UTF-8", "-d", str(fresh / "classes"), "-cp", _jars(fresh)]
        # The source path lets a program be made of several files, and be built without the other programs.
        compiled = _run([*command, "-sourcepath", str(SOURCES), str(SOURCES / f"{program}.java")])
        if compiled.returncode != 0:
            raise ApacheFailed(f"javac refused {program}.java:\n{compiled.stdout}")
        if ready.exists():
            shutil.rmtree(ready)
        fresh.rename(ready)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _resolve(mvn: str, classpath_file: Path) -> None:
    goal = f"{DEPENDENCY_PLUGIN}:build-classpath"
    resolved = _run([mvn, "-q", "-B", "-f", str(POM), goal, f"-Dmdep.outputFile={classpath_file}"])
    if resolved.returncode == 0:
        return
    # Maven has one exit status for everything; only a failed transfer is the network's fault.
    if re.search(r"could not transfer|failed to transfer|unknown host", resolved.stdout, re.IGNORECASE):
        raise ToolchainMissing(f"Maven Central cannot be reached:\n{resolved.stdout}")
    raise ApacheFailed(f"Maven cannot resolve {POM.name}:\n{resolved.stdout}")


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RESOLVE_TIMEOUT_S,
        check=False,
    )


# --- The servers ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ports:
    namesrv: int
    #: The broker also takes this - 2 (its fast lane) and this + 1 (replication).
    broker: int


class ApacheCluster:
    """One name server and one broker over `store_root`; may be started again after an end.

    Ports stay the same over restarts, so message ids (they hold the broker's address) stay true.
    Entering starts, leaving stops; after `kill()` leaving does nothing more.
    """

    def __init__(
        self, store_root: Path, *, broker_conf: Mapping[str, str] | None = None, jvm_options: Sequence[str] = ()
    ) -> None:
        """`jvm_options` are for both servers, and win over what the tests usually give."""
        self.store_root = store_root
        self._broker_conf = dict(broker_conf or {})
        self._jvm_options = tuple(jvm_options)
        self._ports = free_ports()
        self._toolchain = toolchain()
        self._home: tempfile.TemporaryDirectory[str] | None = None
        self._namesrv: subprocess.Popen[bytes] | None = None
        self._broker: subprocess.Popen[bytes] | None = None

    @property
    def namesrv_address(self) -> str:
        return f"{LOOPBACK}:{self._ports.namesrv}"

    @property
    def broker_address(self) -> str:
        return f"{LOOPBACK}:{self._ports.broker}"

    @property
    def broker_pid(self) -> int:
        assert self._broker is not None, "the broker is not running"
        return self._broker.pid

    def __enter__(self) -> ApacheCluster:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A test that already failed must not wait for a clean shutdown, nor have its error replaced.
        if kind is None:
            self.stop()
        else:
            self.kill()

    def start(self) -> None:
        assert self._home is None, "already running"
        self._home = tempfile.TemporaryDirectory(prefix="apache-rocketmq-")
        home = Path(self._home.name)
        try:
            self._namesrv = self._launch_namesrv(home)
            _await_ready(self._namesrv, home / f"{NAMESRV_MAIN}.out")
            self.start_broker()
        except BaseException:
            self.kill()
            raise

    def start_broker(self) -> None:
        """The broker alone, after it was ended alone."""
        assert self._home is not None, "the name server is not running"
        home = Path(self._home.name)
        conf = {**broker_conf(self._ports, self.store_root), **PATIENT, **self._broker_conf}
        self._broker = self._launch(BROKER_MAIN, conf, home)
        _await_ready(self._broker, home / f"{BROKER_MAIN}.out")
        if not any("tls.server.mode=enforcing" in option for option in self._jvm_options):
            run_inside(self._await_registered)

    def _await_registered(self) -> None:
        """It serves before its name server knows it; when that was too busy at first, much before."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(CallFailed):
                answer = ask(self.namesrv_address, GetClusterInfo())
                if answer.code != ResponseCode.SUCCESS or self.broker_address.encode() in answer.body:
                    return
            if time.monotonic() > deadline:
                raise ApacheFailed(f"not registered after {START_TIMEOUT_S} s:\n{self.log()[-SAID_CHARS:]}")
            time.sleep(POLL_INTERVAL_S)

    def end_broker(self, how: signal.Signals) -> None:
        """End the broker alone with this signal; the name server keeps running."""
        assert self._broker is not None, "the broker is not running"
        _end(self._broker, how)
        self._broker = None

    def stop(self) -> None:
        """SIGTERM and wait: the broker flushes, persists its tables and removes `abort`.

        Takes about 13 s, all but a few tenths of it sleeps written into the broker.
        """
        try:
            if self._broker is not None:
                _end(self._broker, signal.SIGTERM)
        except subprocess.TimeoutExpired as late:
            raise ApacheFailed(f"still running {late.timeout} s after SIGTERM:\n{self.log()[-SAID_CHARS:]}") from late
        finally:
            self.kill()  # only the name server still runs, and it stores nothing

    def kill(self) -> None:
        """SIGKILL: the store stays as the last write left it."""
        for server in (self._broker, self._namesrv):
            if server is not None:
                _end(server, signal.SIGKILL)
        self._broker = self._namesrv = None
        if self._home is not None:
            keep_logs(Path(self._home.name))
            # A JVM's last writes may race with the removal of its log directory.
            shutil.rmtree(self._home.name, ignore_errors=True)
            self._home.cleanup()
            self._home = None

    def log(self, name: str = "store.log") -> str:
        """One of the running broker's log files (broker.log, store.log, …), for a failure message."""
        assert self._home is not None, "the log goes away with the servers"
        file = Path(self._home.name) / "logs" / "rocketmqlogs" / name
        return file.read_text("utf-8", errors="replace") if file.exists() else ""

    def referee(self) -> Referee:
        return Referee(self._toolchain, self.namesrv_address, self.broker_address)

    def _launch_namesrv(self, home: Path) -> subprocess.Popen[bytes]:
        """A subclass may run another one: on the same port, with its output in the same file."""
        return self._launch(NAMESRV_MAIN, namesrv_conf(self._ports, home), home)

    def _launch(self, main: str, conf: Mapping[str, str], home: Path) -> subprocess.Popen[bytes]:
        conf_file = home / f"{main}.conf"
        conf_file.write_text("".join(f"{name}={value}\n" for name, value in conf.items()), "utf-8")
        command = [
            self._toolchain.java,
            *self._toolchain.quick_start(),
            *_jvm_options(home, heap_mb=512 if main == BROKER_MAIN else 192),
            *(BROKER_OPTIONS if main == BROKER_MAIN else WITHOUT_TLS),
            *self._jvm_options,
            "-cp",
            self._toolchain.jars,
            main,
            "-c",
            str(conf_file),
        ]
        with (home / f"{main}.out").open("wb") as out:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=_environment(home),
                cwd=home,
                preexec_fn=enter_private_network(),
            )


def namesrv_conf(ports: Ports, home: Path) -> dict[str, str]:
    return {
        "bindAddress": LOOPBACK,
        "listenPort": str(ports.namesrv),
        "kvConfigPath": str(home / "kvConfig.json"),
    }


def broker_conf(ports: Ports, store_root: Path) -> dict[str, str]:
    """The default settings of a broker in the tests."""
    return {
        "brokerClusterName": "InteropCluster",
        "brokerName": "interop",
        "brokerId": "0",
        "brokerIP1": LOOPBACK,
        "brokerIP2": LOOPBACK,
        "bindAddress": LOOPBACK,
        "listenPort": str(ports.broker),
        "haListenPort": str(ports.broker + 1),
        "namesrvAddr": f"{LOOPBACK}:{ports.namesrv}",
        "storePathRootDir": str(store_root),
        "storePathCommitLog": str(store_root / "commitlog"),
        "autoCreateTopicEnable": "true",
        "warmMapedFileEnable": "false",
        "transientStorePoolEnable": "false",
        # 95 is the broker's own ceiling. Files of a store under test may be old: keep them all.
        "diskMaxUsedSpaceRatio": "95",
        "fileReservedTime": "87600",
        # Its timer compares 38 MB byte by byte each time: every second, that is a tenth of a processor for each broker.
        "timerFlushIntervalMs": "10000",
        # TransactionMetricsFlushService loops without a pause until this interval has passed once: by default a
        # broker spends its first 3 s on that.
        "transactionMetricFlushInterval": "200",
    }


def _jvm_options(home: Path, *, heap_mb: int) -> list[str]:
    # A loaded broker unmaps files through JDK internals; Java 17 must be told to allow it.
    opened = ("java.nio", "sun.nio.ch", "jdk.internal.ref", "jdk.internal.misc")
    return [
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Duser.home={home}",
        f"-Djava.io.tmpdir={home}",
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in opened),
        *(f"--add-exports=java.base/{package}=ALL-UNNAMED" for package in opened),
    ]


def _environment(home: Path) -> dict[str, str]:
    """Ours without what would steer RocketMQ from outside."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NAMESRV")}
    return {**kept, "ROCKETMQ_HOME": str(home), "HOME": str(home)}


def keep_logs(home: Path) -> None:
    """Copy the files of a program's temporary directory to the one named by PYROMQ_INTEROP_LOGS, if it is set."""
    if kept := os.environ.get("PYROMQ_INTEROP_LOGS"):
        shutil.copytree(home, Path(kept) / home.name, dirs_exist_ok=True)


def _await_ready(server: subprocess.Popen[bytes], out: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while READY not in (said := out.read_text("utf-8", errors="replace")):
        if server.poll() is not None:
            raise ApacheFailed(f"ended with {server.returncode} instead of starting:\n{said[-SAID_CHARS:]}")
        if time.monotonic() > deadline:
            raise ApacheFailed(f"not serving after {START_TIMEOUT_S} s:\n{said[-SAID_CHARS:]}")
        time.sleep(POLL_INTERVAL_S)


def _end(server: subprocess.Popen[bytes], how: signal.Signals) -> None:
    if server.poll() is None:
        server.send_signal(how)
        server.wait(STOP_TIMEOUT_S)


def free_ports() -> Ports:
    """A broker has the ports two below its own and above it as well."""
    base = loopback_ports.free_ports(0, 2, 4, 5)
    return Ports(namesrv=base, broker=base + 4)


# --- The client ----------------------------------------------------------------------------------

#: A JSON object as the Referee says it; its fields are those of java/Referee.java.
Line = dict[str, Any]


def message(
    topic: str,
    queue_id: int,
    body: bytes,
    *,
    tags: str | None = None,
    keys: str | None = None,
    properties: Mapping[str, str] | None = None,
    delay_level: int | None = None,
    flag: int | None = None,
) -> Line:
    """A message for `Referee.send`; a field that is None is not set on the Java side either."""
    fields: Line = {
        "topic": topic,
        "queueId": queue_id,
        "bodyBase64": base64.b64encode(body).decode("ascii"),
        "tags": tags,
        "keys": keys,
        "properties": dict(properties) if properties else None,
        "delayLevel": delay_level,
        "flag": flag,
    }
    return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Dump:
    """Every message of a topic by queue and queue offset, and each queue's bounds."""

    messages: list[Line]
    min_offsets: dict[int, int]
    max_offsets: dict[int, int]


class JavaProgram:
    """A program of java/ on the official client in one JVM, asked one question at a time. A context manager."""

    #: The name of the class, which is also the name of its file.
    main = "Referee"

    def __init__(self, tools: Toolchain, namesrv_address: str, broker_address: str) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="java-program-")
        home = Path(self._home.name)
        self._errors: IO[bytes] = (home / "stderr").open("w+b")
        options = [*tools.quick_start(), *_jvm_options(home, heap_mb=256), f"-Drocketmq.log.root={home}"]
        self._process = subprocess.Popen(
            [tools.java, *options, "-cp", tools.classpath, self.main, namesrv_address, broker_address],
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
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
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
        keep_logs(Path(self._home.name))
        self._home.cleanup()

    def ask(self, do: str, **fields: object) -> list[Line]:
        """The lines of the answer; ApacheFailed if the client or the broker refused."""
        stdin, stdout = self._pipes()
        with contextlib.suppress(BrokenPipeError):  # it has died; the empty read below tells why
            stdin.write(json.dumps({"do": do, **fields}) + "\n")
            stdin.flush()
        lines: list[Line] = []
        while text := stdout.readline():
            line: Line = json.loads(text)
            if "error" in line:
                raise ApacheFailed(f"{do} {fields}: {line['error']}")
            if "done" in line:
                return lines
            lines.append(line)
        self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace")
        raise ApacheFailed(f"{self.main} died over {do}:\n{said[-SAID_CHARS:]}")

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout


class Referee(JavaProgram):
    """The content of a broker's store, as the official client sees it."""

    def create_topic(self, topic: str, queues: int) -> None:
        self.ask("create", topic=topic, queues=queues)

    def send(self, messages: Iterable[Line]) -> list[Line]:
        """Sends each to its own queue; one {offsetMsgId, msgId, queueId, queueOffset} each."""
        return self.ask("send", messages=list(messages))

    def send_batch(self, messages: Iterable[Line]) -> Line:
        """Sends all as one batch to the first one's queue."""
        [sent] = self.ask("sendbatch", messages=list(messages))
        return sent

    def offsets(self, topic: str) -> tuple[dict[int, int], dict[int, int]]:
        """Each queue's min and max offset."""
        [bounds] = self.ask("offsets", topic=topic)
        return _by_queue(bounds["minOffsets"]), _by_queue(bounds["maxOffsets"])

    def settle(self, topic: str, count: int) -> None:
        """Waits until `count` messages can be read: queues are filled after a send is answered."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while sum((maxima := self.offsets(topic)[1]).values()) < count:
            if time.monotonic() > deadline:
                raise ApacheFailed(f"{topic} has {maxima}, {count} messages expected")
            time.sleep(POLL_INTERVAL_S)

    def dump(self, topic: str) -> Dump:
        *messages, bounds = self.ask("dump", topic=topic)
        return Dump(messages, _by_queue(bounds["minOffsets"]), _by_queue(bounds["maxOffsets"]))

    def by_key(self, topic: str, key: str) -> list[Line]:
        """At most 64 hits, which is the broker's limit."""
        return self.ask("key", topic=topic, key=key)

    def by_unique_key(self, topic: str, key: str) -> list[Line]:
        return self.ask("uniq", topic=topic, key=key)

    def by_id(self, topic: str, offset_msg_id: str) -> Line:
        """Only the position in the id counts: this broker answers, even if another one stored the message."""
        [found] = self.ask("id", topic=topic, id=offset_msg_id)
        return found

    def by_time(self, topic: str, queue_id: int, ms: int) -> int:
        """The queue offset the broker finds for a store time."""
        [found] = self.ask("time", topic=topic, queue=queue_id, ms=ms)
        offset: int = found["queueOffset"]
        return offset


def _by_queue(offsets: Mapping[str, int]) -> dict[int, int]:
    return {int(queue): offset for queue, offset in offsets.items()}
