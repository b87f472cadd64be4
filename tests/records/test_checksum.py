"""CRC-32: one number, whoever computes it."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.records import checksum

#: The check values of CRC-32/ISO-HDLC, and a record's own.
KNOWN = {
    b"": 0,
    b"123456789": 0xCBF43926,
    b"The quick brown fox jumps over the lazy dog": 0x414FA339,
    b"hello world": 0x0D4A1185,
    bytes(32): 0x190A55AD,
    b"\xff" * 32: 0xFF6CAB0B,
}


@pytest.mark.parametrize("data", KNOWN)
def test_known_values(data: bytes) -> None:
    assert checksum.crc32(data, 0) == KNOWN[data]
    assert checksum.positive_crc32(data) == KNOWN[data] & 0x7FFFFFFF


@given(st.binary(max_size=2000), st.integers(0, 20))
def test_the_chosen_library_agrees_with_the_standard_one(data: bytes, start: int) -> None:
    for form in (data[start:], bytearray(data[start:]), memoryview(data)[start:]):
        assert checksum.crc32(form, 0) == zlib.crc32(form)


def test_the_native_function_is_found_where_the_fast_library_is_installed() -> None:
    assert (checksum.native_crc32_address() != 0) is (checksum.LIBRARY == "isal")


def test_a_library_without_the_function_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for file in (None, zlib.__file__ if hasattr(zlib, "__file__") else None, "/no/such/library.so"):
        monkeypatch.setattr(checksum, "_library_file", file)
        assert checksum.native_crc32_address() == 0
