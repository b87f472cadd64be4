"""The record layout is written once: the numbers for compiled modules are those of `layout.py`, and nothing else names
a field by its offset."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from pyromq.records import layout, record
from pyromq.records.checksum import positive_crc32
from store.support import order

SOURCE = Path(layout.__file__).resolve().parents[1]
COMPILED = (SOURCE / "records/layout.pxd").read_text(encoding="utf-8")
LINES = re.findall(r"^    ([A-Z_0-9]+) = (\w+)$", COMPILED, re.MULTILINE)
NUMBERS = {name: int(value.removesuffix("u"), 0) for name, value in LINES}
MODULES = sorted(
    path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py*") if path.suffix in (".py", ".pyx")
)
#: A number that is added to the place of a record, and fields of the head by their index.
BY_NUMBER = re.compile(
    r"(?:get|put)(?:32|64)\((?:record|target|data \+ at|self\._at\[\w+\]) \+ \d"
    r"|\bHEAD\.unpack(?:_from)?\([^)]*\)\[\d"
)


@pytest.mark.parametrize("name", NUMBERS)
def test_compiled_modules_have_the_numbers_of_the_layout(name: str) -> None:
    assert getattr(layout, name) == NUMBERS[name]


def test_every_line_of_the_compiled_layout_is_compared() -> None:
    assert len(NUMBERS) == COMPILED.count(" = ")


def test_offsets_are_those_of_the_struct() -> None:
    def offsets(form: str) -> list[int]:
        return [struct.calcsize(form[: end + 1]) for end in range(len(form))]

    names = [
        layout.TOTAL_SIZE_AT, layout.MAGIC_AT, layout.BODY_CRC_AT, layout.QUEUE_ID_AT, layout.USER_FLAG_AT,
        layout.QUEUE_OFFSET_AT, layout.POSITION_AT, layout.STORAGE_FLAGS_AT, layout.BORN_TIMESTAMP_AT,
        layout.BORN_HOST_AT,
    ]  # fmt: skip
    assert names == offsets(layout.HEAD.format)
    tail = [layout.RECONSUME_TIMES_AT, layout.PREPARED_POSITION_AT, layout.BODY_SIZE_AT, layout.TAIL_SIZE]
    assert tail == offsets(layout.TAIL.format)


@pytest.mark.parametrize("at", [0, 7])
def test_fields_are_read_by_their_names(at: int) -> None:
    draft = replace(order("x", queue=3), user_flag=-4, storage_flags=1, born_timestamp_ms=1 << 41)
    data = bytes(at) + record.encode(draft, 1 << 40, 5 << 33, 0, True)
    assert layout.total_size_of(data, at) == len(data) - at
    assert layout.queue_id_of(data, at) == 3
    assert layout.user_flag_of(data, at) == -4
    assert layout.storage_flags_of(data, at) == 1
    assert layout.body_crc_of(data, at) == positive_crc32(b"x")
    assert layout.born_timestamp_of(data, at) == 1 << 41
    assert layout.queue_offset_of(memoryview(data), at) == 5 << 33
    assert layout.position_of(data, at) == 1 << 40


@pytest.mark.parametrize("module", [one for one in MODULES if one != "records/layout.py"])
def test_no_other_module_names_a_field_by_its_number(module: str) -> None:
    text = (SOURCE / module).read_text(encoding="utf-8")
    assert not BY_NUMBER.findall(text)
    if module.endswith(".pyx"):
        assert not re.findall(rf"^    (?:{'|'.join(NUMBERS)}) = ", text, re.MULTILINE), "cimport it from the layout"
