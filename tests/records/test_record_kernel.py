"""The compiled twins of encode, scan, CRC, batches and ids give what the readable forms give."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import IllegalMessage
from pyromq.model.ids import LogPosition
from pyromq.model.message import Draft
from pyromq.records import record
from pyromq.records.batch import encode_batch, split_batch_readable
from pyromq.records.checksum import native_crc32_address
from pyromq.records.message_id import encode_message_ids_readable
from pyromq.records.scan import Scan, Stop, scan_readable
from pyromq.store.log.zeroes import last_nonzero_readable
from records.drafts import BASE, INT32, INT64, drafts, log_of, ordinary_log
from records.mutations import mutate

_kernel = pytest.importorskip("pyromq.records._kernel")

MAX_BODY = 1 << 20
ROOM = 64 * 1024


@pytest.fixture(params=["library", "tables"])
def crc_from(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which CRC-32 the kernel uses: ISA-L's where it is installed, or its own tables."""
    _kernel.use_crc32(native_crc32_address() if request.param == "library" else 0)
    yield request.param
    _kernel.use_crc32(native_crc32_address())


def kernel_scan(data: bytes, start: int, limit: int, base: int, check_crc: bool) -> Scan:
    end, count, timestamp_ms, stop = _kernel.scan(data, start, limit, base, check_crc)
    return Scan(end, count, timestamp_ms, Stop(stop))


def scans_alike(data: bytes, start: int = 0, limit: int | None = None, base: int = BASE) -> None:
    limit = len(data) if limit is None else limit
    for check_crc in (True, False):
        expected = scan_readable(memoryview(data), start, limit, base, check_crc)
        assert kernel_scan(data, start, limit, base, check_crc) == expected


# --- encode ----------------------------------------------------------------------------------------------------------


@given(drafts(), st.booleans(), INT64, INT64, INT64)
def test_the_same_bytes_or_handed_back(
    draft: Draft, with_crc: bool, position: int, queue_offset: int, stored_ms: int
) -> None:
    expected = record.encode(draft, position, queue_offset, stored_ms, with_crc)
    found = _kernel.encode(draft, position, queue_offset, stored_ms, with_crc, ROOM, MAX_BODY)
    if found is None:  # only what ends like a CRC, or contains its name, is handed back
        tail = memoryview(draft.properties)
        assert b"__CRC32#" in draft.properties or (not with_crc and record.stored_crc(tail, 0, len(tail)) is not None)
    else:
        assert found == expected


@given(drafts(), st.booleans())
def test_room_is_needed_for_the_record_and_a_blank_behind_it(draft: Draft, with_crc: bool) -> None:
    size = record.encoded_size(draft, with_crc)
    enough = _kernel.encode(draft, 0, 0, 0, with_crc, size + 8, MAX_BODY)
    assert enough is None or len(enough) == size
    assert _kernel.encode(draft, 0, 0, 0, with_crc, size + 7, MAX_BODY) is None


@pytest.mark.parametrize(
    "odd",
    [
        {"topic": b""},
        {"topic": b"x" * 256},
        {"queue_id": -1},
        {"properties": bytes(32747)},
        {"body": bytes(101)},
        {"born_host": b""},
        {"store_host": bytes(9)},
        {"properties": b"__CRC32#\x010123456789\x02"},
        {"properties": b"x\x01#__CRC32#"},
        {"properties": b"__CRC32!\x010123456789\x02"},
    ],
)
def test_what_the_kernel_does_not_know_it_hands_back(odd: dict[str, object]) -> None:
    fields: dict[str, object] = {"topic": b"orders", "queue_id": 0, "body": b"body", **odd}
    assert _kernel.encode(Draft(**fields), 0, 0, 0, False, ROOM, 100) is None  # type: ignore[arg-type]


# --- scan ------------------------------------------------------------------------------------------------------------


@given(st.lists(drafts(), max_size=6), st.booleans(), st.sampled_from([b"", bytes(3), bytes(300), b"\1"]))
def test_a_good_log_is_scanned_alike(some: list[Draft], with_crc: bool, behind: bytes) -> None:
    log = log_of(some, with_crc=with_crc)
    scans_alike(log + behind)
    assert scan_readable(memoryview(log), 0, len(log), BASE, True)[:2] == (len(log), len(some))


@given(st.lists(drafts(), min_size=1, max_size=4), st.data())
def test_a_log_is_scanned_alike_from_anywhere_to_anywhere(some: list[Draft], data: st.DataObject) -> None:
    log = log_of(some)
    start = data.draw(st.integers(0, len(log)))
    scans_alike(log, start, data.draw(st.integers(start, len(log))))


@given(st.binary(max_size=400))
def test_any_bytes_are_scanned_alike(data: bytes) -> None:
    scans_alike(data, base=0)


@pytest.mark.parametrize("seed", range(5))
def test_damaged_logs_are_scanned_alike(seed: int, crc_from: str) -> None:
    rng = random.Random(seed)
    logs = [ordinary_log(rng, 5, with_crc=with_crc) for with_crc in (True, False)]
    for _ in range(400):
        scans_alike(mutate(rng, rng.choice(logs)))


def test_a_scan_outside_of_the_buffer_is_an_error_not_a_crash() -> None:
    for start, limit in [(-1, 5), (3, 2), (0, 11), (11, 11)]:
        with pytest.raises(IndexError):
            _kernel.scan(bytes(10), start, limit, 0, True)


# --- CRC-32 and zeroes -----------------------------------------------------------------------------------------------


@given(st.binary(max_size=300))
def test_the_tables_and_the_library_agree(data: bytes) -> None:
    for address in (0, native_crc32_address()):
        _kernel.use_crc32(address)
        assert _kernel.positive_crc32(data) == zlib.crc32(data) & 0x7FFFFFFF


@given(st.integers(0, 300), st.binary(max_size=3), st.integers(0, 300), st.data())
def test_the_last_byte_that_is_not_zero(before: int, middle: bytes, after: int, data: st.DataObject) -> None:
    buffer = memoryview(bytes(before) + middle + bytes(after))
    start = data.draw(st.integers(0, len(buffer)))
    end = data.draw(st.integers(start, len(buffer)))
    assert _kernel.last_nonzero(buffer, start, end) == last_nonzero_readable(buffer, start, end)


# --- batches and ids -------------------------------------------------------------------------------------------------


def template(data: bytes) -> Draft:
    return Draft(
        topic=b"orders", queue_id=3, body=data, storage_flags=2, born_timestamp_ms=42, reconsume_times=1,
        prepared_position=9,
    )  # fmt: skip


def kernel_split(data: bytes, at_most: int) -> list[Draft] | None:
    found: list[Draft] | None = _kernel.split_batch(template(data), at_most, Draft)
    return found


@given(st.lists(st.tuples(INT32, st.binary(max_size=50), st.binary(max_size=30)), max_size=6), st.integers(0, 7))
def test_a_batch_is_split_the_same(sent: list[tuple[int, bytes, bytes]], at_most: int) -> None:
    data = encode_batch(sent)
    assert kernel_split(data, at_most) == split_batch_readable(template(data), at_most)


@given(st.lists(st.tuples(INT32, st.binary(max_size=9), st.binary(max_size=9)), max_size=3), st.data())
def test_a_batch_that_was_damaged_is_split_the_same_or_handed_back(
    sent: list[tuple[int, bytes, bytes]], draw: st.DataObject
) -> None:
    data = bytearray(encode_batch(sent))
    for _ in range(draw.draw(st.integers(0, 3))):
        if data:
            data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    cut = bytes(data[: draw.draw(st.integers(0, len(data)))])
    try:
        expected = split_batch_readable(template(cut), 10)
    except IllegalMessage:
        assert kernel_split(cut, 10) is None
    else:
        assert kernel_split(cut, 10) == expected


_HOSTS = st.sampled_from([8, 20]).flatmap(lambda size: st.binary(min_size=size, max_size=size))


@given(_HOSTS, st.lists(st.integers(0, 2**63 - 1)))
def test_ids_are_written_the_same(host: bytes, positions: list[int]) -> None:
    places = [LogPosition(position) for position in positions]
    assert _kernel.encode_message_ids(host, places) == encode_message_ids_readable(host, places)
