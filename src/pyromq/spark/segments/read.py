"""Reads a piece of a log on an executor: finds the records, applies the filters, decodes the rest.

A piece is checked as it is read: its records are consecutive, each has its own position as a field, and
the last ends where the piece does, or at the blank that fills the segment. Anything else is damage.

Damage is an error. If loss is allowed, reading continues at the next record whose position field is right, and
the executor's log names the skipped bytes. CRCs are checked only on request.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyromq.errors import BadRecord, StoreError
from pyromq.model.names import SYSTEM_PREFIX, may_send
from pyromq.records import layout
from pyromq.records.java_hash import java_text
from pyromq.records.scan import Stop
from pyromq.spark.decode import decoder
from pyromq.spark.decode.decoder import BATCH_BYTES, BATCH_ROWS, Starts, Walk
from pyromq.spark.segments.options import SegmentsOptions
from pyromq.spark.segments.store_files import Piece
from pyromq.spark.segments.store_places import RemotePlace, is_remote, shown_place

log = logging.getLogger("pyromq.spark")

#: The read size for a file that is not mapped; more for a record that is larger.
WINDOW_BYTES: Final = 16 << 20
#: The largest record: a body of 64 MiB, and its fields.
MOST_WINDOW_BYTES: Final = 128 << 20
MAGICS: Final = tuple(magic.to_bytes(4, "big") for magic in (layout.MAGIC_V1, layout.MAGIC_V2))


class Window(NamedTuple):
    """Some bytes of a file: the log from position `base` on, to be read up to an offset."""

    buffer: Any
    base: int
    limit: int


class Source(Protocol):
    """A file of a log, open for reading."""

    def window(self, position: int, size: int) -> Window:
        """Bytes from a position on, of which there may be fewer, or some before it as well."""


class MappedSource:
    """A file of this machine: all of it is in sight."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        with Path(piece.file).open("rb") as file:
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._mapped.madvise(mmap.MADV_SEQUENTIAL)

    def window(self, position: int, size: int) -> Window:
        piece = self._piece
        return Window(self._mapped, piece.base, min(piece.end - piece.base, len(self._mapped)))


class RemoteSource:
    """A file that is fetched part by part."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._file = RemotePlace(piece.file).open_file()

    def window(self, position: int, size: int) -> Window:
        wanted = min(size, self._piece.end - position)
        data = self._file.read_at(wanted, position - self._piece.base)
        return Window(data, position, len(data))


def open_source(piece: Piece) -> Source:
    return RemoteSource(piece) if is_remote(piece.file) else MappedSource(piece)


# --- reading ---------------------------------------------------------------------------------------------------------


class PieceReader:
    """Record batches of pieces, as the options want them."""

    def __init__(self, options: SegmentsOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._wanted = Wanted(options)

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Raise StoreError, or log the loss if it is allowed."""
        try:
            source = open_source(piece)
        except FileNotFoundError:
            gone = f"{shown_place(piece.file)} was there when the query was planned and is gone now"
            if self._options.fail_on_data_loss:
                raise StoreError(
                    f"{gone}: the store's retention removes old files. Run the query again, or set failOnDataLoss to "
                    "false to read what is left"
                ) from None
            log.warning("%s: its %d bytes are left out, as failOnDataLoss is false", gone, piece.size)
            return
        for window, parcels in self._parcels(piece, source):
            for starts in parcels:
                yield from decoder.batches(window.buffer, starts, self._names, broker=self._options.broker)

    def _parcels(self, piece: Piece, source: Source) -> Iterator[tuple[Window, Iterable[Starts]]]:
        """Starts of wanted records in a window, enough for a batch each."""
        here: Window | None = None
        parcel = Parcel()
        for window, found in records_of(piece, source, strict=self._options.fail_on_data_loss):
            if here is not None and here.buffer is not window.buffer:
                yield here, parcel.rest()
            here = window
            yield window, parcel.take(*self._kept(piece, window, found))
        if here is not None:
            yield here, parcel.rest()

    def _kept(self, piece: Piece, window: Window, found: Walk) -> tuple[Starts, Starts]:
        sizes = np.diff(found.starts, append=found.end)
        kept = self._wanted.mask(window.buffer, found.starts)
        if self._options.verify_crc:
            kept = _both(kept, self._sound(piece, window, found.starts))
        return (found.starts, sizes) if kept is None else (found.starts[kept], sizes[kept])

    def _sound(self, piece: Piece, window: Window, starts: Starts) -> npt.NDArray[np.bool_]:
        """True for records with the right CRC. Raises StoreError for others, unless data may be lost."""
        sound, behind = np.ones(len(starts), np.bool_), 0
        while (bad := _first_bad(window, starts[behind:])) is not None:
            damage = Damage(piece.file, window.base + bad.at, bad.what)
            if self._options.fail_on_data_loss:
                raise damage.error()
            log.warning("%s: the record is left out, as failOnDataLoss is false", damage.sentence)
            behind = int(np.searchsorted(starts, bad.at)) + 1
            sound[behind - 1] = False
        return sound


def _first_bad(window: Window, starts: Starts) -> BadRecord | None:
    """Return the fault of the first record with a wrong CRC."""
    try:
        decoder.verify(window.buffer, starts)
    except BadRecord as bad:
        return bad
    return None


def records_of(piece: Piece, source: Source, *, strict: bool = True) -> Iterator[tuple[Window, Walk]]:
    """Its records, some thousand at a time. Raises StoreError for damage, which is passed over unless `strict`."""
    position, size = piece.start, WINDOW_BYTES
    while position < piece.end:
        window = source.window(position, size)
        found = decoder.walk(window.buffer, position - window.base, window.limit, base=window.base, at_most=BATCH_ROWS)
        if len(found.starts):
            yield window, found
            size = WINDOW_BYTES
        position = window.base + found.end
        if found.stop is None or (found.stop is Stop.LIMIT and position < piece.end and len(found.starts)):
            continue
        if _is_cut(piece, window, found) and size <= MOST_WINDOW_BYTES:
            size = size if len(found.starts) else 2 * size
            continue
        what = _why_ended(piece, window, found)
        if what is None:
            return
        damage = Damage(piece.file, position, what)
        if strict:
            raise damage.error()
        position, size = _behind_damage(piece, window, found), WINDOW_BYTES
        log.warning("%s: reading goes on at %d, as failOnDataLoss is false", damage.sentence, position)


def _behind_damage(piece: Piece, window: Window, found: Walk) -> int:
    """Return the position of the next record in the window, else the window's end, for a further search."""
    data, base = window.buffer, window.base
    last = window.limit - layout.HEAD.size  # a later start has no whole position field
    at = _next_magic(data, found.end + 1, window.limit)
    while at <= last and layout.position_of(data, at) != base + at:
        at = _next_magic(data, at + 1, window.limit)
    if at <= last:
        return base + at
    goes_on = found.stop is not Stop.LIMIT and base + window.limit < piece.end
    return base + max(last, found.end) + 1 if goes_on else piece.end


def _next_magic(data: Any, start: int, limit: int) -> int:
    """Return the next possible record start by its magic number from `start` on; the limit if there is none."""
    found = (data.find(magic, start + 4, limit) for magic in MAGICS)
    return min((at - 4 for at in found if at >= 0), default=limit)


def _is_cut(piece: Piece, window: Window, found: Walk) -> bool:
    """Return whether the window ends inside a record and the file continues."""
    behind = window.limit - found.end
    return window.base + window.limit < piece.end and behind > 0 and (found.stop is Stop.BAD or behind < 8)


def _why_ended(piece: Piece, window: Window, found: Walk) -> str | None:
    """Return the fault at the end of the records; None if they may end there."""
    position = window.base + found.end
    if found.stop is Stop.BLANK:
        size, _ = layout.BLANK.unpack_from(window.buffer, found.end)
        return None if position + size == piece.segment_end else f"a blank of {size} bytes where records must be"
    if found.stop is Stop.EMPTY:
        return None if piece.open_end else "zeroes where a record must be"
    if found.stop is Stop.BAD:
        return decoder.why_none(window.buffer, found.end, window.limit, window.base)
    return None if position == piece.end else "the file is shorter than it was"


class Damage(NamedTuple):
    """A place that has something else than the record that must be there."""

    file: str
    position: int
    what: str

    @property
    def sentence(self) -> str:
        return f"{shown_place(self.file)}: {self.what} at position {self.position}"

    def error(self) -> StoreError:
        return StoreError(
            f"{self.sentence}. Put the file back from a backup or a replica, or set failOnDataLoss to false to go on "
            "with what can be read behind it"
        )


# --- filters ---------------------------------------------------------------------------------------------------------


def is_bookkeeping(topic: str) -> bool:
    """The broker writes it for itself: halves of transactions, delayed messages that wait, timers."""
    return not may_send(topic) or topic.startswith(SYSTEM_PREFIX)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records of a log are rows."""

    options: SegmentsOptions

    def mask(self, buffer: Any, starts: Starts) -> npt.NDArray[np.bool_] | None:
        """True for those that are wanted; None: all are."""
        options, kept = self.options, None
        if options.topics is not None or not options.include_system:
            codes, topics = decoder.topic_codes(buffer, starts)
            kept = np.array([self.is_topic(java_text(topic)) for topic in topics], np.bool_)[codes]
        if not options.include_system:
            flags = decoder.numbers(buffer, starts, "sys_flag") & layout.FLAG_TRANSACTION_MASK
            kept = _both(kept, (flags == 0) | (flags == layout.FLAG_COMMITTED))  # the others are in no queue
        if options.from_ms is not None or options.until_ms is not None:
            kept = _both(kept, self._in_time(decoder.numbers(buffer, starts, "store_ms")))
        return kept

    def is_topic(self, topic: str) -> bool:
        if self.options.topics is not None:
            return topic in self.options.topics
        return self.options.include_system or not is_bookkeeping(topic)

    def _in_time(self, stored_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        kept = np.ones(len(stored_ms), np.bool_)
        if self.options.from_ms is not None:
            kept &= stored_ms >= self.options.from_ms
        if self.options.until_ms is not None:
            kept &= stored_ms < self.options.until_ms
        return kept


def _both(one: npt.NDArray[np.bool_] | None, other: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    return other if one is None else one & other


class Parcel:
    """Gathers starts of records until they are enough for a batch: by their number, or by their bytes."""

    def __init__(self, max_rows: int = BATCH_ROWS, max_bytes: int = BATCH_BYTES) -> None:
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._held: list[Starts] = []
        self._rows = 0
        self._bytes = 0

    def take(self, starts: Starts, sizes: Starts) -> Iterator[Starts]:
        """Add a part; return the parts once they suffice."""
        at, ends = 0, np.cumsum(sizes)
        while at < len(starts):
            before = int(ends[at - 1]) if at else 0
            fitting = int(np.searchsorted(ends, before + self._max_bytes - self._bytes, "right")) - at
            count = min(self._max_rows - self._rows, fitting, len(starts) - at)
            count = max(count, 0 if self._rows else 1)  # one alone always fits
            if count:
                self._held.append(starts[at : at + count])
                self._rows += count
                self._bytes += int(ends[at + count - 1]) - before
                at += count
            if at < len(starts) or self._rows == self._max_rows:
                yield from self.rest()

    def rest(self) -> Iterator[Starts]:
        if self._held:
            yield np.concatenate(self._held)
        self._held, self._rows, self._bytes = [], 0, 0
