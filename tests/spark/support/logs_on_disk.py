"""Logs on disk, small enough to have several segments, and their expected rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyromq.model.message import Draft
from pyromq.records import layout, record
from pyromq.spark.segments.options import SegmentsOptions
from pyromq.spark.segments.read import PieceReader
from pyromq.spark.segments.store_files import Piece
from records.drafts import STORED_AT_MS
from spark.support.records_in_blocks import ordinary

SEGMENT_BYTES = 4096


def segments_of(drafts: Sequence[Draft], segment_bytes: int = SEGMENT_BYTES) -> dict[int, bytes]:
    """A log in files of equal length, by position, each but the last ended by a blank."""
    files: dict[int, bytearray] = {0: bytearray()}
    base = 0
    for number, draft in enumerate(drafts):
        size = record.encoded_size(draft, True)
        if len(files[base]) + size + layout.BLANK_RESERVE > segment_bytes:
            left = segment_bytes - len(files[base])
            files[base] += layout.BLANK.pack(left, layout.MAGIC_BLANK) + bytes(left - layout.BLANK.size)
            base += segment_bytes
            files[base] = bytearray()
        files[base] += record.encode(draft, base + len(files[base]), number, STORED_AT_MS + number, True)
    files[base] += bytes(segment_bytes - len(files[base]))
    return {position: bytes(data) for position, data in files.items()}


def write_log(directory: Path, drafts: Sequence[Draft], segment_bytes: int = SEGMENT_BYTES) -> list[Path]:
    """A bare log: segments, and nothing around them."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for position, data in segments_of(drafts, segment_bytes).items():
        path = directory / f"{position:020d}"
        path.write_bytes(data)
        paths.append(path)
    return paths


def some_drafts(count: int) -> list[Draft]:
    return [ordinary(number, body=b"%d " % number * (number % 40)) for number in range(count)]


def rows_of(pieces: list[Piece]) -> list[dict[str, object]]:
    """Everything in them, without Spark."""
    reader = PieceReader(
        SegmentsOptions(places=("",), include_system=True),
        ("queue_offset", "commit_log_offset", "topic", "body", "sys_flag"),
    )
    return [row for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist()]


def offsets_of(pieces: list[Piece]) -> list[object]:
    return [row["queue_offset"] for row in rows_of(pieces)]
