"""Counters, gauges and histograms behind one small interface.

A program makes one `Telemetry` and hands it down; `snapshot()` has every figure. A figure has the name under which the
exporter shows it to Prometheus: RocketMQ's where RocketMQ has it, else `pyromq_…` with the unit as its suffix.
Recording is a few additions: cheap enough to stay on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

#: Upper bounds in seconds: 10 µs to 10 s, three per decade; larger values are in a last bucket.
LATENCY_BOUNDS = (*(base * 10.0**power for power in range(-5, 1) for base in (1, 2, 5)), 10.0)
#: For those who compare: 1 µs to 2 min, each bound 1 % above the one before, so percentiles are right to 1 %.
FINE_BOUNDS = tuple(1e-6 * 1.01**step for step in range(1_871))


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int = 1) -> None:
        self.value += amount


class Histogram:
    """A distribution of values over fixed bounds, with their sum, largest and last."""

    __slots__ = ("bounds", "buckets", "count", "largest", "last", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.count = 0
        self.total = 0.0
        self.largest = 0.0
        self.last = 0.0

    def record(self, value: float, times: int = 1) -> None:
        self.buckets[bisect_left(self.bounds, value)] += times
        self.count += times
        self.total += value * times
        self.last = value
        if value > self.largest:
            self.largest = value

    def quantile(self, share: float) -> float:
        """The upper bound of the bucket in which that share of the values lies (0 when there are none)."""
        wanted = share * self.count
        seen = 0
        for index, amount in enumerate(self.buckets):
            seen += amount
            if amount and seen >= wanted:
                return min(self.bounds[index], self.largest) if index < len(self.bounds) else self.largest
        return 0.0


class Telemetry:
    """The figures of one program, by name."""

    def __init__(self) -> None:
        self.counters: dict[str, Counter] = {}
        self.histograms: dict[str, Histogram] = {}
        self._gauges: dict[str, Callable[[], float]] = {}

    def counter(self, name: str) -> Counter:
        return self.counters.setdefault(name, Counter())

    def histogram(self, name: str, bounds: tuple[float, ...] = LATENCY_BOUNDS) -> Histogram:
        return self.histograms.setdefault(name, Histogram(bounds))

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Register a figure that is computed on reading."""
        self._gauges[name] = read

    def snapshot(self) -> dict[str, float]:
        """Every figure now, flat: a histogram becomes its count, mean, p50, p99 and max."""
        figures: dict[str, float] = {name: counter.value for name, counter in self.counters.items()}
        figures.update((name, read()) for name, read in self._gauges.items())
        for name, histogram in self.histograms.items():
            figures[f"{name}.count"] = histogram.count
            figures[f"{name}.mean"] = histogram.total / histogram.count if histogram.count else 0.0
            figures[f"{name}.p50"] = histogram.quantile(0.50)
            figures[f"{name}.p99"] = histogram.quantile(0.99)
            figures[f"{name}.max"] = histogram.largest
        return dict(sorted(figures.items()))
