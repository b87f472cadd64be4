"""The accelerated way of a send stores and answers exactly what the ordinary way would, and leaves it
whatever it does not know."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.support.fakes import STORE_HOST, FakePeer, Parts
from pyromq.accel import sends as fast_sends
from pyromq.accel.sends import LOOK_UP_SECONDS, FastSends
from pyromq.broker.delivery.delays import Delays
from pyromq.broker.requests.send import SendProcessor
from pyromq.clock import ManualClock
from pyromq.config import FlushConfig, OverloadConfig
from pyromq.errors import PyroMQError, StoreFenced
from pyromq.model.message import Draft
from pyromq.model.topic import Permission, TopicConfig
from pyromq.net.connection import Connection
from pyromq.net.service import Service
from pyromq.wire.frames import decode_frame, encode_frame, frame_end
from pyromq.wire.requests.client import SendMessage
from pyromq.wire.responses import Response, answer_to

PLAIN = {"a": "shop", "b": "orders", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0",
         "i": "UNIQ_KEY\x01C0A8000100002A9F\x02TAGS\x01red\x02", "j": "0", "k": "false", "m": "false"}  # fmt: skip
LONG = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch",
)  # fmt: skip


class FakeConnection(FakePeer):
    inlet = None

    def __init__(self) -> None:
        super().__init__()
        self.out = b""

    def put_bytes(self, frames: bytes) -> bool:
        self.out += frames
        return True


class Scene:
    """A broker's send path, both ways, on a store in memory."""

    def __init__(self, **settings: Any) -> None:
        self.parts = parts = Parts(**{"clock": ManualClock(), **settings})
        parts.topics.make(TopicConfig("orders", 4, 4))
        parts.topics.make(TopicConfig("closed", 4, 4, int(Permission.READ)))
        delays = Delays(parts.store, parts.writer, parts.delay_offsets, parts.topics, parts.clock)
        self.send = SendProcessor(
            lambda: parts.config, parts.topics, parts.groups, parts.writer, parts.overload, STORE_HOST,
            parts.statistics,
            transactions=lambda _: None, delay=delays.divert, rng=random.Random(1), numbered=parts.numbered,
        )  # fmt: skip
        self.service = Service({SendMessage: self.send.send})
        self.fast = FastSends(
            lambda: parts.config,
            parts.topic_table,
            parts.store,
            parts.overload,
            STORE_HOST,
            parts.statistics,
            parts.ack_mark,
        )
        # The fast way appends to queues that are there; the first message of each goes the ordinary way.
        for queue in range(4):
            parts.store.append([Draft(b"orders", queue, b"the first")])

    def ordinary(self, data: bytes) -> bytes:
        command = decode_frame(memoryview(data), 0, len(data))
        answer = self.service.handle(command, FakePeer())
        assert isinstance(answer, Response)
        return b"" if command.is_one_way else encode_frame(answer_to(command, answer))

    def fast_way(self, data: bytes) -> tuple[int, bytes]:
        connection = FakeConnection()
        taken = self.fast.take(memoryview(data), 0, cast(Connection, connection))
        self.parts.store.close_batch()
        return taken, connection.out

    def log(self) -> bytes:
        store = self.parts.store
        return bytes(store.log.files.segments[0].buffer[: store.log.end])


def frame(fields: dict[str, str], body: bytes = b"hello", *, code: int = 310, **header: Any) -> bytes:
    head = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 7, **header}
    written = json.dumps({**head, "serializeTypeCurrentRPC": "JSON", "version": 513}, separators=(",", ":")).encode()
    return (4 + len(written) + len(body)).to_bytes(4, "big") + len(written).to_bytes(4, "big") + written + body


def long_named(fields: dict[str, str]) -> dict[str, str]:
    return {LONG[ord(name) - 97]: value for name, value in fields.items() if name != "n"}


def both_ways(data: bytes) -> tuple[Scene, Scene, int, bytes]:
    """The same bytes, once each way, on two equal brokers."""
    one, other = Scene(), Scene()
    taken, answers = one.fast_way(data)
    return one, other, taken, answers


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"i": ""},
        {"i": "UNIQ_KEY\x01ABC"},
        {"i": 'quote\x01"\\/\x02tab\x01\t\x02'},
        {"e": "3", "h": "-5", "j": "2", "f": "3"},
        {"g": "0"},
        {"n": "broker-a", "l": "16"},
        {"i": "KEYS\x01a b c\x02WAIT\x01true"},
    ],
)
@pytest.mark.parametrize("names", ["one letter", "whole"])
def test_it_stores_and_answers_the_same(changes: dict[str, str], names: str) -> None:
    fields = {**PLAIN, **changes}
    data = frame(fields) if names == "one letter" else frame(long_named(fields), code=10)
    one, other, taken, answers = both_ways(data)
    assert taken == len(data)
    assert answers == other.ordinary(data)
    assert one.log() == other.log()


def test_many_of_one_read_are_taken_together() -> None:
    data = b"".join(frame({**PLAIN, "e": str(n % 4)}, b"%d" % n, opaque=n) for n in range(100))
    one, other, taken, answers = both_ways(data)
    assert taken == len(data)
    assert answers == each_the_ordinary_way(other, data)
    assert one.log() == other.log()


def each_the_ordinary_way(scene: Scene, data: bytes) -> bytes:
    at, answers = 0, b""
    while at < len(data) and (end := frame_end(memoryview(data), at)) is not None:
        answers += scene.ordinary(data[at:end])
        at = end
    return answers


def test_a_send_without_an_answer_is_stored_and_not_answered() -> None:
    data = frame(PLAIN, flag=2)
    one, other, taken, answers = both_ways(data)
    assert (taken, answers) == (len(data), b"")
    other.ordinary(data)
    assert one.log() == other.log()


@pytest.mark.parametrize(
    "changes",
    [
        {"b": "nobody-made-this"},
        {"b": "closed"},
        {"b": "%RETRY%shop"},
        {"b": "SCHEDULE_TOPIC_XXXX"},
        {"b": "örders"},
        {"e": "4"},
        {"e": "-1"},
        {"e": "one"},
        {"e": "99999999999"},
        {"m": "true"},
        {"f": "128"},
        {"j": "-1"},
        {"g": "-1"},
        {"d": "x"},
        {"l": "x"},
        {"i": "DELAY\x013\x02"},
        {"i": "TRAN_MSG\x01true\x02"},
        {"i": "PYROMQ_WRITER\x01w\x02PYROMQ_SEQUENCE\x010:0\x02"},
        {"i": "TAGS\x01red\x02PYROMQ_SEQUENCE\x010:0\x02"},
        {"i": "TIMER_DELIVER_MS\x011\x02"},
        {"i": "CLUSTER\x01other\x02"},
        {"i": "POP_CK\x011\x02"},
        {"i": "name\x01ü\x02"},
        {"i": "zero\x01\x00\x02"},
        {"i": 'UNIQ_KEY\x01a"b\x02'},
        {"i": "x" * 33_000},
        {"i": "__CRC32#\x010123456789\x02"},
    ],
)
def test_what_needs_a_decision_is_left_alone(changes: dict[str, str]) -> None:
    scene = Scene()
    before = scene.log()
    assert scene.fast_way(frame({**PLAIN, **changes})) == (0, b"")
    assert scene.log() == before


@pytest.mark.parametrize("missing", ["a", "b", "e"])
def test_a_field_that_must_be_there_is_asked_for_the_ordinary_way(missing: str) -> None:
    fields = {name: value for name, value in PLAIN.items() if name != missing}
    assert Scene().fast_way(frame(fields)) == (0, b"")


def test_half_a_frame_waits() -> None:
    scene, data = Scene(), frame(PLAIN)
    for size in range(len(data)):
        assert scene.fast_way(data[:size])[0] == 0
    assert scene.fast_way(data + data[:50])[0] == len(data)


def test_a_busy_or_closed_broker_is_left_to_those_who_say_why() -> None:
    busy = Scene()
    busy.parts.config = replace(busy.parts.config, overload=OverloadConfig(unsynced_bytes=1))
    read_only = Scene()
    read_only.parts.config = replace(read_only.parts.config, permission=4)
    fenced = Scene()
    fenced.parts.store.fence(OSError("the disk is gone"))
    for scene in (busy, read_only, fenced):
        assert scene.fast_way(frame(PLAIN)) == (0, b"")


def test_topics_that_change_are_seen() -> None:
    scene = Scene()
    scene.parts.topics.change("orders", write_queues=1, read_queues=1)
    scene.fast.topics_changed()
    assert scene.fast_way(frame(PLAIN))[0] == 0
    scene.parts.topics.remove("orders")
    scene.fast.topics_changed()
    assert scene.fast_way(frame({**PLAIN, "e": "0"}))[0] == 0


def test_a_topic_that_changes_between_two_like_sends_is_seen() -> None:
    scene = Scene()
    assert scene.fast_way(frame(PLAIN))[0] > 0
    scene.parts.topics.change("orders", write_queues=1, read_queues=1)
    scene.fast.topics_changed()
    assert scene.fast_way(frame(PLAIN)) == (0, b"")
    scene.parts.topics.change("orders", write_queues=4, read_queues=4)
    scene.fast.topics_changed()
    assert scene.fast_way(frame(PLAIN)) == (0, b"")  # looked up a moment ago
    cast(ManualClock, scene.parts.clock).advance(LOOK_UP_SECONDS)
    assert scene.fast_way(frame(PLAIN))[0] > 0


def test_what_every_message_says_of_the_broker_follows_the_settings() -> None:
    one, other = Scene(), Scene()
    for scene in (one, other):
        scene.parts.config = replace(scene.parts.config, trace_on=False)
        scene.fast.settings_changed()
    data = frame(PLAIN)
    assert one.fast_way(data) == (len(data), other.ordinary(data))
    assert one.log() == other.log()
    assert b"TRACE_ON\x01false" in one.log()


@pytest.mark.parametrize(
    "header",
    [
        {"extFields": {**PLAIN, "c": 7}},
        {"extFields": {**PLAIN, "k": None}},
        {"extFields": {**PLAIN, "n": ["x"]}},
        {"extFields": {**PLAIN, "g": 1_700_000_000_000}},
        {"extFields": [PLAIN]},
        {"extFields": None},
        {"flag": True},
        {"flag": 1},
        {"opaque": "7"},
        {"opaque": 2**31},
        {"version": 1.5},
        {"version": -(2**31) - 1},
    ],
)
def test_a_header_of_another_shape_is_left_alone_also_behind_a_usual_one(header: dict[str, Any]) -> None:
    scene = Scene()
    usual = frame(PLAIN)
    assert scene.fast_way(usual + with_header(**header))[0] == len(usual)


def with_header(**changes: Any) -> bytes:
    head = {"code": 310, "extFields": PLAIN, "flag": 0, "language": "JAVA", "opaque": 7, "version": 513, **changes}
    written = json.dumps(head, separators=(",", ":")).encode()
    return (4 + len(written)).to_bytes(4, "big") + len(written).to_bytes(4, "big") + written


def test_a_send_to_a_client_at_an_ipv6_address_is_left_alone() -> None:
    scene, connection = Scene(), FakeConnection()
    connection.packed_address = bytes(20)
    assert scene.fast.take(memoryview(frame(PLAIN)), 0, cast(Connection, connection)) == 0


def test_sends_of_many_kinds_in_one_read() -> None:
    data = b"".join(frame({**PLAIN, "h": str(n % 7)}, opaque=n) for n in range(30))
    one, other, taken, answers = both_ways(data)
    assert taken == len(data)
    assert answers == each_the_ordinary_way(other, data)
    assert one.log() == other.log()


def test_long_fields_are_stored_alike() -> None:
    data = b"".join(frame({**PLAIN, "a": letter * 5000}) for letter in "xyx")
    one, other, taken, answers = both_ways(data)
    assert answers == each_the_ordinary_way(other, data[:taken])
    assert one.log() == other.log()


def test_without_a_crc_properties_that_end_like_one_are_stored_alike() -> None:
    one, other = Scene(store={"record_crc": False}), Scene(store={"record_crc": False})
    for fields in ({}, {"i": "a\x01b\x02"}, {"i": "x\x01__CRC32#\x02"}):
        data = frame({**PLAIN, **fields})
        taken, answer = one.fast_way(data)
        assert (answer if taken else one.ordinary(data)) == other.ordinary(data)
    assert one.log() == other.log()


def test_a_full_segment_is_left_to_the_ordinary_way_and_both_go_on() -> None:
    one, other = Scene(), Scene()
    data = frame(PLAIN, b"x" * 20_000)
    for _ in range(40):
        taken, answer = one.fast_way(data)
        if not taken:
            answer = one.ordinary(data)
        assert answer == other.ordinary(data)
    assert len(one.parts.store.log.files.segments) > 2
    assert [bytes(s.buffer) for s in one.parts.store.log.files.segments] == [
        bytes(s.buffer) for s in other.parts.store.log.files.segments
    ]


def test_under_sync_flush_an_answer_waits_for_the_disk() -> None:
    scene = Scene(store={"flush": FlushConfig(sync=True)})
    connection = FakeConnection()
    assert scene.fast.take(memoryview(frame(PLAIN)), 0, cast(Connection, connection)) > 0
    assert connection.out == b""
    assert scene.fast.held_sends == 1
    scene.parts.store.close_batch()
    scene.parts.store.flush()
    assert b'"code":0' in connection.out
    assert scene.fast.held_sends == 0


def test_an_answer_waits_until_its_message_is_in_the_page_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    connection = FakeConnection()
    assert scene.fast.take(memoryview(frame(PLAIN)), 0, cast(Connection, connection)) > 0
    assert (connection.out, scene.fast.held_sends) == (b"", 1)
    file = type(scene.parts.store.log.files.segments[0].file)
    monkeypatch.setattr(file, "write_at", _no_disk)
    with pytest.raises(StoreFenced) as fenced:
        scene.parts.store.close_batch()
    assert connection.out == b""
    scene.fast.fail(fenced.value)
    assert b'"code":14' in connection.out
    assert scene.fast.held_sends == 0


def _no_disk(*_: object) -> None:
    raise OSError("the disk is gone")


def test_a_disk_that_fails_is_told_to_all_who_wait() -> None:
    scene = Scene(store={"flush": FlushConfig(sync=True)})
    connection = FakeConnection()
    scene.fast.take(memoryview(frame(PLAIN, opaque=1) + frame(PLAIN, opaque=2)), 0, cast(Connection, connection))
    scene.fast.fail(StoreFenced(OSError("the disk is gone")))
    assert scene.parts.statistics.failed_puts == 2
    view, at, answers = memoryview(connection.out), 0, []
    while at < len(view) and (end := frame_end(view, at)) is not None:
        answers.append(decode_frame(view, at, end))
        at = end
    assert [(answer.code, answer.correlation_id) for answer in answers] == [(14, 1), (14, 2)]
    assert scene.fast.held_sends == 0


#: Properties that differ in what they ask for, however little they look so.
entries = st.tuples(
    st.sampled_from(
        ["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "DELAY", "CLUSTER", "POP_CK", "TRAN_MSG", "TIMER_D", "__CRC32#", "X", ""]
    ),
    st.sampled_from(["\x01", "\x01\x01", ""]),
    st.sampled_from(["", "a", "b c", "KEYS", "ABC123", "UNIQ_KEY", "true", "0"]),
).map("".join)


@given(st.lists(st.lists(entries, max_size=4).map("\x02".join), min_size=1, max_size=4), st.booleans())
def test_whatever_the_properties_are_they_are_stored_alike(some: list[str], ends: bool) -> None:
    one, other = Scene(), Scene()
    for properties in some:
        data = frame({**PLAIN, "i": properties + "\x02" if ends else properties})
        taken, answer = one.fast_way(data)
        assert (answer if taken else one.ordinary(data)) == other.ordinary(data)
        assert one.log() == other.log()


text = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.one_of(
    st.sampled_from(["0", "1", "true", "false", "-3", "", "007", "2147483648", "UNIQ_KEY\x01a\x02"]), text
)


@given(st.dictionaries(st.sampled_from("abcdefghijklmn"), values, max_size=6), st.binary(max_size=30), st.booleans())
def test_whatever_comes_it_takes_only_what_the_ordinary_way_takes_alike(
    changes: dict[str, str], body: bytes, whole_names: bool
) -> None:
    fields = {**PLAIN, **changes}
    data = frame(long_named(fields), body, code=10) if whole_names else frame(fields, body)
    one, other, taken, answers = both_ways(data)
    if taken:
        assert answers == other.ordinary(data)
        assert one.log() == other.log()
    else:
        assert one.log() == other.log()


@given(st.integers(0, 10_000), st.binary(max_size=4), st.integers(0, 3))
def test_damaged_frames_are_never_taken_for_something_else(where: int, patch: bytes, cut: int) -> None:
    data = bytearray(frame(PLAIN))
    where %= len(data)
    data[where : where + cut] = patch
    one, other, taken, answers = both_ways(bytes(data))
    if not taken:
        assert one.log() == other.log()
        return
    try:
        expected = other.ordinary(bytes(data[:taken]))
    except PyroMQError:
        pytest.fail("the fast way took what the ordinary way refuses")
    assert answers == expected
    assert one.log() == other.log()


def test_among_very_many_topics_one_is_looked_up_when_a_message_was_sent_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at 200,000 topics after each change would hold up everybody."""
    monkeypatch.setattr(fast_sends, "LOOKED_UP_AT_ONCE", 1)
    scene = Scene()
    fast = scene.fast
    fast._look_up_topics()
    assert fast.topics == {}
    for name in ("orders", "closed", "nowhere"):
        fast.learn(name)
    assert list(fast.topics) == [b"orders"]
    fast.topics_changed()
    fast.learn("orders")
    assert fast.topics == {}, "it may be another one now"
    monkeypatch.setattr(fast_sends, "LOOKED_UP_AT_ONCE", 1000)
    fast._look_up_topics()
    made = fast.topics[b"orders"]
    fast.topics_changed()
    fast._look_up_topics()
    assert fast.topics[b"orders"] is made, "an unchanged topic keeps what was made for it"
