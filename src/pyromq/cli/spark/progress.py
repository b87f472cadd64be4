"""Progress of a Spark job on stderr: bars on a terminal, else a line from time to time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from pyromq.cli import output
from pyromq.cli.output import escaped, number

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Between two lines where there is no terminal, and between two looks at Spark's tasks.
LINE_SECONDS = 5.0
LOOK_SECONDS = 0.5


class Shown:
    """Called by the job, from whatever thread it likes."""

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self._console, self._now = console, now
        self._lock = threading.Lock()
        self._is_drawn = console.is_terminal
        self._bars = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(), console=console, transient=True, disable=not self._is_drawn,
        )  # fmt: skip
        self._tasks: dict[str, TaskID] = {}
        self._said: tuple[str, float] = ("", 0.0)

    def __call__(self, what: str, done: int, total: int | None) -> None:
        with self._lock:
            if self._is_drawn:
                self._draw(what, done, total)
            else:
                self._say(what, done, total)

    def _draw(self, what: str, done: int, total: int | None) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(escaped(what), total=total, count="")
        self._bars.update(self._tasks[what], completed=done, total=total, count=count_of(done, total))

    def _say(self, what: str, done: int, total: int | None) -> None:
        """Print at the start and the end of each stage, and from time to time."""
        said, at = self._said
        is_due = done == total or self._now() - at >= LINE_SECONDS
        if what == said and (total == 1 or not is_due):  # of a single step it is enough to hear that it begins
            return
        self._said = (what, self._now())
        counted = count_of(done, total)
        self._console.print(f"{escaped(what)}{': ' if counted else ''}{counted}", soft_wrap=True)

    def tasks(self, done: int, total: int) -> None:
        """Spark's own tasks, of everything that runs at the moment; only drawn."""
        if self._is_drawn and total:
            self("tasks of Spark", done, total)

    @contextlib.contextmanager
    def on_screen(self) -> Iterator[None]:
        with self._bars:
            yield


def count_of(done: int, total: int | None) -> str:
    """Format `3 of 10`, without unknown and zero figures."""
    if total == 1:
        return "done" if done else ""
    if total is None:
        return number(done) if done else ""
    return f"{number(done)} of {number(total)}"


@contextlib.contextmanager
def shown_progress() -> Iterator[Shown]:
    shown = Shown(output.stderr())
    with shown.on_screen():
        yield shown


@contextlib.contextmanager
def tasks_shown(spark: SparkSession, shown: Shown) -> Iterator[None]:
    """Look at Spark's tasks from a thread of our own while the block runs: a job may be one long step to us."""
    end = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def look() -> None:
        while not end.wait(LOOK_SECONDS):
            with contextlib.suppress(Exception):  # a stage may end while it is looked at, and Spark under our hands
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                known = [stage for stage in stages if stage is not None]
                shown.tasks(sum(one.numCompletedTasks for one in known), sum(one.numTasks for one in known))

    watcher = threading.Thread(target=look, name="pyromq-spark-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        end.set()
        watcher.join()
