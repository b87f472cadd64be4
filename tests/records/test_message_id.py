"""The id that a send returns, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import OffsetNotFound
from pyromq.model.ids import LogPosition
from pyromq.records.message_id import decode_message_id, encode_message_id
from records.drafts import hosts


def test_as_rocketmq_writes_it() -> None:
    host = bytes([10, 0, 0, 1]) + (10911).to_bytes(4, "big")
    assert encode_message_id(host, LogPosition(0x1234)) == "0A00000100002A9F0000000000001234"


@given(hosts, st.integers(0, 2**63 - 1))
def test_back_and_forth(host: bytes, position: int) -> None:
    text = encode_message_id(host, LogPosition(position))
    assert len(text) in (32, 56)
    assert decode_message_id(text) == decode_message_id(text.lower()) == (host, position)


@pytest.mark.parametrize("text", ["", "0A", "0A00000100002A9F000000000000123", "x" * 32, "0" * 40, "0" * 58, "😀" * 8])
def test_what_is_no_id_finds_nothing(text: str) -> None:
    with pytest.raises(OffsetNotFound, match="is not a message id"):
        decode_message_id(text)


@given(st.text(max_size=60))
def test_any_text_is_an_id_or_not_found(text: str) -> None:
    try:
        host, position = decode_message_id(text)
    except OffsetNotFound:
        return
    assert encode_message_id(host, position) == "".join(text.split()).upper()
