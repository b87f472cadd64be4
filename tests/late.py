"""Tests that ran out of time, told apart from tests that saw something wrong.

On a machine that does several things at once a second can pass between two lines. `make test` runs jobs side by side,
and repeats those that ran out of time at the end, alone, several times: there they have to pass. A test that fails for
any other reason has failed. So every claim of a test about a duration ends in a TimeoutError: by `asyncio.timeout`, a
process that is not waited for any longer, `in_time` or `before`. (That is an OSError, too: a block that catches these
must not have a claim inside.)
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import pytest

#: The file in which `scripts/run_tests.py` reads the failed tests: `late` or `failed`, a space, and the test.
SAYS_IN = "PYROMQ_TEST_FAILURES"
LATE, FAILED = "late", "failed"


class TookTooLong(TimeoutError):
    """Something was right, and not in time."""


def in_time(took_s: float, limit_s: float, what: str = "it") -> None:
    """Raises TookTooLong."""
    if took_s >= limit_s:
        raise TookTooLong(f"{what} took {took_s:.2f} s, and was to take less than {limit_s:g} s")


def before(deadline: float, what: str) -> None:
    """Of `time.monotonic()`. Raises TookTooLong."""
    if time.monotonic() >= deadline:
        raise TookTooLong(what)


def is_late(error: BaseException | None) -> bool:
    """Is time all that was lacking? Of several errors at once, for each of them."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_late(one) for one in error.exceptions)
    return isinstance(error, TimeoutError | subprocess.TimeoutExpired)


class Noting:
    """A plugin that writes down what failed, and how."""

    def __init__(self, place: Path) -> None:
        self._place = place

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            error = call.excinfo.value if call.excinfo is not None else None
            with self._place.open("a") as notes:
                notes.write(f"{LATE if is_late(error) else FAILED} {item.nodeid}\n")
        return report


def register(config: pytest.Config) -> None:
    if place := os.environ.get(SAYS_IN):
        config.pluginmanager.register(Noting(Path(place)))
