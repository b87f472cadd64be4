"""The duration of each part of the story, and the number of visitors. Everything else is measured."""

from __future__ import annotations

from dataclasses import dataclass

#: The default length of the story, and the length of its short form.
USUAL_SECONDS, FAST_SECONDS = 45.0, 12.0
#: Shorter than this there is too little to measure.
LEAST_SECONDS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    #: Acts 1 and 2: how long, and how many people at a time sign up.
    turns_s: float
    desks: int = 4
    #: Act 3: usual traffic, then the burst, then usual traffic until the backlog is gone.
    calm_s: float
    burst_s: float
    #: Act 4: how long a service is stopped.
    outage_s: float
    #: Visitors a second, and how many times that in the burst.
    usual_rate: float = 20.0
    burst_factor: int = 10
    #: A visitor leaves after waiting this long.
    patience_s: float = 2.0
    #: The longest time for a backlog to drain, and for the last message to be handled; longer is an error.
    drain_limit_s: float = 30.0

    @property
    def burst_rate(self) -> float:
        return self.usual_rate * self.burst_factor


def script_for(seconds: float) -> Script:
    """A story of about this length: a third of it is spent draining what piled up."""
    scale = seconds / USUAL_SECONDS
    return Script(turns_s=8.5 * scale, calm_s=2.5 * scale, burst_s=4.0 * scale, outage_s=5.0 * scale)
