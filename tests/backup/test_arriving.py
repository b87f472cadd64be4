"""Bytes of a log that come in any pieces become the chunks that a directory would have given; nothing else gets in."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backup.memory_target import MemoryTarget
from pyromq.backup.arriving import AnotherLog, Arriving, Gathered, end_of
from pyromq.backup.checking import check
from pyromq.backup.making import BackupReport, Step, back_up, begun, publish
from pyromq.backup.manifest import Source
from pyromq.backup.pieces import save_gathered
from pyromq.backup.restoring import restore
from pyromq.records.scan import scan
from pyromq.replication.arrival import StreamDamaged
from pyromq.store.offline.readable_log import readable_log

ONE_FILE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)


def bytes_of(root: Path) -> bytes:
    """As a broker sends them, with the room behind the blanks."""
    end = readable_log(root).end
    return b"".join(file.read_bytes() for file in sorted((root / "commitlog").iterdir()))[:end]


def fed(arriving: Arriving, data: bytes, sizes: list[int]) -> list[Gathered]:
    """In pieces of these sizes, again and again."""
    ready: list[Gathered] = []
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        ready += arriving.take(memoryview(data)[at : at + size])
        at, turn = at + size, turn + 1
    return ready + arriving.cut()


def saved(root: Path, target: MemoryTarget, gathered: list[Gathered]) -> BackupReport:
    log = readable_log(root)
    step = Step(None, begun(None, None, log, Source("a", "", ""), (), 1), (), live=True)
    return publish(step, target, [save_gathered(each, target, 1) for each in gathered])


@given(
    sizes=st.lists(st.integers(1, 40_000), min_size=1, max_size=5),
    chunk_bytes=st.sampled_from([1, 700, 5_000, 1 << 20]),
)
@ONE_FILE
def test_any_pieces_become_the_same_log(intact: Path, sizes: list[int], chunk_bytes: int) -> None:
    data = bytes_of(intact)
    made = fed(Arriving(0, 32 * 1024, chunk_bytes), data, sizes)
    assert [each.start for each in made[1:]] == [each.end for each in made[:-1]]
    assert (made[0].start, made[-1].end) == (0, len(data))
    target, other = MemoryTarget(), MemoryTarget()
    manifest, expected = saved(intact, target, made).manifest, back_up(intact, other).manifest
    assert check(target).ok
    assert (manifest.records, manifest.bytes, manifest.end) == (expected.records, expected.bytes, expected.end)
    assert manifest.chunks[-1].last_ms == expected.chunks[-1].last_ms
    assert manifest.chunks[0].first_ms == expected.chunks[0].first_ms
    joined = {
        one: b"".join(one.files[chunk.file] for chunk in made_by.chunks)
        for one, made_by in ((target, manifest), (other, expected))
    }
    assert joined[target] == joined[other]


def test_large_chunks_are_those_of_the_directory(intact: Path) -> None:
    target, other = MemoryTarget(), MemoryTarget()
    saved(intact, target, fed(Arriving(0, 32 * 1024, 1 << 20), bytes_of(intact), [10_000]))
    expected = back_up(intact, other).manifest
    assert {name for name in target.files if name.startswith("log/")} == {chunk.file for chunk in expected.chunks}


def test_what_came_over_the_stream_is_restored(intact: Path, tmp_path: Path) -> None:
    target = MemoryTarget()
    saved(intact, target, fed(Arriving(0, 32 * 1024, 3_000), bytes_of(intact), [4096]))
    report = restore(target, tmp_path / "restored")
    assert bytes_of(tmp_path / "restored") == bytes_of(intact)
    assert report.records == readable_records(intact)


def readable_records(root: Path) -> int:
    return back_up(root, MemoryTarget()).records


@given(first=st.integers(1, 20), sizes=st.lists(st.integers(1, 9_000), min_size=1, max_size=4))
@ONE_FILE
def test_it_goes_on_behind_any_run_whose_end_is_what_comes_first(intact: Path, first: int, sizes: list[int]) -> None:
    data = bytes_of(intact)
    every = fed(Arriving(0, 32 * 1024, 2_000), data, [4096])
    target = MemoryTarget()
    last = saved(intact, target, every[: min(first, len(every))]).manifest
    known = end_of(last, 0)
    assert known[-1].end <= last.end
    arriving = Arriving(last.end, 32 * 1024, 2_000, known)
    made = fed(arriving, data[arriving.position :], sizes)
    behind = b"".join(bytes(each.data) for each in every[first:])
    assert b"".join(bytes(each.data) for each in made) == behind
    assert arriving.good_to == len(data)


def test_another_log_is_noticed_before_anything_is_taken(intact: Path) -> None:
    data = bytes_of(intact)
    every = fed(Arriving(0, 32 * 1024, 2_000), data, [4096])
    last = saved(intact, MemoryTarget(), every[:9]).manifest
    arriving = Arriving(last.end, 32 * 1024, 2_000, end_of(last, 0))
    other = bytearray(data[arriving.position :])
    other[17] ^= 1
    with pytest.raises(AnotherLog, match="are not those in the backup"):
        fed(arriving, bytes(other), [1000])
    assert arriving.cut() == []


def test_a_log_that_has_lost_those_bytes_is_not_compared(intact: Path) -> None:
    last = back_up(intact, MemoryTarget()).manifest
    assert end_of(last, last.end) == ()
    assert end_of(last, last.end - 1) == ()


@given(at=st.integers(0, 60_000), size=st.integers(1, 9_000))
@ONE_FILE
def test_nothing_behind_a_flipped_bit_is_taken(intact: Path, at: int, size: int) -> None:
    data = bytearray(bytes_of(intact))
    at %= len(data)
    data[at] ^= 1
    arriving, ready = Arriving(0, 32 * 1024, 3_000), []
    with contextlib.suppress(StreamDamaged):  # not every byte of a record has a checksum
        for start in range(0, len(data), size):
            ready += arriving.take(memoryview(data)[start : start + size])
    ready += arriving.cut()
    for each in ready:  # a replica and a restore accept it as well
        with memoryview(each.data) as view:
            assert scan(view, 0, len(view), each.start, True).records == each.records


def test_a_record_that_waits_for_its_rest_is_not_cut(intact: Path) -> None:
    data = bytes_of(intact)
    arriving = Arriving(0, 32 * 1024, 1 << 20)
    arriving.take(memoryview(data)[:1000])
    [made] = arriving.cut()
    assert 0 < made.end < 1000
    assert arriving.cut() == []
    more = fed(arriving, data[1000:], [5000])
    assert more[0].start == made.end
