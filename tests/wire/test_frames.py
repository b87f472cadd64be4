"""Frames: where they end, in any chunking, and which are refused before anything is kept for them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.errors import BadFrame
from pyromq.wire.command import Command
from pyromq.wire.frames import FrameLimits, Reassembly, decode_frame, encode_frame, encode_head, frame_end
from wire.shapes import commands, cut_up, only

LARGE = FrameLimits(frame_bytes=1 << 30, header_bytes=(1 << 24) - 1)


def whole_frames(chunks: list[bytes]) -> list[Command]:
    """As a connection does it."""
    frames, found = Reassembly(), []
    for chunk in chunks:
        data = frames.receive(memoryview(chunk))
        at = 0
        while (end := frame_end(data, at)) is not None and end <= len(data):
            found.append(decode_frame(data, at, end))
            at = end
        frames.keep(data, at)
    assert len(frames) == 0
    return found


@settings(deadline=None)
@given(commands())
def test_a_frame_is_read_as_it_was_written(command: Command) -> None:
    data = memoryview(encode_frame(command))
    assert frame_end(data, 0) == len(data)
    assert decode_frame(data, 0, len(data)) == command


@settings(deadline=None)
@given(st.lists(commands(), max_size=4), st.lists(st.integers(0, 10_000), max_size=12))
def test_chunks_may_end_anywhere(sent: list[Command], cuts: list[int]) -> None:
    data = b"".join(map(encode_frame, sent))
    assert whole_frames(cut_up(data, cuts)) == sent


@settings(deadline=None)
@given(st.lists(commands(), min_size=1, max_size=2))
def test_bytes_may_come_one_by_one(sent: list[Command]) -> None:
    data = b"".join(map(encode_frame, sent))
    assert whole_frames([data[at : at + 1] for at in range(len(data))]) == sent


def test_a_body_may_be_in_pieces() -> None:
    command = Command(code=0)
    pieces = [memoryview(b"one"), memoryview(b""), memoryview(b"two")]
    assert encode_frame(command, pieces) == encode_frame(command, b"onetwo")


@pytest.mark.parametrize("known", range(8))
def test_the_beginning_of_a_length_is_not_refused(known: int) -> None:
    start = encode_frame(Command(code=1, body=b"x" * 300))[:known]
    end = frame_end(memoryview(start), 0)
    assert end is None if known < 4 else end is not None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\0\0\0\0", "cannot have 0 bytes"),
        (b"\0\0\0\3", "cannot have 3 bytes"),
        (b"\xff\xff\xff\xff", "cannot have 4294967295 bytes"),
        (b"\x80\0\0\0", "cannot have 2147483648 bytes"),
        (b"\1\0\0\1", "the limit 16777216"),
        (b"\0\0\0\4\0\0\0\1", "its header has 1; the limit is 0"),
        (b"\0\0\0\x20\0\0\0\x1d", "its header has 29; the limit is 28"),
        (b"\0\x10\0\0\0\x08\0\0", "its header has 524288; the limit is 262144"),
        (b"\0\0\0\x20\2\0\0\x10", "form 2"),
        (b"\0\0\0\x20\xff\0\0\x10", "form 255"),
        (b"GET / HTTP/1.1\r\n", "HTTP;"),
        (b"PATCH / HTTP/1.1\r\n", "HTTP;"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2"),
        (b"SSH-2.0-OpenSSH_9.6", "SSH"),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", "proxy"),
        (b"\r\n\r\n\0\r\nQUIT\n", "proxy"),
        (b"\x16\x03\x01\x02\0\x01\0\x01", "TLS"),
    ],
)
def test_what_is_no_frame_is_refused_at_once(data: bytes, why: str) -> None:
    with pytest.raises(BadFrame, match=why):
        frame_end(memoryview(data), 0)


@pytest.mark.parametrize("first", [b"\x16\x03\x01\0\0", b"\r\n\r\n\0"])
def test_strangers_are_known_even_where_large_frames_are_allowed(first: bytes) -> None:
    with pytest.raises(BadFrame, match="this is the beginning of"):
        frame_end(memoryview(first + bytes(8)), 0, LARGE)


def test_a_length_within_the_limit_is_the_end_of_the_frame() -> None:
    assert frame_end(memoryview(b"?" + struct.pack(">II", 1 << 24, 20)), 1) == 5 + (1 << 24)


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_whatever_the_bytes_are_only_a_bad_frame_is_raised(noise: bytes) -> None:
    data = memoryview(noise)
    with only(BadFrame):
        end = frame_end(data, 0)
        if end is not None and end <= len(data):
            decode_frame(data, 0, end)


def test_a_header_that_no_frame_has_room_for_is_our_own_fault() -> None:
    with pytest.raises(BadFrame, match="no room"):
        encode_head(Command(code=0, reason="x" * (1 << 24)), 0)
    with pytest.raises(BadFrame, match="no room"):
        encode_head(Command(code=0), 1 << 31)


def test_reassembly_keeps_no_more_than_the_rest() -> None:
    frames = Reassembly()
    data = frames.receive(memoryview(b"abcdef"))
    frames.keep(data, 4)
    assert len(frames) == 2
    data = frames.receive(memoryview(b"gh"))
    assert bytes(data) == b"efgh"
    frames.keep(data, 4)
    assert len(frames) == 0
    chunk = memoryview(b"whole")
    assert frames.receive(chunk) is chunk  # nothing is copied while chunks end where frames end
