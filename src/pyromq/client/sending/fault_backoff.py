"""Which brokers to leave alone for a while: those that answer slowly, refuse, or cannot be reached.

A slow answer costs a broker some seconds, by how slow it was; a failure costs more every time, up to half a minute.
After that time, one send goes there as a probe while the others still avoid it. If it is answered in time the
broker is available again; if not, it is avoided for longer than before.

Requests in flight at the time of a fault add nothing: a broken connection fails a thousand sends and is one fault.
So is a broker that is tried early because there is no other. When another master leads under the same
name, all that is forgotten: it was about the one before.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from pyromq.clock import Clock

#: RocketMQ's table: latency, and the time for which a slower broker is avoided. Milliseconds.
LATENCY_MS = (50, 100, 550, 1_800, 3_000, 5_000, 15_000)
AVOIDED_MS = (0, 0, 2_000, 5_000, 6_000, 10_000, 30_000)
#: Below it an answer is no reason to look anything up.
SLOW_SECONDS = 0.55
#: A probe without an answer after this time does not delay the next one.
PROBE_SECONDS = 3.0

_STEPS = tuple(ms / 1000 for ms in AVOIDED_MS if ms)


@dataclass(slots=True)
class _Fault:
    #: Consecutive faults: the step of the back-off.
    times: int
    since: float
    avoid_until: float
    #: The time of the probe; None if there is none.
    probed_at: float | None = None


class FaultBackoff:
    """The availability of the brokers of one producer, by name."""

    __slots__ = ("_clock", "_faults")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._faults: dict[str, _Fault] = {}

    def __bool__(self) -> bool:
        """False as long as there is nothing to avoid: then nothing else needs to be asked."""
        return bool(self._faults)

    def avoids(self, broker: str) -> bool:
        """Return whether a send should use another broker if it can."""
        fault = self._faults.get(broker)
        if fault is None:
            return False
        now = self._clock.monotonic()
        return now < fault.avoid_until or (fault.probed_at is not None and now < fault.probed_at + PROBE_SECONDS)

    def chosen(self, broker: str) -> None:
        """A send goes there now. If the broker was avoided until a moment ago, that is the probe."""
        fault = self._faults.get(broker)
        if fault is not None:
            now = self._clock.monotonic()
            if now >= fault.avoid_until and fault.times:
                fault.probed_at = now

    def answered(self, broker: str, began: float, latency_s: float) -> None:
        """Note the answer to a send of time `began`."""
        fault = self._faults.get(broker)
        if fault is None and latency_s < SLOW_SECONDS:
            return
        avoided_s = avoided_for(latency_s)
        if avoided_s:
            self._blame(broker, began, avoided_s)
        elif fault is not None and began >= fault.avoid_until:
            del self._faults[broker]

    def failed(self, broker: str, began: float) -> None:
        """Note a missing answer, or a refusal by the broker's state, to a send of time `began`."""
        fault = self._faults.get(broker)
        if fault is None or began >= fault.avoid_until:
            self._blame(broker, began, 0.0)

    def replaced(self, broker: str) -> None:
        """Another master leads there, or the missing one is back. Earlier sends no longer count."""
        if broker in self._faults:
            now = self._clock.monotonic()
            self._faults[broker] = _Fault(times=0, since=now, avoid_until=now)

    def _blame(self, broker: str, began: float, at_least_s: float) -> None:
        fault = self._faults.get(broker)
        if fault is not None and began < fault.since:
            return
        times = fault.times + 1 if fault is not None else 1
        now = self._clock.monotonic()
        avoided_s = max(at_least_s, _STEPS[min(times, len(_STEPS)) - 1])
        self._faults[broker] = _Fault(times=times, since=now, avoid_until=now + avoided_s)


def avoided_for(latency_s: float) -> float:
    """Return the time in seconds for which a broker with this latency is avoided."""
    step = bisect_right(LATENCY_MS, latency_s * 1000)
    return AVOIDED_MS[step - 1] / 1000 if step else 0.0
