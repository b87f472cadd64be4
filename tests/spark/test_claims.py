"""A file is made once, where a store has nothing to refuse a taken name with: of many who try at most one does."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from pyromq.spark import claims
from pyromq.spark.claims import STALE_SECONDS, create_once

FILES = fs.LocalFileSystem()


def create(path: Path, data: str, between: Callable[[], None] = lambda: None) -> bool:
    def write() -> None:
        between()
        path.write_text(data)

    return create_once(FILES, str(path), write, suffix=".claim")


def test_the_first_one_makes_it_and_nothing_is_left_beside(tmp_path: Path) -> None:
    path = tmp_path / "new" / "commit"
    assert create(path, "first")
    assert not create(path, "second")
    assert [(one.name, one.read_text()) for one in path.parent.iterdir()] == [("commit", "first")]


def test_who_comes_while_another_one_writes_gives_way(tmp_path: Path) -> None:
    path, second = tmp_path / "commit", []
    assert create(path, "first", lambda: second.append(create(path, "second")))
    assert second == [False]
    assert path.read_text() == "first"


def test_names_that_begin_alike_are_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "commit1.abc.claim").touch()
    (tmp_path / "commit.abc").touch()
    assert create(tmp_path / "commit", "first")


def test_a_claim_of_the_dead_is_in_the_way_for_a_while(tmp_path: Path) -> None:
    dead = tmp_path / "commit.0123.claim"
    dead.touch()
    assert not create(tmp_path / "commit", "first")
    long_ago = dead.stat().st_mtime - STALE_SECONDS - 1
    os.utime(dead, (long_ago, long_ago))
    assert create(tmp_path / "commit", "first")
    assert not dead.exists()


def test_an_error_leaves_no_claim(tmp_path: Path) -> None:
    def full() -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        create(tmp_path / "commit", "first", full)
    assert create(tmp_path / "commit", "first")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=40))
def test_in_every_order_of_steps_no_more_than_one_makes_it(order: list[int]) -> None:
    """Three who try, each of whose requests to the store waits for its turn."""
    store, turns = Steps(order), []

    def attempt(number: int) -> None:
        if create_once(store.of(number), "a/commit", lambda: store.put(number, "a/commit"), suffix=".c"):  # type: ignore[arg-type]
            turns.append(number)
        store.leave(number)

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(turns) <= 1
    assert store.names - {"a/commit"} == set()
    assert store.writers == turns


class Steps:
    """A store in memory that serves one request at a time, in a drawn order; after its end, in any order."""

    def __init__(self, order: list[int]) -> None:
        self.names: set[str] = set()
        self.writers: list[int] = []
        self._order = list(order)
        self._here = {0, 1, 2}
        self._turn = threading.Condition()

    def step(self, who: int) -> None:
        with self._turn:
            assert self._turn.wait_for(lambda: self._next() == who, timeout=20)
            if self._order:
                self._order.pop(0)
            self._turn.notify_all()

    def _next(self) -> int:
        self._order = [one for one in self._order if one in self._here]
        return self._order[0] if self._order else min(self._here, default=-1)

    def leave(self, who: int) -> None:
        with self._turn:
            self._here.discard(who)
            self._turn.notify_all()

    def put(self, who: int, path: str) -> None:
        self.step(who)
        self.names.add(path)
        if path == "a/commit":
            self.writers.append(who)

    def of(self, who: int) -> Client:
        return Client(self, who)


class Client:
    """As much of a file system as claims need."""

    type_name = "s3"

    def __init__(self, store: Steps, who: int) -> None:
        self._store = store
        self._who = who

    def get_file_info(self, what: str | fs.FileSelector) -> object:
        self._store.step(self._who)
        if isinstance(what, str):
            return Info(what, fs.FileType.File if what in self._store.names else fs.FileType.NotFound)
        return [Info(name, fs.FileType.File) for name in sorted(self._store.names)]

    def open_output_stream(self, path: str, compression: object) -> Stream:
        return Stream(lambda: self._store.put(self._who, path))

    def delete_file(self, path: str) -> None:
        self._store.step(self._who)
        if path not in self._store.names:
            raise FileNotFoundError(path)
        self._store.names.discard(path)


class Info:
    mtime_ns = 10**18

    def __init__(self, path: str, type: fs.FileType) -> None:
        self.path = path
        self.type = type
        self.base_name = path.rpartition("/")[2]


class Stream:
    """Makes the written bytes visible when it is closed."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close

    def write(self, data: bytes) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


def test_the_margin_for_the_dead_is_longer_than_a_request() -> None:
    assert claims.STALE_SECONDS >= 300
