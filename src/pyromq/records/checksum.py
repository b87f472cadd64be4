"""CRC-32 as RocketMQ stores it, from the fastest library that is installed.

ISA-L's (package `isal`) is several times as fast as the standard library's on short blocks and twenty times on
long ones; the standard library's serves where it is not installed. All give the same numbers.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable

Buffer = bytes | bytearray | memoryview

try:
    from isal import isal_zlib

    crc32: Callable[[Buffer, int], int] = isal_zlib.crc32
    LIBRARY = "isal"
    _library_file: str | None = isal_zlib.__file__
except ImportError:
    crc32 = zlib.crc32
    LIBRARY = "zlib"
    _library_file = None


def positive_crc32(data: Buffer) -> int:
    """RocketMQ clears the sign bit, so that the number is the same in every language."""
    return crc32(data, 0) & 0x7FFFFFFF


def native_crc32_address() -> int:
    """Return the address of ISA-L's C function, for the compiled modules to call without Python; 0 if unknown.

    The function is an exported symbol of the library (`crc32_gzip_refl(seed, bytes, length)`). It is tried on the
    standard check value first: a library that is built another way is simply not used.
    """
    if _library_file is None:
        return 0
    try:
        function = ctypes.CDLL(_library_file).crc32_gzip_refl
    except (OSError, AttributeError):
        return 0
    function.argtypes = [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64]
    function.restype = ctypes.c_uint32
    if function(0, b"123456789", 9) != 0xCBF43926:
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0
