"""Java's hash of a string; the numbers here were printed by Java."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.records.java_hash import java_hash, java_text, key_hash, key_hash_by_parts, tag_code

BY_JAVA = {
    "": 0,
    "a": 97,
    "TagA": 2598919,
    "hello": 99162322,
    "TagA || TagB": 1359775119,
    "заказы": 1849395971,
    "中文标签": 622041809,
    "😀": 1772899,  # two UTF-16 units
    "\ud83d": 55357,  # half of one
    "polygenelubricants": -(2**31),
}


@pytest.mark.parametrize("text", BY_JAVA)
def test_as_java_does_it(text: str) -> None:
    assert java_hash(text) == BY_JAVA[text]


def test_two_texts_can_share_a_hash() -> None:
    assert java_hash("Aa") == java_hash("BB") == 2112


def test_broken_utf8_reads_as_java_reads_it() -> None:
    assert tag_code(b"a\xffb\xe4\xb8") == 65935511


def test_the_smallest_int_has_no_absolute_value() -> None:
    """`Math.abs(Integer.MIN_VALUE)` stays negative; RocketMQ takes 0 then."""
    assert java_hash("orders#abydncvw") == -(2**31)
    assert key_hash(b"orders", b"abydncvw") == 0


@given(st.binary(min_size=1, max_size=20), st.binary(max_size=20))
def test_a_key_hash_fits_in_31_bits(topic: bytes, key: bytes) -> None:
    hashed = java_hash(java_text(topic + b"#" + key))
    assert key_hash(topic, key) == (abs(hashed) if hashed > -(2**31) else 0)
    assert 0 <= key_hash(topic, key) < 2**31


@given(st.text(max_size=30))
def test_the_definition(text: str) -> None:
    units = memoryview(text.encode("utf-16-be", "surrogatepass"))
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) % 2**32
    assert java_hash(text) % 2**32 == value


keys = st.text(st.characters(codec="utf-8"), max_size=40).map(str.encode) | st.binary(max_size=20)


@given(st.sampled_from([b"orders", "заказы".encode(), b"\xff"]), st.lists(keys, max_size=5), keys)
def test_a_key_hashed_by_parts_has_the_same_hash(topic: bytes, ends: list[bytes], beginning: bytes) -> None:
    for end in [*ends, b"00000001", b"00000002", b""]:
        assert key_hash_by_parts(topic, beginning + end) == key_hash(topic, beginning + end)


def test_the_smallest_int_by_parts() -> None:
    assert key_hash_by_parts(b"orders", b"abydncvw") == 0
