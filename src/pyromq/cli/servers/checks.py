"""One line of what `pyromq doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    value: str
    #: True: as good as it gets. False: it works, and `advice` would help. None: for your information.
    good: bool | None = None
    advice: str = ""
