"""From rows to what requests carry, a column at a time: no loop in Python touches a message that goes with others.

Text and bytes of all rows are joined by Arrow into one run of batch entries (see `records.batch`), and a request takes
a piece of it as it is. What a message may not have is found by looking at whole columns, too; the error names the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyromq.client.sending.unique_ids import UniqueIds
from pyromq.errors import IllegalMessage
from pyromq.records import property_names as names
from pyromq.records.compression import compress
from pyromq.records.java_hash import java_hash
from pyromq.records.layout import MAX_PROPERTIES

Ints = npt.NDArray[np.int64]

BYTES = pa.large_binary()
_NONE = pa.scalar(b"", BYTES)
_NAME_END, _VALUE_END = 1, 2
_HEAD = np.dtype([("size", ">u4"), ("magic", ">u4"), ("crc", ">u4"), ("flag", ">i4"), ("body", ">u4")])
#: The fields of a batch entry other than body and properties.
_ENTRY = _HEAD.itemsize + 2
#: The answer to a batch names every message in its header, and headers have a limit.
MAX_MESSAGES = 2000
#: Smaller bodies are sent as they are, as RocketMQ's producers do.
COMPRESS_FROM = 4096
_RESERVED = pa.array(sorted(name.encode() for name in names.RESERVED), BYTES)
#: A column of text, and the property that it becomes.
_PLAIN = (("tags", names.TAGS), ("keys", names.KEYS), ("sharding_key", names.SHARDING_KEY))
_IDS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows, ready but for the queue that they go to. All columns have the same length."""

    #: The number of the first among all rows of the task.
    first: int
    topics: tuple[str, ...]
    #: Of each row, which of `topics` it has.
    topic_codes: Ints
    bodies: pa.LargeBinaryArray
    properties: pa.LargeBinaryArray
    #: The compression of the bodies.
    flags: Ints
    #: -1 where the row names none.
    queue_ids: Ints
    #: A number for each sharding key, as RocketMQ's producers hash it; -1 where there is none.
    key_hashes: Ints
    #: Rows that no request may carry together with others.
    is_alone: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.bodies)

    def numbers(self) -> Ints:
        return np.arange(self.first, self.first + len(self), dtype=np.int64)

    def take(self, chosen: Ints) -> tuple[pa.LargeBinaryArray, pa.LargeBinaryArray]:
        """Bodies and properties of some rows."""
        if len(chosen) == len(self):
            return self.bodies, self.properties
        return self.bodies.take(pa.array(chosen)), self.properties.take(pa.array(chosen))


class Piece(NamedTuple):
    """The content of one request: consecutive entries of a batch."""

    data: memoryview
    messages: int
    flags: int


class Packer:
    """Makes rows ready. `topic` is for those that name none; `now_ms` tells the time for their ids."""

    def __init__(self, topic: str | None, compression: str | None, ids: UniqueIds, now_ms: Callable[[], int]) -> None:
        self._topic = topic
        self._compression = compression
        self._ids = ids
        self._now_ms = now_ms
        self._last_ms = 0
        self._first = 0

    def pack(self, batch: pa.RecordBatch) -> Rows:
        """Raises IllegalMessage for a row that cannot be a message."""
        columns = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
        size, first = batch.num_rows, self._first
        self._first += size
        bodies, flags = self._bodies(columns["body"], first)
        topics, codes = self._topics(columns.get("topic"), size, first)
        return Rows(
            first=first,
            topics=topics,
            topic_codes=codes,
            bodies=bodies,
            properties=self._properties(columns, size, first),
            flags=flags,
            queue_ids=_whole(columns.get("queue_id"), size),
            key_hashes=_key_hashes(columns.get("sharding_key"), size),
            is_alone=_held_back(columns, size),
        )

    def _bodies(self, column: pa.Array, first: int) -> tuple[pa.LargeBinaryArray, Ints]:
        bodies = _as_bytes(column)
        _refuse(
            pc.fill_null(pc.equal(pc.binary_length(bodies), 0), True), first, "has no body: a message must have one"
        )
        flags = np.zeros(len(bodies), dtype=np.int64)
        if self._compression is None:
            return bodies, flags
        packed = [_compressed(body, self._compression) for body in bodies.to_pylist()]
        flags[:] = [flag for _, flag in packed]
        return pa.array([body for body, _ in packed], BYTES), flags

    def _topics(self, column: pa.Array | None, size: int, first: int) -> tuple[tuple[str, ...], Ints]:
        if column is None:
            assert self._topic is not None
            return (self._topic,), np.zeros(size, dtype=np.int64)
        filled = column if self._topic is None else pc.fill_null(column, self._topic)
        _refuse(pc.is_null(filled), first, "names no topic, and the option topic is not given")
        coded = filled.dictionary_encode()
        return tuple(coded.dictionary.to_pylist()), _numpy(coded.indices)

    # --- properties --------------------------------------------------------------------------------------------------

    def _properties(self, columns: dict[str, pa.Array], size: int, first: int) -> pa.LargeBinaryArray:
        parts: list[object] = [_bytes_scalar(f"{names.UNIQUE_KEY}\x01"), self._message_ids(columns, size, first)]
        parts.append(_bytes_scalar(f"\x02{names.WAIT}\x01true\x02"))
        for column, name in _PLAIN:
            if column in columns:
                parts.append(_property(_text(columns[column]), name, column, first))
        parts += _delays(columns, first)
        if "properties" in columns:
            parts.append(_own_properties(columns["properties"], first))
        joined = pc.binary_join_element_wise(*parts, _NONE)
        too_long = pc.greater(pc.binary_length(joined), MAX_PROPERTIES)
        _refuse(too_long, first, f"has properties of more than {MAX_PROPERTIES} bytes, which is what a message holds")
        return joined

    def _message_ids(self, columns: dict[str, pa.Array], size: int, first: int) -> pa.LargeBinaryArray:
        made = self._new_ids(size)
        if "dedup_key" not in columns:
            return made
        given = _without_empty(_as_bytes(columns["dedup_key"]))
        _refuse_marks(given, "dedup_key", first)
        return pc.coalesce(given, made)

    def _new_ids(self, size: int) -> pa.LargeBinaryArray:
        """Ids as RocketMQ's clients make them. Those of one millisecond differ in their last four digits."""
        ids = np.empty((size, 32), dtype=np.uint8)
        for start in range(0, size, _IDS_AT_ONCE):
            self._last_ms = max(self._now_ms(), self._last_ms + 1)
            beginning = self._ids.next(self._last_ms)[:28].encode()
            some = ids[start : start + _IDS_AT_ONCE]
            some[:, :28] = np.frombuffer(beginning, dtype=np.uint8)
            some[:, 28:] = _four_digits()[: len(some)]
        return _of_width(ids, 32)


# --- entries of a batch ----------------------------------------------------------------------------------------------


def pieces(
    bodies: pa.LargeBinaryArray, properties: pa.LargeBinaryArray, flags: Ints, max_bytes: int
) -> Iterator[Piece]:
    """Cut the messages of one queue, in order, into requests of at most about `max_bytes`."""
    entries = _entries(bodies, properties)
    data, offsets = memoryview(entries.buffers()[2] or b""), _offsets(entries)
    start = 0
    for end in _cuts(offsets, flags, max_bytes):
        yield Piece(data[offsets[start] : offsets[end]], end - start, int(flags[start]))
        start = end


def _entries(bodies: pa.LargeBinaryArray, properties: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    body_sizes, property_sizes = _numpy(pc.binary_length(bodies)), _numpy(pc.binary_length(properties))
    heads = np.zeros(len(bodies), dtype=_HEAD)
    heads["size"] = _ENTRY + body_sizes + property_sizes
    heads["body"] = body_sizes
    widths = property_sizes.astype(">u2")
    return pc.binary_join_element_wise(
        _of_width(heads, _HEAD.itemsize), bodies, _of_width(widths, 2), properties, _NONE
    )


def _cuts(offsets: Ints, flags: Ints, max_bytes: int) -> Iterator[int]:
    """Return the end of each piece: at the size, at the number, or at a change of the bodies' form."""
    count, start = len(flags), 0
    changes = np.append(np.flatnonzero(flags[1:] != flags[:-1]) + 1, count)
    while start < count:
        fits = int(np.searchsorted(offsets, offsets[start] + max_bytes, side="right")) - 1
        same = int(changes[np.searchsorted(changes, start, side="right")])
        start = max(min(fits, start + MAX_MESSAGES, same, count), start + 1)
        yield start


def numbered(before: bytes, numbers: Ints, after: bytes) -> pa.LargeBinaryArray:
    """Such a number, in decimal, between two texts."""
    digits = pa.array(numbers).cast(pa.string()).cast(BYTES)
    return pc.binary_join_element_wise(pa.scalar(before, BYTES), digits, pa.scalar(after, BYTES), _NONE)


def in_front(these: pa.LargeBinaryArray, of_those: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    return pc.binary_join_element_wise(these, of_those, _NONE)


# --- columns ---------------------------------------------------------------------------------------------------------


def _as_bytes(column: pa.Array) -> pa.LargeBinaryArray:
    if pa.types.is_string_view(column.type) or pa.types.is_string(column.type):
        column = column.cast(pa.large_string())
    return column.cast(BYTES)


def _text(column: pa.Array) -> pa.LargeBinaryArray:
    """Text; of several words, one text with spaces between them."""
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return _as_bytes(column)
    joined = [None if words is None else " ".join(word for word in words if word) for words in column.to_pylist()]
    return pa.array(joined, pa.large_string()).cast(BYTES)


def _without_empty(texts: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    return pc.if_else(pc.equal(pc.binary_length(texts), 0), pa.scalar(None, BYTES), texts)


def _property(texts: pa.LargeBinaryArray, name: str, column: str, first: int) -> pa.LargeBinaryArray:
    """`name 0x01 text 0x02`; nothing where there is no text."""
    present = _without_empty(texts)
    _refuse_marks(present, column, first)
    return pc.fill_null(
        pc.binary_join_element_wise(_bytes_scalar(f"{name}\x01"), present, _bytes_scalar("\x02"), _NONE), b""
    )


def _delays(columns: dict[str, pa.Array], first: int) -> Iterator[pa.LargeBinaryArray]:
    size = len(columns["body"])
    levels, moments = _levels(columns, size), _moments(columns, size)
    _refuse(
        pa.array((levels > 0) & (moments >= 0)), first, "has both delay_level and deliver_at: one of them is enough"
    )
    _refuse(pa.array(levels < 0), first, "has a negative delay_level; levels begin at 1")
    for numbers, name, is_given in (
        (levels, names.DELAY_LEVEL, levels > 0),
        (moments, names.DELIVER_AT_MS, moments >= 0),
    ):
        if is_given.any():
            written = numbered(f"{name}\x01".encode(), numbers, b"\x02")
            yield pc.if_else(pa.array(is_given), written, _NONE)


def _held_back(columns: dict[str, pa.Array], size: int) -> npt.NDArray[np.bool_]:
    return np.asarray((_levels(columns, size) != 0) | (_moments(columns, size) >= 0))


def _levels(columns: dict[str, pa.Array], size: int) -> Ints:
    return _whole(columns.get("delay_level"), size, absent=0)


def _moments(columns: dict[str, pa.Array], size: int) -> Ints:
    """In ms since 1970, not even a part of a millisecond early; -1 where there is none."""
    column = columns.get("deliver_at")
    if column is None:
        return np.full(size, -1, dtype=np.int64)
    micros = _numpy(pc.fill_null(column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), -1000))
    return np.asarray(-(-micros // 1000))


def _own_properties(column: pa.MapArray, first: int) -> pa.LargeBinaryArray:
    """The entries of each row's map. Names that RocketMQ or we keep for ourselves are left out, and empty values."""
    ends = _numpy(column.offsets)
    start, stop = int(ends[0]), int(ends[-1])
    keys, values = _as_bytes(column.keys[start:stop]), _as_bytes(column.items[start:stop])
    left_out = pc.or_(pc.is_in(keys, value_set=_RESERVED), pc.starts_with(keys, names.OWN_PREFIX))
    left_out = pc.or_(left_out, pc.equal(pc.binary_length(keys), 0))
    left_out = pc.or_(left_out, pc.fill_null(pc.equal(pc.binary_length(values), 0), True))
    _refuse_marks(keys, "properties", first)
    _refuse_marks(values, "properties", first)
    entries = pc.binary_join_element_wise(
        keys, _bytes_scalar("\x01"), pc.fill_null(values, b""), _bytes_scalar("\x02"), _NONE
    )
    entries = pc.if_else(left_out, _NONE, entries)
    # The entries of a row stand one behind the other: together they are the row's text, and nothing is copied.
    of_rows = _offsets(entries)[ends - start]
    texts = pa.LargeBinaryArray.from_buffers(BYTES, len(column), [None, pa.py_buffer(of_rows), entries.buffers()[2]])
    return pc.if_else(column.is_null(), _NONE, texts) if column.null_count else texts


def _key_hashes(column: pa.Array | None, size: int) -> Ints:
    """Each key is hashed once, as Java does it."""
    if column is None:
        return np.full(size, -1, dtype=np.int64)
    coded = column.dictionary_encode()
    hashes = np.array([abs(java_hash(key)) if key else -1 for key in coded.dictionary.to_pylist()] + [-1], np.int64)
    return hashes[_numpy(pc.fill_null(coded.indices, len(hashes) - 1))]


def _whole(column: pa.Array | None, size: int, absent: int = -1) -> Ints:
    if column is None:
        return np.full(size, absent, dtype=np.int64)
    return _numpy(pc.fill_null(column.cast(pa.int64()), absent))


def _compressed(body: bytes, name: str) -> tuple[bytes, int]:
    return compress(body, name) if len(body) >= COMPRESS_FROM else (body, 0)


# --- refusing --------------------------------------------------------------------------------------------------------


def _refuse(is_wrong: pa.BooleanArray, first: int, why: str) -> None:
    """Raises IllegalMessage that names the first row where it is so."""
    if pc.any(is_wrong).as_py():
        row = int(np.flatnonzero(is_wrong.to_numpy(zero_copy_only=False))[0])
        raise IllegalMessage(f"row {first + row} of this task {why}")


def _refuse_marks(texts: pa.LargeBinaryArray, column: str, first: int) -> None:
    """The two bytes that separate properties cannot be in one."""
    offsets = _offsets(texts)
    data = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    if ((data == _NAME_END) | (data == _VALUE_END)).any():
        raise IllegalMessage(
            f"a value of the column {column}, in row {first} of this task or one of the {len(texts)} behind it, has a "
            "byte 0x01 or 0x02 in it, which separate the properties of a message"
        )


# --- memory ----------------------------------------------------------------------------------------------------------


def _bytes_scalar(text: str) -> pa.Scalar:
    return pa.scalar(text.encode(), BYTES)


def _numpy(column: pa.Array) -> Ints:
    return np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.int64, copy=False)


def _offsets(texts: pa.LargeBinaryArray) -> Ints:
    found = np.frombuffer(texts.buffers()[1], dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return found if len(found) else np.zeros(1, dtype=np.int64)


def _of_width(data: npt.NDArray[np.generic], width: int) -> pa.LargeBinaryArray:
    """Return the data as values of `width` bytes each, without a copy."""
    count = data.nbytes // width
    offsets = np.arange(0, data.nbytes + 1, width, dtype=np.int64)
    return pa.LargeBinaryArray.from_buffers(BYTES, count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


_digits: list[npt.NDArray[np.uint8]] = []


def _four_digits() -> npt.NDArray[np.uint8]:
    """All numbers of two bytes in hexadecimal, made when they are needed first."""
    if not _digits:
        written: Sequence[bytes] = [b"%04X" % number for number in range(_IDS_AT_ONCE)]
        _digits.append(np.frombuffer(b"".join(written), dtype=np.uint8).reshape(_IDS_AT_ONCE, 4))
    return _digits[0]
