"""What can be known of an event loop from inside one of its callbacks: whether others want it.

Neither uvloop nor asyncio offers that. uvloop's loop is one of libuv, whose `uv_backend_timeout` says how long it would
sleep now: 0 when a callback is ready. asyncio keeps ready callbacks in a list. Where neither can be had, nothing is
known, and whoever asks must take it that the loop is wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from typing import Any, NamedTuple


class LoopState(NamedTuple):
    """Where to look."""

    #: Readable when one of the loop's sockets is, or another thread wants something; -1: nobody knows.
    descriptor: int
    #: Addresses of a C function and of its argument: it returns 0 when a callback is ready; 0: there is none.
    timeout: int = 0
    argument: int = 0
    #: Else the callbacks that are ready.
    ready: Any = None


UNKNOWN = LoopState(-1)


def state_of(loop: asyncio.AbstractEventLoop) -> LoopState:
    with contextlib.suppress(AttributeError, ImportError, OSError, TypeError, ValueError):
        if hasattr(loop, "_get_backend_id"):
            return _of_uvloop(loop)
        inner: Any = loop
        return LoopState(int(inner._selector.fileno()), ready=inner._ready)
    return UNKNOWN


def _of_uvloop(loop: Any) -> LoopState:
    import uvloop.loop

    module: Any = uvloop.loop
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    ask = ctypes.cast(ctypes.CDLL(module.__file__).uv_backend_timeout, ctypes.c_void_p).value
    argument = pointer(module.libuv_get_loop_t_ptr(loop), None)
    if not ask or not argument:
        return UNKNOWN
    return LoopState(int(loop._get_backend_id()), ask, argument)
