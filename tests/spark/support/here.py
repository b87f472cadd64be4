"""The jobs without Spark: every piece goes through pickle, there and back, and is worked on here."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import pytest

from pyromq.spark.jobs.spread import Guarded, results_of


def spread_here(
    spark: object, pieces: Sequence[Any], work: Callable[[Any], Any], *, what: str = "", progress: Any = None
) -> list[Any]:
    """As `spread`, in this process."""
    guarded = pickle.loads(pickle.dumps(Guarded(work)))
    outcomes = []
    for done, piece in enumerate(pieces, 1):
        outcomes.append(pickle.loads(pickle.dumps(guarded(pickle.loads(pickle.dumps(piece))))))
        if progress is not None:
            progress(what, done, len(pieces))
    return results_of(outcomes)


def stay_here(monkeypatch: pytest.MonkeyPatch, *jobs: ModuleType) -> None:
    for job in jobs:
        monkeypatch.setattr(job, "spread", spread_here)
        monkeypatch.setattr(job, "watched", lambda context, job, **_: job(), raising=False)


class FakeRdd:
    """As much of a distributed collection as a rebuild uses, in this process."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows = list(rows)

    def flatMap(self, work: Callable[[Any], Iterable[Any]]) -> FakeRdd:
        return FakeRdd(out for row in self._rows for out in _over_there(work)(row))

    def repartitionAndSortWithinPartitions(self, count: int, part: Callable[[Any], int]) -> FakeRdd:
        parts: list[list[Any]] = [[] for _ in range(count)]
        for row in self._rows:
            parts[part(row[0])].append(row)
        return FakeRdd(sorted(each, key=lambda row: row[0]) for each in parts)

    def mapPartitions(self, work: Callable[[Iterable[Any]], Iterable[Any]]) -> FakeRdd:
        return FakeRdd(out for part in self._rows for out in _over_there(work)(iter(part)))

    def collect(self) -> list[Any]:
        return self._rows


def _over_there(work: Callable[..., Any]) -> Callable[..., Any]:
    return pickle.loads(pickle.dumps(work))  # type: ignore[no-any-return]


class FakeSpark:
    def __init__(self) -> None:
        self.defaultParallelism = 2

    @property
    def sparkContext(self) -> FakeSpark:
        return self

    def parallelize(self, rows: Sequence[Any], count: int) -> FakeRdd:
        return FakeRdd(rows)
