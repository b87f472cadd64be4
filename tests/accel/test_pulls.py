"""The compiled way of a pull gives what the ordinary way would give, and leaves it whatever it does not know."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.support.fakes import FakePeer, Parts
from broker.support.lone_client import PULL
from pyromq import accel
from pyromq.accel.accelerator import Turns
from pyromq.accel.pulls import FastPulls
from pyromq.broker.delivery.long_polls import Holds
from pyromq.broker.requests.pull import PullProcessor
from pyromq.broker.state.clients import Consumers, ConsumerSeen, Member
from pyromq.broker.state.offsets import Progress
from pyromq.broker.state.resets import Resets
from pyromq.config import ReplicationConfig
from pyromq.filters.subscription import build
from pyromq.model.group import GroupConfig
from pyromq.model.message import Draft
from pyromq.model.topic import TopicConfig
from pyromq.net.connection import Connection
from pyromq.net.service import NEXT_TURN, Service
from pyromq.records.properties import encode_properties
from pyromq.store.queues.queue_cursor import QueueCursor
from pyromq.store.queues.queue_reader import MAX_ENTRIES_LOOKED_AT
from pyromq.wire.frames import decode_frame, encode_frame
from pyromq.wire.requests.client import PullMessage
from pyromq.wire.responses import Response, answer_to

MESSAGES = 120
PLAIN = {**PULL, "queueOffset": "5"}


class FakeConnection(FakePeer):
    inlet = None
    is_reading = True

    def __init__(self) -> None:
        super().__init__()
        self.out: list[bytes] = []
        self.turns_asked = self.turns_waited = 0

    def ask_for_turn(self) -> None:
        self.turns_asked += 1

    def wait_for_turn(self) -> None:
        self.turns_waited += 1

    def put_bytes(self, frames: bytes) -> bool:
        self.out.append(frames)
        return True


class Scene:
    """The topic `orders`, whose messages are red and blue in turn, and the group `shop`, pulled from both ways."""

    def __init__(self, **settings: Any) -> None:
        self.parts = parts = Parts(store={"queue_file_entries": 1000, **settings})
        parts.topics.make(TopicConfig("orders", 2, 2))
        parts.groups.make(GroupConfig("shop"))
        self.send(MESSAGES)
        self.consumers, self.resets = Consumers(), Resets()
        self.progress = Progress(parts.offsets, parts.store)
        config = lambda: parts.config  # noqa: E731
        holds = Holds(parts.store.arrivals, 100)
        self.pull = PullProcessor(
            config, parts.topics, parts.groups, self.consumers, self.progress, parts.store, holds, self.resets,
            parts.statistics, parts.read_advice(),
        )  # fmt: skip
        self.service = Service({PullMessage: self.pull.pull})
        self.fast = FastPulls(
            self.pull, self.consumers, self.progress, self.resets, parts.store, parts.statistics, parts.read_advice()
        )

    def send(self, count: int) -> None:
        for number in range(count):
            tags = encode_properties({"TAGS": "red" if number % 2 else "blue"})
            self.parts.store.append([Draft(b"orders", 0, b"message %d" % number, tags)])
        self.parts.store.dispatch()

    def ordinary(self, data: bytes) -> bytes | None:
        """The answer; None when it is not there yet."""
        command = decode_frame(memoryview(data), 0, len(data))
        answer = self.service.handle(command, FakePeer())
        if not isinstance(answer, Response):
            return None
        return encode_frame(answer_to(command, answer), answer.body)

    def compiled(self, data: bytes, connection: FakeConnection | None = None) -> tuple[int, list[bytes]]:
        connection = connection or FakeConnection()
        return self.fast.take(memoryview(data), 0, cast(Connection, connection)), connection.out


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.ordinary(frame(PLAIN))  # the log is mapped when it is first read
    return made


def frame(fields: dict[str, str], *, code: int = 11, body: bytes = b"", **header: Any) -> bytes:
    head = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 7, **header}
    written = json.dumps({**head, "serializeTypeCurrentRPC": "JSON", "version": 513}, separators=(",", ":")).encode()
    return (4 + len(written) + len(body)).to_bytes(4, "big") + len(written).to_bytes(4, "big") + written + body


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"queueOffset": "0"},
        {"queueOffset": str(MESSAGES - 1)},
        {"queueOffset": "60", "maxMsgNums": "1"},
        {"maxMsgNums": "1000", "maxMsgBytes": "500"},
        {"subscription": "red"},
        {"subscription": "red || green"},
        {"suspendTimeoutMillis": "0", "requestSource": "0"},
    ],
)
@pytest.mark.parametrize("code", [11, 361])
def test_it_gives_the_same(scene: Scene, changes: dict[str, str], code: int) -> None:
    data = frame({**PLAIN, **changes}, code=code)
    taken, answers = scene.compiled(data)
    assert (taken, answers) == (len(data), [scene.ordinary(data)])


def test_the_end_of_a_queues_file_is_left_to_the_ordinary_way() -> None:
    scene = Scene(queue_file_entries=50)
    scene.ordinary(frame(PLAIN))
    assert scene.compiled(frame({**PLAIN, "queueOffset": "10"}))[0]
    assert scene.compiled(frame({**PLAIN, "queueOffset": "30"})) == (0, [])


def test_only_the_numbers_differ_from_pull_to_pull(scene: Scene) -> None:
    for offset in (0, 9, 40):
        data = frame({**PLAIN, "queueOffset": str(offset)}, opaque=1000 + offset)
        assert scene.compiled(data) == (len(data), [scene.ordinary(data)])
    data = frame(PLAIN) + frame({**PLAIN, "queueOffset": "33"}, opaque=8)
    assert scene.compiled(data)[0] == len(data)


def test_progress_that_comes_along_is_kept(scene: Scene) -> None:
    scene.compiled(frame({**PLAIN, "sysFlag": "5", "commitOffset": "5"}))
    assert scene.progress.offset_of("shop", "orders", 0) == 5
    scene.compiled(frame({**PLAIN, "sysFlag": "5", "commitOffset": "99999"}))  # behind the end
    assert scene.progress.offset_of("shop", "orders", 0) == 5
    scene.compiled(frame({**PLAIN, "commitOffset": "9"}))  # not said to be progress
    assert scene.progress.offset_of("shop", "orders", 0) == 5


@pytest.mark.parametrize(
    "changes",
    [
        {"queueOffset": str(MESSAGES)},
        {"queueOffset": "99999"},
        {"queueOffset": "-1"},
        {"queueId": "1"},
        {"queueId": "2"},
        {"topic": "nobody-made-this"},
        {"consumerGroup": "strangers"},
        {"subscription": "nobody-sends-this"},
        {"subscription": "color = 'red'", "expressionType": "SQL92"},
        {"sysFlag": "0"},
        {"sysFlag": "12"},
        {"maxMsgNums": "x"},
    ],
)
def test_what_is_more_than_giving_messages_is_left_alone(scene: Scene, changes: dict[str, str]) -> None:
    assert scene.compiled(frame({**PLAIN, **changes})) == (0, [])


def test_what_does_not_look_like_a_pull_is_left_alone(scene: Scene) -> None:
    for data in (
        frame(PLAIN, code=12),
        frame(PLAIN, flag=2),
        frame(PLAIN, body=b"x"),
        frame(PLAIN)[:-1],
        b"",
        b"x" * 70,
    ):
        assert scene.compiled(data) == (0, [])


def test_a_reset_is_told_by_the_ordinary_way(scene: Scene) -> None:
    scene.resets.note("shop", "orders", 0, 2)
    assert scene.compiled(frame(PLAIN)) == (0, [])


def test_a_subscription_that_changes_is_heard_of(scene: Scene) -> None:
    def seen(text: str, version: int) -> None:
        what = ConsumerSeen(
            "shop", "CONSUME_PASSIVELY", "CLUSTERING", "", {"orders": build("orders", text, "TAG", version)}
        )
        scene.consumers.seen(what, Member(FakePeer(), "me", "JAVA", 513, 0), 0)

    data = frame({**PLAIN, "sysFlag": "0"})
    seen("*", 7)
    assert scene.compiled(data) == (len(data), [scene.ordinary(data)])
    seen("red", 8)
    answer = scene.compiled(data)
    assert answer == (len(data), [scene.ordinary(data)])
    assert b"message 8" not in answer[1][0]


def test_a_queue_that_gets_its_first_message_is_seen(scene: Scene) -> None:
    data = frame({**PLAIN, "queueId": "1", "queueOffset": "0"})
    assert scene.compiled(data) == (0, [])
    scene.parts.store.append([Draft(b"orders", 1, b"the first")])
    scene.parts.store.dispatch()
    assert scene.compiled(data) == (len(data), [scene.ordinary(data)])


def test_settings_that_change_are_heard_of(scene: Scene) -> None:
    assert scene.compiled(frame(PLAIN))[0]
    scene.parts.config = replace(scene.parts.config, permission=2)
    scene.fast.forget()
    assert scene.compiled(frame(PLAIN)) == (0, [])


def test_messages_found_at_the_start_are_checked_by_the_ordinary_way() -> None:
    before = Scene()
    scene = Scene.__new__(Scene)
    scene.parts = before.parts.restarted()
    scene.consumers, scene.resets = Consumers(), Resets()
    scene.progress = Progress(scene.parts.offsets, scene.parts.store)
    scene.pull = PullProcessor(
        lambda: scene.parts.config, scene.parts.topics, scene.parts.groups, scene.consumers, scene.progress,
        scene.parts.store, Holds(scene.parts.store.arrivals, 100), scene.resets, scene.parts.statistics,
        scene.parts.read_advice(),
    )  # fmt: skip
    scene.service = Service({PullMessage: scene.pull.pull})
    scene.fast = FastPulls(
        scene.pull, scene.consumers, scene.progress, scene.resets, scene.parts.store, scene.parts.statistics,
        scene.parts.read_advice(),
    )  # fmt: skip
    scene.ordinary(frame(PLAIN))
    assert scene.compiled(frame(PLAIN)) == (0, [])


def test_what_was_given_out_is_counted(scene: Scene) -> None:
    before = scene.parts.statistics.got_total.messages
    scene.compiled(frame(PLAIN))
    scene.parts.statistics.sample()
    assert scene.parts.statistics.got_total.messages == before + 32


def test_fast_ways_take_turns() -> None:
    class Takes:
        def __init__(self, letter: int) -> None:
            self.letter = letter

        def take(self, data: memoryview, at: int, connection: Connection) -> int:
            while at < len(data) and data[at] == self.letter:
                at += 1
            return at

    paths = Turns(None, None, Takes(ord("a")), Takes(ord("b")))
    for data, expected in ((b"aabbab", 6), (b"aabxab", 3), (b"xaab", 0)):
        assert paths.take(memoryview(data), 0, cast(Connection, SimpleNamespace(is_reading=True))) == expected
    full = cast(Connection, SimpleNamespace(is_reading=False))
    assert paths.take(memoryview(b"aabbab"), 0, full) == 4, "a connection without room gets one round"


@given(st.integers(0, 10_000), st.binary(max_size=4), st.integers(0, 3))
def test_damaged_frames_are_never_taken_for_something_else(where: int, patch: bytes, cut: int) -> None:
    scene = SHARED[0] if SHARED else SHARED.append(Scene()) or SHARED[0]
    scene.ordinary(frame(PLAIN))
    data = bytearray(frame(PLAIN))
    where %= len(data)
    data[where : where + cut] = patch
    taken, answers = scene.compiled(bytes(data))
    if taken:
        assert answers == [scene.ordinary(bytes(data[:taken]))]


#: One scene for all examples: none of them changes it.
SHARED: list[Scene] = []


def test_a_reader_that_is_far_behind_is_advised_by_the_ordinary_way(scene: Scene) -> None:
    assert scene.compiled(frame(PLAIN))[1]
    scene.parts.config = replace(scene.parts.config, replication=ReplicationConfig(read_from_slaves=True))
    scene.parts.memory_bytes = 1000
    scene.fast._advice = scene.parts.read_advice()
    assert scene.compiled(frame(PLAIN)) == (0, [])


def test_a_queue_that_began_anew_is_pulled_from_as_it_is_now(scene: Scene) -> None:
    """Its plan was made before."""
    assert scene.compiled(frame({**PLAIN, "queueOffset": str(MESSAGES)})) == (0, [])
    queue = scene.parts.store.queues.get(b"orders", 0)
    assert queue is not None
    (plan,) = scene.fast._plans.values()
    plan.open_window(memoryview(bytes(200)), 0, 0, 10, 0, 0, 1000, [], 0, 0)
    queue.cursor = QueueCursor()  # as when a copy begins elsewhere
    queue.cursor.next_dispatch = MESSAGES
    data = frame(PLAIN)
    assert scene.compiled(data) == (len(data), [scene.ordinary(data)])


def test_both_ways_look_at_as_many_entries_for_one_answer() -> None:
    text = (Path(accel.__file__).parent / "_pulls.pyx").read_text()
    assert f"MAX_LOOKED_AT = {MAX_ENTRIES_LOOKED_AT:_}\n" in text


def test_a_window_through_which_nothing_can_be_given_gives_nothing(scene: Scene) -> None:
    scene.compiled(frame(PLAIN))
    (plan,) = scene.fast._plans.values()
    assert plan.answer(5, 1) is not None
    for offset, end in ((0, 0), (11, 11), (-1, 5), (0, 11)):
        plan.open_window(memoryview(bytes(200)), 0, offset, end, 0, 0, 1000, [], 0, 0)
        assert plan.answer(max(offset, 0), 1) is None
    plan.close_window()
    assert plan.answer(5, 1) is None


def test_an_answer_is_no_larger_than_the_room_of_its_turn_and_the_rest_waits(scene: Scene) -> None:
    connection = FakeConnection()
    connection.answer_room = 1000
    data = frame({**PLAIN, "maxMsgNums": "100"})
    assert scene.compiled(data * 3, connection)[0] == len(data), "one answer uses up more than half of the room"
    (answer,) = connection.out
    assert answer == scene.ordinary(frame({**PLAIN, "maxMsgNums": "100", "maxMsgBytes": "1000"}))
    assert (connection.turns_asked, connection.turns_waited) == (0, 1)


def test_a_message_larger_than_the_room_is_given_to_a_peer_that_has_its_turn(scene: Scene) -> None:
    connection = FakeConnection()
    connection.answer_room = 10
    data = frame(PLAIN)
    assert scene.compiled(data, connection) == (0, [])
    assert (connection.turns_asked, connection.turns_waited) == (1, 0)
    connection.has_turn = True
    assert scene.compiled(data, connection) == (len(data), [scene.ordinary(frame({**PLAIN, "maxMsgNums": "1"}))])


def test_the_ordinary_path_gives_as_much_as_the_room_of_its_turn(scene: Scene) -> None:
    peer = FakePeer()
    data = frame({**PLAIN, "maxMsgNums": "100"})
    command = decode_frame(memoryview(data), 0, len(data))
    peer.answer_room = 1000
    answer = scene.service.handle(command, peer)
    assert isinstance(answer, Response)
    assert 500 < answer.body_bytes <= 1000
    peer.answer_room = 10
    assert scene.service.handle(command, peer) is NEXT_TURN
    peer.has_turn = True
    answer = scene.service.handle(command, peer)
    assert isinstance(answer, Response)
    assert len(answer.body) == 1
