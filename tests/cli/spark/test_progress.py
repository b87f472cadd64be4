"""How far a job is, on a terminal and where there is none."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pyromq.cli.spark import progress
from pyromq.cli.spark.progress import LINE_SECONDS, Shown, count_of, tasks_shown


class Hand:
    """A clock that is moved by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def written() -> tuple[io.StringIO, Hand, Shown]:
    file, hand = io.StringIO(), Hand()
    return file, hand, Shown(Console(file=file, width=100, force_terminal=False), hand)


def test_a_line_for_each_step_and_one_when_it_is_done() -> None:
    file, _, shown = written()
    for done in range(11):
        shown("copying segments", done, 10)
    shown("writing the manifest", 0, None)
    assert file.getvalue().splitlines() == [
        "copying segments: 0 of 10",
        "copying segments: 10 of 10",
        "writing the manifest",
    ]


def test_a_long_step_says_now_and_then_how_far_it_is() -> None:
    file, hand, shown = written()
    for done in range(0, 100_000, 1_000):
        hand.now += LINE_SECONDS / 20
        shown("reading", done, None)
    assert file.getvalue().splitlines() == [
        "reading",
        "reading: 20,000",
        "reading: 40,000",
        "reading: 60,000",
        "reading: 80,000",
    ]


def test_tasks_are_for_terminals() -> None:
    file, _, shown = written()
    shown.tasks(1, 4)
    assert file.getvalue() == ""


def test_a_terminal_gets_bars() -> None:
    file = io.StringIO()
    shown = Shown(Console(file=file, width=100, force_terminal=True, color_system=None))
    with shown.on_screen():
        shown("copying [bold]segments", 3, 10)
        shown.tasks(7, 9)
    assert "copying [bold]segments" in file.getvalue()
    assert "3 of 10" in file.getvalue()
    assert "7 of 9" in file.getvalue()


@given(st.integers(0, 10**15), st.none() | st.integers(0, 10**15))
def test_counts_are_readable(done: int, total: int | None) -> None:
    text = count_of(done, total)
    if total == 1:
        assert text == ("done" if done else "")
    else:
        assert text == "" if total is None and not done else text.replace(",", "").startswith(str(done))


def test_tasks_of_spark_are_looked_at_until_the_job_is_done(monkeypatch: Any) -> None:
    """Also when a stage ends between the question which there are and the question how far it is."""
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.001)
    stages = {1: SimpleNamespace(numCompletedTasks=2, numTasks=4), 2: None}
    tracker = SimpleNamespace(getActiveStageIds=lambda: [1, 2], getStageInfo=stages.get)
    spark = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    seen: list[tuple[int, int]] = []
    shown: Any = SimpleNamespace(tasks=lambda done, total: seen.append((done, total)))
    with tasks_shown(spark, shown):  # type: ignore[arg-type]
        while not seen:
            pass
    assert set(seen) == {(2, 4)}
