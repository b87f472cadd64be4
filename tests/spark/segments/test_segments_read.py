"""Reading pieces of a log as an executor does: rows, batches and damage."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructType

from pyromq.errors import StoreError
from pyromq.model.message import Draft
from pyromq.records import layout
from pyromq.spark.segments import read as segments_read
from pyromq.spark.segments.data_source import CLOCK_MARGIN_MS, SegmentsReader, in_time, plan
from pyromq.spark.segments.options import SegmentsOptions
from pyromq.spark.segments.read import Parcel, PieceReader, Window, is_bookkeeping
from pyromq.spark.segments.store_files import Piece, find_pieces
from records.drafts import STORED_AT_MS
from spark.support.logs_on_disk import some_drafts, write_log
from spark.support.records_in_blocks import ordinary
from store.small_store import open_store


def batches(place: Path, names: tuple[str, ...] = ("queue_offset",), **options: object) -> list[pa.RecordBatch]:
    chosen = SegmentsOptions(places=(str(place),), **options)  # type: ignore[arg-type]
    reader = PieceReader(chosen, names)
    return [batch for group in plan(chosen) for piece in group for batch in reader.read(piece)]


def offsets(place: Path, **options: object) -> list[int]:
    return [row["queue_offset"] for batch in batches(place, **options) for row in batch.to_pylist()]


# --- what becomes a row ----------------------------------------------------------------------------------------------


def test_only_the_topics_that_are_wanted(tmp_path: Path) -> None:
    write_log(tmp_path, [ordinary(n, topic=[b"a", b"b", b"c"][n % 3]) for n in range(30)])
    assert offsets(tmp_path, topics=frozenset({"a", "c"})) == [n for n in range(30) if n % 3 != 1]
    assert offsets(tmp_path, topics=frozenset({"none"})) == []


def test_what_the_broker_writes_for_itself_is_left_out_unless_it_is_asked_for(tmp_path: Path) -> None:
    half = ordinary(3)
    half.storage_flags = layout.FLAG_PREPARED
    rolled_back = ordinary(4)
    rolled_back.storage_flags = layout.FLAG_ROLLED_BACK
    committed = ordinary(5)
    committed.storage_flags = layout.FLAG_COMMITTED
    own = [b"RMQ_SYS_TRANS_HALF_TOPIC", b"SCHEDULE_TOPIC_XXXX", b"rmq_sys_wheel_timer"]
    write_log(tmp_path, [*(ordinary(n, topic=topic) for n, topic in enumerate(own)), half, rolled_back, committed])
    assert offsets(tmp_path) == [5]
    assert offsets(tmp_path, include_system=True) == [0, 1, 2, 3, 4, 5]
    assert offsets(tmp_path, topics=frozenset({"SCHEDULE_TOPIC_XXXX"})) == [1], "one that is named is wanted"


@pytest.mark.parametrize("topic", ["orders", "%RETRY%group", "%DLQ%group", "RMQ_SYS_TRACE_TOPIC", "TBW102"])
def test_what_people_send_and_consume_is_no_bookkeeping(topic: str) -> None:
    assert not is_bookkeeping(topic)


def test_only_what_was_stored_in_time(tmp_path: Path) -> None:
    write_log(tmp_path, some_drafts(50))
    assert offsets(tmp_path, from_ms=STORED_AT_MS + 10) == list(range(10, 50))
    assert offsets(tmp_path, until_ms=STORED_AT_MS + 10) == list(range(10)), "the end is not included"
    assert offsets(tmp_path, from_ms=STORED_AT_MS + 10, until_ms=STORED_AT_MS + 12) == [10, 11]
    assert offsets(tmp_path, from_ms=STORED_AT_MS + 99) == []


def test_files_that_are_out_of_time_are_not_even_opened() -> None:
    def piece(base: int, first_ms: int | None) -> Piece:
        return Piece(f"log/{base:020d}", base, base, base + 100, base + 100, first_ms=first_ms)

    hour = 6 * CLOCK_MARGIN_MS
    pieces = [piece(0, hour), piece(100, 2 * hour), piece(200, 3 * hour), piece(300, None), piece(400, 5 * hour)]
    assert in_time(pieces, None, None) == pieces
    assert in_time(pieces, 3 * hour + CLOCK_MARGIN_MS + 1, None) == pieces[2:]
    assert in_time(pieces, 3 * hour, None) == pieces[1:], "a clock may have been set back"
    assert in_time(pieces, None, 2 * hour) == [*pieces[:2], pieces[3]], "the time of the fourth is not known"
    elsewhere = Piece("other/0", 500, 500, 600, 600, first_ms=9 * hour)
    assert in_time([piece(0, hour), elsewhere], 5 * hour, None) == [piece(0, hour), elsewhere]


def test_a_store_without_a_message_is_an_empty_table(tmp_path: Path) -> None:
    open_store(tmp_path / "store").close()
    assert offsets(tmp_path / "store") == []
    (tmp_path / ("0" * 20)).write_bytes(bytes(4096))
    assert offsets(tmp_path / ("0" * 20), from_ms=1, min_partitions=3) == []
    reader = SegmentsReader({"path": str(tmp_path / "store")}, StructType().add("queue_offset", LongType()))
    [partition] = reader.partitions()  # of none Spark would make one with no value at all
    assert list(reader.read(partition)) == []


def test_the_broker_is_what_the_option_says(tmp_path: Path) -> None:
    write_log(tmp_path, some_drafts(2))
    assert [b.to_pydict() for b in batches(tmp_path, ("broker",), broker="broker-a")] == [{"broker": ["broker-a"] * 2}]
    assert [b.to_pydict() for b in batches(tmp_path, ("broker",))] == [{"broker": [None] * 2}]


# --- batches ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(1, 50), max_size=12), max_size=6), st.integers(1, 9), st.integers(1, 120))
def test_parcels_have_everything_in_order_and_not_too_much(
    steps: list[list[int]], max_rows: int, max_bytes: int
) -> None:
    parcel = Parcel(max_rows, max_bytes)
    size_of: dict[int, int] = {}
    found: list[list[int]] = []
    for sizes in steps:
        first = len(size_of)
        size_of |= {first + n: size for n, size in enumerate(sizes)}
        starts = np.arange(first, first + len(sizes))
        found += [some.tolist() for some in parcel.take(starts, np.array(sizes, np.int64))]
    found += [some.tolist() for some in parcel.rest()]
    assert [start for some in found for start in some] == list(size_of)
    for some in found:
        assert 0 < len(some) <= max_rows
        assert len(some) == 1 or sum(size_of[start] for start in some) <= max_bytes
    for some, after in pairwise(found):
        is_full = len(some) == max_rows or sum(size_of[s] for s in [*some, after[0]]) > max_bytes
        assert is_full, "a batch that could have been larger"


def test_few_wanted_records_among_many_come_in_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments_read, "BATCH_ROWS", 2)  # so that it walks in small steps
    write_log(tmp_path, [ordinary(n, topic=b"rare" if n % 10 == 0 else b"often") for n in range(60)], 1 << 16)
    assert [batch.num_rows for batch in batches(tmp_path, topics=frozenset({"rare"}))] == [6]


# --- damage ----------------------------------------------------------------------------------------------------------


def damaged_log(tmp_path: Path, spoil: bytes, at: int) -> tuple[list[Piece], int]:
    """Pieces that were found before something happened to the second record of the first file."""
    first, *_ = write_log(tmp_path, some_drafts(60))
    pieces = find_pieces(str(tmp_path))
    data = bytearray(first.read_bytes())
    second = int.from_bytes(data[:4], "big")
    data[second + at : second + at + len(spoil)] = spoil
    first.write_bytes(data)
    return pieces, second


def read(pieces: list[Piece], column: str = "queue_offset", **options: object) -> list[int]:
    reader = PieceReader(SegmentsOptions(places=("",), **options), (column,))  # type: ignore[arg-type]
    return [row[column] for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("spoil", "at", "words"),
    [
        (b"\1\2\3\4", 4, "the magic number is 0x01020304"),
        (bytes(8), 0, "zeroes where a record must be"),
        (layout.BLANK.pack(50, layout.MAGIC_BLANK), 0, "a blank of 50 bytes where records must be"),
        (b"\0", 35, "it says that it belongs to position"),
        (b"\x7f\xff", 84, "the body length"),
    ],
)
def test_damage_is_an_error_that_names_the_file_and_the_position(
    tmp_path: Path, spoil: bytes, at: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    pieces, second = damaged_log(tmp_path, spoil, at)
    with pytest.raises(StoreError, match=f"{pieces[0].file}: {words}.* at position {second}"):
        read(pieces)
    assert read(pieces, fail_on_data_loss=False) == [0, *range(2, 60)], "nothing else is left out"
    assert f"at position {second}: reading goes on at " in caplog.text


def test_a_body_that_was_changed_is_found_by_its_crc_if_that_is_wanted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pieces, second = damaged_log(tmp_path, b"X", 88)
    assert read(pieces) == list(range(60))
    with pytest.raises(StoreError, match=f"the record's CRC does not match at position {second}"):
        read(pieces, verify_crc=True)
    assert not caplog.text
    assert read(pieces, verify_crc=True, fail_on_data_loss=False) == [0, *range(2, 60)]
    assert f"at position {second}: the record is left out" in caplog.text


def test_every_record_with_a_wrong_crc_is_left_out(tmp_path: Path) -> None:
    [path] = write_log(tmp_path, [ordinary(n, body=b"x" * 20) for n in range(10)])
    pieces = find_pieces(str(tmp_path))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"x" * 20, b"y" * 20, 3).replace(b"x" * 20, b"z" * 20).replace(b"z", b"x", 20))
    lossy = {"verify_crc": True, "fail_on_data_loss": False}
    assert read(pieces, **lossy) == [3]
    path.write_bytes(data.replace(b"x" * 20, b"y" * 20))
    assert read(pieces, **lossy) == []


@pytest.mark.parametrize("window", [200, 333, 1000, 1 << 20])
def test_damage_in_a_file_that_is_fetched_part_by_part(
    tmp_path: Path, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the read window may cut the record after the damage, at any byte."""
    pieces, second = damaged_log(tmp_path, b"\1\2\3\4", 4)
    monkeypatch.setattr(segments_read, "WINDOW_BYTES", window)
    monkeypatch.setattr(segments_read, "open_source", PartByPart)
    assert read(pieces, fail_on_data_loss=False) == [0, *range(2, 60)]
    with pytest.raises(StoreError, match=f"at position {second}"):
        read(pieces)


class PartByPart:
    """A file far away."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece

    def window(self, position: int, size: int) -> Window:
        piece = self._piece
        data = Path(piece.file).read_bytes()[position - piece.base : min(position + size, piece.end) - piece.base]
        return Window(data, position, len(data))


@given(st.data())
def test_whatever_happens_to_a_file_what_is_left_is_read(data: st.DataObject) -> None:
    """No error, no endless loop, nothing twice, and nothing where nothing was.

    Places are compared, not queue offsets: a record that lost its own CRC has only that of its body, like RocketMQ's.
    """
    with TemporaryDirectory() as directory:
        first, *_ = write_log(Path(directory), some_drafts(40))
        pieces = find_pieces(directory)
        whole = read(pieces, "commit_log_offset")
        content = bytearray(first.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(content) - 1))
            spoil = data.draw(st.binary(min_size=1, max_size=300) | st.integers(1, 2000).map(bytes))
            content[at : at + len(spoil)] = spoil
        first.write_bytes(content[: data.draw(st.integers(1, 3 * len(content)))])
        found = read(pieces, "commit_log_offset", fail_on_data_loss=False, verify_crc=True)
        assert found == sorted(set(found))
        assert set(found) <= set(whole)


def test_a_file_that_retention_has_removed_is_told_by_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = write_log(tmp_path, some_drafts(60))
    pieces = find_pieces(str(tmp_path))
    paths[0].unlink()
    with pytest.raises(StoreError, match=f"{paths[0]} was there when the query was planned and is gone now"):
        read(pieces)
    assert read(pieces, fail_on_data_loss=False)[-1] == 59
    assert f"{paths[0]} was there" in caplog.text


def test_a_file_that_became_shorter_is_damage(tmp_path: Path) -> None:
    [path] = write_log(tmp_path, some_drafts(8))
    pieces = find_pieces(str(tmp_path))
    path.write_bytes(path.read_bytes()[: int.from_bytes(path.read_bytes()[:4], "big")])
    with pytest.raises(StoreError, match="the file is shorter than it was"):
        read(pieces)
    assert read(pieces, fail_on_data_loss=False) == [0]


def test_a_file_that_is_full_to_the_last_byte(tmp_path: Path) -> None:
    draft = Draft(b"t", 0, b"")
    size = len(next(iter(write_log(tmp_path / "x", [draft], 200))).read_bytes().rstrip(b"\0"))
    paths = write_log(tmp_path / "log", [draft] * 3, 2 * size + layout.BLANK_RESERVE)
    assert len(paths) == 2
    assert offsets(tmp_path / "log") == [0, 1, 2]
