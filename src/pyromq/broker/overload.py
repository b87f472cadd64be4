"""Is the broker falling behind? Then sends are refused early, with a reason, and those taken before are served well."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from pyromq.clock import Clock
from pyromq.config import OverloadConfig
from pyromq.errors import SystemBusy
from pyromq.store.watermarks import Watermarks

#: How often the loop is asked how late it is.
PROBE_SECONDS = 0.05
#: So many probes in a row must be late: a machine that stood still for a moment is no overload.
PROBES = 3


class Overload:
    """Looks at the loop and at the store's marks. Asking costs a few comparisons."""

    def __init__(self, config: Callable[[], OverloadConfig], marks: Watermarks, clock: Clock) -> None:
        self._config = config
        self._marks = marks
        self._clock = clock
        self._lags_s: deque[float] = deque([0.0] * PROBES, PROBES)
        self._lag_s = 0.0

    def check(self) -> None:
        """Raise SystemBusy when a send should not be taken now."""
        reason = self.reason()
        if reason is not None:
            raise SystemBusy(f"[OVERLOAD] {reason}; the message was not stored: try again, or another broker")

    @property
    def lag_ms(self) -> float:
        return self._lag_s * 1000

    def reason(self) -> str | None:
        limits = self._config()
        marks = self._marks
        lag_ms = self._lag_s * 1000
        if limits.loop_lag_ms and lag_ms > limits.loop_lag_ms:
            return f"the broker is {lag_ms:.0f} ms behind (limit {limits.loop_lag_ms} ms)"
        unsynced = marks.appended.value - marks.synced.value
        if limits.unsynced_bytes and unsynced > limits.unsynced_bytes:
            return f"{unsynced} bytes wait for the disk (limit {limits.unsynced_bytes})"
        undispatched = marks.readable.value - marks.dispatched.value
        if limits.undispatched_bytes and undispatched > limits.undispatched_bytes:
            return f"{undispatched} bytes are not in their queues yet (limit {limits.undispatched_bytes})"
        return None

    async def run(self) -> None:
        """Measure, for as long as the broker runs, how late the loop is."""
        while True:
            due = self._clock.monotonic() + PROBE_SECONDS
            await asyncio.sleep(PROBE_SECONDS)
            self.probed(self._clock.monotonic() - due)

    def probed(self, late_s: float) -> None:
        """The loop was so late."""
        self._lags_s.append(max(0.0, late_s))
        self._lag_s = min(self._lags_s)
