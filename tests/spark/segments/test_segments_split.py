"""Pieces of a log into partitions: every record once, and cut only where a record begins."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pyromq.spark.segments.split import KnownBoundaries, longest_queues, split, together
from pyromq.spark.segments.store_files import Piece, find_pieces
from spark.support.logs_on_disk import offsets_of, rows_of, some_drafts, write_log
from store.small_store import make_store


class EveryTenth:
    """Records begin at every tenth position."""

    def between(self, piece: Piece, wanted: Sequence[int]) -> list[int]:
        return sorted({-(-position // 10) * 10 for position in wanted})


def piece(start: int, end: int) -> Piece:
    return Piece("file", start, start, end, end)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=6), st.integers(1, 600), st.none() | st.integers(1, 50))
def test_nothing_is_lost_and_nothing_is_read_twice(sizes: list[int], most: int, partitions: int | None) -> None:
    ends = [sum(sizes[: n + 1]) * 10 for n in range(len(sizes))]
    pieces = [piece(end - size * 10, end) for size, end in zip(sizes, ends, strict=True)]
    parts = [part for group in split(pieces, most, partitions, EveryTenth()) for part in group]
    assert parts[0].start == 0
    assert parts[-1].end == ends[-1]
    assert all(before.end == after.start for before, after in pairwise(parts))
    assert all(part.start < part.end and part.base <= part.start and part.start % 10 == 0 for part in parts)


def test_small_neighbours_are_one_partition() -> None:
    pieces = [piece(n, n + 3) for n in range(0, 30, 3)]
    assert [len(group) for group in together(pieces, 9)] == [3, 3, 3, 1]
    assert [len(group) for group in together(pieces, 1)] == [1] * 10
    assert together([], 9) == []


def test_a_store_is_split_where_its_queues_say_that_records_begin(tmp_path: Path) -> None:
    make_store(tmp_path)
    pieces = find_pieces(str(tmp_path))
    whole = rows_of(pieces)
    cuts = KnownBoundaries(walk_files=False).between(pieces[0], [5000, 9000, 20_000])
    assert len(cuts) == 3
    assert {row["commit_log_offset"] for row in whole} >= set(cuts)
    groups = split(pieces, None, 12)
    assert len(groups) >= 10
    assert [row for group in groups for row in rows_of(list(group))] == whole


def test_a_queue_that_is_wrong_leads_nobody_astray(tmp_path: Path) -> None:
    """Its entries say that records begin a byte later: the log does not agree, so there is no cut."""
    make_store(tmp_path)
    pieces = find_pieces(str(tmp_path))
    for path in (tmp_path / "consumequeue").rglob("0*"):
        if path.is_file():
            data = bytearray(path.read_bytes())
            data[7::20] = bytes(byte ^ 1 for byte in data[7::20])
            path.write_bytes(data)
    assert KnownBoundaries(walk_files=False).between(pieces[0], [5000, 9000, 20_000]) == []


def test_queues_know_the_first_record_from_a_position_on(tmp_path: Path) -> None:
    make_store(tmp_path)
    positions = sorted(
        int(row["commit_log_offset"])  # type: ignore[call-overload]
        for row in rows_of(find_pieces(str(tmp_path)))
        if row["topic"] == "orders" and not row["sys_flag"]
    )
    queues = longest_queues(tmp_path)
    assert len(queues) == 8
    for wanted in (0, 1, positions[50], positions[50] + 1, positions[-1]):
        nearest = min(queue.first_from(wanted) for queue in queues)
        assert wanted <= nearest <= next(position for position in positions if position >= wanted)
    assert min(queue.first_from(positions[-1] + 1000) for queue in queues) > 1 << 60


def test_without_queues_a_file_is_walked_through_only_when_somebody_asks(tmp_path: Path) -> None:
    write_log(tmp_path, some_drafts(60), segment_bytes=1 << 16)
    pieces = find_pieces(str(tmp_path))
    assert len(split(pieces, None, None)) == 1
    groups = split(pieces, 1024, None)
    assert len(groups) >= 5
    assert [offset for group in groups for offset in offsets_of(list(group))] == list(range(60))
    assert len(split(pieces, None, 3)) == 3
