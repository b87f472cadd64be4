"""Figures: counted, spread over bounds, read on request."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyromq.metrics import LATENCY_BOUNDS, Histogram, Telemetry


def test_one_name_is_one_figure() -> None:
    telemetry = Telemetry()
    telemetry.counter("sent").add()
    telemetry.counter("sent").add(4)
    telemetry.gauge("depth", lambda: 7)
    telemetry.histogram("seconds", (1.0, 2.0)).record(1.5)
    assert telemetry.snapshot() == {
        "depth": 7,
        "seconds.count": 1,
        "seconds.max": 1.5,
        "seconds.mean": 1.5,
        "seconds.p50": 1.5,
        "seconds.p99": 1.5,
        "sent": 5,
    }
    assert telemetry.histogram("seconds") is telemetry.histograms["seconds"]


def test_nothing_recorded_is_zero() -> None:
    figures = Telemetry()
    figures.histogram("seconds")
    assert set(figures.snapshot().values()) == {0}


def test_a_value_falls_below_its_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.1, 2.0, 2.1):
        histogram.record(value)
    assert histogram.buckets == [2, 2, 1]
    assert (histogram.quantile(0.4), histogram.quantile(0.5), histogram.quantile(1.0)) == (1.0, 2.0, 2.1)


def test_the_bounds_go_from_ten_microseconds_to_ten_seconds() -> None:
    assert (LATENCY_BOUNDS[0], LATENCY_BOUNDS[-1]) == (1e-5, 10.0)
    assert list(LATENCY_BOUNDS) == sorted(LATENCY_BOUNDS)


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_no_less_than_the_value_and_no_more_than_its_bucket(values: list[float], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    at_most = histogram.quantile(share)
    assert sum(value <= at_most for value in values) >= share * len(values) - 1e-9
    assert at_most <= max(values)
