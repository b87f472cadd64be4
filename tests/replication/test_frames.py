"""The frames of the stream: RocketMQ's bytes, in whatever pieces they come."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import BadFrame
from pyromq.replication.frames import MAX_PUSH, PushReader, ReportReader, encode_observer, encode_report, push_head

POSITIONS = st.integers(0, 2**62)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[one:other] for one, other in zip([0, *places], [*places, len(data)], strict=True)]


def test_the_bytes_are_those_of_rocketmq() -> None:
    assert encode_report(258) == bytes.fromhex("0000000000000102")
    assert push_head(258, 3) + b"abc" == bytes.fromhex("0000000000000102 00000003") + b"abc"


@given(st.lists(POSITIONS, min_size=1), st.lists(st.integers(0, 10_000)))
def test_the_newest_report_is_heard_however_it_is_cut(positions: list[int], cuts: list[int]) -> None:
    reader = ReportReader()
    heard = [reader.feed(piece) for piece in pieces(b"".join(map(encode_report, positions)), cuts)]
    assert [words.newest for words in heard if words.newest is not None][-1] == positions[-1]
    assert next(words.first for words in heard if words.first is not None) == positions[0]


@given(st.lists(st.integers(-(2**40), 2**40)), st.lists(st.integers(0, 10_000)))
def test_what_is_asked_for_adds_up(words: list[int], cuts: list[int]) -> None:
    reader = ReportReader()
    said = b"".join(map(encode_report, [0, *words]))
    assert sum(reader.feed(piece).granted for piece in pieces(said, cuts)) == -sum(word for word in words if word < 0)


@given(st.lists(st.tuples(POSITIONS, st.binary(max_size=200))), st.lists(st.integers(0, 100_000)))
def test_pushes_come_out_as_they_went_in(pushes: list[tuple[int, bytes]], cuts: list[int]) -> None:
    reader = PushReader()
    sent = b"".join(push_head(position, len(data)) + data for position, data in pushes)
    got = [(push.position, bytes(push.data)) for piece in pieces(sent, cuts) for push in reader.feed(piece)]
    assert got == pushes


@given(st.binary(min_size=12, max_size=400))
def test_strange_bytes_are_refused_or_wait_and_nothing_grows(data: bytes) -> None:
    reader = PushReader(max_push=100)
    with contextlib.suppress(BadFrame):
        for push in reader.feed(data):
            assert len(push.data) <= 100
    assert len(reader.space()) <= 112


@pytest.mark.parametrize("head", [push_head(-1, 5), push_head(0, -5), push_head(0, MAX_PUSH + 1)])
def test_a_frame_that_cannot_be_is_named(head: bytes) -> None:
    with pytest.raises(BadFrame, match="announces"):
        list(PushReader().feed(head))


def test_a_first_word_below_zero_is_nobodys_but_for_the_one_of_a_backup() -> None:
    with pytest.raises(BadFrame, match="no replica"):
        ReportReader().feed(encode_report(-2))
    assert ReportReader().feed(encode_observer()).observes
