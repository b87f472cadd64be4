"""The compiled kernel of this room, or None: the readable functions serve then. See `pyromq.kernel`."""

from __future__ import annotations

from types import ModuleType

from pyromq import kernel
from pyromq.records.compiled import KERNEL as RECORDS_KERNEL

KERNEL: ModuleType | None = None

if kernel.wanted() and RECORDS_KERNEL is not None:
    try:
        from pyromq.spark import _kernel
    except ImportError:
        if kernel.required():
            raise
    else:
        KERNEL = _kernel
