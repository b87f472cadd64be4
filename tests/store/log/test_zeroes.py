"""Zeroes are found and made, and pages that are zero already stay untouched."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.files.disk import OsDisk
from pyromq.store.log.zeroes import last_nonzero, last_nonzero_readable, zero

FORMS = pytest.mark.parametrize("find", [last_nonzero, last_nonzero_readable], ids=["chosen", "readable"])


@FORMS
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 200_000])
def test_nothing_but_zeroes(find: object, size: int) -> None:
    assert find(memoryview(bytes(size)), 0, size) == 0  # type: ignore[operator]


@FORMS
@pytest.mark.parametrize("at", [0, 1, 63, 64, 65_535, 65_536, 199_999])
def test_the_last_byte_that_is_not_zero(find: object, at: int) -> None:
    buffer = bytearray(200_000)
    buffer[at] = 1
    assert find(memoryview(buffer), 0, len(buffer)) == at + 1  # type: ignore[operator]
    assert find(memoryview(buffer), at + 1, len(buffer)) == at + 1  # type: ignore[operator]
    assert find(memoryview(buffer), 0, at) == 0  # type: ignore[operator]


@given(st.integers(0, 150_000), st.integers(0, 150_000))
def test_only_the_given_bytes_are_zeroed(start: int, end: int) -> None:
    start, end = sorted((start, end))
    buffer = bytearray(b"x" * 150_000)
    zero(memoryview(buffer), start, end)
    assert buffer == b"x" * start + bytes(end - start) + b"x" * (150_000 - end)


def test_a_hole_stays_a_hole(tmp_path: Path) -> None:
    file = OsDisk(tmp_path / "staging").create_mapped(tmp_path / "file", 1 << 20, reserve=False)
    file.buffer[5] = 1
    zero(file.buffer, 0, file.size)
    file.sync()
    assert not any(file.buffer)
    assert (tmp_path / "file").stat().st_blocks * 512 <= 64 * 1024
    file.close()
