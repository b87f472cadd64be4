#!/usr/bin/env python
"""Run lint, type checks and every test that is not marked slow, as concurrent jobs; fail if one of them fails.

`make test` calls it. Tests against other programs mostly wait for these, so jobs share the processors well: another
job starts while a processor is idle. Within a job one test follows the other. The output of a job is shown when it has
ended. A test that only ran out of time, next to other jobs, is run again when these have ended (tests/late.py).
"""

from __future__ import annotations

import asyncio
import compileall
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

#: The exit codes of pytest and of shells.
TESTS_FAILED, STOPPED = 1, 130
ROOT = Path(__file__).resolve().parents[1]
#: Above this many tests that ran out of time, the machine is not the reason: they are not run again.
MOST_LATE = 6
#: A test that is run again has to pass this often.
TIMES_ALONE = 3
#: At least and at most this many jobs at once; PYROMQ_TEST_JOBS=n makes it n, whether processors are idle or not.
AT_ONCE = (int(os.environ.get("PYROMQ_TEST_JOBS", "3")), int(os.environ.get("PYROMQ_TEST_JOBS", "8")))
#: Another job starts above this idle share of the processors' time, averaged over this many seconds.
IDLE_SHARE, LOOK_SECONDS = 0.25, 4.0


def files(*patterns: str) -> tuple[str, ...]:
    """Return the test files that match; every pattern has to match one."""
    found: list[str] = []
    for pattern in patterns:
        matches = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(f"tests/{pattern}"))
        assert matches, f"no test file matches {pattern}"
        found += matches
    return tuple(found)


@dataclass(frozen=True)
class Job:
    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: Path = ROOT
    #: The names of the jobs that have to end before this one starts.
    after: tuple[str, ...] = ()


def pytest(
    name: str, *arguments: str, without: tuple[str, ...] = (), after: tuple[str, ...] = (), **environment: str
) -> Job:
    ignored = (f"--ignore={path}" for path in without)
    return Job(name, (sys.executable, "-m", "pytest", "-rs", *arguments, *ignored), environment, after=after)


def program(name: str, *arguments: str) -> Job:
    return Job(name, (str(Path(sys.executable).with_name(arguments[0])), *arguments[1:]))


# A Java process starts in half the time with an archive of its loaded classes.
APACHE_ARCHIVE, SPARK_ARCHIVE = "class archive of Apache RocketMQ", "class archive of Spark"
APACHE, SPARK = (APACHE_ARCHIVE,), (SPARK_ARCHIVE,)

INTEROP = "interop/**"
APACHE_STORES = files(
    f"{INTEROP}/test_apache_harness.py", f"{INTEROP}/test_*store_interop.py", f"{INTEROP}/test_log_place*.py",
    f"{INTEROP}/test_name_server*.py", f"{INTEROP}/test_sql92*.py",
)  # fmt: skip
APACHE_PAIRS = files(f"{INTEROP}/test_replication*.py")
APACHE_BACKUPS = files(f"{INTEROP}/test_backup*.py")
APACHE_SPARK = files(f"{INTEROP}/test_spark_*.py")
JAVA = files(f"{INTEROP}/test_java_*.py", f"{INTEROP}/test_guides.py")
GO_AND_MQADMIN = files(f"{INTEROP}/test_go*.py", f"{INTEROP}/test_mqadmin.py", f"{INTEROP}/test_admin_cli.py")
#: Tests that start Spark themselves, some of them several times.
SPARK_EXAMPLES = files("spark/**/test_examples.py")
SPARK_GUIDE = files("spark/**/test_guide.py")
SPARK_COMMANDS = files("spark/**/test_commands.py", "spark/**/test_traps.py", "spark/**/test_source*.py")
SPARK_WRITES = files(
    *(f"spark/**/test_{name}.py" for name in ("insight", "listener_stream", "replay_spark", "sink_spark", "sink_tasks"))
)
CHAOS_PAIRS = files("chaos/**/test_pair*.py", "chaos/**/test_machines.py")
#: Tests that start the commands as users do.
COMMANDS = ("tests/cli", "tests/demo")
PAGES = ("tests/test_docs.py",)
PACKAGE = ("tests/test_benchmarks.py", "tests/test_packaging.py")
IN_OTHER_JOBS = (
    "tests/interop", "tests/crash", "tests/chaos", "tests/spark", "tests/broker", "tests/client", "tests/replication",
    *COMMANDS, *PAGES, *PACKAGE,
)  # fmt: skip
#: Tests of modules that have a reference implementation and an accelerated one.
TWO_FORMS = (
    "tests/records", "tests/store", "tests/wire", "tests/net", "tests/broker",
    *files(*(f"spark/**/test_{name}.py" for name in ("decode", "segments_read", "segments_split", "store_files"))),
)  # fmt: skip
#: Among them, those that start whole brokers and test nothing of an accelerated module that others do not.
ONE_FORM = files(
    "broker/**/test_lead*.py",
    "broker/**/test_role*.py",
    "broker/**/test_promotions.py",
    "broker/**/test_twins.py",
    *(f"broker/**/test_{name}.py" for name in ("metadata_sync", "pair", "nameserver_link", "vip_channel")),
)

#: Started in this order: first the archives that other jobs need, then those that take longest from start to end.
JOBS = (
    Job(APACHE_ARCHIVE, (sys.executable, "-m", "interop.support.kept_classes"), directory=ROOT / "tests"),
    Job(SPARK_ARCHIVE, (sys.executable, "tests/spark_classes.py")),
    program("types", "mypy"),
    pytest("chaos with pairs", *CHAOS_PAIRS),
    pytest("chaos", "tests/chaos", without=CHAOS_PAIRS),
    pytest("Apache's stores", "-m", "not slow", *APACHE_STORES, after=APACHE),
    pytest("the Java client", *JAVA, after=APACHE),
    pytest("the Go client and mqadmin", *GO_AND_MQADMIN, after=APACHE),
    pytest("pairs with Apache", *APACHE_PAIRS, after=APACHE),
    pytest("our client and Apache's", "tests/interop", after=APACHE,
           without=(*APACHE_STORES, *APACHE_PAIRS, *APACHE_BACKUPS, *APACHE_SPARK, *JAVA, *GO_AND_MQADMIN)),
    pytest("backups with Apache", *APACHE_BACKUPS, after=APACHE),
    pytest("Spark: sources and commands", "-m", "not slow", *SPARK_COMMANDS, after=SPARK),
    pytest("Spark: guide", *SPARK_GUIDE, after=SPARK),
    pytest("Spark with Apache", *APACHE_SPARK, after=(*APACHE, *SPARK)),
    pytest("Spark: examples", *SPARK_EXAMPLES, after=SPARK),
    pytest("Spark: sinks and pages", "-m", "not slow", *SPARK_WRITES, after=SPARK),
    pytest("Spark: archives and the rest", "tests/spark", "-m", "not slow", after=SPARK,
           without=(*SPARK_EXAMPLES, *SPARK_GUIDE, *SPARK_COMMANDS, *SPARK_WRITES)),
    pytest("broker", "tests/broker"),
    pytest("client", "tests/client"),
    pytest("commands", *COMMANDS),
    pytest("documentation", *PAGES),
    pytest("package and benchmarks", *PACKAGE),
    pytest("replication", "tests/replication"),
    pytest("reference implementations", *TWO_FORMS, without=ONE_FORM, PYROMQ_KERNEL="python"),
    pytest("crash", "tests/crash"),
    pytest("everything else", "tests", without=IN_OTHER_JOBS),
    program("lint", "ruff", "check", "."),
    program("formatting", "ruff", "format", "--check", "."),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The exit code of a job, the tests that failed, and those that only ran out of time."""

    job: Job
    code: int
    failed: tuple[str, ...] = ()
    late: tuple[str, ...] = ()

    @property
    def is_only_late(self) -> bool:
        return self.code == TESTS_FAILED and bool(self.late) and not self.failed

    def again(self) -> Job:
        """Return a job with the tests that ran out of time."""
        command = (sys.executable, "-m", "pytest", "-rs", *self.late)
        return replace(self.job, name=f"again, alone: {self.job.name}", command=command)


class Pool:
    """Runs jobs and shows their output, until it is stopped."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        self.is_stopped = False

    async def run(self, job: Job) -> Outcome:
        if self.is_stopped:
            return Outcome(job, STOPPED)
        began = time.monotonic()
        with tempfile.TemporaryFile() as said, tempfile.NamedTemporaryFile() as failures:
            code = await self._code_of(job, said, failures.name)
            said.seek(0)
            print(f"--- {job.name}, {time.monotonic() - began:.0f} s", flush=True)
            sys.stdout.buffer.write(said.read())
            sys.stdout.flush()
            return outcome(job, code, failures.read().decode())

    async def _code_of(self, job: Job, said: IO[bytes], failures: str) -> int:
        """Run it in a process group of its own, so that all of it can be interrupted and stops its servers."""
        # Rewriting the assertions of a test module takes three times as long as reading it: jobs keep the result.
        written = {"PYTHONDONTWRITEBYTECODE": "", "PYROMQ_TEST_FAILURES": failures}
        environment = {**os.environ, **written, **job.environment}
        process = await asyncio.create_subprocess_exec(
            *job.command, cwd=job.directory, env=environment, process_group=0,
            preexec_fn=_be_interruptible, stdin=asyncio.subprocess.DEVNULL, stdout=said,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        self._running.add(process.pid)
        if self.is_stopped:  # while it was being started
            _interrupt(process.pid)
        try:
            return await process.wait()
        finally:
            self._running.discard(process.pid)

    def stop(self) -> None:
        self.is_stopped = True
        for group in self._running:
            _interrupt(group)


def _interrupt(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGINT)


def _be_interruptible() -> None:
    """Undo what a shell does to a background process, which ignores interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Processors:
    """Measures the idle share of the processors' time."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._ticks = self._read()

    def are_idle(self) -> bool:
        """Return whether enough of the time since the last look was idle; False if that is too short ago."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return False
        (idle_before, all_before), (idle, everything) = self._ticks, self._read()
        self._looked, self._ticks = now, (idle, everything)
        return idle - idle_before > IDLE_SHARE * (everything - all_before)

    def _read(self) -> tuple[int, int]:
        """Return the idle ticks and all ticks since the system started; zeros where it does not report them."""
        with contextlib.suppress(OSError):
            ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
            return ticks[3], sum(ticks)
        return 0, 0


class Schedule:
    """Starts jobs in their order: always `least` at once, and at most `most` while a processor is idle."""

    def __init__(
        self, pool: Pool, jobs: Sequence[Job], least: int, most: int, processors: Processors | None = None
    ) -> None:
        self._pool = pool
        self._waiting = list(jobs)
        self._least, self._most = least, most
        self._processors = processors or Processors()
        self._tasks: dict[asyncio.Task[Outcome], str] = {}

    async def run(self) -> list[Outcome]:
        ends: list[Outcome] = []
        while self._waiting or self._tasks:
            self._start_some()
            done, _ = await asyncio.wait(self._tasks, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            ends += [task.result() for task in done]
            for task in done:
                del self._tasks[task]
        return ends

    def _start_some(self) -> None:
        while len(self._tasks) < self._least and self._start_one():
            pass
        if len(self._tasks) < self._most and self._processors.are_idle():
            self._start_one()

    def _start_one(self) -> bool:
        """Start the first job that waits for no other one; return whether there was one."""
        unfinished = {job.name for job in self._waiting} | set(self._tasks.values())
        ready = next((job for job in self._waiting if unfinished.isdisjoint(job.after)), None)
        if ready is not None:
            self._waiting.remove(ready)
            self._tasks[asyncio.get_running_loop().create_task(self._pool.run(ready))] = ready.name
        return ready is not None


def outcome(job: Job, code: int, failures: str) -> Outcome:
    """Read the lines that tests/late.py wrote, one for each test that failed."""
    how_and_what = [line.split(" ", 1) for line in failures.splitlines()]
    failed, late = (
        tuple(dict.fromkeys(what for how, what in how_and_what if how == kind)) for kind in ("failed", "late")
    )
    return Outcome(job, code, failed, late)


async def run_all() -> int:
    pool, loop = Pool(), asyncio.get_running_loop()
    for how in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(how, pool.stop)
    ends = await Schedule(pool, JOBS, *AT_ONCE).run()
    bad = await bad_of(ends, pool)
    if pool.is_stopped:
        return STOPPED
    if bad:
        print(f"{len(JOBS)} jobs, of which failed: {'; '.join(one.job.name for one in bad)}")
        return 1
    late = [test for one in ends for test in one.late]
    print(f"{len(JOBS)} jobs, all went well" + (f"; but these only alone: {', '.join(late)}" if late else ""))
    return 0


async def bad_of(ends: Iterable[Outcome], pool: Pool) -> list[Outcome]:
    """Return the jobs that failed. If tests only ran out of time, and nothing else failed, run these again."""
    bad = [one for one in ends if one.code]
    if all(one.is_only_late for one in bad) and sum(len(one.late) for one in bad) <= MOST_LATE:
        return [one for one in bad if not await passes_alone(one, pool)]
    return bad


async def passes_alone(one: Outcome, pool: Pool) -> bool:
    return all([(await pool.run(one.again())).code == 0 for _ in range(TIMES_ALONE)])


def main() -> int:
    # Hundreds of processes import the package: none of them has to compile it, even if Python writes no bytecode.
    compileall.compile_dir(str(ROOT / "src"), quiet=1)
    return asyncio.run(run_all())


if __name__ == "__main__":
    sys.exit(main())
