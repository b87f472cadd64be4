"""Loads the accelerated (compiled) modules.

`PYROMQ_KERNEL` decides: `auto` (the default: accelerated where it was built), `python`, or `compiled` (an error if it
was not built). `records` and `spark` have theirs beside the functions that define them; all others are in `accel/`,
which can be removed. An accelerated function does what its definition does; differential tests compare them.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

from pyromq.errors import ConfigError

CHOICES = ("auto", "python", "compiled")
#: Accelerated modules by the name that `load` takes. One that calls another is not there without it.
MODULES = {
    "records": "pyromq.records._kernel",
    "spark": "pyromq.spark._kernel",
    "append_batch": "pyromq.accel._append_batch",
    "queues": "pyromq.accel._queues",
    "sync": "pyromq.accel._sync",
    "accelerator": "pyromq.accel.accelerator",
}


def wanted() -> bool:
    """Return whether accelerated modules are loaded where they were built. Raises ConfigError."""
    choice = os.environ.get("PYROMQ_KERNEL", "auto")
    if choice not in CHOICES:
        raise ConfigError(f"PYROMQ_KERNEL={choice} is not one of {', '.join(CHOICES)}")
    return choice != "python"


def required() -> bool:
    """Return whether a missing accelerated module is an error."""
    return os.environ.get("PYROMQ_KERNEL") == "compiled"


def load(name: str) -> ModuleType | None:
    """Return the accelerated module of this name; None if its definition serves."""
    if not wanted():
        return None
    try:
        return import_module(MODULES[name])
    except ImportError:
        if required():
            raise
        return None
