"""Transactions as producers, consumers and administrators see them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import pytest

from broker.support.fakes import PEER_HOST, STORE_HOST, FakePeer
from broker.support.transaction_scene import ASIDE, COMMIT, HALVES, OPS, ROLL_BACK, UNKNOWN, Scene, questions
from pyromq.broker.requests.clients import MemberProcessor
from pyromq.broker.state.clients import Consumers
from pyromq.broker.state.locks import QueueLocks
from pyromq.broker.transactions.ledger import Key
from pyromq.config import FlushConfig
from pyromq.config.broker import TransactionConfig
from pyromq.errors import BadRequest, DiskFull, IllegalMessage, NoPermission, NotFound, OffsetNotFound, StoreFenced
from pyromq.model.message import AppendedAt, Draft
from pyromq.model.names import SCHEDULE_TOPIC
from pyromq.records import layout, record
from pyromq.records.message_id import decode_message_id, encode_message_id
from pyromq.wire.codes import RequestCode
from pyromq.wire.command import Command
from pyromq.wire.requests.client import EndTransaction, Heartbeat
from pyromq.wire.responses import Response, SendReceipt

# --- begin -----------------------------------------------------------------------------------------------------------


def test_a_half_message_is_stored_where_nobody_sees_it_and_answered_like_a_send() -> None:
    scene = Scene()
    scene.send(key="K0")
    sent = scene.send(b"paid", properties={"TAGS": "new"})
    half = scene.parts.messages(HALVES)[1]
    assert scene.orders() == []
    assert (sent.code, sent.transaction_id, sent.queue_id, sent.queue_offset) == (0, "K1", 2, 1)
    assert sent.message_id == encode_message_id(STORE_HOST, half.position)
    assert sent.more["MSG_REGION"] == "DefaultRegion"
    assert half.storage_flags & layout.FLAG_TRANSACTION_MASK == 0
    assert half.body == b"paid"
    assert {name: value for name, value in half.properties.items() if name != "__CRC32#"} == {
        "TRAN_MSG": "true", "PGROUP": "bank", "UNIQ_KEY": "K1", "TAGS": "new", "CLUSTER": "DefaultCluster",
        "__transactionId__": "K1", "REAL_TOPIC": "orders", "REAL_QID": "2", "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }  # fmt: skip


def test_ordinary_messages_and_those_that_come_back_from_consumers_begin_nothing() -> None:
    scene = Scene()
    scene.send(properties={"TRAN_MSG": "false"})
    scene.send(reconsume_times=1)
    assert scene.orders() == [b"paid", b"paid"]
    assert scene.parts.bodies(HALVES) == []


def test_what_another_transaction_left_in_a_message_does_not_count() -> None:
    scene = Scene()
    scene.send(properties={"TRANSACTION_CHECK_TIMES": "14", "TRAN_PREPARED_QUEUE_OFFSET": "0", "REAL_TOPIC": "x"})
    (half,) = scene.parts.messages(HALVES)
    assert "TRANSACTION_CHECK_TIMES" not in half.properties
    assert "TRAN_PREPARED_QUEUE_OFFSET" not in half.properties
    assert half.properties["REAL_TOPIC"] == "orders"


def test_a_half_without_a_group_is_one_of_the_group_that_sent_it() -> None:
    scene = Scene()
    sent = scene.send(properties={"PGROUP": ""})
    scene.end(sent, COMMIT)
    assert scene.orders() == [b"paid"]


def test_a_broker_may_refuse_transactions() -> None:
    scene = Scene(reject_transactions=True)
    with pytest.raises(NoPermission, match="takes no transactions"):
        scene.send()


def test_a_delay_that_makes_no_sense_is_refused_at_once() -> None:
    scene = Scene()
    with pytest.raises(IllegalMessage, match="delay level"):
        scene.send(properties={"DELAY": "soon"})
    assert scene.parts.bodies(HALVES) == []


def test_a_half_leaves_room_for_what_copies_of_it_need() -> None:
    with pytest.raises(IllegalMessage, match="limit for a half message"):
        Scene().send(properties={"LONG": "x" * 32_600})


def test_a_half_waits_for_the_disk_like_any_send() -> None:
    scene = Scene(store={"flush": FlushConfig(sync=True)})
    scene.send()
    assert scene.parts.store.marks.synced.value == scene.parts.store.log.end
    scene.end(scene.send(), COMMIT)
    assert scene.orders() == [b"paid"]


# --- commit and roll back --------------------------------------------------------------------------------------------


def test_a_committed_message_is_what_was_sent_with_the_commit_bits() -> None:
    scene = Scene()
    sent = scene.send(properties={"TAGS": "new", "KEYS": "a b"}, user_flag=7, storage_flags=layout.FLAG_COMPRESSED)
    scene.clock.advance(1)
    assert scene.end(sent, COMMIT).code == 0
    (message,) = scene.parts.messages("orders", 2)
    assert message.body == b"paid"
    assert (message.user_flag, message.queue_offset, message.born_host) == (7, 0, PEER_HOST)
    assert message.storage_flags == layout.FLAG_COMMITTED | layout.FLAG_COMPRESSED
    assert message.prepared_position == decode_message_id(sent.message_id)[1]
    assert message.store_timestamp_ms - message.born_timestamp_ms == 1000
    assert message.properties["TRAN_MSG"] == "true", "by this a client knows the id of the transaction"
    assert message.unique_key == "K1"
    assert message.tags == "new"


def test_consumers_find_a_committed_message_by_its_tag() -> None:
    scene = Scene()
    scene.end(scene.send(properties={"TAGS": "new"}), COMMIT)
    assert len(scene.parts.store.read("orders", 2, 0, tags=["new"]).records) == 1
    assert len(scene.parts.store.read("orders", 2, 0, tags=["old"]).records) == 0


def test_each_end_leaves_a_record_as_rocketmq_writes_it() -> None:
    scene = Scene()
    first, second = scene.send(), scene.send()
    scene.end(second, ROLL_BACK)
    scene.end(first, COMMIT)
    ops = scene.parts.messages(OPS)
    assert [(one.body, one.tags, one.queue_id, one.storage_flags) for one in ops] == [
        (b"1,", "d", 0, 0),
        (b"0,", "d", 0, 0),
    ]
    assert scene.orders() == [b"paid"]


def test_the_end_is_recorded_after_the_message() -> None:
    scene = Scene()
    scene.end(scene.send(), COMMIT)
    assert scene.parts.messages(OPS)[0].position > scene.parts.messages("orders", 2)[0].position


def test_a_delayed_transaction_is_delayed_when_it_is_committed() -> None:
    scene = Scene()
    sent = scene.send(properties={"DELAY": "3"})
    assert scene.parts.bodies(SCHEDULE_TOPIC, 2) == []
    scene.end(sent, COMMIT)
    assert scene.orders() == []
    (waiting,) = scene.parts.messages(SCHEDULE_TOPIC, 2)
    assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == ("orders", "2")
    assert waiting.storage_flags & layout.FLAG_TRANSACTION_MASK == layout.FLAG_COMMITTED


@pytest.mark.parametrize("first", [COMMIT, ROLL_BACK])
@pytest.mark.parametrize("second", [COMMIT, ROLL_BACK])
def test_the_first_decision_counts(first: int, second: int) -> None:
    scene = Scene()
    sent = scene.send()
    scene.end(sent, first)
    assert scene.end(sent, second).reason == "the transaction has ended before"
    assert scene.orders() == ([b"paid"] if first == COMMIT else [])
    assert scene.ops() == [b"0,"]


def test_a_producer_that_does_not_know_yet_changes_nothing() -> None:
    scene = Scene()
    sent = scene.send()
    assert scene.end(sent, UNKNOWN).code == 0
    assert (scene.orders(), scene.ops()) == ([], [])
    scene.end(sent, COMMIT)
    assert scene.orders() == [b"paid"]


def test_another_group_cannot_end_a_transaction(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    sent = scene.send()
    with pytest.raises(NoPermission, match="one of 'bank', and 'thief' cannot end it"):
        scene.end(sent, COMMIT, group="thief")
    assert "10.0.0.7:12345 could not commit the transaction K1" in caplog.text
    assert (scene.orders(), scene.ops()) == ([], [])


def test_what_is_ended_must_be_a_half_message() -> None:
    scene = Scene()
    plain = scene.send(properties={"TRAN_MSG": "false"})
    sent = scene.send()
    with pytest.raises(NotFound, match="is not the half of a transaction"):
        scene.end(plain, COMMIT)
    with pytest.raises(NotFound, match="no message begins"):
        scene.end(sent, COMMIT, half_position=decode_message_id(sent.message_id)[1] + 1)
    with pytest.raises(NotFound):
        scene.end(sent, COMMIT, half_position=-1)
    with pytest.raises(BadRequest, match="has offset 0, not 5"):
        scene.end(sent, COMMIT, half_offset=5)
    assert scene.ops() == []


def test_a_commit_that_finds_the_disk_full_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    sent = scene.send()
    with monkeypatch.context() as patch:
        patch.setattr(scene.parts.store.cleaner, "refusal", "no room")
        with pytest.raises(DiskFull):
            scene.end(sent, COMMIT)
    scene.end(sent, COMMIT)
    assert scene.orders() == [b"paid"]


def test_a_full_disk_may_lose_the_record_of_an_end_but_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    sent = scene.send()
    with monkeypatch.context() as patch:
        patch.setattr(scene.parts.store.cleaner, "refusal", "no room")
        scene.end(sent, ROLL_BACK)
    scene.end(sent, COMMIT)
    assert (scene.orders(), scene.ops()) == ([], [])


def test_two_commits_at_once_make_one_message() -> None:
    scene = Scene(store={"flush": FlushConfig(sync=True)})
    sent = scene.send()
    request = EndTransaction(
        producer_group="bank", half_offset=0, half_position=decode_message_id(sent.message_id)[1], decision=COMMIT,
        message_id="K1",
    )  # fmt: skip

    async def both() -> None:
        answers = [waited_for(scene.processor.end(request, scene.peer)) for _ in range(2)]
        await asyncio.gather(*answers)

    asyncio.run(both())
    assert scene.orders() == [b"paid"]


class SlowDisk:
    """Nothing is on the disk until the test releases it."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waited_for = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self._wait_synced = scene.parts.store.wait_synced
        monkeypatch.setattr(scene.parts.store, "wait_synced", self.wait_synced)

    async def wait_synced(self, receipt: AppendedAt) -> None:
        self.waited_for.set()
        await self.may_go_on.wait()
        await self._wait_synced(receipt)


def commit_of(sent: SendReceipt) -> EndTransaction:
    return EndTransaction(
        producer_group="bank", half_offset=sent.queue_offset, half_position=decode_message_id(sent.message_id)[1],
        decision=COMMIT, message_id="K1",
    )  # fmt: skip


async def waited_for(answer: Awaitable[Response] | Response) -> Response:
    return answer if isinstance(answer, Response) else await answer


async def gone_while_it_waits(scene: Scene, sent: SendReceipt, disk: SlowDisk) -> None:
    """A producer commits, and its connection ends before the message is on the disk."""
    ending = asyncio.ensure_future(waited_for(scene.processor.end(commit_of(sent), scene.peer)))
    await disk.waited_for.wait()
    ending.cancel()
    await asyncio.gather(ending, return_exceptions=True)
    assert ending.cancelled()


def test_a_producer_that_goes_before_the_disk_is_done_does_not_open_its_transaction_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(store={"flush": FlushConfig(sync=True)})
    sent = scene.send()

    async def story() -> None:
        disk = SlowDisk(scene, monkeypatch)
        await gone_while_it_waits(scene, sent, disk)
        again = asyncio.ensure_future(waited_for(scene.processor.end(commit_of(sent), scene.peer)))
        await asyncio.sleep(0)
        assert not again.done(), "the promise does not hold yet"
        disk.may_go_on.set()
        assert (await again).reason == "the transaction has ended before"

    asyncio.run(story())
    assert (scene.orders(), scene.ops()) == ([b"paid"], [b"0,"])
    scene = scene.restarted()
    peer = scene.connect()
    scene.round()
    assert (questions(peer), scene.orders()) == ([], [b"paid"])


def test_no_position_is_saved_behind_a_half_whose_message_is_not_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(store={"flush": FlushConfig(sync=True)})
    sent = scene.send()

    async def story() -> None:
        disk = SlowDisk(scene, monkeypatch)
        await gone_while_it_waits(scene, sent, disk)
        await scene.journal.read_halves(1)
        saving = asyncio.ensure_future(scene.journal.save_positions())
        await asyncio.sleep(0)
        assert scene.positions() == (None, None)
        disk.may_go_on.set()
        await saving

    asyncio.run(story())
    assert scene.positions()[0] == 1


def test_a_disk_that_fails_while_a_commit_waits_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(store={"flush": FlushConfig(sync=True)})
    sent = scene.send()

    async def fails(receipt: AppendedAt) -> None:
        raise scene.parts.store.fence(OSError(5, "it is broken"))

    monkeypatch.setattr(scene.parts.store, "wait_synced", fails)
    with pytest.raises(StoreFenced):
        scene.end(sent, COMMIT)


# --- asking back -----------------------------------------------------------------------------------------------------


def test_a_producer_is_asked_for_a_transaction_that_does_not_end() -> None:
    scene = Scene()
    peer = scene.connect()
    sent = scene.send(properties={"TAGS": "new"}, user_flag=7)
    scene.round(6)
    assert questions(peer) == [], "it has its time"
    scene.round(1)
    (question,) = questions(peer)
    copy = scene.parts.messages(HALVES)[1]
    assert question.topic == HALVES
    assert (question.half_offset, question.half_position) == (1, copy.position)
    assert question.message_id == question.transaction_id == "K1"
    assert question.offset_message_id == encode_message_id(STORE_HOST, copy.position)
    assert question.broker_name == "broker-a"
    shown = record.decode(memoryview(question.body))
    assert (shown.topic, shown.queue_id, shown.body, shown.user_flag) == ("orders", 2, b"paid", 7)
    assert (shown.position, shown.queue_offset) == (copy.position, 1)
    assert shown.properties["PGROUP"] == "bank"
    assert shown.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert copy.born_host == PEER_HOST
    assert sent.queue_offset == 0


def test_the_answer_ends_the_transaction_and_nobody_is_asked_again() -> None:
    scene = Scene()
    peer = scene.connect()
    scene.send()
    scene.round()
    scene.end(questions(peer)[0], COMMIT, from_check=True)
    scene.round()
    assert scene.orders() == [b"paid"]
    assert len(questions(peer)) == 1


def test_a_late_decision_of_the_sender_ends_the_copy_too() -> None:
    scene = Scene()
    peer = scene.connect()
    sent = scene.send()
    scene.round()
    scene.end(sent, COMMIT)
    scene.end(questions(peer)[0], COMMIT, from_check=True)
    scene.round()
    assert scene.orders() == [b"paid"]
    assert len(questions(peer)) == 1


def test_each_half_is_asked_for_once_a_round_and_its_count_is_in_the_record() -> None:
    scene = Scene()
    peer = scene.connect()
    scene.send()
    for _ in range(3):
        scene.round()
    counts = [one.properties.get("TRANSACTION_CHECK_TIMES") for one in scene.parts.messages(HALVES)]
    assert counts == [None, "1", "2", "3"]
    assert len(questions(peer)) == 3
    assert scene.ops() == [b"0,", b"1,", b"2,"]


def test_producers_of_the_group_take_turns_and_those_that_left_are_not_asked() -> None:
    scene = Scene()
    one, two, gone = scene.connect(address="a:1"), scene.connect(address="b:1"), scene.connect(address="c:1")
    other = scene.connect("shop", address="d:1")
    gone.is_open = False
    for number in range(4):
        scene.send(key=f"K{number}")
    scene.round()
    assert [len(questions(peer)) for peer in (one, two, gone, other)] == [2, 2, 0, 0]


def test_while_no_producer_is_there_nothing_is_counted_and_nothing_is_given_up() -> None:
    scene = Scene(transaction=TransactionConfig(check_max=2))
    scene.send()
    for _ in range(10):
        scene.round()
    assert len(scene.parts.bodies(HALVES)) == 1
    peer = scene.connect()
    scene.round()
    scene.end(questions(peer)[0], COMMIT)
    assert scene.orders() == [b"paid"]


def test_a_message_may_ask_for_more_time() -> None:
    scene = Scene()
    peer = scene.connect()
    scene.send(b"slow", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "100"})
    scene.send(b"quick", key="K2")
    scene.round()
    assert [one.message_id for one in questions(peer)] == ["K2"]
    scene.round(71)
    assert [one.message_id for one in questions(peer)] == ["K2", "K1", "K2"]


def test_settings_are_read_when_they_are_used() -> None:
    scene = Scene()
    peer = scene.connect()
    scene.send()
    scene.parts.config = replace(scene.parts.config, transaction=TransactionConfig(timeout_ms=60_000))
    scene.round(30)
    assert questions(peer) == []


def test_after_the_last_check_the_message_is_put_aside(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(transaction=TransactionConfig(check_max=2))
    peer = scene.connect()
    scene.send(user_flag=7)
    for _ in range(5):
        scene.round()
    assert len(questions(peer)) == 2
    (aside,) = scene.parts.messages(ASIDE)
    assert aside.body == b"paid"
    assert (aside.queue_id, aside.user_flag, aside.properties["REAL_TOPIC"]) == (0, 7, "orders")
    assert aside.properties["TRANSACTION_CHECK_TIMES"] == "2"
    assert scene.parts.topics.get(ASIDE) is not None
    assert "did not end after 2 checks" in caplog.text
    assert scene.positions() == (3, 3)


def test_an_answer_after_the_last_check_is_still_heard() -> None:
    scene = Scene(transaction=TransactionConfig(check_max=1))
    peer = scene.connect()
    scene.send()
    scene.round()
    scene.round()
    assert scene.parts.bodies(ASIDE) == [b"paid"]
    scene.end(questions(peer)[0], COMMIT)
    scene.end(questions(peer)[0], COMMIT)
    assert scene.orders() == [b"paid"]


def test_what_is_older_than_the_log_keeps_messages_is_put_aside() -> None:
    scene = Scene()
    scene.send()
    scene.round(73 * 3600)
    assert scene.parts.bodies(ASIDE) == [b"paid"]


def test_a_round_sends_only_so_much_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyromq.broker.transactions.check_back.MAX_ROUND_BYTES", 1000)
    scene = Scene()
    peer = scene.connect()
    for number in range(3):
        scene.send(b"x" * 900, key=f"K{number}")
    scene.round()
    assert [one.message_id for one in questions(peer)] == ["K0"]
    scene.round()
    assert [one.message_id for one in questions(peer)] == ["K0", "K1"]


def test_a_half_that_ends_while_the_round_runs_is_left_alone() -> None:
    scene = Scene()
    peer = scene.connect()
    sent = scene.send()
    scene.clock.advance(30)
    (half,) = scene.parts.messages(HALVES)
    ledger = scene.journal.ledger
    assert ledger.begin(0, Key(0, half.born_timestamp_ms, "bank")) == 0
    scene.round(0)
    assert questions(peer) == []
    ledger.release(0)
    scene.end(sent, COMMIT)
    assert scene.orders() == [b"paid"]


def test_a_half_that_cannot_be_understood_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    peer = scene.connect()
    scene.send(b"good", key="K1")
    half = scene.parts.messages(HALVES)[0]
    scene.parts.store.append([Draft(HALVES.encode(), 0, b"bad", b"PGROUP\x01bank\x02")])
    scene.send(b"good too", key="K2")
    scene.round()
    assert half.body == b"good"
    assert [one.message_id for one in questions(peer)] == ["K1", "K2"]
    assert "cannot be understood" in caplog.text
    assert scene.positions()[0] == 3


# --- how far it is ---------------------------------------------------------------------------------------------------


def test_positions_move_over_what_has_ended_and_no_further() -> None:
    scene = Scene()
    sent = [scene.send(key=f"K{number}") for number in range(4)]
    scene.end(sent[0], COMMIT)
    scene.end(sent[2], COMMIT)
    scene.round()
    assert scene.positions() == (1, 0)
    scene.end(sent[1], ROLL_BACK)
    scene.end(sent[3], ROLL_BACK)
    scene.round()
    assert scene.positions() == (4, 4)


def test_one_that_must_wait_moves_to_the_end_when_too_many_come_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyromq.broker.transactions.ledger.SPAN", 5)
    scene = Scene()
    waiting = scene.send(b"waiting", key="K0")
    for number in range(1, 40):
        scene.end(scene.send(key=f"K{number}"), ROLL_BACK)
    scene.round()
    scene.round()
    assert scene.positions()[0] >= 39
    assert scene.parts.bodies(HALVES)[-1] == b"waiting"
    assert "TRANSACTION_CHECK_TIMES" not in scene.parts.messages(HALVES)[-1].properties
    scene.end(waiting, COMMIT)
    assert scene.orders() == [b"waiting"]
    scene.round()
    assert scene.positions()[0] == len(scene.parts.bodies(HALVES))


def test_however_many_wait_for_a_producer_that_is_away_none_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that wrote many halves is down for two days: each is written a few times more, and is there in the end."""
    monkeypatch.setattr("pyromq.broker.transactions.ledger.SPAN", 5)
    scene = Scene(transaction=TransactionConfig(check_max=2), store={"segment_bytes": 4 << 20})
    sent = [scene.send(key=f"K{number}") for number in range(60)]
    rounds = 0
    for seconds in (30, 30, 60, 120, 240, 480, 3_600, 7_200, 14_400, 28_800, 57_600, 60_000):
        for _ in range(3):
            scene.round(seconds / 3)
            rounds += 1
    assert scene.parts.bodies(ASIDE) == []
    assert len(scene.parts.bodies(HALVES)) <= 60 * 16, "it is not written in every round"
    assert rounds == 36
    peer = scene.connect()
    scene.round()
    assert {one.message_id for one in questions(peer)} == {f"K{number}" for number in range(60)}
    for one in sent:
        scene.end(one, COMMIT)
        scene.end(one, COMMIT)
    assert scene.orders() == [b"paid"] * 60


def test_a_producer_that_only_sent_heartbeats_is_asked() -> None:
    """A job that is back has sent nothing yet, and knows what became of the transactions of its last life."""
    scene = Scene()
    scene.send()
    members = MemberProcessor(
        lambda: scene.parts.config, scene.parts.topics, scene.parts.groups, scene.producers, Consumers(), QueueLocks(),
        scene.clock,
    )  # fmt: skip
    peer = FakePeer()
    body = b'{"clientID":"10.0.0.7@1","producerDataSet":[{"groupName":"bank"}],"consumerDataSet":[]}'
    members.heartbeat(Heartbeat(body=body, command=Command(code=RequestCode.HEART_BEAT)), peer)
    scene.round()
    assert [one.message_id for one in questions(peer)] == ["K1"]


def test_an_end_that_found_no_room_is_recorded_when_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    sent = scene.send()
    with monkeypatch.context() as patch:
        patch.setattr(scene.parts.store.cleaner, "refusal", "no room")
        scene.end(sent, ROLL_BACK)
    assert scene.ops() == []
    scene.round()
    assert scene.ops() == [b"0,"]
    scene = scene.killed()
    scene.end(sent, COMMIT)
    assert scene.orders() == []


def test_a_round_that_found_the_disk_full_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    peer = scene.connect()
    scene.send()
    with monkeypatch.context() as patch:
        patch.setattr(scene.parts.store.cleaner, "refusal", "no room")
        with pytest.raises(DiskFull):
            scene.round()
    assert questions(peer) == []
    scene.round()
    assert len(questions(peer)) == 1


def test_rounds_are_made_from_time_to_time() -> None:
    scene = Scene(transaction=TransactionConfig(check_interval_ms=1))
    peer = scene.connect()
    scene.send()
    scene.clock.advance(30)

    async def until_asked() -> None:
        asked = asyncio.Event()
        peer.on_tell = asked.set
        task = asyncio.ensure_future(scene.check_back.run())
        async with asyncio.timeout(20):
            await asked.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(until_asked())
    assert questions(peer)[0].message_id == "K1"


# --- resume ----------------------------------------------------------------------------------------------------------


def put_aside(scene: Scene, peer: FakePeer) -> str:
    scene.send()
    scene.round()
    scene.round()
    (aside,) = scene.parts.messages(ASIDE)
    assert len(questions(peer)) == 1
    return encode_message_id(STORE_HOST, aside.position)


def test_a_message_that_was_put_aside_can_be_asked_for_again() -> None:
    scene = Scene(transaction=TransactionConfig(check_max=1))
    peer = scene.connect()
    message_id = put_aside(scene, peer)
    scene.resume(message_id)
    with pytest.raises(BadRequest, match="in the queue already"):
        scene.resume(message_id)
    assert scene.parts.messages(HALVES)[-1].properties["TRANSACTION_CHECK_TIMES"] == "0"
    scene.round()
    assert len(questions(peer)) == 2
    scene.end(questions(peer)[1], COMMIT)
    scene.round()
    assert scene.orders() == [b"paid"]


def test_the_count_of_an_open_half_can_be_set_back() -> None:
    scene = Scene()
    peer = scene.connect()
    scene.send()
    scene.round()
    newest = questions(peer)[-1]
    scene.resume(newest.offset_message_id)
    counts = [one.properties.get("TRANSACTION_CHECK_TIMES") for one in scene.parts.messages(HALVES)]
    assert counts[-1] == "0"
    scene.end(newest, COMMIT)
    scene.round()
    assert scene.orders() == [b"paid"]


def test_only_half_messages_are_resumed() -> None:
    scene = Scene()
    plain = scene.send(properties={"TRAN_MSG": "false"})
    ended = scene.send()
    scene.end(ended, ROLL_BACK)
    with pytest.raises(BadRequest, match="is no half message"):
        scene.resume(plain.message_id)
    with pytest.raises(BadRequest, match="is missing"):
        scene.resume(None)
    with pytest.raises(OffsetNotFound):
        scene.resume("nonsense")
    with pytest.raises(NotFound, match="has ended"):
        scene.resume(ended.message_id)
