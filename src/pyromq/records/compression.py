"""Bodies made smaller, and read again: zlib, LZ4 and Zstandard, in the forms that RocketMQ's clients exchange.

Three bits of the storage flags say which; none of them set means zlib, which is all that old clients knew. What a body
may become is limited: a few kilobytes can be made to stand for gigabytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, cast

import lz4.frame  # type: ignore[import-untyped]
import zstandard

from pyromq.errors import ConfigError, UnreadableBody
from pyromq.records.layout import FLAG_COMPRESSED, FLAG_COMPRESSION_MASK

CompressionName = Literal["zlib", "lz4", "zstd"]

#: No message is larger than a frame, and no frame than this. Generous: brokers take 4 MiB unless told otherwise.
MAX_BODY_BYTES: Final = 64 << 20

#: Between fast and small; what RocketMQ's clients take.
_ZLIB_LEVEL = 5
_ZSTD_LEVEL = 3

_TYPE_AT = 8


class _Form(NamedTuple):
    flag: int
    compress: Callable[[bytes], bytes]
    #: Takes the body and the largest accepted number of bytes.
    decompress: Callable[[bytes, int], bytes]


def _zlib_compress(body: bytes) -> bytes:
    return zlib.compress(body, _ZLIB_LEVEL)


def _zlib_decompress(data: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    body = stream.decompress(data, limit)
    if not stream.eof and len(body) < limit:
        raise zlib.error("it is cut off")
    return body


def _lz4_compress(body: bytes) -> bytes:
    # Java's reader knows only blocks that do not refer to each other.
    return cast(bytes, lz4.frame.compress(body, block_linked=False, store_size=False))


def _lz4_decompress(data: bytes, limit: int) -> bytes:
    stream = lz4.frame.LZ4FrameDecompressor()
    body = cast(bytes, stream.decompress(data, max_length=limit))
    if not stream.eof and len(body) < limit:
        raise RuntimeError("it is cut off")
    return body


def _zstd_compress(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)


def _zstd_decompress(data: bytes, limit: int) -> bytes:
    stream = zstandard.ZstdDecompressor().decompressobj()
    pieces, size = [], 0
    for at in range(0, len(data), _ZSTD_STEP):
        piece = stream.decompress(data[at : at + _ZSTD_STEP])
        pieces.append(piece)
        size += len(piece)
        if size >= limit:
            return b"".join(pieces)[:limit]
    if not stream.eof:
        raise zstandard.ZstdError("it is cut off")
    return b"".join(pieces)


#: Compressed bytes decoded between two checks of the size. Four of them can stand for 128 KiB.
_ZSTD_STEP = 512

_FORMS: dict[str, _Form] = {
    "lz4": _Form(1 << _TYPE_AT, _lz4_compress, _lz4_decompress),
    "zstd": _Form(2 << _TYPE_AT, _zstd_compress, _zstd_decompress),
    "zlib": _Form(3 << _TYPE_AT, _zlib_compress, _zlib_decompress),
}
_BY_FLAG = {0: _FORMS["zlib"], **{form.flag: form for form in _FORMS.values()}}


def check_compression(name: str) -> None:
    if name not in _FORMS:
        raise ConfigError(f"compression must be one of {', '.join(sorted(_FORMS))}, not {name!r}", "compression")


def compress(body: bytes, name: str) -> tuple[bytes, int]:
    """A body and its storage flags; the body as it was, and no flags, where compressing makes it no smaller."""
    form = _FORMS[name]
    smaller = form.compress(body)
    return (smaller, FLAG_COMPRESSED | form.flag) if len(smaller) < len(body) else (body, 0)


def decompress(body: bytes, storage_flags: int, limit: int = MAX_BODY_BYTES) -> bytes:
    """Return the uncompressed body; the body itself if its storage flags say so. Raises UnreadableBody."""
    found = decompress_up_to(body, storage_flags, limit)
    if found is None:
        raise UnreadableBody(f"the body of {len(body)} bytes decompresses to more than {limit}, which is the limit")
    return found


def decompress_up_to(body: bytes, storage_flags: int, limit: int) -> bytes | None:
    """The same; None if it has more than `limit` bytes then. Raises UnreadableBody."""
    if not storage_flags & FLAG_COMPRESSED:
        return body
    form = _BY_FLAG.get(storage_flags & FLAG_COMPRESSION_MASK)
    if form is None:
        kind = (storage_flags & FLAG_COMPRESSION_MASK) >> _TYPE_AT
        raise UnreadableBody(f"the body is compressed in form {kind}, which is not known here: a newer client sent it")
    try:
        found = form.decompress(body, limit + 1)
    except (zlib.error, RuntimeError, zstandard.ZstdError, EOFError) as problem:
        raise UnreadableBody(f"the body says that it is compressed, but cannot be decompressed: {problem}") from None
    return found if len(found) <= limit else None
