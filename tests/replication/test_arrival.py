"""Nothing is appended that was not checked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.model.message import Draft
from pyromq.records import layout
from pyromq.records.record import encode
from pyromq.replication.arrival import Checked, StreamDamaged, check_arrived

SEGMENT = 2048


def a_log(bodies: list[bytes], begin: int = 0) -> bytes:
    """Records one behind the other, with the blanks that end segments; the bytes from `begin` on."""
    log = bytearray()
    for number, body in enumerate(bodies):
        record = encode(Draft(b"t", 0, body), len(log), number, 1000 + number, True)
        room = SEGMENT - len(log) % SEGMENT
        if len(record) + layout.BLANK_RESERVE > room:
            log += layout.BLANK.pack(room, layout.MAGIC_BLANK) + bytes(room - layout.BLANK.size)
            record = encode(Draft(b"t", 0, body), len(log), number, 1000 + number, True)
        log += record
    return bytes(log[begin:])


def check(data: bytes, position: int = 0) -> Checked:
    return check_arrived(memoryview(data), position, SEGMENT)


def test_whole_records_are_good_over_the_end_of_a_segment() -> None:
    log = a_log([bytes(300)] * 12)
    assert len(log) > SEGMENT
    assert check(log) == Checked(len(log), 12, 1011)


@given(st.lists(st.binary(max_size=400), min_size=1, max_size=12), st.data())
def test_a_frame_may_end_anywhere_and_nothing_good_is_refused(bodies: list[bytes], data: st.DataObject) -> None:
    log = a_log(bodies)
    at = records = 0
    end = 0
    while at < len(log):
        end = data.draw(st.integers(max(end, at) + 1 if max(end, at) < len(log) else len(log), len(log)))
        found = check(log[at:end], at)
        at += found.length
        records += found.records
    assert records == len(bodies)


@given(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=6), st.data())
def test_a_flipped_bit_is_never_appended(bodies: list[bytes], data: st.DataObject) -> None:
    log = bytearray(a_log(bodies))
    place = data.draw(st.integers(0, len(log) - 1))
    log[place] ^= 1 << data.draw(st.integers(0, 7))
    damage: StreamDamaged | None = None
    try:
        found = check(bytes(log))
    except StreamDamaged as error:
        damage = error
    if damage is not None:
        assert damage.position <= place
    else:
        in_blank = any(
            log[at : at + 8] == layout.BLANK.pack(SEGMENT - at % SEGMENT, layout.MAGIC_BLANK) and place >= at + 8
            for at in range(len(log) - 8)
        )
        assert found.length <= place or in_blank


def test_bytes_for_another_position_are_refused_and_shown() -> None:
    log = a_log([b"x"] * 3)
    with pytest.raises(StreamDamaged, match="position 64") as caught:
        check(log, 64)
    assert caught.value.found.startswith(log[:8])


@given(st.binary(min_size=8, max_size=300))
def test_any_bytes_are_refused_or_wait_for_more(data: bytes) -> None:
    try:
        found = check(data)
    except StreamDamaged:
        return
    assert found.length <= len(data)
