"""Numbered messages through the broker's send path: stored, answered and refused."""

from __future__ import annotations

import asyncio

import pytest

from broker.support.fakes import FakePeer
from broker.support.numbered_scene import Scene, number, numbers
from pyromq.broker.statistics.traffic import Statistics
from pyromq.config import FlushConfig
from pyromq.errors import DiskFull, IllegalMessage, NotNow, PyroMQError
from pyromq.model.group import GroupConfig
from pyromq.model.message import AppendedAt, Draft
from pyromq.model.names import SCHEDULE_TOPIC
from pyromq.model.topic import TopicConfig
from pyromq.records.message_id import decode_message_id
from pyromq.wire.codes import ResponseCode
from pyromq.wire.responses import Response, SendReceipt

SOMEWHERE = 2**64 - 1


def positions(answer: Response) -> list[int]:
    assert isinstance(answer, SendReceipt)
    assert answer.message_id is not None
    return [decode_message_id(one)[1] for one in answer.message_id.split(",")]


# --- answers ---------------------------------------------------------------------------------------------------------


def test_what_comes_for_the_first_time_is_answered_like_any_batch() -> None:
    scene = Scene()
    answer = scene.send(0, 0, 3)
    assert isinstance(answer, SendReceipt)
    assert positions(answer) == [message.position for message in scene.parts.messages("orders")]
    assert (answer.code, answer.queue_id, answer.queue_offset) == (0, 0, 0)
    assert "repeated" not in answer.more
    assert scene.stored() == ["0:0", "0:1", "0:2"]


def test_what_comes_again_is_acknowledged_and_not_stored() -> None:
    scene = Scene()
    scene.send(0, 0, 3)
    answer = scene.send(0, 0, 3)
    assert isinstance(answer, SendReceipt)
    assert (answer.code, answer.queue_id, answer.queue_offset) == (0, 0, -1)
    assert positions(answer) == [SOMEWHERE] * 3
    assert answer.more == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "repeated": "3"}
    assert scene.stored() == ["0:0", "0:1", "0:2"]


def test_of_a_batch_that_is_known_in_part_the_rest_is_stored() -> None:
    scene = Scene()
    scene.send(0, 0, 3)
    answer = scene.send(0, 1, 4)
    assert isinstance(answer, SendReceipt)
    assert answer.more["repeated"] == "2"
    assert answer.queue_offset == 3
    stored = [message.position for message in scene.parts.messages("orders")]
    assert positions(answer) == [SOMEWHERE, SOMEWHERE, *stored[3:]]
    assert scene.stored() == numbers(0, 0, 5)


def test_single_messages_are_known_again_too() -> None:
    scene = Scene()
    for _ in range(2):
        for index in range(3):
            assert scene.send_one(4, index).code == 0
    assert scene.stored() == numbers(4, 0, 3)


def test_a_gap_is_refused_with_the_number_to_go_on_from_and_nothing_is_stored() -> None:
    scene = Scene()
    scene.send(0, 0, 2)
    answer = scene.send(0, 3, 2)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.reason is not None
    assert answer.reason.startswith("a message before this one is missing")
    assert answer.more == {"expected": "0:2"}
    assert scene.stored() == ["0:0", "0:1"]
    torn = scene.request([number(0, 2), number(0, 4)])
    assert scene.ask(torn).more == {"expected": "0:3"}
    assert scene.stored() == ["0:0", "0:1"], "nor what stands before the gap"


def test_what_is_behind_a_gap_in_a_pipeline_is_refused_until_the_gap_is_filled() -> None:
    scene = Scene()
    assert [scene.send(0, first, 2).code for first in (0, 4, 6)] == [0, 13, 13]
    assert [scene.send(0, first, 2).code for first in (2, 4, 6)] == [0, 0, 0]
    assert scene.stored() == numbers(0, 0, 8)


def test_queues_and_writers_are_apart() -> None:
    scene = Scene()
    for queue in range(2):
        for writer in ("a", "b"):
            assert scene.send(0, 0, 2, name=writer, queue=queue).code == 0
    assert scene.stored(0) == scene.stored(1) == ["0:0", "0:1", "0:0", "0:1"]


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ([number(0, 0), {"TAGS": "red"}], "all numbered, or none"),
        ([{"TAGS": "red"}, number(0, 0)], "all numbered, or none"),
        ([{"PYROMQ_WRITER": "w"}], "both"),
        ([{"PYROMQ_WRITER": "w", "PYROMQ_SEQUENCE": "7"}], "<batch>:<index>"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(properties: list[dict[str, str]], why: str) -> None:
    scene = Scene()
    with pytest.raises(IllegalMessage, match=why):
        scene.start(scene.request(properties))
    assert scene.stored() == []


def test_a_numbered_message_names_its_queue() -> None:
    scene = Scene()
    with pytest.raises(IllegalMessage, match="names its queue"):
        scene.send_one(0, 0, queue=-1)


def test_the_half_of_a_transaction_is_not_numbered() -> None:
    scene = Scene()
    with pytest.raises(IllegalMessage, match="half of a transaction"):
        scene.send_one(0, 0, TRAN_MSG="true")


def test_properties_that_only_look_similar_are_the_senders_own() -> None:
    scene = Scene()
    for _ in range(2):
        scene.ask(scene.request([{"PYROMQ_BATCH": "q:1"}]))
    assert len(scene.stored()) == 2
    assert not scene.parts.writers.is_ready, "nobody needs the file"


# --- ways around -----------------------------------------------------------------------------------------------------


def test_a_delayed_message_is_known_again_while_it_waits_and_after() -> None:
    scene = Scene()
    for _ in range(2):
        assert scene.send_one(0, 0, DELAY="3").code == 0
    assert scene.stored(2, SCHEDULE_TOPIC) == ["0:0"]
    assert scene.send_one(0, 1).code == 0
    scene = scene.killed()
    for index in range(2):
        assert scene.send_one(0, index).more["repeated"] == "1"
    assert scene.stored() == ["0:1"]


def test_what_a_consumer_sends_back_is_never_a_repeat() -> None:
    scene = Scene()
    scene.parts.groups.make(GroupConfig("shop"))
    scene.parts.topics.make(TopicConfig("%RETRY%shop", 1, 1))
    scene.send_one(0, 7, topic="%RETRY%shop")
    scene.send_one(0, 7, topic="%RETRY%shop")
    assert scene.stored(topic="%RETRY%shop") == ["0:7", "0:7"]


# --- the promise -----------------------------------------------------------------------------------------------------


class SlowDisk:
    """Nothing is on the disk until the test releases it."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go_on = asyncio.Event()
        self._wait_synced = scene.parts.store.wait_synced
        monkeypatch.setattr(scene.parts.store, "wait_synced", self.wait_synced)

    async def wait_synced(self, receipt: AppendedAt) -> None:
        await self.may_go_on.wait()
        await self._wait_synced(receipt)


def test_a_repeat_is_acknowledged_when_the_original_is_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(store={"flush": FlushConfig(sync=True)})
    scene.send(0, 0)

    async def story() -> None:
        disk = SlowDisk(scene, monkeypatch)
        answers = [scene.start(scene.request([number(0, 1)])) for _ in range(2)]
        waiting = [asyncio.ensure_future(answer) for answer in answers if not isinstance(answer, Response)]
        assert len(waiting) == 2
        await asyncio.sleep(0)
        assert not any(one.done() for one in waiting)
        disk.may_go_on.set()
        first, second = await asyncio.gather(*waiting)
        assert "repeated" not in first.more
        assert second.more["repeated"] == "1"

    asyncio.run(story())
    assert scene.stored() == ["0:0", "0:1"]


def test_an_append_that_stops_in_the_middle_leaves_the_numbers_where_the_log_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    scene.send(0, 0)
    append = scene.parts.store.append

    def room_for_two(drafts: list[Draft]) -> list[AppendedAt]:
        full = DiskFull("no room")
        full.receipts = append(drafts[:2])
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(scene.parts.store, "append", room_for_two)
        with pytest.raises(DiskFull):
            scene.send(0, 1, 4)
    with monkeypatch.context() as patch:
        patch.setattr(scene.parts.store.cleaner, "refusal", "no room")
        with pytest.raises(DiskFull):
            scene.send(0, 1, 4)
    assert scene.send(0, 1, 4).more["repeated"] == "2"
    assert scene.stored() == numbers(0, 0, 5)


def test_the_first_ones_ever_wait_for_the_file_and_keep_their_order() -> None:
    scene = Scene()

    async def story() -> list[Response]:
        answers = [scene.start(scene.request([number(0, index)])) for index in range(5)]
        assert not any(isinstance(answer, Response) for answer in answers)
        assert scene.parts.messages("orders") == []
        return list(await asyncio.gather(*answers))  # type: ignore[arg-type]

    assert {answer.code for answer in asyncio.run(story())} == {0}
    assert scene.stored() == numbers(0, 0, 5)


def test_those_that_wait_do_not_count_on_the_buffer_that_they_were_received_in() -> None:
    scene = Scene()
    received = bytearray(b"tea")

    async def story() -> None:
        request = scene.request([number(0, 0)], batch=False)
        request.body = memoryview(received)
        answer = scene.start(request)
        received[:] = b"???"
        assert not isinstance(answer, Response)
        await answer

    asyncio.run(story())
    assert scene.parts.bodies("orders") == [b"tea"]


def test_a_disk_that_does_not_take_the_file_takes_no_numbered_message(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()

    def full(snapshot: object) -> None:
        raise OSError(28, "No space left on device")

    async def story() -> list[Response | BaseException]:
        answers = [scene.start(scene.request([number(0, index)])) for index in range(2)]
        return list(await asyncio.gather(*answers, return_exceptions=True))  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(scene.parts.writers._file, "save", full)
        refused = asyncio.run(story())
    assert [type(one) for one in refused] == [NotNow, NotNow]
    assert scene.stored() == []
    assert [one.code for one in asyncio.run(story()) if isinstance(one, Response)] == [0, 0]


# --- figures ---------------------------------------------------------------------------------------------------------


def test_only_what_was_stored_is_counted_as_sent() -> None:
    scene = Scene()
    scene.send(0, 0, 3)
    scene.send(0, 0, 4)
    assert isinstance(scene.parts.statistics, Statistics)
    assert scene.parts.statistics.put.messages == 4
    assert (scene.parts.numbered.repeats, scene.parts.numbered.writers) == (3, 1)


def test_a_busy_broker_refuses_before_it_looks_at_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    monkeypatch.setattr(scene.parts.overload, "reason", lambda: "too much to do")
    with pytest.raises(PyroMQError, match="too much to do"):
        scene.processor.send(scene.request([number(0, 0)]), FakePeer())
