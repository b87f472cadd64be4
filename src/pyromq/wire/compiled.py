"""The compiled kernel of this room, or None: the ordinary way serves then. See `pyromq.kernel`."""

from __future__ import annotations

from types import ModuleType

from pyromq import kernel

KERNEL: ModuleType | None = None

if kernel.wanted():
    try:
        from pyromq.wire import _kernel
    except ImportError:
        if kernel.required():
            raise
    else:
        KERNEL = _kernel
