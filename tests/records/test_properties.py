"""Properties in record form, read as RocketMQ reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import IllegalMessage
from pyromq.records.properties import decode_properties, encode_properties, split_properties, without_crc
from records.drafts import properties, words


@given(st.dictionaries(words, words, max_size=6))
def test_what_was_written_is_read_again(table: dict[str, str]) -> None:
    assert decode_properties(encode_properties(table)) == table


@pytest.mark.parametrize(
    ("data", "table"),
    [
        (b"", {}),
        (b"a\x01b\x02", {"a": "b"}),
        (b"a\x01b", {"a": "b"}),  # the last separator may be missing
        (b"a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
        (b"\x01b\x02c\x01d\x02", {"c": "d"}),  # no name
        (b"a\x01\x02c\x01d\x02", {"c": "d"}),  # no value
        (b"a\x02c\x01d\x02", {"c": "d"}),  # neither
        (b"\x02\x02c\x01d\x02\x02", {"c": "d"}),
        (b"a\x011\x02a\x012\x02", {"a": "2"}),  # the later one counts
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),  # the first 0x01 ends the name
        ("TAGS\x01über\x02".encode(), {"TAGS": "über"}),
        (b"a\x01\xff\x02", {"a": "\ufffd"}),
    ],
)
def test_the_rules_of_reading(data: bytes, table: dict[str, str]) -> None:
    assert decode_properties(data) == table


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("", "v", "empty name or value"),
        ("n", "", "empty name or value"),
        ("a\x01b", "v", "contains a separator"),
        ("a\x02b", "v", "contains a separator"),
        ("n", "a\x02b", "contains a separator"),
    ],
)
def test_what_could_not_be_read_back_is_refused(name: str, value: str, sentence: str) -> None:
    with pytest.raises(IllegalMessage, match=sentence):
        encode_properties({name: value})


@given(st.binary(max_size=100))
def test_any_bytes_can_be_read(data: bytes) -> None:
    for name, value in split_properties(data):
        assert name
        assert value
        assert b"\x02" not in name + value


@given(properties())
def test_taking_the_crc_out_leaves_everything_else(data: bytes) -> None:
    left = without_crc(data)
    expected = [entry for entry in split_properties(data) if entry[0] != b"__CRC32#"]
    assert list(split_properties(left)) == expected
    assert without_crc(left) == left
