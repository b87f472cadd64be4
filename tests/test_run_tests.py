"""`make test` with tests that fail, and with tests that only ran out of time."""

from __future__ import annotations

import asyncio
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import late
from pages import ROOT

RUNNER = runpy.run_path(str(ROOT / "scripts" / "run_tests.py"))
#: Options of the run that executes these tests must not reach the runs they start.
ALONE = {"PYTHONPATH": str(ROOT / "tests"), "PYTEST_ADDOPTS": ""}
CONFTEST = "from late import register\n\n\ndef pytest_configure(config):\n    register(config)\n"

#: A file of tests, and how each of them fails.
BAD = """
import asyncio, subprocess, sys

from late import before, in_time

def test_good():
    pass

def test_wrong():
    assert 1 == 2

def test_slow_program():
    subprocess.run([sys.executable, "-c", "import signal; signal.pause()"], timeout=0.01)

def test_slow_task():
    async def wait():
        async with asyncio.timeout(0.01), asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
    asyncio.run(wait())

def test_long():
    in_time(3.0, 2.0)

def test_never():
    before(0.0, "it does not come about")

def test_two_at_once():
    raise ExceptionGroup("both", [TimeoutError(), ValueError()])
"""
#: Late the first time, in time when it is alone.
ONCE = """
from pathlib import Path

def test_once():
    try:
        Path(__file__).with_suffix(".ran").touch(exist_ok=False)
    except FileExistsError:
        return
    raise TimeoutError
"""


def run(folder: Path) -> list[str]:
    notes = folder / "notes"
    environment = {**os.environ, **ALONE, late.SAYS_IN: str(notes)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_them.py"]
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    return notes.read_text().splitlines()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def test_whatever_ran_out_of_time_is_told_from_what_is_wrong(folder: Path) -> None:
    (folder / "test_them.py").write_text(BAD)
    notes = dict(reversed(line.split(" ", 1)) for line in run(folder))
    assert {name.partition("::")[2]: how for name, how in notes.items()} == {
        "test_wrong": "failed",
        "test_slow_program": "late",
        "test_slow_task": "late",
        "test_long": "late",
        "test_never": "late",
        "test_two_at_once": "failed",
    }


def ends_of(capsys: pytest.CaptureFixture[str], *jobs: Any) -> tuple[list[str], str]:
    """Return the failed jobs, and the output."""

    async def story() -> list[Any]:
        pool = RUNNER["Pool"]()
        ends = [await pool.run(job) for job in jobs]
        return await RUNNER["bad_of"](ends, pool)

    bad = [one.job.name for one in asyncio.run(story())]
    return bad, capsys.readouterr().out


def job(folder: Path, text: str, name: str = "them") -> Any:
    (folder / f"test_{name}.py").write_text(text)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{folder}/test_{name}.py")
    return RUNNER["Job"](name, command, ALONE, folder)


def test_what_was_only_late_is_run_again(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad, said = ends_of(capfd, job(folder, ONCE))
    assert bad == []
    assert said.count("--- again, alone: them") == 3


def test_what_is_late_again_has_failed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad, said = ends_of(capfd, job(folder, "def test_late():\n    raise TimeoutError\n"))
    assert bad == ["them"]
    assert "--- again, alone: them" in said


def test_beside_something_wrong_nothing_is_run_again(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad, said = ends_of(capfd, job(folder, ONCE), job(folder, "def test_wrong():\n    assert 1 == 2\n", "others"))
    assert bad == ["them", "others"]
    assert "again" not in said


def test_many_that_are_late_are_too_many(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    slow = "import pytest\n\n@pytest.mark.parametrize('each', range(7))\ndef test_late(each):\n    raise TimeoutError\n"
    bad, said = ends_of(capfd, job(folder, slow, "many"))
    assert bad == ["many"]
    assert "again" not in said


class Idle:
    """Processors that are idle the next `times` times that they are looked at."""

    def __init__(self, times: int) -> None:
        self.times = times

    def are_idle(self) -> bool:
        self.times -= 1
        return self.times >= 0


class Started:
    """A pool whose jobs end when the test says so."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}

    async def run(self, job: Any) -> Any:
        self.names.append(job.name)
        self.ends[job.name] = asyncio.Event()
        await self.ends[job.name].wait()
        return RUNNER["Outcome"](job, 0)


def jobs_named(*names: str, **after: str) -> list[Any]:
    return [RUNNER["Job"](name, (), after=tuple(after.get(name, "").split())) for name in names]


def started(jobs: list[Any], least: int, most: int, idle: int, *ends: str) -> list[list[str]]:
    """The jobs that have started: at first, and after each of `ends` has ended."""

    async def story() -> list[list[str]]:
        pool = Started()
        task = asyncio.create_task(RUNNER["Schedule"](pool, jobs, least, most, Idle(idle)).run())
        seen = []
        for name in ("", *ends):
            if name:
                pool.ends[name].set()
            for _ in range(10):
                await asyncio.sleep(0)
            seen.append(list(pool.names))
        task.cancel()
        return seen

    return asyncio.run(story())


def test_some_jobs_run_at_once_and_the_next_starts_when_one_has_ended() -> None:
    jobs = jobs_named("a", "b", "c", "d")
    assert started(jobs, 2, 2, 99, "b", "a") == [["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]]


def test_another_job_starts_while_a_processor_is_idle_up_to_a_limit() -> None:
    jobs = jobs_named("a", "b", "c", "d", "e", "f")
    assert started(jobs, 2, 4, 0) == [["a", "b"]]
    assert started(jobs, 2, 4, 1) == [["a", "b", "c"]]
    assert started(jobs, 2, 2, 99) == [["a", "b"]]
    assert started(jobs, 2, 4, 99, "a") == [["a", "b", "c"], ["a", "b", "c", "d"]]


def test_a_job_waits_for_those_that_it_needs_and_others_overtake_it() -> None:
    jobs = jobs_named("archive", "slow", "needs", "other", needs="archive")
    assert started(jobs, 2, 2, 0, "slow", "archive") == [
        ["archive", "slow"],
        ["archive", "slow", "other"],
        ["archive", "slow", "other", "needs"],
    ]


def test_every_job_runs_and_its_outcome_is_returned() -> None:
    async def story() -> list[str]:
        pool = RUNNER["Pool"]()
        jobs = [RUNNER["Job"](name, (sys.executable, "-c", "")) for name in ("a", "b", "c")]
        ends = await RUNNER["Schedule"](pool, jobs, 1, 1).run()
        return [one.job.name for one in ends if one.code == 0]

    assert asyncio.run(story()) == ["a", "b", "c"]


def test_jobs_name_only_jobs_that_exist_and_come_before_them() -> None:
    seen: set[str] = set()
    for one in RUNNER["JOBS"]:
        assert set(one.after) <= seen
        assert one.name not in seen
        seen.add(one.name)
