"""Garbage collections of a worker skip its imported modules; other processes are left alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from pyromq.spark import worker_heap
from pyromq.spark.worker_heap import set_aside


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_heap, "_has_set_aside", False)
    yield
    gc.unfreeze()


def test_nothing_happens_on_a_driver() -> None:
    set_aside()
    assert gc.get_freeze_count() == 0


def test_a_worker_does_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_heap.TaskContext, "get", lambda: "the context of a task")
    set_aside()
    kept = gc.get_freeze_count()
    assert kept > 10_000
    made_later = [["something that is collected as ever"]]
    set_aside()
    assert gc.get_freeze_count() <= kept
    assert any(one is made_later for one in gc.get_objects())
