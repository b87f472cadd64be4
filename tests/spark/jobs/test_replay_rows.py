"""The form in which an archived message is sent again, and the rate."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.clock import ManualClock
from pyromq.errors import ConfigError
from pyromq.model.queue import MessageQueue
from pyromq.records.property_names import RESERVED
from pyromq.spark.jobs.replay.job import ReplayPlan, ReplayReport, goal_of, shared_out
from pyromq.spark.jobs.replay.pace import paced, portion
from pyromq.spark.jobs.replay.rows import REPLAYED_FROM, REPLAYED_ID, Goal, replayed_properties, to_messages
from spark.support.lake_rows import a_batch, a_row, some_rows


def test_own_properties_are_kept_and_those_of_brokers_are_not() -> None:
    found = [
        ("color", "red"),
        ("UNIQ_KEY", "U1"),
        ("MIN_OFFSET", "0"),
        ("DELAY", "3"),
        ("PYROMQ_WRITER", "w"),
        ("n", None),
    ]
    assert replayed_properties(found, "t@a@0:7", "id") == [
        ("color", "red"),
        (REPLAYED_FROM, "t@a@0:7"),
        (REPLAYED_ID, "U1"),
    ]


def test_without_the_producers_id_that_of_the_broker_serves() -> None:
    assert dict(replayed_properties([], "t@a@0:7", "id"))[REPLAYED_ID] == "id"
    assert REPLAYED_ID not in dict(replayed_properties([], "t@a@0:7", None))


def test_who_is_replayed_twice_tells_of_the_last_time() -> None:
    assert dict(replayed_properties([(REPLAYED_FROM, "old")], "new", None)) == {REPLAYED_FROM: "new"}


@given(st.dictionaries(st.one_of(st.text(max_size=9), st.sampled_from(sorted(RESERVED))), st.text(max_size=5)))
def test_no_reserved_name_ever_goes_back(properties) -> None:
    found = dict(replayed_properties(properties.items(), "o", None))
    assert not found.keys() & RESERVED
    mine = {
        name: value for name, value in properties.items() if name not in RESERVED and not name.startswith("PYROMQ_")
    }
    assert mine.items() <= {**found, REPLAYED_FROM: mine.get(REPLAYED_FROM, "")}.items()


def test_rows_become_what_the_sink_takes() -> None:
    row = a_row("orders", 5, 7)
    row["properties"] = [("__SHARDINGKEY", "customer-1"), ("color", "red")]
    (message,) = to_messages(a_batch([row]), {"orders": Goal("again", queues=4)}).to_pylist()
    assert message == {
        "body": b"orders/5/7",
        "topic": "again",
        "tags": "t1",
        "keys": "k7",
        "properties": [("color", "red"), (REPLAYED_FROM, "orders@a@5:7"), (REPLAYED_ID, "id-orders-5-7")],
        "queue_id": 1,
        "sharding_key": "customer-1",
    }


def test_the_sink_chooses_when_order_does_not_matter() -> None:
    (message,) = to_messages(a_batch([a_row("orders", 5, 7)]), {"orders": Goal("again")}).to_pylist()
    assert (message["queue_id"], message["sharding_key"]) == (None, None)


def test_columns_that_were_not_archived_are_absent() -> None:
    batch = a_batch([a_row("orders", 0, 7)]).select(["topic", "broker", "queue_id", "queue_offset", "body"])
    (message,) = to_messages(batch, {"orders": Goal("again")}).to_pylist()
    assert message["tags"] is None
    assert message["properties"] == [(REPLAYED_FROM, "orders@a@0:7")]


def test_a_number_names_a_queue_on_one_broker_and_a_key_does_on_several() -> None:
    one = [MessageQueue("t", "a", number) for number in range(3)]
    assert goal_of("t", one) == Goal("t", queues=3)
    assert goal_of("t", [*one, MessageQueue("t", "b", 0)]) == Goal("t", by_source_queue=True)
    (message,) = to_messages(a_batch([a_row("o", 5, 7)]), {"o": Goal("t", by_source_queue=True)}).to_pylist()
    assert (message["queue_id"], message["sharding_key"]) == (None, "o@a@5")


@given(st.dictionaries(st.integers(0, 50), st.integers(1, 1000), min_size=1), st.integers(1, 8))
def test_queues_are_shared_out_evenly(sizes, tasks: int) -> None:
    counts = {MessageQueue("t", "a", number): size for number, size in sizes.items()}
    found = shared_out(counts, tasks)
    assert found.keys() == counts.keys()
    if tasks >= len(counts):
        assert sorted(found.values()) == list(range(len(counts)))
        return
    loads = [sum(counts[queue] for queue, task in found.items() if task == number) for number in range(tasks)]
    assert max(loads) <= min(loads) + max(counts.values())


# --- the rate --------------------------------------------------------------------------------------------------------


def sent_at(batches: list[pa.RecordBatch], rate: float, *, busy_s: float = 0.0) -> list[tuple[float, int]]:
    clock = ManualClock(0)
    found = []
    for some in paced(batches, rate, clock, clock.advance):
        found.append((clock.monotonic(), some.num_rows))
        clock.advance(busy_s)
    return found


def test_a_rate_is_kept_from_the_first_row_on() -> None:
    times = sent_at([a_batch(some_rows("t", 0, 0, 1000))], 100.0)
    assert times[0] == (0.0, 10)
    assert times[-1] == (pytest.approx(9.9, abs=0.01), 10)
    assert sum(rows for _, rows in times) == 1000


def test_a_low_rate_sends_one_by_one() -> None:
    assert [rows for _, rows in sent_at([a_batch(some_rows("t", 0, 0, 3))], 2.0)] == [1, 1, 1]
    assert portion(0.5) == 1


def test_time_that_was_lost_is_not_caught_up_in_a_burst() -> None:
    times = sent_at([a_batch(some_rows("t", 0, 0, 40))], 100.0, busy_s=1.0)
    gaps = [after - before for (before, _), (after, _) in pairwise(times)]
    assert min(gaps) >= 0.099


def test_without_a_rate_batches_go_as_they_come() -> None:
    batch = a_batch(some_rows("t", 0, 0, 1000))
    assert sent_at([batch], 0) == [(0.0, 1000)]


# --- the plan --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "more"),
    [
        ("format", {"format": "orc"}),
        ("order", {"order": "time"}),
        ("rate", {"rate": -1}),
        ("rate", {"rate": float("inf")}),
        ("rate", {"rate": float("nan")}),
        ("since", {"since": "yesterday"}),
        ("until", {"until": "tomorrow"}),
        ("until", {"until": "99999999999999999"}),
        ("until", {"since": "2026-01-02", "until": "2026-01-01"}),
        ("prefix", {"topic": "t", "prefix": "p-"}),
    ],
)
def test_a_plan_that_cannot_work_names_the_setting(setting: str, more) -> None:
    with pytest.raises(ConfigError) as caught:
        ReplayPlan(**{"path": "/lake", "namesrv": "localhost:9876", **more})
    assert caught.value.setting == setting


def test_a_report_tells_what_went_where() -> None:
    report = ReplayReport({"again": 1500}, queues=2, seconds=3.0)
    assert report.sentences() == ["1,500 messages of 2 queues in 3.0 s (500/s): 1,500 to again."]
