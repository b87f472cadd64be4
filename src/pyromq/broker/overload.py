"""Is the broker falling behind? Then sends are refused early, with a reason, and those taken before are served well.

When the store is behind, every send is refused until it has caught up. When the loop is late, one turn's sends are
refused and the next turn's are taken, more of them refused the later it is: a broker that refuses all would stay late
for as long as its clients try again, and store nothing in that time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from pyromq.clock import Clock
from pyromq.config import OverloadConfig
from pyromq.errors import SystemBusy
from pyromq.store.watermarks import Watermarks

#: The interval at which the loop's delay is measured.
PROBE_SECONDS = 0.05
#: This many probes in a row must be late: a machine that stood still for a moment is no overload.
PROBES = 3
#: At most this many turns are refused for each turn that is taken.
MAX_REFUSED_TURNS = 3


def busy(reason: str) -> SystemBusy:
    """Return the error for the client."""
    return SystemBusy(f"[OVERLOAD] {reason}; the message was not stored: try again, or another broker")


class Overload:
    """Looks at the loop and at the store's marks. Asking costs a few comparisons."""

    def __init__(self, config: Callable[[], OverloadConfig], marks: Watermarks, clock: Clock) -> None:
        self._config = config
        self._marks = marks
        self._clock = clock
        self._lags_s: deque[float] = deque([0.0] * PROBES, PROBES)
        self._lag_s = 0.0
        #: Turns in a row that were refused because of lag, this one included; 0: this one is taken.
        self._refused_turns = 0
        self._waiting: list[Callable[[], int]] = []

    def count_waiting(self, waiting: Callable[[], int]) -> None:
        """Ask this, too, how many sends wait for the disk."""
        self._waiting.append(waiting)

    def check(self) -> None:
        """Raise SystemBusy when a send should not be taken now."""
        reason = self.reason()
        if reason is not None:
            raise busy(reason)

    @property
    def lag_ms(self) -> float:
        return self._lag_s * 1000

    def reason(self) -> str | None:
        """Why sends are refused in this turn of the loop; None: they are taken."""
        limits = self._config()
        if self._refused_turns:
            return f"the broker is {self.lag_ms:.0f} ms behind (limit {limits.loop_lag_ms} ms)"
        marks = self._marks
        unsynced = marks.appended.value - marks.synced.value
        if limits.unsynced_bytes and unsynced > limits.unsynced_bytes:
            return f"{unsynced} bytes wait for the disk (limit {limits.unsynced_bytes})"
        undispatched = marks.undispatched
        if limits.undispatched_bytes and undispatched > limits.undispatched_bytes:
            return f"{undispatched} bytes are not in their queues yet (limit {limits.undispatched_bytes})"
        if limits.waiting_sends:
            waiting = sum(count() for count in self._waiting)
            if waiting >= limits.waiting_sends:
                return f"{waiting} sends wait for the disk (limit {limits.waiting_sends})"
        return None

    async def run(self) -> None:
        """Measure, for as long as the broker runs, how late the loop is."""
        while True:
            due = self._clock.monotonic() + PROBE_SECONDS
            await asyncio.sleep(PROBE_SECONDS)
            self.probed(self._clock.monotonic() - due)

    def probed(self, late_s: float) -> None:
        """The loop was so late: decide about the sends until the next probe, which is at least one turn."""
        self._lags_s.append(max(0.0, late_s))
        self._lag_s = min(self._lags_s)
        limit_ms = self._config().loop_lag_ms
        times = int(self.lag_ms / limit_ms) if limit_ms else 0
        if self._refused_turns < min(times, MAX_REFUSED_TURNS):
            self._refused_turns += 1
        else:
            self._refused_turns = 0
