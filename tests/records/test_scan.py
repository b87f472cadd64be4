"""The scan: records, then a reason to stop. Any bytes at all are fine as input."""

from __future__ import annotations

import contextlib
import random
import time
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import IllegalMessage
from pyromq.model.message import Draft
from pyromq.records import layout, record
from pyromq.records.scan import Scan, Stop, scan, scan_readable, why_bad
from records.drafts import BASE, STORED_AT_MS, drafts, log_of, ordinary_log
from records.mutations import mutate

ORDER = Draft(topic=b"orders", queue_id=0, body=b"body")
THREE = log_of([replace(ORDER, body=b"%d" % number) for number in range(3)])
SCANS = pytest.mark.parametrize("scan", [scan, scan_readable], ids=["chosen", "readable"])


def all_of(data: bytes, form: object = scan, *, base: int = BASE, check_crc: bool = True) -> Scan:
    return form(memoryview(data), 0, len(data), base, check_crc)  # type: ignore[operator,no-any-return]


@SCANS
def test_the_end_of_what_was_given(scan: object) -> None:
    assert all_of(THREE, scan) == Scan(len(THREE), 3, STORED_AT_MS + 2, Stop.LIMIT)


@SCANS
def test_nothing_at_all(scan: object) -> None:
    assert all_of(b"", scan) == Scan(0, 0, 0, Stop.LIMIT)


@SCANS
def test_a_blank_ends_the_segment(scan: object) -> None:
    segment = THREE + layout.BLANK.pack(500, layout.MAGIC_BLANK) + bytes(492)
    assert all_of(segment, scan) == Scan(len(THREE), 3, STORED_AT_MS + 2, Stop.BLANK)


@SCANS
@pytest.mark.parametrize("zeroes", [1, 7, 8, 90, 91, 4096])
def test_zeroes_mean_that_nothing_was_written_yet(scan: object, zeroes: int) -> None:
    assert all_of(THREE + bytes(zeroes), scan) == Scan(len(THREE), 3, STORED_AT_MS + 2, Stop.EMPTY)


@SCANS
@pytest.mark.parametrize(
    "behind",
    [b"\1", bytes(6) + b"\1", THREE[:8], THREE[:90], THREE[:-1], b"\xff" * 200, bytes(4) + b"\1" + bytes(300)],
)
def test_anything_else_is_bad(scan: object, behind: bytes) -> None:
    assert all_of(THREE + behind, scan) == Scan(len(THREE), 3, STORED_AT_MS + 2, Stop.BAD)


@SCANS
def test_a_record_at_the_wrong_place_is_bad_even_when_nobody_asks_for_the_crc(scan: object) -> None:
    assert all_of(THREE, scan, base=BASE + 1, check_crc=False) == Scan(0, 0, 0, Stop.BAD)


@SCANS
def test_without_the_crc_a_changed_body_goes_unnoticed(scan: object) -> None:
    changed = bytearray(THREE)
    changed[layout.SMALLEST_RECORD - 3] ^= 1
    assert all_of(changed, scan, check_crc=False).records == 3
    assert all_of(changed, scan, check_crc=True) == Scan(0, 0, 0, Stop.BAD)


def test_why_a_record_is_bad_is_told_to_people() -> None:
    changed = bytearray(THREE)
    changed[layout.SMALLEST_RECORD - 3] ^= 1
    assert why_bad(memoryview(changed), 0, len(changed), BASE) == "the record's CRC does not match"
    assert why_bad(memoryview(THREE), 0, len(THREE), BASE) == "nothing is wrong with the record"


@SCANS
@pytest.mark.parametrize("length", [0, 3, 90, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x47455420])
@pytest.mark.parametrize("at", [0, 84], ids=["size", "body length"])
def test_a_length_bomb_is_bad_at_once(scan: object, length: int, at: int) -> None:
    """352 MB were once allocated for the bytes `GET ` read as a length."""
    bomb = bytearray(THREE)
    bomb[at : at + 4] = length.to_bytes(4, "big")
    assert all_of(bomb, scan, check_crc=False) == Scan(0, 0, 0, Stop.BAD)


@SCANS
def test_a_record_inside_a_body_is_body(scan: object) -> None:
    """The walk goes from record to record, never from magic to magic."""
    body_at = layout.SMALLEST_RECORD - 3
    fake = record.encode(replace(ORDER, body=b"fake"), BASE + body_at, 0, STORED_AT_MS, True)
    log = log_of([replace(ORDER, body=fake), ORDER])
    assert log[body_at : body_at + len(fake)] == fake
    assert all_of(log, scan).records == 2
    assert scan_readable(memoryview(log), body_at, body_at + len(fake), BASE, True).records == 1


# --- fuzz ------------------------------------------------------------------------------------------------------------


def check_bounds(data: bytes) -> None:
    """What holds for any input: how far, how many, and why are consistent, and the good part scans again."""
    found = all_of(data)
    assert 0 <= found.end <= len(data)
    assert found.records * layout.SMALLEST_RECORD <= found.end
    assert (found.records == 0) == (found.end == 0)
    assert (found.stop is Stop.LIMIT) == (found.end == len(data))
    again = scan_readable(memoryview(data), 0, found.end, BASE, True)
    assert again == Scan(found.end, found.records, found.last_timestamp_ms, Stop.LIMIT)
    if found.stop is Stop.BAD:
        assert why_bad(memoryview(data), found.end, len(data), BASE + found.end) != "nothing is wrong with the record"


@given(st.binary(max_size=600))
def test_any_bytes(data: bytes) -> None:
    check_bounds(data)


@given(st.lists(drafts(), max_size=3), st.binary(max_size=100), st.data())
def test_records_with_any_bytes_over_them(some: list[Draft], noise: bytes, data: st.DataObject) -> None:
    log = bytearray(log_of(some))
    at = data.draw(st.integers(0, len(log)))
    log[at : at + len(noise)] = noise
    check_bounds(bytes(log))


@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_damaged_logs(seed: int) -> None:
    rng = random.Random(seed)
    log = ordinary_log(rng, 6, with_crc=seed % 2 == 0)
    for _ in range(1000):
        data = mutate(rng, log)
        check_bounds(data)
        with contextlib.suppress(IllegalMessage):
            record.decode(memoryview(data))


def test_time_and_memory_stay_within_the_input() -> None:
    """No input takes more than 10 ms or twice its own length and 1 MiB."""
    rng = random.Random(1)
    log = ordinary_log(rng, 8)
    slowest = 0.0
    tracemalloc.start()
    try:
        for _ in range(300):
            data = mutate(rng, log)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            started = time.thread_time()
            all_of(data)
            slowest = max(slowest, time.thread_time() - started)
            assert tracemalloc.get_traced_memory()[1] - before <= 2 * len(data) + (1 << 20)
    finally:
        tracemalloc.stop()
    assert slowest <= 0.010
