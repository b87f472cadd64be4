"""Damaged frames and fields: only typed errors, in bounded time and memory, for every request that is known."""

from __future__ import annotations

import importlib
import pkgutil
import random
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyromq.wire
from late import in_time
from pyromq.errors import BadFrame, BadRequest, NotSupported
from pyromq.wire.command import Command, Serialization
from pyromq.wire.fields import wire_names
from pyromq.wire.frames import decode_frame, encode_frame, frame_end
from pyromq.wire.requests.client import decode_request, known_requests
from wire.shapes import only

for _module in pkgutil.walk_packages(pyromq.wire.__path__, "pyromq.wire."):
    importlib.import_module(_module.name)  # importing a module registers its requests

#: The values of made-up fields.
ODD_VALUES = [
    "", "0", "-1", "1", "7", "true", "null", "NaN", "9" * 400, "-9223372036854775808", "9223372036854775808", "\0",
    "a\0b", "../../etc/passwd", "%RETRY%x", "\x01\x02", "{", "[[[[", '{"a":1}', "é" * 300, "x" * 70_000,
]  # fmt: skip

VALUES = st.one_of(st.sampled_from(ODD_VALUES), st.text(max_size=20), st.integers().map(str))


def understand(data: bytes) -> None:
    """Handle bytes as a server does, up to the handler."""
    view = memoryview(data)
    at = 0
    while (end := frame_end(view, at)) is not None and end <= len(view):
        command = decode_frame(view, at, end)
        with only(BadRequest, NotSupported):
            decode_request(command)
        at = end


def mutations(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Bytes flipped, cut out, doubled and put in."""
    chance = random.Random(seed)
    for _ in range(count):
        damaged = bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 5))):
            at = chance.randrange(len(damaged) + 1)
            match chance.randrange(4):
                case 0:
                    damaged[at : at + 1] = bytes([chance.randrange(256)])
                case 1:
                    del damaged[at : at + chance.randrange(9)]
                case 2:
                    damaged[at:at] = damaged[at : at + chance.randrange(30)]
                case _:
                    damaged[at : at + 4] = chance.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"))
        yield bytes(damaged)


def sample_frame(code: int, serialization: Serialization) -> bytes:
    kind = known_requests()[code]
    names = {*wire_names(kind).values(), *wire_names(kind, short=True).values()}
    fields = dict.fromkeys(sorted(names), "1")
    return encode_frame(Command(code=code, fields=fields, body=b"body", serialization=serialization))


@pytest.mark.parametrize("serialization", Serialization)
@pytest.mark.parametrize("code", sorted(known_requests()))
def test_damaged_frames_raise_only_typed_errors(code: int, serialization: Serialization) -> None:
    frame = sample_frame(code, serialization)
    understand(frame)
    for damaged in mutations(frame, 60, seed=code):
        with only(BadFrame):
            understand(damaged)


@pytest.mark.parametrize("code", sorted(known_requests()))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_made_up_fields_raise_only_typed_errors(code: int, data: st.DataObject) -> None:
    kind = known_requests()[code]
    names = sorted({*wire_names(kind).values(), *wire_names(kind, short=True).values()})
    fields = data.draw(st.dictionaries(st.sampled_from(names) if names else st.text(max_size=5), VALUES))
    with only(BadRequest):
        assert type(decode_request(Command(code=code, fields=fields))) is kind


@pytest.mark.parametrize("code", [-1, 0, 9, 0x7FFF, 99_999, 2**31 - 1])
def test_a_code_that_nobody_knows_is_not_supported(code: int) -> None:
    with pytest.raises(NotSupported, match="not supported"):
        decode_request(Command(code=code))


MAX_HEADER = 256 << 10
WORST = {
    "one long field": encode_frame(Command(code=10, fields={"topic": "x" * 200_000})),
    "escapes": encode_frame(Command(code=10, fields={"topic": "\x01" * 40_000})),
    "a long number": encode_frame(Command(code=30, fields={"topic": "t", "queueId": "9" * 200_000})),
    "a large body": encode_frame(Command(code=10, body=bytes(16_000_000))),
    "many fields": encode_frame(
        Command(code=10, fields={str(n): "" for n in range(512)}, serialization=Serialization.BINARY)
    ),
}


@pytest.mark.parametrize("name", WORST)
def test_the_largest_frames_cost_little_more_than_their_length(name: str) -> None:
    data = WORST[name]
    tracemalloc.start()
    began = time.process_time()
    understand(data)
    took = time.process_time() - began
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2 * len(data) + 20 * MAX_HEADER  # the JSON reader takes some 14 times the header's length
    in_time(took, 1.0)
