"""Which form of the hot functions runs: the compiled kernel, or the readable Python functions that define it.

`PYROMQ_KERNEL` decides: `auto` (the default: compiled where it was built), `python`, or `compiled` (an error when
it was not built). The forms are twins: same arguments, same answers, held equal by differential tests.
"""

from __future__ import annotations

import os

from pyromq.errors import ConfigError

CHOICES = ("auto", "python", "compiled")


def wanted() -> bool:
    """True when the compiled kernel should be tried."""
    choice = os.environ.get("PYROMQ_KERNEL", "auto")
    if choice not in CHOICES:
        raise ConfigError(f"PYROMQ_KERNEL={choice} is not one of {', '.join(CHOICES)}")
    return choice != "python"


def required() -> bool:
    """True when a missing kernel is an error rather than a reason to go on without."""
    return os.environ.get("PYROMQ_KERNEL") == "compiled"
