"""The compiled kernel of this room, or None: the readable functions serve then. See `pyromq.kernel`."""

from __future__ import annotations

from types import ModuleType

from pyromq import kernel
from pyromq.records.checksum import native_crc32_address

KERNEL: ModuleType | None = None

if kernel.wanted():
    try:
        from pyromq.records import _kernel
    except ImportError:
        if kernel.required():
            raise
    else:
        _kernel.use_crc32(native_crc32_address())
        KERNEL = _kernel
