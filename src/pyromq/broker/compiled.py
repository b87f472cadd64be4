"""The compiled kernel of this room, or None: the ordinary way serves then. See `pyromq.kernel`."""

from __future__ import annotations

from types import ModuleType

from pyromq import kernel
from pyromq.store.compiled import KERNEL as STORE_KERNEL

KERNEL: ModuleType | None = None

if kernel.wanted() and STORE_KERNEL is not None:
    try:
        from pyromq.broker import _kernel
    except ImportError:
        if kernel.required():
            raise
    else:
        KERNEL = _kernel
