"""Crash tests open tens of thousands of tiny stores, which warn as they should: their logs are dropped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import pytest

from pyromq.store.log import commit_log
from pyromq.store.recovery import log_recovery


class HereAndNow:
    """Scans segments one after the other: a thread takes longer to start than to scan one of 4 KiB."""

    def __init__(self, threads: int, name: str) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, scan: Callable[..., Any], segments: Iterable[Any]) -> Iterator[Any]:
        return iter([scan(segment) for segment in segments])


@pytest.fixture(autouse=True)
def tiny_and_quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Room for what a broker gathers in one turn is a thousand times more than a store here ever writes."""
    monkeypatch.setattr(commit_log, "BATCH_BYTES", 1 << 16)
    monkeypatch.setattr(log_recovery, "ThreadPoolExecutor", HereAndNow)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
