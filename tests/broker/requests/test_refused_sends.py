"""A refusal that does not take the send apart says the same as one that does, and refuses nothing but sends."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.broker.overload import Overload, busy
from pyromq.broker.requests.refused_sends import RefusedSends
from pyromq.broker.statistics.traffic import Statistics
from pyromq.clock import ManualClock
from pyromq.config import OverloadConfig
from pyromq.net.connection import Connection
from pyromq.store.watermarks import Watermarks
from pyromq.wire.command import FLAG_ONE_WAY, Command, Serialization
from pyromq.wire.frames import encode_frame
from pyromq.wire.responses import answer_to, refusal

FIELDS = {"a": "shop", "b": "orders", "i": 'KEYS\x01"opaque":7,"flag":0,{"code":10,\x02'}


class FakeConnection:
    def __init__(self) -> None:
        self.out = b""

    def put_bytes(self, frames: bytes) -> bool:
        self.out += frames
        return True


def scene(*, is_busy: bool = True, statistics: Statistics | None = None) -> RefusedSends:
    marks, clock = Watermarks(), ManualClock()
    overload = Overload(lambda: OverloadConfig(unsynced_bytes=10), marks, clock)
    marks.appended.advance(11 if is_busy else 5)
    return RefusedSends(overload, statistics or Statistics(clock))


def taken(data: bytes, *, is_busy: bool = True) -> tuple[int, bytes]:
    connection = FakeConnection()
    at = scene(is_busy=is_busy).take(memoryview(data), 0, cast(Connection, connection))
    return at, connection.out


def send(correlation_id: int = 5, **changes: Any) -> Command:
    return Command(**{"code": 310, "fields": FIELDS, "body": b"hello", "correlation_id": correlation_id, **changes})


def told(command: Command) -> bytes:
    """The answer of the ordinary way."""
    return encode_frame(answer_to(command, refusal(busy("11 bytes wait for the disk (limit 10)"))))


@pytest.mark.parametrize("code", [310, 320, 10])
def test_sends_are_refused_in_the_words_of_the_ordinary_way(code: int) -> None:
    commands = [send(number, code=code) for number in (0, 7, 2_147_483_647)]
    data = b"".join(map(encode_frame, commands))
    assert taken(data) == (len(data), b"".join(map(told, commands)))


def test_refused_sends_are_counted_as_failed() -> None:
    statistics = Statistics(ManualClock())
    data = encode_frame(send()) * 3
    scene(statistics=statistics).take(memoryview(data), 0, cast(Connection, FakeConnection()))
    assert statistics.failed_puts == 3


def test_nothing_is_taken_while_the_broker_has_time() -> None:
    assert taken(encode_frame(send()), is_busy=False) == (0, b"")


@pytest.mark.parametrize(
    "other",
    [
        send(code=11),
        send(code=3100),
        send(flags=FLAG_ONE_WAY),
        send(flags=1),
        send(serialization=Serialization.BINARY),
    ],
    ids=["a pull", "a longer code", "one-way", "an answer", "a binary header"],
)
def test_whatever_else_is_left_to_the_ordinary_way(other: Command) -> None:
    first = encode_frame(send())
    at, out = taken(first + encode_frame(other) + first)
    assert (at, out) == (len(first), told(send()))


def test_half_a_frame_is_left_where_it_is() -> None:
    whole = encode_frame(send())
    for size in range(len(whole)):
        assert taken(whole + whole[:size]) == (len(whole), told(send()))


@pytest.mark.parametrize("order", [("opaque", "flag", "code"), ("extFields", "code"), ("code", "extFields", "opaque")])
def test_headers_of_other_clients(order: tuple[str, ...]) -> None:
    """Fields come in any order; one that does not begin with its code is left to the ordinary way."""
    header = {"code": 310, "flag": 0, "opaque": 9, "extFields": FIELDS, "language": "GO", "version": 317}
    text = json.dumps({**{name: header[name] for name in order}, **header}, separators=(",", ":")).encode()
    data = (4 + len(text)).to_bytes(4, "big") + len(text).to_bytes(4, "big") + text
    assert taken(data) == ((len(data), told(send(9))) if order[0] == "code" else (0, b""))


@given(st.integers(0, 2000), st.binary(max_size=5), st.integers(0, 5))
def test_damaged_frames_are_never_taken_for_more_than_they_are(where: int, patch: bytes, cut: int) -> None:
    data = bytearray(encode_frame(send()) * 2)
    where %= len(data)
    data[where : where + cut] = patch
    at, out = taken(bytes(data))
    assert 0 <= at <= len(data)
    assert bool(out) == bool(at)
