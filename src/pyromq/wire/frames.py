"""Frames: find the end of one, decode it, encode one.

    4 length of what follows, 1 form of the header, 3 length of the header, header, body

`frame_end` looks at a length only, so that a frame which has not arrived whole costs nothing to ask about again, and a
length that no frame can have is refused before anything is kept for it.

Bytes in any chunking, put together again.

    data = frames.receive(chunk)      # the rest of the chunk before, and the chunk
    ...                               # look at the whole frames in it, up to `at`
    frames.keep(data, at)             # the new rest

Nothing is copied while chunks end where frames end, which is the usual case; a frame that comes in many chunks is
copied once, in time proportional to its length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyromq.errors import BadFrame
from pyromq.wire.command import Body, Command, Serialization
from pyromq.wire.header import MAX_FIELDS, decode_header, encode_header, unknown_form

_LENGTHS = struct.Struct(">II")  # of the rest of the frame; form and length of the header
_LENGTH = struct.Struct(">I")
HEAD_BYTES = _LENGTHS.size

_HEADER_SIZE = 0xFFFFFF
_LAST_FORM = max(Serialization)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """The limits of one frame."""

    #: RocketMQ's own limit. The largest message (4 MiB) fits four times.
    frame_bytes: int = 16 << 20
    #: Properties have at most 32 KiB, and JSON may write each byte of them as six.
    header_bytes: int = 256 << 10
    #: Fields in a header.
    fields: int = MAX_FIELDS


DEFAULT_LIMITS = FrameLimits()

#: The first bytes of other protocols, for a helpful log line.
_STRANGERS = {
    b"GET ": "HTTP", b"POST": "HTTP", b"PUT ": "HTTP", b"HEAD": "HTTP", b"OPTI": "HTTP", b"DELE": "HTTP",
    b"PATC": "HTTP", b"CONN": "HTTP", b"TRAC": "HTTP", b"HTTP": "HTTP", b"PRI ": "HTTP/2 (a gRPC client?)",
    b"SSH-": "SSH", b"PROX": "a proxy's preamble", b"\r\n\r\n": "a proxy's preamble",
}  # fmt: skip
#: The least of them, read as a length. Frames that long are rare, so that the question costs nothing.
_FIRST_STRANGER = min(_LENGTH.unpack(first)[0] for first in _STRANGERS)


def frame_end(data: memoryview, start: int, limits: FrameLimits = DEFAULT_LIMITS) -> int | None:
    """Return the end of the frame that begins at `start`, past `data` if it is partial; None if the length is partial.

    Raises BadFrame for lengths that no frame may have, and for a header in an unknown form.
    """
    known = len(data) - start
    if known < HEAD_BYTES:
        if known < _LENGTH.size:
            return None
        size: int = _LENGTH.unpack_from(data, start)[0]
        form = 0
    else:
        size, form = _LENGTHS.unpack_from(data, start)
    header_size = form & _HEADER_SIZE
    if not 4 + header_size <= size <= limits.frame_bytes or header_size > limits.header_bytes:
        raise BadFrame(_why_bad(bytes(data[start : start + 4]), size, header_size, limits))
    if form >> 24 > _LAST_FORM or size >= _FIRST_STRANGER:
        _check_form(bytes(data[start : start + 4]), form >> 24)
    return start + _LENGTH.size + size


def _why_bad(first: bytes, size: int, header_size: int, limits: FrameLimits) -> str:
    stranger = _stranger(first)
    if stranger is not None:
        return stranger
    if not 4 <= size <= limits.frame_bytes:
        return f"a frame cannot have {size} bytes: the least is 4, the limit {limits.frame_bytes}"
    limit = min(size - 4, limits.header_bytes)
    return f"a frame of {size} bytes says that its header has {header_size}; the limit is {limit}"


def _check_form(first: bytes, form: int) -> None:
    stranger = _stranger(first)
    if stranger is not None or form > _LAST_FORM:
        raise BadFrame(stranger or unknown_form(form))


def _stranger(first: bytes) -> str | None:
    """A sentence about a peer that speaks something else, where its first bytes tell what."""
    if first[0] == 0x16 and first[1] == 3:
        return "this is the beginning of TLS, and this port speaks plain text: switch TLS off in the client"
    name = _STRANGERS.get(first)
    return name and f"this is the beginning of {name}; this port speaks RocketMQ's remoting protocol"


def decode_frame(data: memoryview, start: int, end: int, max_fields: int = MAX_FIELDS) -> Command:
    """The command in a whole frame that `frame_end` has found. Raises BadFrame."""
    form = _LENGTH.unpack_from(data, start + 4)[0]
    header_end = start + HEAD_BYTES + (form & _HEADER_SIZE)
    command = decode_header(bytes(data[start + HEAD_BYTES : header_end]), form >> 24, max_fields)
    if header_end < end:
        command.body = bytes(data[header_end:end])
    return command


def decode_frames(data: bytes) -> Iterator[Command]:
    """Whole frames, one behind the other."""
    view, at = memoryview(data), 0
    while at < len(view):
        end = frame_end(view, at)
        assert end is not None
        yield decode_frame(view, at, end)
        at = end


def encode_head(command: Command, body_size: int) -> bytes:
    """Everything of a frame that stands before its body. Raises BadFrame for what no frame has room for."""
    header = encode_header(command)
    size = 4 + len(header) + body_size
    if len(header) > _HEADER_SIZE or size > 0x7FFFFFFF:
        raise BadFrame(f"a frame has no room for a header of {len(header)} bytes and a body of {body_size}")
    return _LENGTHS.pack(size, command.serialization << 24 | len(header)) + header


def encode_frame(command: Command, body: Body | None = None) -> bytes:
    """A whole frame, in one piece."""
    pieces = body_pieces(command.body if body is None else body)
    return b"".join((encode_head(command, sum(map(len, pieces))), *pieces))


def body_pieces(body: Body) -> Sequence[bytes | memoryview]:
    return body if isinstance(body, list) else (body,)


class Reassembly:
    """The partial frame between two chunks of one connection."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def __len__(self) -> int:
        return len(self._rest)

    def receive(self, chunk: memoryview) -> memoryview:
        """The bytes to look at. The view holds until `keep`, which must follow."""
        if not self._rest:
            return chunk
        self._rest += chunk
        return memoryview(self._rest)

    def keep(self, data: memoryview, at: int) -> None:
        """Keep the bytes from `at` on of those that `receive` returned."""
        if data.obj is not self._rest:
            self._rest += data[at:]
            return
        data.release()
        del self._rest[:at]
