"""A change that requires a restart: the broker stops, the change is made, and it starts again in the same process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A restart in place. What the broker is then says its leadership, which was written before."""

    why: str
    #: No other broker has the log from here on: it is cut, and kept in quarantine.
    cut_at: int | None = None
    #: Nothing of the log can be continued: it is put aside, and a new copy begins.
    begin_anew: bool = False


#: The first change is the one that is carried out: True when it is this one.
Ask = Callable[[Change], bool]
