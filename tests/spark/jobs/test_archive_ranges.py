"""The ranges of an archive's next commit, computed without a request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PythonException

from pyromq.errors import (
    CallFailed,
    CallTimeout,
    ConfigError,
    DataLoss,
    NotNow,
    SystemBusy,
    TlsFailed,
    Unreachable,
)
from pyromq.spark.decode.columns import NAMES
from pyromq.spark.jobs.archive.broker_errors import is_about_brokers
from pyromq.spark.jobs.archive.plan import ArchivePlan, ArchiveReport
from pyromq.spark.jobs.archive.ranges import next_step, vanished, within

MANY = 10**12


def step(reached, bounds, begins=None, *, most: int = MANY, fails: bool = True):
    return next_step(reached, bounds, begins or {}, most=most, fails_on_loss=fails)


def test_known_queues_go_on_and_new_ones_begin_at_their_first_message() -> None:
    found = step({"t@a@0": 5}, {"t@a@0": (0, 9), "t@a@1": (3, 4)})
    assert found.ranges == {"t@a@0": (5, 9), "t@a@1": (3, 4)}
    assert found.offsets == {"t@a@0": 9, "t@a@1": 4}
    assert found.count == 5


def test_new_queues_may_begin_later() -> None:
    found = step({}, {"t@a@0": (0, 9)}, {"t@a@0": 7})
    assert found.ranges == {"t@a@0": (7, 9)}


def test_where_nothing_came_nothing_is_taken_but_the_place_is_noted() -> None:
    found = step({"t@a@0": 9}, {"t@a@0": (0, 9), "t@a@1": (0, 5)}, {"t@a@1": 5})
    assert found.ranges == {}
    assert found.offsets == {"t@a@0": 9, "t@a@1": 5}


def test_a_queue_that_is_gone_keeps_its_place() -> None:
    assert step({"old@a@0": 4}, {"t@a@0": (0, 1)}).offsets == {"old@a@0": 4, "t@a@0": 1}


def test_messages_that_were_removed_before_are_a_loss() -> None:
    with pytest.raises(DataLoss, match="2 messages were removed"):
        step({"t@a@0": 3}, {"t@a@0": (5, 9)})
    allowed = step({"t@a@0": 3}, {"t@a@0": (5, 9)}, fails=False)
    assert (allowed.ranges, allowed.lost) == ({"t@a@0": (5, 9)}, 2)


def test_a_queue_that_was_made_anew_is_told_as_well() -> None:
    with pytest.raises(DataLoss, match="made anew"):
        step({"t@a@0": 30}, {"t@a@0": (0, 9)})
    assert step({"t@a@0": 30}, {"t@a@0": (0, 9)}, fails=False).ranges == {"t@a@0": (0, 9)}


def test_a_job_with_an_end_does_not_run_after_what_comes_later() -> None:
    assert within({"t": (0, 20), "new": (0, 3)}, {"t": (0, 9)}, {}) == {"t": (0, 9)}
    assert within({"t": (12, 20)}, {"t": (0, 9)}, {}) == {"t": (12, 12)}


def test_another_job_that_was_quicker_is_no_loss() -> None:
    """The lake is past the end of this job's range, so its queue was not recreated."""
    bounds = within({"t@a@0": (0, 20)}, {"t@a@0": (0, 9)}, {"t@a@0": 12})
    assert step({"t@a@0": 12}, bounds).ranges == {}


def test_a_loss_names_the_setting_that_allows_it() -> None:
    with pytest.raises(DataLoss, match=r"fail_on_data_loss = False, or --skip-lost"):
        step({"t@a@0": 3}, {"t@a@0": (5, 9)})


def test_queues_that_are_gone_are_named_if_somebody_wants_them() -> None:
    reached = {"t@a@0": 1, "t@a@1": 2, "other@a@0": 3}
    plan = ArchivePlan(path="/lake", namesrv="localhost:1", pattern="t|u")
    assert vanished(reached, {"t@a@0": (0, 9)}, plan.wants) == ["t@a@1"]
    report = ArchiveReport("/lake", vanished=["t@a@1"])
    assert report.sentences()[-1].startswith("1 queue that the lake knows cannot be read any more, t@a@1 for one")
    from_files = ArchivePlan(path="/lake", segments="/store", topics=("t",))
    assert vanished(reached, {}, from_files.wants) == []


def test_a_report_counts_as_people_do() -> None:
    one = ArchiveReport("/lake", 1, {"t@a@0": 1}, commits=1, rows=1, files=1, bytes=900, lost=1, bad_rows=1, cleaned=1)
    assert one.sentences() == [
        "1 message in 1 commit, 1 file, 900 bytes, 0.0 s; /lake is at commit 1 and knows 1 queue.",
        "1 body could not be decoded: it is in the side table, with the reason.",
        "1 message was removed from the queues before the archive came there.",
        "Removed: 1 file that no commit has.",
    ]
    several = ArchiveReport("/lake", commits=2, rows=2000, files=3, lost=2, compacted=2).sentences()
    assert several[0].startswith("2,000 messages in 2 commits, 3 files, 0 bytes")
    assert several[1:] == [
        "2 messages were removed from the queues before the archive came there.",
        "Rewritten into larger files: 2 small files.",
    ]


def test_a_broker_that_is_away_is_told_from_what_waiting_does_not_mend() -> None:
    for kind in (CallFailed, Unreachable, CallTimeout, SystemBusy, NotNow):
        assert is_about_brokers(kind("nobody answers"))
        assert is_about_brokers(PythonException(f"in a task:\npyromq.errors.{kind.__name__}: nobody answers"))
    assert not is_about_brokers(TlsFailed("do not agree"))
    assert not is_about_brokers(PythonException("pyromq.errors.TlsFailed: do not agree"))
    assert not is_about_brokers(PythonException("pyromq.errors.DataLoss: gone; Unreachable"))


@given(
    st.dictionaries(
        st.integers(0, 9).map("t@a@{}".format),
        st.tuples(st.integers(0, 50), st.integers(0, 100), st.floats(0, 1)),
        max_size=5,
    ),
    st.integers(1, 500),
)
def test_steps_reach_the_end_without_gap_or_overlap(queues, most: int) -> None:
    bounds = {queue: (first, first + count) for queue, (first, count, _) in queues.items()}
    reached = {queue: first + int(count * part) for queue, (first, count, part) in queues.items() if part < 0.5}
    taken = {queue: [] for queue in bounds}
    for _ in range(10_000):
        found = step(reached, bounds, most=most)
        if not found.ranges:
            break
        assert found.count <= max(most, len(found.ranges))
        for queue, (start, end) in found.ranges.items():
            assert start == reached.get(queue, bounds[queue][0])
            taken[queue] += range(start, end)
        reached = found.offsets
    starts = {
        queue: first + int(count * part) if part < 0.5 else first for queue, (first, count, part) in queues.items()
    }
    assert taken == {queue: list(range(starts[queue], end)) for queue, (_, end) in bounds.items()}


# --- the plan --------------------------------------------------------------------------------------------------------


def a_plan(**more) -> ArchivePlan:
    return ArchivePlan(**{"path": "/lake", "namesrv": "localhost:9876", "topics": ("t",), **more})


@pytest.mark.parametrize(
    ("setting", "more"),
    [
        ("path", {"path": ""}),
        ("format", {"format": "orc"}),
        ("decode", {"decode": "xml"}),
        ("schema", {"decode": "json"}),
        ("schema", {"schema": "a INT"}),
        ("columns", {"columns": ("nobody",)}),
        ("from_", {"from_": "yesterday"}),
        ("topics", {"topics": ()}),
        ("topics", {"pattern": ".*"}),
        ("namesrv", {"segments": "/store"}),
        ("namesrv", {"namesrv": None}),
        ("tags", {"namesrv": None, "segments": "/store", "tags": "A"}),
        ("sql", {"tags": "A", "sql": "a > 1"}),
        ("max_offsets_per_commit", {"max_offsets_per_commit": 0}),
        ("every_s", {"every_s": 0}),
        ("grace_s", {"grace_s": -1}),
    ],
)
def test_a_plan_that_cannot_work_names_the_setting(setting: str, more) -> None:
    with pytest.raises(ConfigError) as caught:
        a_plan(**more)
    assert caught.value.setting == setting


def test_what_a_lake_cannot_do_without_is_always_there() -> None:
    plan = a_plan(columns=("tags",))
    assert plan.table_columns == ("topic", "broker", "queue_id", "queue_offset", "tags", "store_ts")
    assert a_plan().table_columns == NAMES


def test_decoding_reads_bodies_also_when_they_are_not_kept() -> None:
    plan = a_plan(columns=("tags",), decode="json", schema="a INT")
    assert "body" in plan.read_columns
    assert "body" not in plan.table_columns
    assert plan.bad_schema().names == [*plan.read_columns, "date", "reason"]


def test_a_filter_may_leave_holes() -> None:
    assert not a_plan().may_have_holes
    assert a_plan(tags="A").may_have_holes
    assert a_plan(check=False).may_have_holes


def test_the_options_of_the_source() -> None:
    plan = a_plan(tags="A", source_options={"acl.accessKey": "me"})
    assert plan.source_settings() == {
        "namesrv": "localhost:9876",
        "subscribe": "t",
        "tags": "A",
        "acl.accessKey": "me",
    }
    files = a_plan(namesrv=None, topics=(), segments="/store")
    assert files.source_settings() == {"path": "/store", "broker": "files"}


def test_a_report_tells_what_happened() -> None:
    report = ArchiveReport("/lake", version=3, commits=2, rows=1500, bad_rows=1, lost=4, compacted=9, cleaned=2)
    text = " ".join(report.sentences())
    for part in ("1,500 messages in 2 commits", "commit 3", "side table", "4 messages were removed", "9 small files"):
        assert part in text
