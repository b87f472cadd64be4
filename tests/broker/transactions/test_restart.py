"""Transactions over restarts, kills and power cuts, and over a change between Apache RocketMQ and PyroMQ."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.support.fakes import PEER_HOST, STORE_HOST, Parts
from broker.support.transaction_scene import ASIDE, COMMIT, HALVES, OPS, ROLL_BACK, Scene, now, questions
from pyromq.broker.transactions.committed import committed_halves
from pyromq.clock import ManualClock
from pyromq.config import FlushConfig
from pyromq.config.broker import TransactionConfig
from pyromq.errors import CorruptQueue, DiskFull
from pyromq.model.message import Draft
from pyromq.model.names import TRANSACTION_GROUP
from pyromq.model.topic import TopicConfig
from pyromq.records import layout, record
from pyromq.records.message_id import encode_message_id
from pyromq.records.properties import encode_properties
from pyromq.testing.sim.crash_choice import CrashMode
from pyromq.wire.requests.client import EndTransaction
from pyromq.wire.responses import SendReceipt

# --- restart in the middle -------------------------------------------------------------------------------------------


def test_a_transaction_goes_on_after_a_restart() -> None:
    scene = Scene()
    first, second, third = (scene.send(key=f"K{number}") for number in range(3))
    scene.end(second, ROLL_BACK)
    scene = scene.restarted()
    scene.end(first, COMMIT)
    scene.end(second, COMMIT)
    peer = scene.connect()
    scene.round()
    assert scene.orders() == [b"paid"]
    assert [one.message_id for one in questions(peer)] == ["K2"]
    scene.end(third, COMMIT)
    assert scene.orders() == [b"paid", b"paid"]


@pytest.mark.parametrize("again", [Scene.restarted, Scene.killed])
def test_checks_are_counted_over_restarts(again: Callable[[Scene], Scene]) -> None:
    scene = Scene(transaction=TransactionConfig(check_max=3))
    scene.send()
    asked = 0
    for _ in range(6):
        peer = scene.connect()
        scene.round()
        asked += len(questions(peer))
        scene = again(scene)
    assert asked == 3
    assert scene.parts.bodies(ASIDE) == [b"paid"]


def test_a_late_decision_of_the_sender_ends_the_copy_after_a_restart_too() -> None:
    scene = Scene()
    scene.connect()
    sent = scene.send()
    scene.round()
    scene = scene.killed()
    peer = scene.connect()
    scene.end(sent, COMMIT)
    scene.round()
    assert scene.orders() == [b"paid"]
    assert questions(peer) == []


def test_what_has_ended_stays_ended_after_a_kill() -> None:
    scene = Scene()
    sent = scene.send()
    scene.end(sent, COMMIT)
    scene = scene.killed()
    scene.end(sent, COMMIT)
    peer = scene.connect()
    scene.round()
    assert scene.orders() == [b"paid"]
    assert questions(peer) == []


@contextlib.contextmanager
def dying_between_two(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of two records that are appended together the log has only the first when the process ends."""

    class Died(Exception):
        pass

    def die(drafts: list[Draft]) -> NoReturn:
        scene.parts.store.append(drafts[:1])
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(scene.parts.store, "append_together", die)
        with pytest.raises(Died):
            yield


def test_a_crash_between_a_committed_message_and_its_end_does_not_let_it_be_committed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    peer = scene.connect()
    first, second = scene.send(key="K1"), scene.send(b"other", key="K2")
    scene.round()
    asked = questions(peer)[0]
    with dying_between_two(scene, monkeypatch):
        scene.end(first, COMMIT)
    scene = scene.killed()
    peer = scene.connect()
    for sent in (first, asked, second):
        assert scene.end(sent, COMMIT).code == 0
    scene.round()
    assert scene.orders() == [b"paid", b"other"]
    assert questions(peer) == []
    scene = scene.restarted()
    scene.end(asked, COMMIT)
    assert scene.orders() == [b"paid", b"other"]


def test_a_start_looks_only_at_the_committed_messages_that_have_no_end_behind_them() -> None:
    scene = Scene(store={"segment_bytes": 64 * 1024})
    for number in range(200):
        scene.end(scene.send(b"x" * 500, key=f"K{number}"), COMMIT)
    log = scene.parts.store.log
    assert len(log.files.segments) > 3
    assert set(committed_halves(log.files, 0, log.end)) == {None}
    half = scene.parts.messages(HALVES)[-1]
    last = Draft(b"orders", 2, b"paid", storage_flags=layout.FLAG_COMMITTED, prepared_position=half.position)
    for _ in range(2):
        scene.parts.store.append([last])
    found = [position for position in committed_halves(log.files, 0, log.end) if position is not None]
    assert found == [half.position] * 2


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("seed", range(15))
def test_after_a_power_cut_a_decision_that_is_sent_again_makes_one_message(seed: int, sync: bool) -> None:
    scene = Scene(store={"flush": FlushConfig(sync=sync)})
    sent = [scene.send(f"{number}".encode(), key=f"K{number}") for number in range(6)]
    scene.parts.store.flush()
    scene.parts.disk.sync_all()
    for one in sent[:4]:
        scene.end(one, COMMIT)
    scene.end(sent[4], ROLL_BACK)
    disk = scene.parts.disk.crash(random.Random(seed))
    scene = Scene(Parts(disk, scene.clock))
    before = scene.orders()
    assert not sync or sorted(before) == [b"0", b"1", b"2", b"3"]
    for one in [*sent[:4], *sent[:4]]:
        scene.end(one, COMMIT)
    assert sorted(scene.orders()) == [b"0", b"1", b"2", b"3"]


def test_of_two_copies_that_a_crash_left_the_newer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old one's end was not recorded."""
    scene = Scene()
    scene.connect()
    scene.send()
    with dying_between_two(scene, monkeypatch):
        scene.round()
    assert len(scene.parts.bodies(HALVES)) == 2
    scene = scene.killed()
    peer = scene.connect()
    scene.round()
    (question,) = questions(peer)
    assert question.half_offset == 2
    scene.end(question, COMMIT)
    scene.round()
    assert scene.orders() == [b"paid"]


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_never_loses_an_open_transaction(seed: int) -> None:
    """The positions of transactions are on the disk at once; the copies that they rely on must be there before."""
    scene = Scene()
    scene.connect()
    scene.send()
    scene.parts.store.flush()
    scene.parts.disk.sync_all()
    scene.round()
    scene.parts.save()
    rng = random.Random(seed)
    disk = scene.parts.disk.crash(rng, CrashMode.ALL_LOST if seed % 2 else None)
    scene = Scene(Parts(disk, scene.clock))
    peer = scene.connect()
    scene.round()
    assert [one.message_id for one in questions(peer)] == ["K1"]


def test_a_position_that_the_queue_does_not_reach_goes_back(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.send()
    scene.parts.offsets.commit(TRANSACTION_GROUP, HALVES, 0, 100)
    scene = scene.restarted()
    assert "does not hold 100" in caplog.text
    assert scene.positions()[0] == 1
    peer = scene.connect()
    scene.send(key="K2")
    scene.round()
    assert [one.message_id for one in questions(peer)] == ["K2"]


def test_what_is_damaged_is_stepped_over(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    for number in range(3):
        scene.send(key=f"K{number}")
    scene = scene.restarted()
    read = scene.parts.store.read_soon

    async def fails_at_one(topic: str, queue_id: int, offset: int, **limits: int) -> object:
        if (topic, offset) == (HALVES, 1):
            raise CorruptQueue(scene.parts.store.paths.queues, 20, "the entry is wrong", "rebuild the queues")
        return await read(topic, queue_id, offset, **{**limits, "max_messages": 1})

    monkeypatch.setattr(scene.parts.store, "read_soon", fails_at_one)
    now(scene.journal.load())
    peer = scene.connect()
    scene.round()
    assert [one.message_id for one in questions(peer)] == ["K0", "K2"]
    assert f"offset 1 of {HALVES} is stepped over" in caplog.text
    assert scene.positions()[0] == 3


def test_nothing_is_ended_before_the_open_transactions_are_known() -> None:
    scene = Scene()
    sent = scene.send()
    scene.end(sent, ROLL_BACK)
    scene = scene.restarted()
    scene.journal._is_loaded.clear()

    async def end_while_loading() -> None:
        half = scene.parts.messages(HALVES)[0]
        request = EndTransaction(
            producer_group="bank", half_offset=0, half_position=half.position, decision=COMMIT, message_id="K1"
        )
        ending = asyncio.ensure_future(scene.processor.end(request, scene.peer))
        await asyncio.sleep(0)
        assert not ending.done()
        await scene.journal.load()
        await ending

    now(end_while_loading())
    assert scene.orders() == []


# --- a store that Apache RocketMQ wrote ------------------------------------------------------------------------------


def rocketmq_half(scene: Scene, key: str, **more: str) -> SendReceipt:
    """As RocketMQ stores one: its properties in its order, no CRC of the record."""
    fields = {
        "REAL_TOPIC": "orders", "TRAN_MSG": "true", "UNIQ_KEY": key, "__transactionId__": key, "CLUSTER": "c",
        "PGROUP": "bank", "WAIT": "false", "REAL_QID": "2", **more,
    }  # fmt: skip
    draft = Draft(
        HALVES.encode(), 0, key.encode(), encode_properties(fields), born_timestamp_ms=scene.clock.now_ms(),
        born_host=PEER_HOST, store_host=STORE_HOST,
    )  # fmt: skip
    (at,) = scene.parts.store.append([draft])
    scene.parts.store.dispatch()
    return SendReceipt(message_id=encode_message_id(STORE_HOST, at.position), queue_offset=at.queue_offset)


def rocketmq_ends(scene: Scene, body: bytes) -> None:
    properties = encode_properties({"WAIT": "true", "TAGS": "d"})
    scene.parts.store.append([Draft(OPS.encode(), 0, body, properties)])
    scene.parts.store.dispatch()


def test_transactions_that_rocketmq_began_are_finished_here() -> None:
    scene = Scene(store={"record_crc": False})
    sent = [rocketmq_half(scene, f"K{number}") for number in range(6)]
    rocketmq_ends(scene, b"0,")
    rocketmq_ends(scene, b"2,4,1,")
    scene.parts.offsets.commit(TRANSACTION_GROUP, HALVES, 0, 1)
    scene.parts.offsets.commit(TRANSACTION_GROUP, OPS, 0, 1)
    scene = scene.restarted()
    peer = scene.connect()
    scene.end(sent[3], COMMIT)
    scene.end(sent[2], COMMIT)
    scene.end(sent[0], COMMIT)
    scene.round()
    assert scene.orders() == [b"K3"]
    assert [one.message_id for one in questions(peer)] == ["K5"]
    assert scene.positions() == (6, 4)


def test_a_copy_that_rocketmq_made_keeps_its_count_and_is_asked_for() -> None:
    scene = Scene()
    old = rocketmq_half(scene, "K0")
    rocketmq_half(scene, "K0", TRANSACTION_CHECK_TIMES="14")
    scene.parts.offsets.commit(TRANSACTION_GROUP, HALVES, 0, 1)
    scene.parts.offsets.commit(TRANSACTION_GROUP, OPS, 0, 0)
    scene = scene.restarted()
    peer = scene.connect()
    scene.end(old, COMMIT)
    assert scene.orders() == [], "its copy is asked for: nothing is lost, and nothing comes twice"
    scene.round()
    (question,) = questions(peer)
    assert scene.parts.messages(HALVES)[2].properties["TRANSACTION_CHECK_TIMES"] == "15"
    scene.end(question, COMMIT)
    scene.round()
    assert scene.orders() == [b"K0"]


def test_moves_that_rocketmq_counted_are_no_questions() -> None:
    """It moves a half that may not be asked for yet in every round, and raises its count each time."""
    scene = Scene()
    rocketmq_half(
        scene, "K0", CHECK_IMMUNITY_TIME_IN_SECONDS="3600", TRANSACTION_CHECK_TIMES="20", TRAN_PREPARED_QUEUE_OFFSET="7"
    )
    scene = scene.restarted()
    peer = scene.connect()
    scene.round()
    assert (questions(peer), scene.parts.bodies(ASIDE)) == ([], [])
    scene.round(3600)
    assert [one.message_id for one in questions(peer)] == ["K0"]
    assert scene.parts.messages(HALVES)[1].properties["TRANSACTION_CHECK_TIMES"] == "1"


def test_a_message_that_rocketmq_put_aside_is_resumed() -> None:
    scene = Scene()
    rocketmq_half(scene, "K0")
    scene.parts.topics.make(TopicConfig(ASIDE, 1, 1))
    half = scene.parts.messages(HALVES)[0]
    fields = {name: value for name, value in half.properties.items() if name != "__CRC32#"}
    draft = Draft(
        ASIDE.encode(), 0, half.body, encode_properties({**fields, "TRANSACTION_CHECK_TIMES": "15"}),
        born_timestamp_ms=half.born_timestamp_ms,
    )  # fmt: skip
    (at,) = scene.parts.store.append([draft])
    scene.parts.offsets.commit(TRANSACTION_GROUP, HALVES, 0, 1)
    scene.parts.offsets.commit(TRANSACTION_GROUP, OPS, 0, 0)
    scene = scene.restarted()
    scene.resume(encode_message_id(STORE_HOST, at.position))
    peer = scene.connect()
    scene.round()
    scene.end(questions(peer)[0], COMMIT)
    scene.round()
    assert scene.orders() == [b"K0"]


def test_records_of_ends_that_make_no_sense_are_ignored() -> None:
    scene = Scene()
    scene.send()
    for body in (b"", b",,", b"x,-1,99999999999999999999999,", b"7"):
        rocketmq_ends(scene, body)
    scene.parts.store.append([Draft(OPS.encode(), 0, b"0,", b"TAGS\x01other\x02")])
    scene = scene.restarted()
    peer = scene.connect()
    scene.round()
    assert len(questions(peer)) == 1


# --- in any order ----------------------------------------------------------------------------------------------------


class TransactionMachine(RuleBasedStateMachine):
    """Sends, decisions, rounds, restarts and kills in any order, on a real store."""

    @initialize()
    def begin(self) -> None:
        self.scene = Scene(transaction=TransactionConfig(check_max=1000), clock=ManualClock())
        self.sent: dict[str, SendReceipt] = {}
        self.committed: set[str] = set()
        self.ended: set[str] = set()

    @rule(patient=st.booleans())
    def send(self, patient: bool) -> None:
        key = f"K{len(self.sent)}"
        properties = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "100"} if patient else {}
        self.sent[key] = self.scene.send(key.encode(), key=key, properties=properties)

    @rule(data=st.data(), decision=st.sampled_from([COMMIT, ROLL_BACK]))
    def end(self, data: st.DataObject, decision: int) -> None:
        if not self.sent:
            return
        key = data.draw(st.sampled_from(sorted(self.sent)))
        self.scene.end(self.sent[key], decision)
        self.decided(key, decision)

    def decided(self, key: str, decision: int) -> None:
        if key not in self.ended:
            self.ended.add(key)
            self.committed |= {key} if decision == COMMIT else set()

    @rule(data=st.data(), seconds=st.sampled_from([1, 30, 120]))
    def round(self, data: st.DataObject, seconds: int) -> None:
        peer = self.scene.connect()
        self.scene.round(seconds)
        for question in questions(peer):
            key = question.message_id
            assert key is not None
            assert key not in self.ended, "what has ended is not asked for"
            decision = data.draw(st.sampled_from([None, COMMIT, ROLL_BACK]))
            if decision is not None:
                self.scene.end(question, decision)
                self.decided(key, decision)
        self.scene.producers.disconnected(peer)

    @rule(seconds=st.sampled_from([1, 30]))
    def round_without_producers(self, seconds: int) -> None:
        self.scene.round(seconds)

    @rule()
    def save(self) -> None:
        self.scene.parts.save()

    @rule()
    def restart(self) -> None:
        self.scene = self.scene.restarted()

    @rule()
    def kill(self) -> None:
        self.scene = self.scene.killed()

    @invariant()
    def each_committed_message_is_there_once(self) -> None:
        bodies = [body.decode() for body in self.scene.orders()]
        assert sorted(bodies) == sorted(self.committed)

    def teardown(self) -> None:
        """In the end everything that did not end is asked for."""
        peer = self.scene.connect()
        self.scene.round(200)
        assert sorted(str(one.message_id) for one in questions(peer)) == sorted(set(self.sent) - self.ended)
        self.scene.parts.close()


TestTransactionMachine = TransactionMachine.TestCase
TestTransactionMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("free", range(100, 700, 25))
def test_a_disk_that_is_full_between_a_message_and_its_end_never_makes_it_two(
    free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the segment has room for: both, the message alone, or neither."""
    scene = Scene()
    scene.end(scene.send(b"first", key="K0"), COMMIT)  # all queues are there
    sent = scene.send()
    leave_free(scene, free)
    with monkeypatch.context() as patch:
        patch.setattr(scene.parts.store.log._allocator, "take", no_segment)
        with contextlib.suppress(DiskFull):
            scene.end(sent, COMMIT)
        scene.journal.record_missing_ends()  # as a broker does that stops
    scene = scene.restarted()
    scene.end(sent, COMMIT)
    assert scene.orders() == [b"first", b"paid"]


def test_a_disk_without_room_for_the_queue_of_ends_takes_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    sent = scene.send()
    add_queue = scene.parts.store._add_queue

    def add_none_of_ends(draft: Draft) -> None:
        if draft.topic == OPS.encode():
            raise DiskFull("no room for a queue")
        add_queue(draft)

    with monkeypatch.context() as patch:
        patch.setattr(scene.parts.store, "_add_queue", add_none_of_ends)
        with pytest.raises(DiskFull):
            scene.end(sent, COMMIT)
    assert scene.orders() == []
    scene.end(sent, COMMIT)
    assert scene.orders() == [b"paid"]


def leave_free(scene: Scene, size: int) -> None:
    """Fill the segment except for this many bytes."""
    log, step = scene.parts.store.log, 1000
    while step:
        draft = Draft(b"orders", 0, b"x" * step)
        left = -log.end % log.files.file_bytes
        if left - record.encoded_size(draft, True) < size:
            step //= 2
        else:
            scene.parts.store.append([draft])


def no_segment(base: int) -> NoReturn:
    raise DiskFull("no room for a segment")
