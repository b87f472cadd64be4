"""Loads the accelerated (compiled) modules, each beside the Python functions that define what it does.

`PYROMQ_KERNEL` decides: `auto` (the default: accelerated where it was built), `python`, or `compiled` (an error if it
was not built). An accelerated function takes the arguments of its reference implementation and gives the same answers;
differential tests compare them.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

from pyromq.errors import ConfigError

CHOICES = ("auto", "python", "compiled")
#: An accelerated module that calls another one is loaded only together with it.
NEEDS = {"broker": "store", "spark": "records"}


def wanted() -> bool:
    """Return whether accelerated modules are loaded where they were built. Raises ConfigError."""
    choice = os.environ.get("PYROMQ_KERNEL", "auto")
    if choice not in CHOICES:
        raise ConfigError(f"PYROMQ_KERNEL={choice} is not one of {', '.join(CHOICES)}")
    return choice != "python"


def required() -> bool:
    """Return whether a missing accelerated module is an error."""
    return os.environ.get("PYROMQ_KERNEL") == "compiled"


def load(package: str) -> ModuleType | None:
    """Return the accelerated module of a package such as `store`; None if the reference implementation serves."""
    if not wanted() or (package in NEEDS and load(NEEDS[package]) is None):
        return None
    try:
        return import_module(f"pyromq.{package}._kernel")
    except ImportError:
        if required():
            raise
        return None
