"""Records of a commit log as Arrow batches: of the columns that are asked for, and of nothing else.

    starts = find_records(buffer, 0, len(buffer))
    batch = decode(buffer, starts, ("topic", "queue_offset", "body"))

The buffer is any object with bytes: a mapped segment, a pull's answer. Input is untrusted: an invalid
record raises BadRecord with its position. Records are found first and decoded then, so that a caller can leave out
some of them in between, by their offsets (`numbers`) or their topics (`topic_codes`).

The reference implementation is in `decode.reference`, the rules of the columns in `decode.rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyromq import accelerated
from pyromq.errors import BadRecord
from pyromq.records import layout
from pyromq.records.scan import Stop, why_bad
from pyromq.spark.decode import reference
from pyromq.spark.decode.columns import TIMESTAMP, arrow_schema

ACCELERATED = accelerated.load("spark")

#: A column of text or bytes can have no more: its ends are 32-bit numbers.
MOST_BYTES: Final = (1 << 31) - 1
#: The best size of batches between Python and Spark's JVM, measured.
BATCH_ROWS: Final = 5000
BATCH_BYTES: Final = 8 << 20

Buffer = Any  #: whatever has the buffer protocol
Starts = npt.NDArray[np.int64]


class Walk(NamedTuple):
    """The records found from one position of a buffer on."""

    starts: Starts
    #: Behind the last of them.
    end: int
    #: Why it ended there; None: as many were found as were wanted, and more may follow.
    stop: Stop | None


def find_records(buffer: Buffer, start: int, limit: int, *, base: int | None = None) -> Starts:
    """Return the starts of consecutive records from `start` on, up to the limit, a blank or zeroes.

    `base` is the position of the buffer's first byte in the log, if it is a part of one: then every record must say the
    position that it is at. Raises BadRecord.
    """
    found = walk(buffer, start, limit, base=base)
    if found.stop is Stop.BAD:
        raise BadRecord(found.end, why_none(buffer, found.end, limit, base))
    return found.starts


def walk(buffer: Buffer, start: int, limit: int, *, base: int | None = None, at_most: int | None = None) -> Walk:
    """Return at most `at_most` starts; an invalid record ends the search."""
    if at_most is None:
        at_most = max(limit - start, 0) // layout.SMALLEST_RECORD + 1
    if ACCELERATED is None:
        readable, at, stop = reference.find(_view(buffer), start, limit, base, at_most)
        return Walk(np.array(readable, np.int64), at, stop)
    room = np.empty(at_most, np.int64)
    count, at, code = ACCELERATED.find(buffer, start, limit, base or 0, base is not None, room)
    # A copy: the array is mostly unused, and untouched pages cost nothing.
    return Walk(room[:count].copy(), at, Stop(code) if code < len(Stop) else None)


def why_none(buffer: Buffer, at: int, limit: int, base: int | None) -> str:
    """Return the fault of the record at a position, for people."""
    view = _view(buffer)
    if limit - at < layout.SMALLEST_RECORD:
        return "the record is cut off"
    position = layout.position_of(view, at) if base is None else base + at
    return why_bad(view, at, limit, position)


def decode(
    buffer: Buffer, starts: Starts, names: Sequence[str], *, broker: str | None = None, at_most: int = MOST_BYTES
) -> pa.RecordBatch:
    """The named columns of the records that begin at `starts`, one row each, bodies unpacked. Raises BadRecord.

    `broker` is the value of that column. Raises OverflowError when bodies have more than `at_most` bytes together:
    compressed ones can become large, and `batches` knows what to do then.
    """
    if ACCELERATED is None:
        return reference.decode(reference.rows_of(_view(buffer), starts), names, broker, at_most)
    return _Table(_records(ACCELERATED, buffer, starts), len(starts), broker, at_most).batch(names)


def batches(
    buffer: Buffer, starts: Starts, names: Sequence[str], *, broker: str | None = None, max_bytes: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """The same in several batches, none of which has bodies of much more than `max_bytes`."""
    waiting = [starts[at : at + BATCH_ROWS] for at in range(0, len(starts), BATCH_ROWS)][::-1]
    while waiting:
        some = waiting.pop()
        try:
            yield decode(buffer, some, names, broker=broker, at_most=max_bytes)
        except OverflowError:
            half = len(some) // 2
            if not half:
                raise
            waiting += [some[half:], some[:half]]


def numbers(buffer: Buffer, starts: Starts, name: str) -> npt.NDArray[np.int64]:
    """A column of whole numbers, or `store_ms`, the store times: for a look before decoding. Raises BadRecord."""
    if ACCELERATED is None:
        value = reference.VALUES[name]
        return np.array([value(row) for row in reference.rows_of(_view(buffer), starts)], np.int64)
    records = _records(ACCELERATED, buffer, starts)
    if name in _INT32:
        narrow = np.empty(len(starts), np.int32)
        records.int32s(_INT32[name], narrow)
        return narrow.astype(np.int64)
    wide = np.empty(len(starts), np.int64)
    records.int64s(_INT64[name], wide)
    return wide


def topic_codes(buffer: Buffer, starts: Starts) -> tuple[npt.NDArray[np.int32], list[bytes]]:
    """For each record the number of its topic, and the topics by number. Raises BadRecord.

    Whatever is asked of a topic is asked once for each that occurs: `np.array([wanted(t) for t in topics])[codes]`.
    """
    if ACCELERATED is None:
        found, topics = reference.topic_codes(reference.rows_of(_view(buffer), starts))
        return np.array(found, np.int32), topics
    codes = np.empty(len(starts), np.int32)
    return codes, _records(ACCELERATED, buffer, starts).topic_codes(codes)


def verify(buffer: Buffer, starts: Starts) -> None:
    """Raise BadRecord for the first record whose CRC (its own, else its body's) is not what the bytes say."""
    if ACCELERATED is None:
        bad = reference.first_damaged(reference.rows_of(_view(buffer), starts))
    else:
        bad = _records(ACCELERATED, buffer, starts).first_damaged()
    if bad >= 0:
        at = int(starts[bad])
        raise BadRecord(at, why_none(buffer, at, len(_view(buffer)), None))


def _view(buffer: Buffer) -> memoryview:
    return memoryview(buffer).cast("B")


# --- the compiled form -----------------------------------------------------------------------------------------------

# The offset of a number from the record's first byte; -1 and -2 depend on the hosts (see `_kernel.pyx`).
_STORED_AT, _RECONSUMED = -1, -2
_INT32 = {
    "queue_id": layout.QUEUE_ID_AT,
    "sys_flag": layout.STORAGE_FLAGS_AT,
    "flag": layout.USER_FLAG_AT,
    "reconsume_times": _RECONSUMED,
    "body_crc": layout.BODY_CRC_AT,
    "store_size": layout.TOTAL_SIZE_AT,
}
_INT64 = {"queue_offset": layout.QUEUE_OFFSET_AT, "commit_log_offset": layout.POSITION_AT, "store_ms": _STORED_AT}
_TIMES = {"born_ts": layout.BORN_TIMESTAMP_AT, "store_ts": _STORED_AT}
_OF_PROPERTIES = {"tags", "keys", "msg_id", "properties"}


def _records(kernel: Any, buffer: Buffer, starts: Starts) -> Any:
    records = kernel.Records(buffer, np.ascontiguousarray(starts, np.int64))
    if records.bad >= 0:
        at = int(starts[records.bad])
        view = _view(buffer)
        raise BadRecord(at, str(reference.spans_of(view, at, len(view))))
    return records


class _Table:
    """Wraps the kernel's buffers into arrays."""

    def __init__(self, records: Any, rows: int, broker: str | None, at_most: int) -> None:
        self._records = records
        self._rows = rows
        self._broker = broker
        self._at_most = at_most
        self._made: dict[str, Callable[[], pa.Array]] = {
            "broker": self._broker_column,
            "topic": lambda: self._text(records.topic(pa.allocate_buffer)),
            "msg_id": lambda: self._text(records.message_id(pa.allocate_buffer)),
            "tags": lambda: self._text(records.tags(pa.allocate_buffer)),
            "keys": lambda: self._text(records.keys(pa.allocate_buffer)),
            "born_host": lambda: self._text(records.born_host(pa.allocate_buffer)),
            "body": lambda: self._text(records.body(pa.allocate_buffer, at_most), pa.binary()),
            "properties": self._properties,
        }

    def batch(self, names: Sequence[str]) -> pa.RecordBatch:
        if not _OF_PROPERTIES.isdisjoint(names):
            self._records.split_properties("properties" in names)
        return pa.RecordBatch.from_arrays([self._column(name) for name in names], schema=arrow_schema(names))

    def _column(self, name: str) -> pa.Array:
        if name in _INT32:
            narrow = np.empty(self._rows, np.int32)
            self._records.int32s(_INT32[name], narrow)
            return pa.Array.from_buffers(pa.int32(), self._rows, [None, pa.py_buffer(narrow)], 0)
        if name in _INT64:
            wide = np.empty(self._rows, np.int64)
            self._records.int64s(_INT64[name], wide)
            return pa.Array.from_buffers(pa.int64(), self._rows, [None, pa.py_buffer(wide)], 0)
        return self._times(_TIMES[name]) if name in _TIMES else self._made[name]()

    def _times(self, where: int) -> pa.Array:
        times, validity = np.empty(self._rows, np.int64), np.empty((self._rows + 7) // 8, np.uint8)
        nulls = self._records.micros(where, times, validity)
        bits = pa.py_buffer(validity) if nulls else None
        return pa.Array.from_buffers(TIMESTAMP, self._rows, [bits, pa.py_buffer(times)], nulls)

    def _text(self, written: Any, kind: pa.DataType | None = None, rows: int | None = None) -> pa.Array:
        validity, ends, data, nulls = written
        count = self._rows if rows is None else rows
        return pa.Array.from_buffers(kind or pa.string(), count, [validity, ends, data], nulls)

    def _properties(self) -> pa.Array:
        ends, entries, names, values = self._records.properties(pa.allocate_buffer)
        offsets = pa.Array.from_buffers(pa.int32(), self._rows + 1, [None, ends], 0)
        return pa.MapArray.from_arrays(offsets, self._text(names, rows=entries), self._text(values, rows=entries))

    def _broker_column(self) -> pa.Array:
        if self._broker is None:
            return pa.nulls(self._rows, pa.string())
        return pa.repeat(pa.scalar(self._broker, pa.string()), self._rows)
