"""The identity of a writer: query, batch, partition, and the run of its task."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from pyromq.errors import NotNow
from pyromq.spark.sink.decisions import Stamp

#: Spark tells tasks of a stream what they are part of by these.
QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


class Task(Protocol):
    """The used part of Spark's `TaskContext`."""

    def partitionId(self) -> int: ...  # noqa: N802 - Spark's name

    def getLocalProperty(self, key: str) -> str | None: ...  # noqa: N802 - Spark's name


class Identity(NamedTuple):
    query: str
    batch: int
    partition: int
    #: Random for each run of a task: Spark's own numbers restart in every application.
    attempt: str

    @property
    def writer(self) -> str:
        """The name that is the same for all runs."""
        return f"{self.query}/{self.partition}"

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.query, self.batch, self.partition, self.attempt, 0)


def identity_of(task: Task | None, batch_job: tuple[str, int] | None, attempt: str) -> Identity:
    """`batch_job`: the name and the batch number of a job that is no stream. Raises NotNow outside of a task."""
    if task is None:
        raise NotNow("rows are written by tasks of Spark, and this is none")
    if batch_job is not None:
        return Identity(*batch_job, task.partitionId(), attempt)
    query, batch = task.getLocalProperty(QUERY_PROPERTY), task.getLocalProperty(BATCH_PROPERTY)
    if not query or not batch:
        raise NotNow("Spark does not tell which query and batch this task belongs to: its rows could not be told apart")
    return Identity(query, int(batch), task.partitionId(), attempt)
