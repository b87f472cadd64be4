"""The compiled kernel of this room, or None: asyncio reads each connection then. See `pyromq.kernel`."""

from __future__ import annotations

from types import ModuleType

from pyromq import kernel

KERNEL: ModuleType | None = None

if kernel.wanted():
    try:
        from pyromq.net import _kernel
    except ImportError:
        if kernel.required():
            raise
    else:
        KERNEL = _kernel
