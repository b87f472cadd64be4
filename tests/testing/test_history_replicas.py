"""Two commit logs held against each other while brokers write them (H10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.testing.history.replicas import LogFiles

SIZE = 1000


def log(directory: Path, data: bytes, *, start: int = 0) -> LogFiles:
    """Files at their full size, as brokers make them."""
    directory.mkdir(parents=True, exist_ok=True)
    for at in range(0, len(data), SIZE):
        (directory / f"{start + at:020d}").write_bytes(data[at : at + SIZE].ljust(SIZE, b"\0"))
    return LogFiles(directory)


@pytest.fixture
def data() -> bytes:
    """Two files and a half; the first one ends with empty space, as files do."""
    return b"one" * 320 + bytes(40) + b"two" * 333 + b"\0" + b"three" * 100


def test_logs_that_are_the_same(tmp_path: Path, data: bytes) -> None:
    assert log(tmp_path / "a", data).same_as(log(tmp_path / "b", data)) == len(data)


def test_one_that_is_behind_is_the_same_as_far_as_it_goes(tmp_path: Path, data: bytes) -> None:
    one = log(tmp_path / "a", data)
    for end in (0, 7, 960, 1000, 1001, 1999, 2000, 2100):
        other = log(tmp_path / f"b-{end}", data[:end])
        written = len(data[:end].rstrip(b"\0"))
        assert one.same_as(other) == other.same_as(one) == written


def test_only_what_is_new_is_looked_at(tmp_path: Path, data: bytes) -> None:
    changed = b"?" + data[1:]
    one, other = log(tmp_path / "a", data), log(tmp_path / "b", changed)
    assert one.same_as(other, since=1) == len(data)
    with pytest.raises(AssertionError, match="differ at 0: 6f 6e"):
        one.same_as(other)


def test_a_difference_is_shown_with_its_position(tmp_path: Path, data: bytes) -> None:
    changed = data[:1500] + b"?" + data[1501:]
    with pytest.raises(AssertionError, match=r"H10: the logs .*a and .*b differ at 1500: .*, and 3f"):
        log(tmp_path / "a", data).same_as(log(tmp_path / "b", changed))


def test_a_hole_in_the_middle_is_a_difference(tmp_path: Path, data: bytes) -> None:
    hole = data[:1200] + bytes(100) + data[1300:]
    with pytest.raises(AssertionError, match="differ at 1200"):
        log(tmp_path / "a", data).same_as(log(tmp_path / "b", hole))


def test_a_hole_at_the_end_of_a_file_that_is_followed_by_another_is_one_too(tmp_path: Path, data: bytes) -> None:
    hole = data[:1900] + bytes(100) + data[2000:]
    with pytest.raises(AssertionError, match="differ at 1900"):
        log(tmp_path / "a", data).same_as(log(tmp_path / "b", hole))


def test_one_that_begins_later(tmp_path: Path, data: bytes) -> None:
    one, other = log(tmp_path / "a", data), log(tmp_path / "b", data[SIZE:], start=SIZE)
    assert one.same_as(other) == other.same_as(one) == len(data)


def test_logs_that_are_not_there(tmp_path: Path, data: bytes) -> None:
    nothing = LogFiles(tmp_path / "nothing")
    assert nothing.same_as(log(tmp_path / "a", data)) == 0
    assert nothing.same_as(nothing) == 0
