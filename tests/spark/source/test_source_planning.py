"""The batches of a stream against a cluster that lives: messages come, queues appear, Spark crashes at any moment."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.errors import ConfigError, DataLoss, TopicNotFound
from pyromq.model.queue import MessageQueue
from pyromq.spark.source import offsets, planning
from pyromq.spark.source.discovery import Bounds, _placed, matching
from pyromq.spark.source.offsets import Form, Span
from pyromq.spark.source.options import Limits, SourceOptions, Start, Where, batch_options, stream_options
from pyromq.spark.source.planning import BatchPlan, StreamPlan
from pyromq.spark.source.queue_json import Kind

A, B, C = (MessageQueue("orders", "broker-a", number) for number in range(3))
BASE = {"namesrv": "nowhere:1", "subscribe": "orders", "offsetPollMs": "0"}


@pytest.fixture(autouse=True)
def _nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no broker that could keep a group's progress."""
    monkeypatch.setattr(planning, "report_progress", lambda *_: None)


@dataclass
class Cluster:
    """Stands in for `Survey`: the queues with their first and next offsets, as they are at this moment."""

    options: SourceOptions
    queues_now: dict[MessageQueue, Bounds] = field(default_factory=lambda: {A: Bounds(0, 0)})
    now_s: float = 0.0
    group: dict[MessageQueue, int] = field(default_factory=dict)
    #: The names of brokers that are there.
    names: set[str] = field(default_factory=lambda: {"broker-a"})
    questions: int = 0

    def queues(self) -> list[MessageQueue]:
        return sorted(self.queues_now)

    def bounds(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, Bounds]:
        self.questions += 1
        return {queue: self.queues_now[queue] for queue in queues if queue in self.queues_now}

    def places(self, where: Where, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        return {queue: self._place(where, queue) for queue in queues}

    def _place(self, where: Where, queue: MessageQueue) -> int:
        bounds = self.queues_now[queue]
        new = bounds.first if self.options.new_queues is Start.EARLIEST else bounds.end
        if where.start is Start.GROUP:
            return self.group.get(queue, new)
        placed = _placed(where, queue)
        if placed is None:
            return new
        if placed.kind is Kind.OFFSET:
            return placed.value
        if placed.kind is Kind.TIME:  # messages are stored at the second of their offset
            return min(max(placed.value // 1000, bounds.first), bounds.end)
        return bounds.first if placed.kind is Kind.EARLIEST else bounds.end

    def message_sizes(self, places: Iterable[tuple[MessageQueue, int]]) -> dict[MessageQueue, float]:
        return {queue: 100.0 for queue, _ in places}

    def brokers(self) -> set[str]:
        return self.names

    def pause(self) -> None:
        self.now_s += 1

    # --- what happens there ---

    def append(self, queue: MessageQueue, count: int) -> None:
        bounds = self.queues_now.get(queue, Bounds(0, 0))
        self.queues_now[queue] = Bounds(bounds.first, bounds.end + count)

    def expire(self, queue: MessageQueue, first: int) -> None:
        self.queues_now[queue] = Bounds(first, max(self.queues_now[queue].end, first))


def stream(**given_options: str) -> tuple[StreamPlan, Cluster]:
    options = stream_options(BASE | given_options)
    cluster = Cluster(options)
    return StreamPlan(options, cluster), cluster  # type: ignore[arg-type]


def positions(form: Form) -> list[int]:
    return [offset for _, offset in sorted(offsets.positions(form).items())]


# --- where a stream begins -------------------------------------------------------------------------------------------


def test_latest_begins_with_a_constant_and_an_empty_batch() -> None:
    plan, cluster = stream()
    cluster.append(A, 7)
    start = plan.initial()
    cluster.append(A, 3)
    first = plan.next(start, Limits())
    assert (start, positions(first)) == ({"v": 1, "init": "latest"}, [10])
    assert plan.spans(start, first) == []
    cluster.append(A, 5)
    assert plan.spans(first, plan.next(first, Limits())) == [Span(A, 10, 15)]


def test_earliest_reads_at_once() -> None:
    plan, cluster = stream(startingOffsets="earliest")
    cluster.queues_now[A] = Bounds(3, 9)
    start = plan.initial()
    assert plan.spans(start, plan.next(start, Limits())) == [Span(A, 3, 9)]


def test_where_a_group_is() -> None:
    plan, cluster = stream(startingOffsets="group", group="g")
    cluster.queues_now = {A: Bounds(0, 9), B: Bounds(2, 9)}
    cluster.group = {A: 5}
    assert positions(plan.next(plan.initial(), Limits())) == [5, 2]


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        ({"startingTimestamp": "4000"}, [4, 4]),
        ({"startingOffsets": '{"orders": {"broker-a": {"0": 4}}}'}, [4, 0]),
        ({"startingOffsets": '{"orders@broker-a@1": -1}', "newQueues": "latest"}, [9, 9]),
        ({"startingOffsetsByTimestamp": '{"orders@broker-a@1": 6000}'}, [0, 6]),
    ],
)
def test_places(option: dict[str, str], wanted: list[int]) -> None:
    plan, cluster = stream(**option)
    cluster.queues_now = {A: Bounds(0, 9), B: Bounds(0, 9)}
    start = plan.initial()
    assert positions(plan.next(start, Limits()) if offsets.is_beginning(start) else start) == wanted


def test_what_is_named_must_be_there() -> None:
    plan, _ = stream(startingOffsets='{"orders@broker-a@7": 4}')
    with pytest.raises(ConfigError, match="startingOffsets names orders@broker-a@7"):
        plan.initial()
    plan, _ = stream(startingOffsets="earliest", subscribe="orders,returns")
    with pytest.raises(TopicNotFound, match="'returns'"):
        plan.initial()


# --- batches ---------------------------------------------------------------------------------------------------------


def test_nothing_new_is_the_same_text() -> None:
    plan, cluster = stream()
    cluster.queues_now = {B: Bounds(0, 9), A: Bounds(0, 9)}
    start = plan.next(plan.initial(), Limits())
    assert json.dumps(plan.next(json.loads(json.dumps(start)), Limits())) == json.dumps(start)


def test_limits() -> None:
    plan, cluster = stream(startingOffsets="earliest")
    cluster.queues_now = {A: Bounds(0, 100), B: Bounds(0, 300)}
    start = plan.initial()
    assert positions(plan.next(start, Limits(max_offsets=40))) == [10, 30]
    assert positions(plan.next(start, Limits(max_bytes=4000))) == [10, 30]
    assert positions(plan.next(start, Limits())) == [100, 300]


def test_a_batch_waits_for_more() -> None:
    plan, cluster = stream(startingOffsets="earliest", minOffsetsPerTrigger="50", maxTriggerDelay="10s")
    limits = Limits(min_offsets=50, max_delay_s=10)
    start = plan.initial()
    cluster.append(A, 49)
    assert plan.next(start, limits) == start
    cluster.now_s = 11
    assert positions(plan.next(start, limits)) == [49]


def test_available_now_stops_at_what_there_was() -> None:
    plan, cluster = stream(startingOffsets="earliest", minOffsetsPerTrigger="50")
    cluster.append(A, 30)
    plan.stop_at_now()
    cluster.append(A, 30)
    cluster.append(B, 30)
    start = plan.initial()
    first = plan.next(start, Limits(max_offsets=20, min_offsets=50))
    last = plan.next(first, Limits(max_offsets=20, min_offsets=50))
    assert (positions(first)[0], positions(last)[0]) == (20, 30)
    assert plan.next(last, Limits(max_offsets=20, min_offsets=50)) == last


def test_available_now_is_prepared_before_the_beginning_is_known() -> None:
    plan, cluster = stream()
    cluster.append(A, 30)
    plan.stop_at_now()
    cluster.append(A, 30)
    first = plan.next(plan.initial(), Limits())
    assert positions(first) == [60]
    assert plan.next(first, Limits()) == first


def test_an_idle_query_does_not_bother_brokers() -> None:
    plan, cluster = stream(startingOffsets="earliest", offsetPollMs="200")
    start = plan.initial()
    for _ in range(100):
        plan.next(start, Limits())
    assert cluster.questions == 1


def test_ends_that_were_remembered_are_asked_for_again_before_they_count_as_loss() -> None:
    plan, cluster = stream(offsetPollMs="60000")
    plan.stop_at_now()
    cluster.append(A, 5)
    first = plan.next(plan.initial(), Limits())
    assert plan.next(first, Limits()) == first


# --- queues that come and go -----------------------------------------------------------------------------------------


def test_a_new_queue_is_noted_and_then_read() -> None:
    plan, cluster = stream(startingOffsets="earliest")
    start = plan.initial()
    cluster.append(B, 5)
    cluster.now_s = 3
    noted = plan.next(start, Limits())
    assert plan.spans(start, noted) == []
    assert plan.spans(noted, plan.next(noted, Limits())) == [Span(B, 0, 5)]


def test_a_new_queue_from_its_end() -> None:
    plan, cluster = stream(newQueues="latest")
    start = plan.next(plan.initial(), Limits())
    cluster.append(B, 5)
    cluster.now_s = 3
    noted = plan.next(start, Limits())
    cluster.append(B, 2)
    assert plan.spans(noted, plan.next(noted, Limits())) == [Span(B, 5, 7)]


def test_a_broker_that_is_away_is_waited_for() -> None:
    plan, cluster = stream(startingOffsets="earliest")
    cluster.queues_now = {A: Bounds(0, 9), C._replace(broker_name="broker-b"): Bounds(0, 9)}
    start = plan.next(plan.initial(), Limits())
    away = cluster.queues_now.popitem()
    cluster.now_s = 3
    cluster.append(A, 1)
    after = plan.next(start, Limits())
    assert positions(after) == [10, 9]
    cluster.queues_now[away[0]] = Bounds(0, 12)
    cluster.now_s = 6
    assert positions(plan.next(after, Limits())) == [10, 12]


def test_a_queue_that_its_broker_has_no_more_is_lost() -> None:
    plan, cluster = stream(startingOffsets="earliest")
    cluster.queues_now = {A: Bounds(0, 9), B: Bounds(0, 9)}
    start = plan.initial()
    del cluster.queues_now[B]
    cluster.now_s = 3
    with pytest.raises(DataLoss, match="queue 1 of the topic orders on broker-a cannot be read any more"):
        plan.next(start, Limits())


def test_or_it_is_forgotten() -> None:
    plan, cluster = stream(startingOffsets="earliest", failOnDataLoss="false")
    cluster.queues_now = {A: Bounds(0, 9), B: Bounds(0, 9)}
    start = plan.initial()
    del cluster.queues_now[B]
    cluster.now_s = 3
    assert positions(plan.next(start, Limits())) == [9, 0]


def test_retention_was_faster() -> None:
    plan, cluster = stream(startingOffsets="earliest")
    start = plan.initial()
    cluster.append(A, 9)
    cluster.expire(A, 4)
    with pytest.raises(DataLoss, match=r"from offset 0 on and begins at 4 now.*failOnDataLoss"):
        plan.next(start, Limits())


def test_and_that_is_accepted() -> None:
    plan, cluster = stream(startingOffsets="earliest", failOnDataLoss="false")
    start = plan.initial()
    cluster.append(A, 9)
    cluster.expire(A, 4)
    end = plan.next(start, Limits())
    assert plan.spans(start, end) == [Span(A, 4, 9)]


def test_a_copy_is_not_believed() -> None:
    plan, cluster = stream(startingOffsets="earliest")
    cluster.append(A, 9)
    start = plan.next(plan.initial(), Limits())
    cluster.queues_now[A] = Bounds(0, 5, is_certain=False)
    assert plan.next(start, Limits()) == start


def test_a_topic_that_was_made_anew() -> None:
    plan, cluster = stream(startingOffsets="earliest", failOnDataLoss="false")
    cluster.append(A, 900)
    start = plan.next(plan.initial(), Limits())
    cluster.queues_now[A] = Bounds(0, 5)
    back = plan.next(start, Limits())
    assert plan.spans(start, back) == []
    assert plan.spans(back, plan.next(back, Limits())) == [Span(A, 0, 5)]
    strict, cluster = stream(startingOffsets="earliest")
    cluster.append(A, 5)
    with pytest.raises(DataLoss, match=r"from offset 900 on and ends at 5 now.*made anew"):
        strict.next(start, Limits())


def test_a_pattern_means_the_topics_of_people() -> None:
    topics = ["orders", "orders-eu", "%RETRY%orders", "%DLQ%orders", "rmq_sys_orders", "TBW102"]
    assert matching(".*orders.*", topics) == ["orders", "orders-eu"]
    assert matching("%DLQ%.*", topics) == ["%DLQ%orders"]


# --- a batch of its own ----------------------------------------------------------------------------------------------


def batch(bounds: dict[MessageQueue, Bounds], **given_options: str) -> list[Span]:
    options = batch_options({name: value for name, value in BASE.items() if name != "offsetPollMs"} | given_options)
    return BatchPlan(options, Cluster(options, bounds)).spans()  # type: ignore[arg-type]


def test_a_batch_from_start_to_end() -> None:
    both = {A: Bounds(2, 9), B: Bounds(0, 4)}
    assert batch(both) == [Span(A, 2, 9), Span(B, 0, 4)]
    assert batch(both, startingTimestamp="3000", endingTimestamp="5000") == [Span(A, 3, 5), Span(B, 3, 4)]
    named = batch(both, startingOffsets='{"orders@broker-a@0": 4}', endingOffsets='{"orders@broker-a@0": 6}')
    assert named == [Span(A, 4, 6), Span(B, 0, 4)]


def test_a_batch_that_asks_for_what_is_gone() -> None:
    with pytest.raises(DataLoss, match="from offset 1 on and begins at 2"):
        batch({A: Bounds(2, 9)}, startingOffsets='{"orders": 1}')
    assert batch({A: Bounds(2, 9)}, startingOffsets='{"orders": 1}', failOnDataLoss="false") == [Span(A, 2, 9)]


# --- Spark, crashes and all ------------------------------------------------------------------------------------------


class SmallSpark:
    """Spark's handling of a stream's offsets: written ahead, committed after, requested again after a crash."""

    def __init__(self, new_plan: Callable[[], StreamPlan]) -> None:
        self._new_plan = new_plan
        self.plan = new_plan()
        #: By number of the batch, as texts: that is what a checkpoint has.
        self.written: list[str] = []
        self.committed = 0
        #: By number of the batch: a sink that is exactly-once keeps the last attempt.
        self.read: dict[int, list[Span]] = {}

    def restart(self) -> None:
        self.plan = self._new_plan()

    def batch(self, limits: Limits, crash: str) -> None:
        """One batch; `crash` says when this life ends, if it does."""
        if self.committed == len(self.written):
            start = json.loads(self.written[-1]) if self.written else self.plan.initial()
            end = json.dumps(self.plan.next(start, limits))
            if end == json.dumps(start):
                return None
            self.written.append(end)
        if crash == "planned":
            return self.restart()
        number = self.committed
        start = json.loads(self.written[number - 1]) if number else self.plan.initial()
        self.read[number] = self.plan.spans(start, json.loads(self.written[number]))
        if crash == "read":
            return self.restart()
        self.committed += 1
        return self.restart() if crash == "committed" else None


EVENTS = st.one_of(
    st.tuples(st.just("append"), st.sampled_from([A, B, C]), st.integers(1, 50)),
    st.tuples(
        st.just("batch"),
        st.sampled_from([Limits(), Limits(max_offsets=7), Limits(max_bytes=900)]),
        st.sampled_from(["", "", "planned", "read", "committed"]),
    ),
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(EVENTS, max_size=40),
    st.sampled_from(["latest", "earliest", "group"]),
    st.sampled_from(["earliest", "latest"]),
)
def test_whatever_happens_nothing_is_missed_or_read_twice(
    events: list[tuple[str, Any, Any]], begin: str, new: str
) -> None:
    options = stream_options(BASE | {"startingOffsets": begin, "newQueues": new, "group": "g"})
    cluster = Cluster(options)
    spark = SmallSpark(lambda: StreamPlan(options, cluster))  # type: ignore[arg-type]
    for kind, what, more in [*events, *[("batch", Limits(), "")] * 4]:
        cluster.now_s += 3
        if kind == "append":
            cluster.append(what, more)
        else:
            spark.batch(what, more)
    for queue, bounds in cluster.queues_now.items():
        check_every_offset_once(spark, queue, bounds.end)


def check_every_offset_once(spark: SmallSpark, queue: MessageQueue, end: int) -> None:
    """From where the queue first stands in the checkpoint on; a stream from the earliest begins before that."""
    noted = [found[queue] for text in spark.written if queue in (found := offsets.positions(json.loads(text)))]
    spans = [span for number in sorted(spark.read) for span in spark.read[number] if span.queue == queue]
    assert all(one.end == other.start for one, other in pairwise(spans))
    if not spans:
        assert not noted or noted[0] == noted[-1] == end
        return
    assert spans[0].start <= noted[0]
    assert spans[-1].end == noted[-1] == end


def test_from_the_earliest_on_nothing_is_left_out_either() -> None:
    plan, cluster = stream(startingOffsets="earliest")
    cluster.append(A, 20)
    spark = SmallSpark(lambda: StreamPlan(plan._options, cluster))  # type: ignore[arg-type]
    for crash in ("planned", "read", "planned", "", "committed", ""):
        spark.batch(Limits(max_offsets=8), crash)
        cluster.append(A, 3)
    for _ in range(9):
        spark.batch(Limits(), "")
    spans = [span for number in sorted(spark.read) for span in spark.read[number]]
    assert (spans[0].start, spans[-1].end) == (0, 38)
    assert all(one.end == other.start for one, other in pairwise(spans))
