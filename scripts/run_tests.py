#!/usr/bin/env python
"""Runs every test that is not marked as slow, as jobs of which some run side by side, and fails if one of them does.
`make test` calls it.

Tests against other programs mostly wait for these, so they share the processor well with the rest. Within a job one
test follows the other: some of them measure. What a job says is shown when it is done. What ran out of time beside
other jobs, and nothing else, is run again, several times, when these are done (tests/late.py).
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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

#: As pytest and shells say it.
TESTS_FAILED, STOPPED = 1, 130
ROOT = Path(__file__).resolve().parents[1]
#: So many tests may run out of time: when there are more, it is not for the others beside them.
MOST_LATE = 6
#: So often they have to pass then.
TIMES_ALONE = 3
#: As many jobs as keep two processors busy while some of them wait.
AT_ONCE = int(os.environ.get("PYROMQ_TEST_JOBS", "4"))

# Apache's own servers take seconds to start and a quarter of a minute to stop.
APACHE_STORES = tuple(
    f"tests/interop/test_{name}.py"
    for name in (
        "apache_harness", "log_place_interop", "name_server_interop", "sql92_against_apache", "store_interop",
    )
)  # fmt: skip
APACHE_COPIES = ("tests/interop/test_backup_interop.py", "tests/interop/test_replication_pairs.py")


def files(pattern: str) -> tuple[str, ...]:
    return tuple(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob(pattern)))


APACHE_SPARK = files("tests/interop/test_spark_*.py")
JAVA = (*files("tests/interop/test_java_*.py"), "tests/interop/test_guides.py")
#: Each starts Spark anew, some of them several times.
OWN_SPARKS = ("tests/spark/test_examples.py", "tests/spark/test_guide.py")
SPARK_WRITES = tuple(
    f"tests/spark/test_{name}.py" for name in ("insight", "listener_stream", "replay_spark", "sink_spark", "sink_tasks")
)
#: They start the product as a person does, or build it.
COMMANDS = ("tests/cli", "tests/demo")
PAGES_AND_PACKAGE = ("tests/test_benchmarks.py", "tests/test_docs.py", "tests/test_packaging.py")
IN_OTHER_JOBS = (
    "tests/interop", "tests/crash", "tests/chaos", "tests/spark", "tests/broker", "tests/client", "tests/replication",
    *COMMANDS, *PAGES_AND_PACKAGE,
)  # fmt: skip
#: What has two forms, one of them compiled.
TWO_FORMS = (
    "tests/records", "tests/store", "tests/wire", "tests/net", "tests/broker",
    *(f"tests/spark/test_{name}.py" for name in ("decode", "segments_read", "segments_split", "store_files")),
)  # fmt: skip
#: Among them, what starts whole brokers and asks nothing of the compiled parts that others do not.
ONE_FORM = files("tests/broker/test_lead*.py") + tuple(
    f"tests/broker/test_{name}.py" for name in ("metadata_copy", "pair", "registration", "vip_channel")
)


@dataclass(frozen=True)
class Job:
    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: Path = ROOT


def pytest(name: str, *arguments: str, without: tuple[str, ...] = (), **environment: str) -> Job:
    ignored = (f"--ignore={path}" for path in without)
    return Job(name, (sys.executable, "-m", "pytest", "-rs", *arguments, *ignored), environment)


#: In this order: what the others need, then the longest.
JOBS = (
    # Java starts in half the time with its classes as it keeps them in an archive.
    Job("Apache's classes, kept", (sys.executable, "-m", "interop.kept_classes"), directory=ROOT / "tests"),
    Job("Spark's classes, kept", (sys.executable, "tests/spark_classes.py")),
    pytest("other clients", "tests/interop", without=(*APACHE_STORES, *APACHE_COPIES, *APACHE_SPARK, *JAVA)),
    pytest("Spark: what it reads", "tests/spark", "-m", "not slow", without=(*OWN_SPARKS, *SPARK_WRITES)),
    pytest("copies and backups with Apache", *APACHE_COPIES),
    pytest("what is killed while it works", "tests/chaos"),
    pytest("broker, client and copies", "tests/broker", "tests/client", "tests/replication"),
    pytest("Spark: what it writes", "-m", "not slow", *SPARK_WRITES),
    pytest("examples and guide of Spark", *OWN_SPARKS),
    pytest("Apache's stores", "-m", "not slow", *APACHE_STORES),
    pytest("Spark with Apache", *APACHE_SPARK),
    pytest("the command line", *COMMANDS),
    pytest("the Java client", *JAVA),
    pytest("the documentation, the package, the benchmarks", *PAGES_AND_PACKAGE),
    pytest("the readable forms", *TWO_FORMS, without=ONE_FORM, PYROMQ_KERNEL="python"),
    pytest("power cuts and kills", "tests/crash"),
    pytest("everything else", "tests", without=IN_OTHER_JOBS),
)


@dataclass(frozen=True)
class Outcome:
    """What became of a job: whether it went well, and if not, the tests that failed, of which some were only late."""

    job: Job
    code: int
    failed: tuple[str, ...] = ()
    late: tuple[str, ...] = ()

    @property
    def is_only_late(self) -> bool:
        return self.code == TESTS_FAILED and bool(self.late) and not self.failed

    def again(self) -> Job:
        """The tests that were late."""
        command = (sys.executable, "-m", "pytest", "-rs", *self.late)
        return replace(self.job, name=f"again, alone: {self.job.name}", command=command)


class Pool:
    """Runs jobs, some at a time, until all are done or somebody stops it."""

    def __init__(self, at_once: int) -> None:
        self._room = asyncio.Semaphore(at_once)
        self._running: set[int] = set()
        self.is_stopped = False

    async def run(self, job: Job) -> Outcome:
        async with self._room:
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
        """In a process group of its own, so that it can be interrupted as a whole and stop its servers."""
        environment = {**os.environ, **job.environment, "PYROMQ_TEST_FAILURES": failures}
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
    """Also where this runs in the background of a shell, which has what it starts ignore interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def outcome(job: Job, code: int, failures: str) -> Outcome:
    """By what the tests wrote down, a line for each that failed."""
    how_and_what = [line.split(" ", 1) for line in failures.splitlines()]
    failed, late = (
        tuple(dict.fromkeys(what for how, what in how_and_what if how == kind)) for kind in ("failed", "late")
    )
    return Outcome(job, code, failed, late)


async def run_all() -> int:
    pool, loop = Pool(AT_ONCE), asyncio.get_running_loop()
    for how in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(how, pool.stop)
    ends = await asyncio.gather(*map(pool.run, JOBS))
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
    """The jobs that failed. Whatever was only late has another try, unless something else is wrong, too."""
    bad = [one for one in ends if one.code]
    if all(one.is_only_late for one in bad) and sum(len(one.late) for one in bad) <= MOST_LATE:
        return [one for one in bad if not await passes_alone(one, pool)]
    return bad


async def passes_alone(one: Outcome, pool: Pool) -> bool:
    return all([(await pool.run(one.again())).code == 0 for _ in range(TIMES_ALONE)])


def main() -> int:
    # Hundreds of processes import the package: none has to compile it, also where Python is told to keep nothing.
    compileall.compile_dir(str(ROOT / "src"), quiet=1)
    return asyncio.run(run_all())


if __name__ == "__main__":
    sys.exit(main())
