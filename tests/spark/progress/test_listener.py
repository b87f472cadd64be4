"""A stream is seen as a consumer group: what its listener reads of Spark's progress, and what brokers hear of it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq import testing
from pyromq.clock import ManualClock
from pyromq.errors import ConfigError, IllegalName
from pyromq.model.queue import MessageQueue
from pyromq.spark.connecting import Cluster
from pyromq.spark.progress import lag
from pyromq.spark.progress.lag import Courier, QueueStand, report_progress
from pyromq.spark.progress.lag_history import LagHistory
from pyromq.spark.progress.listener import GroupProgress, read_offsets
from pyromq.spark.source.queue_json import queue_name
from pyromq.sync import Admin, Producer
from pyromq.testing import LocalBroker

QUEUES = st.builds(
    MessageQueue, st.sampled_from(["orders", "%RETRY%g", "a|b"]), st.sampled_from(["a", "b@x"]), st.integers(0, 9)
)
NOWHERE = "127.0.0.1:1"


def offset_of(queues: dict[MessageQueue, int]) -> str:
    return json.dumps({"v": 1, "q": {queue_name(queue): offset for queue, offset in queues.items()}})


def progress_of(queues: dict[MessageQueue, int], name: str = "reports") -> dict[str, object]:
    return {"id": "17", "name": name, "sources": [{"endOffset": offset_of(queues)}]}


# --- what Spark says -------------------------------------------------------------------------------------------------


@given(st.dictionaries(QUEUES, st.integers(0, (1 << 63) - 1)))
def test_the_offsets_of_a_source_are_read_as_they_were_written(queues: dict[MessageQueue, int]) -> None:
    assert read_offsets([offset_of(queues)]) == queues
    assert read_offsets([json.loads(offset_of(queues))]) == queues  # as Spark Connect has them


@pytest.mark.parametrize(
    "end",
    [None, "", "17", "null", '{"init":"latest"}', '{"v":1,"q":[]}', '{"v":1,"q":{"no queue":1}}', "[" * 100_000,
     '{"v":2,"q":{"orders@a@0":1}}', '{"v":1,"q":{"orders@a@0":-1}}', '{"v":1,"q":{"orders@a@0":"9"}}'],
)  # fmt: skip
def test_offsets_of_other_sources_count_for_nothing(end: object) -> None:
    assert read_offsets([end]) == {}


def test_a_topic_that_is_read_twice_is_done_where_both_are_done() -> None:
    queue = MessageQueue("orders", "a", 0)
    assert read_offsets([offset_of({queue: 5}), None, offset_of({queue: 3})]) == {queue: 3}


def test_what_cannot_be_reported_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="name server"):
        GroupProgress("", "reports")
    with pytest.raises(IllegalName):
        GroupProgress(NOWHERE, "no group")
    with pytest.raises(ConfigError, match="no directory"):
        GroupProgress(NOWHERE, "reports", history="s3a://bucket/lag")


# --- what brokers hear -----------------------------------------------------------------------------------------------


class Stage:
    """A topic with messages, and a consumer group of its own."""

    def __init__(self, broker: LocalBroker, topic: str) -> None:
        self.broker = broker
        self.group = f"group-{topic}"
        self.cluster = Cluster(broker.name_servers, call_timeout_s=1.0, connect_timeout_s=1.0)
        with Admin(broker.name_servers) as admin:
            name = admin.topics.get(topic).brokers[0].broker
        self.queues = [MessageQueue(topic, name, number) for number in range(100)]

    def send(self, queue: MessageQueue, count: int) -> None:
        with Producer(self.broker.name_servers, group="producers") as producer:
            for number in range(count):
                producer.send(queue.topic, b"%d" % number, queue=queue)

    def seen(self, queue: MessageQueue) -> tuple[int, int]:
        """Offset and lag, as `pyromq consumer lag` shows them."""
        with Admin(self.broker.name_servers) as admin:
            found = {one.queue: one for one in admin.consumers.lag(self.group).queues}
        return found[queue].consumer_offset, found[queue].lag


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "pyromq.spark"]


@pytest.fixture
def stage(pyromq_broker: LocalBroker, pyromq_topic: str) -> Stage:
    return Stage(pyromq_broker, pyromq_topic)


def test_a_listener_shows_its_query_as_a_group_that_nobody_made(stage: Stage) -> None:
    queue = stage.queues[0]
    stage.send(queue, 5)
    listener = GroupProgress(stage.cluster, stage.group, query="reports")
    listener.report(None)  # the last progress of a query before its first batch
    listener.report(progress_of({queue: 3}))
    listener.report(progress_of({queue: 5}, name="another query"))
    assert listener.flush()
    assert stage.seen(queue) == (3, 2)


def test_a_group_never_goes_back(stage: Stage) -> None:
    queue = stage.queues[0]
    stage.send(queue, 5)
    report_progress(stage.cluster, stage.group, {queue: 4})
    report_progress(stage.cluster, stage.group, {queue: 2})
    assert stage.seen(queue) == (4, 1)
    restarted = Courier(stage.cluster, stage.group)  # a replay from the beginning, in the name of the same group
    restarted.offer("replay", {queue: 1})
    assert restarted.flush(5)
    assert stage.seen(queue) == (4, 1)


def test_the_true_lag_is_asked_for_after_the_batch_and_kept(stage: Stage, tmp_path: Path) -> None:
    queue = stage.queues[1]
    stage.send(queue, 7)
    heard: list[QueueStand] = []
    clock = ManualClock(1_700_000_000_000)
    listener = GroupProgress(stage.cluster, stage.group, on_lag=heard.extend, history=tmp_path / "lag", clock=clock)
    listener.report(progress_of({queue: 4}))
    listener.onQueryTerminated(SimpleNamespace())  # type: ignore[arg-type]
    assert heard == [QueueStand(clock.now_ms(), "reports", stage.group, queue, 4, 7)]
    (line,) = (tmp_path / "lag" / "lag-2023-11-14.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.000Z", "query": "reports", "group": stage.group, "topic": queue.topic,
        "broker": queue.broker_name, "queue": 1, "committed": 4, "max": 7, "lag": 3,
    }  # fmt: skip


def test_one_queue_that_is_refused_does_not_keep_the_others_back(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue, missing = stage.queues[0], stage.queues[99]
    stage.send(queue, 2)
    courier = Courier(stage.cluster, stage.group)
    with caplog.at_level(logging.WARNING, "pyromq.spark"):
        for offset in (1, 2):
            courier.offer("q", {missing: 5, queue: offset})
            assert courier.flush(10)
    assert stage.seen(queue) == (2, 0)
    assert len(warnings(caplog)) == 1, "the same trouble is told once"


def test_a_cluster_that_is_away_breaks_nothing_and_is_told_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    with testing.broker(process=True) as broker:
        broker.create_topic("orders", queues=1)
        stage = Stage(broker, "orders")
        queue = stage.queues[0]
        stage.send(queue, 3)
        courier = Courier(stage.cluster, stage.group)
        broker.kill()
        with caplog.at_level(logging.WARNING, "pyromq.spark"):
            for offset in (1, 2):
                courier.offer("q", {queue: offset})
                assert courier.flush(30)
        assert not courier.is_well
        assert len(warnings(caplog)) == 1
        broker.start()
        courier.offer("q", {queue: 3})
        assert courier.flush(30)
        assert courier.is_well
        assert stage.seen(queue) == (3, 0)


def test_a_cluster_that_is_away_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = MessageQueue("orders", "a", 0)
    cluster = Cluster(NOWHERE, connect_timeout_s=1.0)
    report_progress(cluster, "away", {queue: 1})
    courier = lag._courier_of(cluster, "away")
    assert courier.flush(30)
    monkeypatch.setattr(courier, "flush", lambda seconds: pytest.fail("it waits"))
    report_progress(cluster, "away", {queue: 2})


def test_only_the_newest_of_what_waits_is_told(stage: Stage) -> None:
    queue = stage.queues[0]
    stage.send(queue, 9)
    may_go_on, seen = threading.Event(), []

    def slow(stands: Sequence[QueueStand]) -> None:
        seen.append(stands[0].committed)
        may_go_on.wait(10)

    courier = Courier(stage.cluster, stage.group, slow)
    courier.offer("q", {queue: 1})
    while not seen:
        courier.flush(0.01)
    for offset in (2, 3, 4):
        courier.offer("q", {queue: offset})
    may_go_on.set()
    assert courier.flush(10)
    assert seen == [1, 4]


def test_a_callback_that_fails_is_logged_and_the_next_one_is_called(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = stage.queues[0]
    stage.send(queue, 2)
    calls: list[int] = []

    def broken(stands: Sequence[QueueStand]) -> None:
        calls.append(stands[0].committed)
        raise RuntimeError("the disk is full")

    listener = GroupProgress(stage.cluster, stage.group, on_lag=broken)
    for offset in (1, 2):
        listener.report(progress_of({queue: offset}))
        assert listener.flush()
    assert calls == [1, 2]
    assert "could not be handed over" in caplog.text


def test_the_history_goes_on_after_half_a_line(tmp_path: Path) -> None:
    stand = QueueStand(1_700_000_000_000, "q", "g", MessageQueue('o"\n', "b", 0), 1, 1)
    history = LagHistory(tmp_path)
    history(())
    assert list(tmp_path.iterdir()) == []
    history([stand])
    (path,) = tmp_path.iterdir()
    with path.open("a") as file:
        file.write('{"time":"20')
    history([stand, stand])
    lines = path.read_text().splitlines()
    assert [line for line in lines if line.endswith("}")] == [lines[0]] * 3
    assert json.loads(lines[0])["topic"] == 'o"\n'
