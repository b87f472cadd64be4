"""Executors read everything in a span once and in order, whatever brokers do during it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.errors import CallTimeout, DataLoss, IllegalMessage, NoPermission, PyroMQError, Unreachable
from pyromq.spark.connecting import Cluster
from pyromq.spark.source import pace, remote
from pyromq.spark.source.blocks import batches_of, before, joined, records_in
from pyromq.spark.source.offsets import Span
from pyromq.spark.source.options import Pulling
from pyromq.spark.source.pace import MOST_IN_FLIGHT, Pace
from pyromq.spark.source.pulls import EXPECTED, Answer, Verdict, judge
from pyromq.spark.source.remote import Fetch, Trouble
from pyromq.wire.codes import ResponseCode
from spark.support.small_queue import QUEUE, SmallCluster, SmallQueue, record_of

PULLING = Pulling(cluster=Cluster("nowhere:1"), pull_bytes=20_000, patience_s=60)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between tries: each try advances the clock of `SmallCluster`."""
    monkeypatch.setattr(remote, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(remote, "LAST_PAUSE_SECONDS", 0.0)
    # And a first pull is small, so that several follow it.
    monkeypatch.setattr(pace, "FIRST_COUNT", 20)


def offsets_of(bodies: Sequence[bytes], span: Span, tags: frozenset[str] | None = None) -> list[int]:
    return [
        offset
        for batch in batches_of(bodies, span, ["queue_offset"], tags=tags)
        for offset in batch.column("queue_offset").to_pylist()
    ]


def read(brokers: SmallCluster | SmallQueue, start: int, end: int, pulling: Pulling = PULLING) -> list[int]:
    """The offsets of a span, in the order in which they come."""
    cluster = brokers if isinstance(brokers, SmallCluster) else SmallCluster({0: brokers})
    span = Span(QUEUE, start, end)

    async def all_of_it() -> list[int]:
        fetch = Fetch(cluster, pulling, span)  # type: ignore[arg-type]
        found: list[int] = []
        try:
            while (bodies := await fetch.take()) is not None:
                found += offsets_of(bodies, span, pulling.wanted_tags)
        finally:
            fetch.close()
        return found

    return asyncio.run(all_of_it())


# --- everything, once, in order --------------------------------------------------------------------------------------


def test_a_span_is_read_whole() -> None:
    assert read(SmallQueue(), 0, 1000) == list(range(1000))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 400), st.integers(0, 400), st.integers(1, 100), st.integers(0, 2000),
    st.sets(st.integers(0, 400), max_size=60), st.integers(1, 8), st.integers(1024, 60_000),
)  # fmt: skip
def test_whatever_brokers_give_at_once(
    start: int, count: int, gives: int, size: int, holes: set[int], in_flight: int, pull_bytes: int
) -> None:
    queue = SmallQueue(end=1000, gives=gives, size=size, holes=holes)
    pulling = replace(PULLING, in_flight=in_flight, pull_bytes=pull_bytes)
    wanted = [offset for offset in range(start, start + count) if offset not in holes]
    assert read(queue, start, start + count, pulling) == wanted


def test_nothing_is_read_of_an_empty_span() -> None:
    queue = SmallQueue()
    assert read(queue, 5, 5) == []
    assert queue.asked == []


def test_a_broker_that_gives_little_is_asked_several_times_at_once() -> None:
    pace = Pace(pull_bytes=1 << 20, in_flight=2)
    pace.learn(asked=1024, given=32, size=32 * 1000)
    assert pace.count == 32
    assert pace.pulls == MOST_IN_FLIGHT


def test_pulls_are_as_large_as_they_may_be() -> None:
    pace = Pace(pull_bytes=1 << 20, in_flight=3)
    assert pace.pulls == 1
    pace.learn(asked=1024, given=1024, size=1024 * 100)
    assert pace.pulls == 16
    for _ in range(40):
        pace.learn(asked=pace.count, given=pace.count, size=pace.count * 100)
    assert pace.count == 4096
    for _ in range(200):
        pace.learn(asked=pace.count, given=pace.count, size=pace.count * 100)
    assert pace.count * 100 <= 1 << 20
    assert pace.pulls == 3


def test_large_messages_make_small_pulls() -> None:
    pace = Pace(pull_bytes=1 << 20, in_flight=3)
    pace.learn(asked=1024, given=4, size=4 << 20)
    assert pace.count == 1
    assert pace.pulls == 3


# --- filters ---------------------------------------------------------------------------------------------------------


def test_a_broker_that_filters_says_where_to_go_on() -> None:
    queue = SmallQueue(gives=7)
    assert read(queue, 10, 500, replace(PULLING, tags="a||c")) == [one for one in range(10, 500) if one % 3 != 1]


def test_tags_with_the_same_hash_are_told_apart() -> None:
    bodies = [record_of(0, 10) + record_of(1, 10)]
    assert offsets_of(bodies, Span(QUEUE, 0, 9), frozenset({"b"})) == [1]


def test_a_filter_that_wants_nothing() -> None:
    assert read(SmallQueue(), 0, 1000, replace(PULLING, tags="z")) == []


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_broken_connection_is_made_again() -> None:
    queue = SmallQueue(moods=[Unreachable("gone"), CallTimeout("late"), Unreachable("gone")])
    assert read(queue, 0, 1000) == list(range(1000))


def test_patience_ends_with_a_sentence() -> None:
    queue = SmallQueue(moods=[Unreachable("nobody answers at at-0") for _ in range(200)])
    with pytest.raises(
        Unreachable, match=r"offset 0 of queue 0 of the topic orders on broker-a .* pullTimeoutMs.*nobody"
    ):
        read(queue, 0, 1000)


def test_what_a_broker_refuses_is_not_tried_again() -> None:
    queue = SmallQueue(moods=[NoPermission("not you")])
    with pytest.raises(NoPermission):
        read(queue, 0, 1000)
    assert len(queue.asked) == 1


def test_when_the_master_is_gone_its_copy_is_read() -> None:
    master = SmallQueue(moods=[Unreachable("gone") for _ in range(500)])
    copy = SmallQueue(suggests=1)
    assert read(SmallCluster({0: master, 1: copy}), 0, 1000) == list(range(1000))


def test_a_copy_that_sends_back_to_a_master_which_is_gone_is_not_believed() -> None:
    master = SmallQueue(moods=[Unreachable("gone") for _ in range(500)])
    copy = SmallQueue(suggests=0, gives=10)
    assert read(SmallCluster({0: master, 1: copy}), 0, 1000) == list(range(1000))
    assert len(master.asked) < 10


def test_only_the_master_where_that_is_asked_for() -> None:
    cluster = SmallCluster({0: SmallQueue(moods=[Unreachable("gone") for _ in range(500)]), 1: SmallQueue()})
    with pytest.raises(Unreachable):
        read(cluster, 0, 1000, replace(PULLING, read_from="master"))
    assert cluster.queues[1].asked == []


def test_a_copy_where_that_is_asked_for() -> None:
    cluster = SmallCluster({0: SmallQueue(), 1: SmallQueue()})
    assert read(cluster, 0, 1000, replace(PULLING, read_from="replica")) == list(range(1000))
    assert cluster.queues[0].asked == []


def test_a_copy_that_lags_behind_does_not_count_as_loss() -> None:
    cluster = SmallCluster({0: SmallQueue(), 1: SmallQueue(end=300)})
    assert read(cluster, 0, 1000, replace(PULLING, read_from="replica")) == list(range(1000))


def test_a_copy_that_begins_later_does_not_count_as_loss() -> None:
    cluster = SmallCluster({0: SmallQueue(), 1: SmallQueue(first=300)})
    assert read(cluster, 0, 1000, replace(PULLING, read_from="replica")) == list(range(1000))


def test_a_master_sends_readers_of_old_messages_to_its_copy() -> None:
    cluster = SmallCluster({0: SmallQueue(suggests=1, gives=10), 1: SmallQueue(suggests=1, gives=10)})
    assert read(cluster, 0, 1000) == list(range(1000))
    assert len(cluster.queues[0].asked) < len(cluster.queues[1].asked)


def test_answers_that_make_no_sense_are_asked_for_again() -> None:
    queue = SmallQueue()
    queue.moods = [queue.said(ResponseCode.PULL_RETRY_IMMEDIATELY, 0), queue.said(ResponseCode.PULL_OFFSET_MOVED, 700)]
    assert read(queue, 0, 1000) == list(range(1000))


def test_bytes_that_are_no_records_are_refused() -> None:
    queue = SmallQueue()
    queue.moods = [queue.said(ResponseCode.SUCCESS, 9, bytes(500))]
    with pytest.raises(IllegalMessage, match="queue 0 of the topic orders"):
        read(queue, 0, 1000)


# --- loss ------------------------------------------------------------------------------------------------------------


def test_what_retention_has_removed_meanwhile_is_lost() -> None:
    with pytest.raises(DataLoss, match=r"from offset 0 on and begins at 300 now.*failOnDataLoss"):
        read(SmallQueue(first=300), 0, 1000)


def test_or_it_is_left_out() -> None:
    accepts = replace(PULLING, fail_on_data_loss=False)
    assert read(SmallQueue(first=300), 0, 1000, accepts) == list(range(300, 1000))
    assert read(SmallQueue(first=300), 0, 100, accepts) == []


def test_a_queue_that_ends_too_early_was_made_anew() -> None:
    with pytest.raises(DataLoss, match=r"ends at 10 now.*made anew"):
        read(SmallQueue(end=10), 500, 1000)
    assert read(SmallQueue(end=10), 5, 1000, replace(PULLING, fail_on_data_loss=False)) == [5, 6, 7, 8, 9]


def test_a_broker_that_has_just_started_is_given_time() -> None:
    queue = SmallQueue(end=10)
    cluster = SmallCluster({0: queue})

    def recovered() -> None:
        if cluster.refreshed == 3:
            queue.end = 1000

    cluster.on_refresh = recovered
    assert read(cluster, 0, 1000) == list(range(1000))


@given(
    st.sampled_from(sorted(EXPECTED)), st.binary(max_size=2), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9),
    st.integers(0, 9),
)  # fmt: skip
def test_only_the_ends_of_a_queue_are_loss(
    code: int, body: bytes, following: int, first: int, end: int, at: int
) -> None:
    verdict = judge(Answer(code, body, following, first, end, 0), at)
    if verdict is Verdict.GONE:
        assert at < first
    elif verdict is Verdict.ENDED:
        assert at >= end
    elif verdict in (Verdict.TAKE, Verdict.SKIP):
        assert following > at


def test_pauses_grow_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "LAST_PAUSE_SECONDS", 2.0)
    trouble = Trouble(since_s=0, patience_s=10, next_pause_s=0.5)
    assert [trouble.pause(now) for now in (1, 2, 4, 6)] == [0.5, 1.0, 2.0, 2.0]
    assert trouble.pause(9) is None


# --- blocks ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=5), max_size=9))
def test_small_answers_are_joined(bodies: list[bytes]) -> None:
    assert b"".join(joined(bodies)) == b"".join(bodies)


def test_damage_is_found_where_that_is_asked_for() -> None:
    span = Span(QUEUE, 0, 9)
    block = bytearray(record_of(0, 50))
    block[100] ^= 1
    assert offsets_of([bytes(block)], span) == [0]
    with pytest.raises(IllegalMessage, match="cannot be read"):
        list(batches_of([bytes(block)], span, ["body"], verify_crc=True))


def test_only_what_is_asked_for_is_decoded() -> None:
    (batch,) = batches_of([record_of(0, 50)], Span(QUEUE, 0, 9), ["tags", "broker"])
    assert batch.to_pylist() == [{"tags": "a", "broker": "broker-a"}]


@given(st.integers(0, 9))
def test_records_before_an_offset(end: int) -> None:
    block = b"".join(record_of(offset, 20) for offset in range(3, 8))
    assert offsets_of([before(block, end)], Span(QUEUE, 0, 99)) == [offset for offset in range(3, 8) if offset < end]


def test_a_block_has_nothing_but_records() -> None:
    assert len(records_in(record_of(0, 9) + record_of(1, 9))) == 2
    with pytest.raises(PyroMQError):
        records_in(record_of(0, 9) + bytes(200))
