"""One load against one broker: the generator's line, and the broker's processor time and memory from /proc."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from broker_vs_rocketmq.loads import PULL_BATCH, QUEUES, WARM_TOPIC, Load
from broker_vs_rocketmq.servers import System, before_start

SOURCE = Path(__file__).with_name("rmqload.c")
#: What a broker still does for messages that it has answered (queues, index, flush) belongs to them.
SETTLE_S = 1.0
#: More than its own time: then the generator hangs, and is ended.
GENERATOR_GRACE_S = 30
WARM_SECONDS_MAX = 120
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")

LINE = re.compile(
    r"(?P<kind>send|pull) (?P<rate>\d+) msg/s  (?P<megabytes>[\d.]+) MB/s  errors (?P<errors>\d+)  "
    r"request p50 (?P<p50>[\d.]+) ms  p99 (?P<p99>[\d.]+) ms  p99\.9 (?P<p999>[\d.]+) ms  total (?P<total>\d+)"
)


class GeneratorFailed(Exception):
    """There is no compiler for the generator, or it ended without a result."""


@dataclass(frozen=True, slots=True)
class Result:
    """The generator's line. Times in milliseconds, of a request."""

    rate: float
    p50: float
    p99: float
    p999: float
    errors: int
    #: Every message of the run, also those before counting began.
    total: int
    #: The first refusal in the broker's words, if there was one.
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One load against one broker, once."""

    load: str
    system: str
    round: int
    result: Result
    cpu_us_per_message: float


@dataclass(frozen=True, slots=True)
class Footprint:
    """One life of a broker under one flush setting."""

    system: str
    flush: str
    round: int
    start_seconds: float
    resident_mib: float
    anonymous_mib: float


# --- The generator -------------------------------------------------------------------------------------------------


def build_generator(directory: Path) -> Path:
    """Compiled again only when its source is newer."""
    program = directory / "rmqload"
    if program.exists() and program.stat().st_mtime > SOURCE.stat().st_mtime:
        return program
    compiler = shutil.which("cc")
    if compiler is None:
        raise GeneratorFailed("The load generator is written in C, and there is no cc on PATH: install a C compiler.")
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True, timeout=120)
    return program


def parse(line: str, complaints: str = "") -> Result:
    """The generator's output; what it complained of on stderr is kept when requests were refused."""
    found = LINE.search(line)
    if found is None:
        raise GeneratorFailed(f"The generator said no result: {line!r}")
    rate, p50, p99, p999 = (float(found[name]) for name in ("rate", "p50", "p99", "p999"))
    refusal = complaints.partition("\n")[0]
    return Result(rate, p50, p99, p999, int(found["errors"]), int(found["total"]), refusal)


@dataclass(frozen=True, slots=True)
class Generator:
    program: Path
    core: int | None = None

    def run(self, load: Load, port: int, seconds: float, rate: float = 0) -> Result:
        """`rate`: no more messages than that in a second; 0: as many as can be."""
        return self._run(load, load.topic, port, ["--seconds", f"{seconds:g}", "--rate", f"{rate:g}"], seconds)

    def run_until(self, load: Load, port: int, count: int) -> Result:
        """So many messages through the warm-up topic, for both brokers the same."""
        limits = ["--seconds", str(WARM_SECONDS_MAX), "--count", str(count)]
        result = self._run(load, WARM_TOPIC, port, limits, WARM_SECONDS_MAX)
        if result.total < count:
            raise GeneratorFailed(f"Only {result.total} of {count} messages in {WARM_SECONDS_MAX} s. {result.refusal}")
        return result

    def _run(self, load: Load, topic: str, port: int, limits: list[str], seconds: float) -> Result:
        numbers = {
            "port": port,
            "conns": load.connections,
            "window": load.window,
            "size": load.size,
            "queues": QUEUES,
            "batch": PULL_BATCH,
        }
        options = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
        # Refused messages are counted in its line; it also ends with 1 for them.
        ended = subprocess.run(
            [self.program, load.kind, "--topic", topic, *options, *limits],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds + GENERATOR_GRACE_S,
            check=False,
            preexec_fn=before_start(self.core),
        )
        if not ended.stdout:
            raise GeneratorFailed(f"The generator ended with {ended.returncode} over {load.name}:\n{ended.stderr}")
        return parse(ended.stdout, ended.stderr)


# --- The broker's process ------------------------------------------------------------------------------------------


def cpu_seconds(stat: str) -> float:
    """User and system time, from the text of /proc/PID/stat."""
    # The program's name comes second and may hold spaces and brackets.
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def memory_mib(status: str) -> tuple[float, float]:
    """Resident and anonymous, from the text of /proc/PID/status."""
    kib = dict(re.findall(r"^(VmRSS|RssAnon):\s+(\d+) kB$", status, re.MULTILINE))
    return int(kib["VmRSS"]) / 1024, int(kib["RssAnon"]) / 1024


def _proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text("utf-8")


def sample(generator: Generator, system: System, load: Load, seconds: float, number: int) -> Sample:
    """`system` must be the one that is not paused."""
    before = cpu_seconds(_proc(system.broker_pid, "stat"))
    result = generator.run(load, system.ports.broker, seconds)
    time.sleep(SETTLE_S)
    used = cpu_seconds(_proc(system.broker_pid, "stat")) - before
    return Sample(load.name, system.name, number, result, used * 1e6 / max(result.total, 1))


def footprint(system: System, number: int) -> Footprint:
    resident, anonymous = memory_mib(_proc(system.broker_pid, "status"))
    return Footprint(system.name, system.flush, number, system.start_seconds, resident, anonymous)
