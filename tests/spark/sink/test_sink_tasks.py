"""Tasks that write to a real broker, and everything that can come between: cut lines, a killed broker, repeats."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from pyromq import testing
from pyromq.admin.admin import Admin
from pyromq.client.blocking import shared_portal
from pyromq.client.transaction_producer import Decision as End
from pyromq.errors import IllegalMessage, PyroMQError, TopicNotFound
from pyromq.spark.sink.decisions import STAMP, TOPIC, Attempt, BatchDecision, encode, tag_of
from pyromq.spark.sink.halves import Written
from pyromq.spark.sink.options import Mode, SinkOptions
from pyromq.spark.sink.task import place_of
from pyromq.spark.sink.transactions import decided_end
from pyromq.sync import Message, Producer
from pyromq.testing import BrokerProcess, FaultProxy
from spark.support.sink_scene import Scene, beside, frames, scene_of

ALL = list(Mode)
ONCE = [Mode.IDEMPOTENT, Mode.TRANSACTIONAL]


@pytest.fixture(scope="module")
def mq() -> Iterator[BrokerProcess]:
    with testing.broker(process=True) as running:
        yield running


def committed(scene: Scene, options: SinkOptions, rows: list[pa.RecordBatch], query: str, batch: int = 0) -> Written:
    written = scene.write(options, rows, query, batch)
    if options.mode is Mode.TRANSACTIONAL:
        scene.commit(options, [written], batch)
    return written


# --- all goes well ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ALL)
def test_all_rows_are_there(scene: Scene, topic: str, mode: Mode) -> None:
    options = scene.options(mode, topic)
    assert committed(scene, options, frames(0, 3000), "q-all").rows == 3000
    assert sorted(scene.bodies(topic)) == list(range(3000))


@pytest.mark.parametrize("mode", ALL)
def test_requests_may_be_signed(mq: BrokerProcess, topic: str, mode: Mode) -> None:
    """They take another way then: a signature is made over the whole request."""
    with scene_of(mq.name_servers, access_key="me", secret_key="secret") as scene:
        committed(scene, scene.options(mode, topic), frames(0, 1000), f"q-signed-{mode.value}")
        assert sorted(scene.bodies(topic)) == list(range(1000))


@pytest.mark.parametrize("mode", ALL)
def test_no_rows_are_no_messages(scene: Scene, topic: str, mode: Mode) -> None:
    assert committed(scene, scene.options(mode, topic), [], "q-none").rows == 0
    assert scene.bodies(topic) == []


def test_messages_have_what_the_columns_say(scene: Scene, topic: str) -> None:
    rows = pa.record_batch({
        "body": pa.array(["first", "second"]),
        "tags": pa.array(["paid", None]),
        "keys": pa.array(["k1 k2", None]),
        "properties": pa.array([[("country", "IT")], None], pa.map_(pa.string(), pa.string())),
        "sharding_key": pa.array(["s", "s"]),
        "dedup_key": pa.array(["row-1", None]),
    })  # fmt: skip
    scene.write(scene.options(Mode.AT_LEAST_ONCE, topic, compression="zstd"), [rows], "q-columns")
    first, second = scene.messages(topic)
    assert (first.body, first.tags, first.keys, first.properties) == (b"first", "paid", ("k1", "k2"), {"country": "IT"})
    assert (first.message_id, first.sharding_key) == ("row-1", "s")
    assert first.queue == second.queue
    assert len(second.message_id) == 32


def test_compressed_bodies_are_read_as_they_were(scene: Scene, topic: str) -> None:
    bodies = [os.urandom(10) + b"A" * 6000, b"short", os.urandom(6000)]
    options = scene.options(Mode.AT_LEAST_ONCE, topic, compression="lz4")
    scene.write(options, [pa.record_batch({"body": pa.array(bodies)})], "q-compressed")
    assert sorted(message.body for message in scene.messages(topic)) == sorted(bodies)


def test_rows_that_are_held_back_come_later(scene: Scene, topic: str) -> None:
    rows = pa.record_batch({"body": pa.array([b"1", b"2"]), "delay_level": pa.array([None, 1])})
    scene.write(scene.options(Mode.AT_LEAST_ONCE, topic), [rows], "q-delay")
    assert scene.bodies(topic) == [1]
    assert sorted(scene.wait_for(topic, 2)) == [1, 2]


def test_a_time_that_this_broker_does_not_know_is_refused_in_a_sentence(scene: Scene, topic: str) -> None:
    rows = pa.record_batch({"body": pa.array([b"1"]), "deliver_at": pa.array([10**15], pa.timestamp("us", tz="UTC"))})
    with pytest.raises(PyroMQError, match="use one of the delay levels instead"):
        scene.write(scene.options(Mode.AT_LEAST_ONCE, topic), [rows], "q-time")


def test_rows_go_to_the_topics_that_they_name(scene: Scene, topic: str, mq: BrokerProcess) -> None:
    mq.create_topic(f"{topic}-2", 2)
    rows = pa.record_batch({"body": pa.array([b"1", b"2", b"3"]), "topic": pa.array([topic, f"{topic}-2", None])})
    for mode in ALL:
        committed(scene, scene.options(mode, topic), [rows], f"q-topics-{mode.value}")
    assert sorted(scene.bodies(topic)) == [1, 1, 1, 3, 3, 3]
    assert scene.bodies(f"{topic}-2") == [2, 2, 2]


@pytest.mark.parametrize("mode", ALL)
def test_a_row_that_cannot_be_a_message_fails_the_task(scene: Scene, topic: str, mode: Mode) -> None:
    options = scene.options(mode, topic)
    bad = pa.record_batch({"body": pa.array([b"1", None])})
    with pytest.raises(IllegalMessage, match="row 1001 of this task has no body"):
        scene.write(options, [*frames(0, 1000), bad], "q-bad")
    if mode is Mode.TRANSACTIONAL:
        assert scene.bodies(topic) == []


@pytest.mark.parametrize("mode", ONCE)
def test_exactly_once_needs_a_topic_that_is_there(scene: Scene, mode: Mode) -> None:
    with pytest.raises(TopicNotFound, match="no broker has the topic 'nowhere': create it first"):
        scene.write(scene.options(mode, "nowhere"), frames(0, 10), "q-nowhere")


def test_a_topic_that_brokers_make_by_themselves_can_be_written_to(scene: Scene) -> None:
    scene.write(scene.options(Mode.AT_LEAST_ONCE, "from-nowhere"), frames(0, 10), "q-from-nowhere")
    assert sorted(scene.bodies("from-nowhere")) == list(range(10))


# --- repeats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ONCE)
def test_a_batch_that_is_written_again_is_there_once(scene: Scene, topic: str, mode: Mode) -> None:
    options = scene.options(mode, topic)
    for batch in (0, 1, 1, 2, 1, 0, 2):
        committed(scene, options, frames(batch * 1000, 1000), "q-again", batch)
    assert sorted(scene.bodies(topic)) == list(range(3000))


@pytest.mark.parametrize("mode", ONCE)
def test_a_task_that_failed_half_way_is_repeated_and_there_once(scene: Scene, topic: str, mode: Mode) -> None:
    """The first run dies when some rows are stored and others are not; frames are cut in other places the next time."""
    options = scene.options(mode, topic, batch_bytes=4096)

    def dying() -> Iterator[pa.RecordBatch]:
        yield from frames(0, 700, size=90)
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        scene.task(options, "q-half").write(dying())
    committed(scene, options, frames(0, 2000, size=333), "q-half")
    assert sorted(scene.bodies(topic)) == list(range(2000))


def test_repeats_go_to_the_queues_of_the_first_batch_also_when_there_are_more(
    scene: Scene, topic: str, mq: BrokerProcess
) -> None:
    options = scene.options(Mode.IDEMPOTENT, topic)
    scene.write(options, frames(0, 2000), "q-more-queues", 0)
    mq.create_topic(topic, 8)
    scene.close()  # another process
    options = scene.options(Mode.IDEMPOTENT, topic)
    scene.write(options, frames(0, 2000), "q-more-queues", 0)
    scene.write(options, frames(2000, 2000), "q-more-queues", 1)
    assert sorted(scene.bodies(topic)) == list(range(4000))
    assert {message.queue.queue_id for message in scene.messages(topic)} == {0, 1, 2, 3}


def test_partitions_do_not_know_each_others_rows(scene: Scene, topic: str) -> None:
    options = scene.options(Mode.IDEMPOTENT, topic)
    for partition in (0, 1, 0):
        scene.write(options, frames(partition * 1000, 1000), "q-parts", 0, partition)
    assert sorted(scene.bodies(topic)) == list(range(2000))


# --- a batch is seen as a whole --------------------------------------------------------------------------------------


def test_nobody_sees_a_batch_before_it_is_decided(scene: Scene, topic: str) -> None:
    options = scene.options(Mode.TRANSACTIONAL, topic)
    parts = [scene.write(options, frames(part * 100, 100), "q-whole", 0, part) for part in range(3)]
    assert scene.bodies(topic) == []
    assert scene.commit(options, parts)
    assert sorted(scene.bodies(topic)) == list(range(300))


def test_a_batch_that_failed_is_undone(scene: Scene, topic: str) -> None:
    options = scene.options(Mode.TRANSACTIONAL, topic)
    lost = scene.write(options, frames(0, 100), "q-undone", 0, 0)
    scene.abort(options, [lost, None])
    again = scene.write(options, frames(0, 100), "q-undone", 0, 0)
    scene.commit(options, [again])
    assert sorted(scene.bodies(topic)) == list(range(100))


def test_rows_of_an_attempt_that_died_are_rolled_back_when_the_broker_asks(scene: Scene, topic: str) -> None:
    """An executor is gone with its halves; the task's second run is decided."""
    options = scene.options(Mode.TRANSACTIONAL, topic)
    lost = scene.write(options, frames(0, 50), "q-died")
    assert end_told(options, lost) is End.UNKNOWN
    scene.commit(options, [scene.write(options, frames(0, 100), "q-died")])
    assert end_told(options, lost) is End.ROLLBACK
    assert sorted(scene.bodies(topic)) == list(range(100))


def end_told(options: SinkOptions, written: Written) -> End:
    """Return the answer to a broker that checks a half message of this task."""
    place, attempt = place_of(options), written.attempt
    assert attempt is not None
    stamp = f"{written.query}:{written.batch}:{written.partition}:{attempt.name}:0"
    return place.portal.wait(decided_end(place.decisions, stamp))


def decide_only(options: SinkOptions, written: Written, batch: int = 0) -> BatchDecision:
    """The driver dies as soon as its decision is written."""
    place = place_of(options)
    assert written.attempt is not None
    decision = BatchDecision(written.query, batch, {written.partition: written.attempt})
    return place.portal.wait(place.decisions.decide(written.query, batch, decision))


def test_a_driver_that_dies_behind_its_decision_has_decided(scene: Scene, topic: str) -> None:
    """The replayed batch undoes itself, and the broker asks for the halves of the first."""
    options = scene.options(Mode.TRANSACTIONAL, topic)
    first = scene.write(options, frames(0, 60), "q-behind")
    decide_only(options, first)
    again = scene.write(options, frames(0, 60), "q-behind")
    assert not scene.commit(options, [again])
    assert sorted(scene.wait_for(topic, 60)) == list(range(60))
    later = scene.write(options, frames(60, 60), "q-behind", 1)
    scene.commit(options, [later], 1)
    assert sorted(scene.wait_for(topic, 120)) == list(range(120))
    assert scene.repeated(topic) == {}


def test_a_driver_that_dies_while_ending_has_decided(scene: Scene, topic: str) -> None:
    options = scene.options(Mode.TRANSACTIONAL, topic)
    first = scene.write(options, frames(0, 60), "q-ending")
    decide_only(options, first)
    some = Written(60, first.query, 0, 0, first.attempt, [_first_of(first, 20)], first.began_ms)
    scene.commit(options, [some])
    assert not scene.commit(options, [scene.write(options, frames(0, 60), "q-ending")])
    assert sorted(scene.wait_for(topic, 60)) == list(range(60))
    assert scene.repeated(topic) == {}


def _first_of(written: Written, count: int) -> Any:
    (handles,) = written.halves
    return type(handles)(
        handles.broker, handles.topic, handles.may_repeat, handles.offsets[:count], handles.positions[:count]
    )


def test_of_two_drivers_the_first_decides(scene: Scene, topic: str) -> None:
    """Both have looked before one of them writes: the second finds out when it reads what it wrote."""
    options = scene.options(Mode.TRANSACTIONAL, topic)
    mine, theirs = (scene.write(options, frames(0, 40), "q-two") for _ in range(2))
    place, other = place_of(options), scene.other_driver(options)
    seen = place.portal.wait(other.decisions.view("q-two", 0))
    assert seen.of(0) is None
    assert scene.commit(options, [mine])

    async def too_late() -> BatchDecision:
        """Do as `decide` does after a look that was before the decision of the other attempt."""
        queue = await other.decisions.queue("q-two")
        assert theirs.attempt is not None
        late = BatchDecision("q-two", 0, {0: theirs.attempt}, after=seen.start)
        await other.decisions._write(queue, "q-two", "q-two:0", encode(late))
        return (await other.decisions.view("q-two", 0)).of(0)  # type: ignore[return-value]

    counts = place.portal.wait(too_late())
    assert counts.attempts[0].name == (mine.attempt or Attempt("", 0)).name
    assert not place.portal.wait(other.transactions().commit([theirs], 0))
    assert sorted(scene.bodies(topic)) == list(range(40))


def test_nothing_is_rolled_back_when_the_decision_may_be_written(scene: Scene, topic: str) -> None:
    """Spark aborts a batch whose commit raised: its tasks had all succeeded."""
    options = scene.options(Mode.TRANSACTIONAL, topic)
    written = scene.write(options, frames(0, 30), "q-abort")
    scene.abort(options, [written])
    scene.commit(options, [written])
    assert sorted(scene.bodies(topic)) == list(range(30))


def test_a_decision_is_found_behind_thousands_of_others(scene: Scene, topic: str, mq: BrokerProcess) -> None:
    """Another driver looks for it, which has read nothing."""
    options = scene.options(Mode.TRANSACTIONAL, topic)
    scene.commit(options, [scene.write(options, frames(0, 10), "q-far")])
    place = place_of(options)
    queue = place.portal.wait(place.decisions.queue("q-far"))
    noise = Message(queue.topic, encode(BatchDecision("q-near", 1, {})), tags=tag_of("q-near"))
    with Producer(mq.name_servers, group="noise") as producer:
        for _ in range(6):
            producer.send_batch([noise] * 500, queue=queue)
    other = scene.other_driver(options)
    view = place.portal.wait(other.decisions.view("q-far", 0))
    assert view.of(0) is not None
    assert view.end - view.start > 3000
    assert place.portal.wait(other.decisions.view("q-never", 0)).of(0) is None
    assert not place.portal.wait(other.transactions().commit([scene.write(options, frames(0, 10), "q-far")], 0))
    assert sorted(scene.bodies(topic)) == list(range(10))


def test_a_topic_of_decisions_that_somebody_deletes_fails_the_query_until_it_is_started_again(topic: str) -> None:
    with testing.broker(topics={topic: 4}, process=True) as mq, scene_of(mq.name_servers) as scene:
        options = scene.options(Mode.TRANSACTIONAL, topic)
        committed(scene, options, frames(0, 10), "q-first")
        shared_portal().wait(delete_decisions(mq.name_servers))
        written = scene.write(options, frames(10, 10), "q-first", 1)
        with pytest.raises(TopicNotFound, match="somebody deleted it"):
            scene.commit(options, [written], 1)
        options = scene.options(Mode.TRANSACTIONAL, topic)
        committed(scene, options, frames(10, 10), "q-first", 1)
        assert sorted(scene.bodies(topic)) == list(range(20))


async def delete_decisions(name_servers: str) -> None:
    async with Admin(name_servers) as admin:
        await admin.topics.delete(TOPIC)


def test_a_half_says_whose_it_is(scene: Scene, topic: str) -> None:
    options = scene.options(Mode.TRANSACTIONAL, topic)
    written = scene.write(options, frames(0, 2), "q-stamp", 4)
    scene.commit(options, [written], 4)
    assert written.attempt is not None
    found = sorted(message.get_property(STAMP) or "" for message in scene.messages(topic))
    assert found == [f"q-stamp:4:0:{written.attempt.name}:{serial}" for serial in range(2)]


# --- the network -----------------------------------------------------------------------------------------------------


@contextmanager
def behind_proxy() -> Iterator[tuple[BrokerProcess, FaultProxy, Scene]]:
    """A broker that is reached through a line that can be cut."""
    portal, proxy = shared_portal(), FaultProxy()
    portal.wait(proxy.__aenter__())
    try:
        with testing.broker(process=True, advertise=proxy.address) as mq, scene_of(mq.name_servers) as scene:
            proxy.target = mq.broker_address
            yield mq, proxy, scene
    finally:
        portal.wait(proxy.__aexit__(None, None, None))


class Cutting:
    """Cuts the connection repeatedly, a moment after bytes have passed, until it is stopped."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self._stop = threading.Event()
        self.cuts = 0

    def __call__(self) -> None:
        while not self._stop.wait(0.05) and self.cuts < 40:
            self.cuts += 1
            shared_portal().call(self._proxy.cut)

    def stop(self) -> None:
        self._stop.set()


@pytest.mark.parametrize("mode", ALL)
def test_a_line_that_is_cut_between_sends_and_answers_loses_nothing(mode: Mode) -> None:
    count = 4000 if mode is Mode.TRANSACTIONAL else 30_000
    with behind_proxy() as (mq, proxy, scene):
        mq.create_topic("cut", 4)
        options = scene.options(mode, "cut", batch_bytes=16 << 10)
        cutting = Cutting(proxy)
        with beside(cutting):
            written = scene.write(options, frames(0, count), "q-cut")
            cutting.stop()
        assert cutting.cuts > 0
        if mode is Mode.TRANSACTIONAL:
            scene.commit(options, [written])
        found = scene.wait_for("cut", count)
        assert set(found) == set(range(count))
        if mode is not Mode.AT_LEAST_ONCE:
            assert scene.repeated("cut") == {}
        if mode is Mode.TRANSACTIONAL:  # the broker checks the repeated halves, and delivers none a second time
            threading.Event().wait(4.0)
            assert scene.repeated("cut") == {}


@pytest.mark.parametrize("mode", ALL)
def test_a_broker_that_is_killed_in_the_middle_loses_nothing(mode: Mode) -> None:
    count = 4000 if mode is Mode.TRANSACTIONAL else 40_000
    with testing.broker(process=True, topics={"killed": 4}) as mq, scene_of(mq.name_servers) as scene:
        options = scene.options(mode, "killed", batch_bytes=8 << 10, in_flight=4)
        started = threading.Event()

        def killing() -> None:
            started.wait(30)
            mq.kill()
            mq.start()

        def rows() -> Iterator[pa.RecordBatch]:
            for number, frame in enumerate(frames(0, count)):
                if number == 3:
                    started.set()
                yield frame

        with beside(killing):
            written = scene.task(options, "q-killed").write(rows())
        if mode is Mode.TRANSACTIONAL:
            scene.commit(options, [written])
        found = scene.wait_for("killed", count)
        assert set(found) == set(range(count))
        if mode is not Mode.AT_LEAST_ONCE:
            assert scene.repeated("killed") == {}


@pytest.mark.parametrize("mode", ALL)
def test_a_broker_that_is_away_for_a_moment_holds_up_a_batch_and_does_not_fail_it(mode: Mode) -> None:
    with testing.broker(process=True, topics={"away": 4}) as mq, scene_of(mq.name_servers) as scene:
        options = scene.options(mode, "away")
        scene.close()  # nothing is connected, and nothing is known
        mq.kill()
        with beside(mq.start):
            written = scene.write(options, frames(0, 500), "q-away")
        if mode is Mode.TRANSACTIONAL:
            mq.kill()
            with beside(mq.start):
                scene.commit(options, [written])
        assert sorted(scene.wait_for("away", 500)) == list(range(500))


def test_a_broker_that_is_killed_while_a_batch_is_ended_loses_nothing() -> None:
    with testing.broker(process=True, topics={"ended": 4}) as mq, scene_of(mq.name_servers) as scene:
        options = scene.options(Mode.TRANSACTIONAL, "ended")
        written = scene.write(options, frames(0, 3000), "q-ended")

        def killing() -> None:
            threading.Event().wait(0.15)
            mq.kill()
            mq.start()

        with beside(killing):
            scene.commit(options, [written])
        assert sorted(scene.wait_for("ended", 3000)) == list(range(3000))
