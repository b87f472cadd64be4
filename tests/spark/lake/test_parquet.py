"""A lake of plain Parquet: one commit or none, with a crash at any point and with concurrent writers."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import LakeConflict, LakeError
from pyromq.spark.lake import commits, runs
from pyromq.spark.lake.commits import Commit, State
from pyromq.spark.lake.committing import commit
from pyromq.spark.lake.model import DataFile, Span
from pyromq.spark.lake.parquet_lake import CHECKPOINT_EVERY, ParquetLake
from pyromq.spark.lake.place import place_at
from spark.support.lake_rows import NOON_MS, SCHEMA, FragilePlace, PulledPlug, added, change

QUEUE = "orders@a@0"
NO_AGE = {"safe_age_s": 1e9, "grace_s": 0.0}


def a_lake(path: Path) -> ParquetLake:
    return ParquetLake(place_at(str(path)))


def append(lake: ParquetLake, start: int, end: int, run: str = "r1") -> None:
    head = lake.head()
    runs.begin(lake.place, run)
    files = added(lake, run, {QUEUE: (start, end)}, attempt=str(start))
    lake.commit(change(head, run, files, {QUEUE: end}))


def plain_offsets(path: Path) -> list[int]:
    """Return the offsets that a reader without knowledge of commits sees."""
    if not list(path.glob("topic=*/date=*/*.parquet")):
        return []
    return sorted(pq.read_table(path)["queue_offset"].to_pylist())


def committed_offsets(lake: ParquetLake) -> list[int]:
    found = [pq.ParquetFile(where).read()["queue_offset"].to_pylist() for where in lake.locations().values()]
    return sorted(offset for offsets in found for offset in offsets)


# --- the way it goes -------------------------------------------------------------------------------------------------


def test_a_new_lake_has_no_commit_and_knows_no_queue(tmp_path: Path) -> None:
    head = a_lake(tmp_path).head()
    assert (head.version, head.offsets, head.schema) == (0, {}, None)


def test_commits_add_up_and_everybody_can_read_them(tmp_path: Path) -> None:
    lake = a_lake(tmp_path)
    append(lake, 0, 5)
    append(lake, 5, 9)
    assert plain_offsets(tmp_path) == committed_offsets(lake) == list(range(9))
    again = a_lake(tmp_path).head()
    assert (again.version, again.offsets, again.schema) == (2, {QUEUE: 9}, SCHEMA)
    table = pq.read_table(tmp_path)
    assert set(table["topic"].to_pylist()) == {"orders"}
    assert set(map(str, table["date"].to_pylist())) == {"2026-01-31"}


def test_nothing_is_seen_before_the_commit(tmp_path: Path) -> None:
    lake = a_lake(tmp_path)
    added(lake, "r1", {QUEUE: (0, 5)})
    assert plain_offsets(tmp_path) == committed_offsets(lake) == []


def test_a_checkpoint_spares_reading_old_commits(tmp_path: Path) -> None:
    lake = a_lake(tmp_path)
    for number in range(CHECKPOINT_EVERY + 2):
        append(lake, number, number + 1)
    (tmp_path / commits.name_of(commits.COMMITS, 1)).write_text("no longer needed")
    assert committed_offsets(a_lake(tmp_path)) == list(range(CHECKPOINT_EVERY + 2))


# --- two at once -----------------------------------------------------------------------------------------------------


def test_of_two_jobs_that_commit_on_the_same_head_one_wins(tmp_path: Path) -> None:
    append(a_lake(tmp_path), 0, 3)
    one, other = a_lake(tmp_path), a_lake(tmp_path)
    head, same = one.head(), other.head()
    one.commit(change(head, "r2", added(one, "r2", {QUEUE: (3, 6)}), {QUEUE: 6}))
    with pytest.raises(LakeConflict, match="somebody else made commit 2"):
        other.commit(change(same, "r3", added(other, "r3", {QUEUE: (3, 8)}), {QUEUE: 8}))
    assert plain_offsets(tmp_path) == list(range(6))


def test_the_second_one_loses_also_in_the_moment_between_looking_and_creating(tmp_path: Path) -> None:
    lake = a_lake(tmp_path)
    head = lake.head()
    files = added(lake, "r1", {QUEUE: (0, 2)})
    assert lake.place.create(commits.name_of(commits.COMMITS, 1), b"theirs")
    assert not lake.place.create(commits.name_of(commits.COMMITS, 1), b"ours")
    with pytest.raises((LakeConflict, LakeError)):
        lake.commit(change(head, "r1", files, {QUEUE: 2}))


def test_an_archive_goes_on_over_a_rewrite_that_came_between(tmp_path: Path) -> None:
    lake = a_lake(tmp_path)
    append(lake, 0, 3)
    append(lake, 3, 6)
    head = lake.head()
    mine = added(lake, "r5", {QUEUE: (6, 8)})
    rewrite(a_lake(tmp_path), "r6", {QUEUE: (0, 6)})
    commit(lake, change(head, "r5", mine, {QUEUE: 8}))
    assert plain_offsets(tmp_path) == list(range(8))
    assert lake.head().offsets == {QUEUE: 8}


def test_a_rewrite_that_is_overtaken_does_not_turn_offsets_back(tmp_path: Path) -> None:
    lake = a_lake(tmp_path)
    append(lake, 0, 3)
    head, old = lake.head(), lake.files()
    made = added(lake, "r6", {QUEUE: (0, 3)})
    append(a_lake(tmp_path), 3, 9, run="r7")
    commit(lake, change(head, "r6", made, head.offsets, why="compact", removed=old))
    assert lake.head().offsets == {QUEUE: 9}
    assert plain_offsets(tmp_path) == list(range(9))


def test_an_archive_over_another_archive_is_refused(tmp_path: Path) -> None:
    lake = a_lake(tmp_path)
    append(lake, 0, 3)
    head = lake.head()
    mine = added(lake, "r5", {QUEUE: (3, 5)})
    append(a_lake(tmp_path), 3, 4, run="r6")
    with pytest.raises(LakeConflict):
        commit(lake, change(head, "r5", mine, {QUEUE: 5}))


# --- cut short -------------------------------------------------------------------------------------------------------


def steps_of_a_commit(tmp_path: Path, what) -> int:
    """Return the number of file changes of a commit."""
    for steps in range(1, 100):
        path = tmp_path / f"count-{steps}"
        append(a_lake(path), 0, 3)
        try:
            what(ParquetLake(FragilePlace(place_at(str(path)), steps)))
        except PulledPlug:
            continue
        return steps
    raise AssertionError("it never ends")


def add_three(lake: ParquetLake) -> None:
    head = lake.head()
    files = added(lake, "r2", {QUEUE: (3, 6), "other@a@1": (0, 2)})
    lake.commit(change(head, "r2", files, {QUEUE: 6, "other@a@1": 2}))


def rewrite(lake: ParquetLake, run: str, ranges) -> None:
    head, old = lake.head(), lake.files()
    made = added(lake, run, ranges)
    lake.commit(change(head, run, made, head.offsets, why="compact", removed=old))


@pytest.mark.parametrize("after", [False, True])
def test_killed_anywhere_in_a_commit_it_is_there_or_not(tmp_path: Path, after: bool) -> None:
    steps = steps_of_a_commit(tmp_path, add_three)
    assert steps >= 4, "commit, two files, the mark"
    for cut in range(steps):
        path = tmp_path / f"cut-{cut}"
        append(a_lake(path), 0, 3)
        with pytest.raises(PulledPlug):
            add_three(ParquetLake(FragilePlace(place_at(str(path)), cut, after=after)))
        lake = a_lake(path)
        is_there = lake.head().version == 2
        assert is_there == (cut > 0 or after), "the first change is the commit"
        before = committed_offsets(lake)
        lake.settle()
        assert committed_offsets(lake) == before == sorted(plain_offsets(path))
        assert before == ([0, 0, 1, 1, 2, 3, 4, 5] if is_there else [0, 1, 2])
        if not is_there:
            add_three(lake)
        assert plain_offsets(path) == [0, 0, 1, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("after", [False, True])
def test_killed_anywhere_in_a_rewrite_no_row_is_lost_or_doubled(tmp_path: Path, after: bool) -> None:
    def all_in_one(lake: ParquetLake) -> None:
        rewrite(lake, "r9", {QUEUE: (0, 3)})

    for cut in range(steps_of_a_commit(tmp_path, all_in_one)):
        path = tmp_path / f"cut-{cut}"
        append(a_lake(path), 0, 3)
        with pytest.raises(PulledPlug):
            all_in_one(ParquetLake(FragilePlace(place_at(str(path)), cut, after=after)))
        assert plain_offsets(path) in ([], [0, 1, 2]), "too few rows perhaps, never rows twice"
        lake = a_lake(path)
        assert committed_offsets(lake) == [0, 1, 2]
        lake.settle()
        assert plain_offsets(path) == committed_offsets(lake) == [0, 1, 2]


def test_settling_again_changes_nothing(tmp_path: Path) -> None:
    lake = a_lake(tmp_path)
    append(lake, 0, 3)
    rewrite(lake, "r2", {QUEUE: (0, 3)})
    (tmp_path / "_pyromq/published").unlink()
    lake.settle()
    assert plain_offsets(tmp_path) == [0, 1, 2]


def test_a_committed_file_that_somebody_removed_is_told(tmp_path: Path) -> None:
    lake = a_lake(tmp_path)
    append(lake, 0, 3)
    next(tmp_path.glob("topic=*/date=*/*.parquet")).unlink()
    (tmp_path / "_pyromq/published").unlink()
    with pytest.raises(LakeError, match=r"neither in .* nor where it was staged"):
        a_lake(tmp_path).settle()


def test_a_missing_commit_is_told(tmp_path: Path) -> None:
    lake = a_lake(tmp_path)
    append(lake, 0, 3)
    append(lake, 3, 4)
    (tmp_path / commits.name_of(commits.COMMITS, 1)).unlink()
    with pytest.raises(LakeError, match=r"commit 1 of .* is missing"):
        a_lake(tmp_path).head()


# --- cleaning --------------------------------------------------------------------------------------------------------


def leave_behind(path: Path, run: str, process: runs.Process) -> Path:
    lake = a_lake(path)
    added(lake, run, {QUEUE: (0, 2)})
    mark = path / runs.directory_of(run) / "run.json"
    mark.write_text(json.dumps({"system": process.system, "pid": process.pid, "started": process.started}))
    return mark.parent


def test_what_a_dead_run_left_is_removed_at_once(tmp_path: Path) -> None:
    here = runs.this_process()
    gone = leave_behind(tmp_path, "dead", runs.Process(here.system, here.pid, "another start"))
    alive = leave_behind(tmp_path, "alive", here)
    elsewhere = leave_behind(tmp_path, "elsewhere", runs.Process("another machine", 1, "1"))
    now_ms = int(gone.stat().st_mtime * 1000)
    assert a_lake(tmp_path).clean(now_ms=now_ms, safe_age_s=3600, grace_s=0) == 2
    assert not gone.exists()
    assert alive.exists()
    assert elsewhere.exists()


def test_what_a_run_elsewhere_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    left = leave_behind(tmp_path, "elsewhere", runs.Process("another machine", 1, "1"))
    now_ms = int(left.stat().st_mtime * 1000)
    a_lake(tmp_path).clean(now_ms=now_ms + 3_500_000, safe_age_s=3600, grace_s=0)
    assert left.exists()
    a_lake(tmp_path).clean(now_ms=now_ms + 3_700_000, safe_age_s=3600, grace_s=0)
    assert not left.exists()


def test_committed_files_of_a_dead_run_are_published_before_its_directory_goes(tmp_path: Path) -> None:
    with pytest.raises(PulledPlug):
        append(ParquetLake(FragilePlace(place_at(str(tmp_path)), 2)), 0, 3, run="dead")
    here = runs.this_process()
    mark = tmp_path / runs.directory_of("dead") / "run.json"
    mark.write_text(json.dumps({"system": here.system, "pid": here.pid, "started": "another start"}))
    lake = a_lake(tmp_path)
    assert lake.head().version == 1
    lake.clean(now_ms=NOON_MS, **NO_AGE)
    assert plain_offsets(tmp_path) == [0, 1, 2]
    assert not mark.parent.exists()


def test_replaced_files_are_kept_for_the_grace_time(tmp_path: Path) -> None:
    lake = a_lake(tmp_path)
    append(lake, 0, 3)
    rewrite(lake, "r2", {QUEUE: (0, 3)})
    trash = tmp_path / "_pyromq/trash"
    lake.clean(now_ms=NOON_MS + 59_000, safe_age_s=1e9, grace_s=60)
    assert len(list(trash.rglob("*.parquet"))) == 1
    lake.clean(now_ms=NOON_MS + 60_000, safe_age_s=1e9, grace_s=60)
    assert list(trash.rglob("*.parquet")) == []
    assert plain_offsets(tmp_path) == [0, 1, 2]


# --- the files of the history ----------------------------------------------------------------------------------------

queues = st.dictionaries(st.text(min_size=1, max_size=9), st.integers(0, 2**62), max_size=4)
files = st.builds(
    DataFile,
    path=st.text(min_size=1, max_size=20),
    topic=st.text(max_size=9),
    date=st.dates().map(str),
    rows=st.integers(0, 2**40),
    size=st.integers(0, 2**40),
    run=st.text(max_size=9),
    first_ms=st.integers(0, 2**50),
    last_ms=st.integers(0, 2**50),
    queues=st.dictionaries(st.text(max_size=9), st.builds(Span, *[st.integers(0, 2**62)] * 3), max_size=3),
)
some_commits = st.builds(
    Commit,
    version=st.integers(1, 10**19),
    run=st.text(max_size=9),
    why=st.sampled_from(["archive", "compact"]),
    at_ms=st.integers(0, 2**50),
    offsets=queues,
    schema=st.just(SCHEMA),
    added=st.lists(files, max_size=3),
    removed=st.lists(st.text(max_size=9), max_size=3),
)


@given(some_commits)
def test_a_commit_comes_back_as_it_was_written(commit: Commit) -> None:
    assert commits.decode_commit(commits.encode_commit(commit), "x") == commit


@given(queues, st.lists(files, max_size=3, unique_by=lambda file: file.path))
def test_a_checkpoint_comes_back_as_it_was_written(offsets, some) -> None:
    state = State(7, offsets, SCHEMA, {file.path: file for file in some})
    assert commits.decode_checkpoint(commits.encode_checkpoint(state), "x") == state


@given(st.binary(max_size=60))
def test_other_bytes_are_refused_with_the_name_of_the_file(data: bytes) -> None:
    for decode in (commits.decode_commit, commits.decode_checkpoint):
        with pytest.raises(LakeError, match="commits/7"):
            decode(data, "commits/7")


def test_names_of_commits_sort_as_their_numbers() -> None:
    names = [commits.name_of(commits.COMMITS, number) for number in (1, 9, 10, 99, 10**15)]
    assert names == sorted(names)
    assert [commits.version_in(name) for name in names] == [1, 9, 10, 99, 10**15]
    assert commits.version_in(f"{names[0]}.abc.tmp") is None


def test_folding_commits_adds_and_removes() -> None:
    first, second, joined = (DataFile(name, "t", "2026-01-31", 1, 1) for name in ("1", "2", "12"))
    state = State().after(Commit(1, "r", "archive", 0, {"q": 1}, pa.schema([]), [first, second], []))
    state = state.after(Commit(2, "r", "compact", 0, {"q": 1}, pa.schema([]), [joined], ["1", "2"]))
    assert set(state.files) == {"12"}
