"""Work on many pieces, spread over the executors of a Spark session: results in order, progress on the way, our errors.

`work` and the pieces go to other processes, so both must be picklable: a function of a module, or a `partial` of one,
and frozen dataclasses. PyroMQ's errors are raised on the driver as they are, not as a Java stack trace, and so are
lasting errors of a file system (disk full, access denied). Spark retries a piece that failed otherwise.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import uuid4

from pyspark import SparkContext
from pyspark.sql import SparkSession

from pyromq.errors import PyroMQError
from pyromq.spark.jobs.progress import Progress, silent

#: Report progress at this interval.
TELL_SECONDS = 0.3
#: File-system errors that a retry does not change.
LASTING = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR,
     errno.EISDIR)
)  # fmt: skip

Piece = TypeVar("Piece")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Trouble:
    """An error on its way between processes. Errors with fields of their own cannot be pickled as they are."""

    kind: type[PyroMQError | OSError]
    args: tuple[Any, ...]
    fields: dict[str, Any]

    @classmethod
    def of(cls, error: PyroMQError | OSError) -> Trouble:
        if isinstance(error, OSError):
            return cls(type(error), (error.errno, error.strerror, error.filename), {})
        return cls(type(error), error.args, dict(vars(error)))

    def revived(self) -> PyroMQError | OSError:
        if issubclass(self.kind, OSError):
            return self.kind(*self.args)
        error = self.kind.__new__(self.kind)
        error.args = self.args
        vars(error).update(self.fields)
        return error


@dataclass(frozen=True, slots=True)
class Guarded(Generic[Piece, Result]):
    """A function whose errors, if they would come again, are results."""

    work: Callable[[Piece], Result]

    def __call__(self, piece: Piece) -> Result | Trouble:
        try:
            return self.work(piece)
        except PyroMQError as error:
            return Trouble.of(error)
        except OSError as error:
            if error.errno not in LASTING:
                raise
            return Trouble.of(error)


def spread(
    spark: SparkSession,
    pieces: Sequence[Piece],
    work: Callable[[Piece], Result],
    *,
    what: str = "",
    progress: Progress = silent,
) -> list[Result]:
    """One task for each piece. Raises the error of the first piece that had one."""
    if not pieces:
        return []
    context = spark.sparkContext
    outcomes = watched(
        context,
        lambda: context.parallelize(pieces, len(pieces)).map(Guarded(work)).collect(),
        what=what,
        total=len(pieces),
        progress=progress,
    )
    return results_of(outcomes)


def results_of(outcomes: Sequence[Result | Trouble]) -> list[Result]:
    """Return the results in order. Raises the first error."""
    results: list[Result] = []
    for outcome in outcomes:
        if isinstance(outcome, Trouble):
            raise outcome.revived()
        results.append(outcome)
    return results


def watched(context: SparkContext, job: Callable[[], Result], *, what: str, total: int, progress: Progress) -> Result:
    """Run a Spark job on a thread of its own, and tell of its finished tasks on this one. Stops it when interrupted."""
    group = f"pyromq-{uuid4().hex}"

    def run() -> Result:
        context.setJobGroup(group, what, interruptOnCancel=True)
        return job()

    with ThreadPoolExecutor(1, "pyromq-job") as pool:
        future = pool.submit(run)
        try:
            _tell_until_done(context, group, future, what, total, progress)
        except BaseException:
            context.cancelJobGroup(group)
            raise
        result = future.result()
    progress(what, total, total)
    return result


def _tell_until_done(
    context: SparkContext, group: str, future: Future[Any], what: str, total: int, progress: Progress
) -> None:
    while not wait_for([future], TELL_SECONDS).done:
        progress(what, min(_finished(context, group), total), total)


def _finished(context: SparkContext, group: str) -> int:
    """Finished tasks of the jobs of a group."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)
