"""Numbers for people: amounts, ticks and windows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.spark.jobs.insight import scales

MOMENTS = st.integers(0, 4_000_000_000_000)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (3, "3"), (0.25, "0.25"), (999, "999"), (1000, "1 k"), (1234, "1.23 k"), (12_345, "12.3 k"),
     (999_600, "1 M"), (8_940_000, "8.94 M"), (1.5e9, "1.5 G"), (7e18, "7000000 T"), (-1500, "-1.5 k"), (-0.001, "0")],
)  # fmt: skip
def test_an_amount_has_three_digits_and_a_unit(value: float, shown: str) -> None:
    assert scales.amount(value) == shown


@pytest.mark.parametrize(
    ("ms", "shown"),
    [(0, "0 ms"), (0.5, "0.5 ms"), (999, "999 ms"), (1000, "1 s"), (1350, "1.35 s"), (119_000, "119 s"),
     (120_000, "2 min"), (86_400_000, "24 h"), (3 * 86_400_000, "3 d")],
)  # fmt: skip
def test_a_duration_has_the_unit_that_people_use(ms: float, shown: str) -> None:
    assert scales.duration(ms) == shown


def test_shares_and_factors_are_never_rounded_to_what_they_are_not() -> None:
    assert [scales.percent(share) for share in (0, 0.001, 0.824, 0.999, 1)] == [
        "0 %", "under 1 %", "82 %", "over 99 %", "100 %",
    ]  # fmt: skip
    assert [scales.times(factor) for factor in (1.5, 4.04, 16.6)] == ["1.5 times", "4 times", "17 times"]
    assert [scales.counted(number, "reply", "replies") for number in (0, 1, 1200)] == [
        "0 replies", "1 reply", "1.2 k replies",
    ]  # fmt: skip
    assert scales.size(978) == "978 B"
    assert scales.size(9.83e9) == "9.83 GB"


def test_a_moment_is_written_as_short_as_it_can_be() -> None:
    assert scales.moment(1_768_081_500_000) == "10 Jan 2026 21:45 UTC"
    assert scales.moment(1_768_081_501_000) == "10 Jan 2026 21:45:01 UTC"
    assert scales.clock_time(1_768_081_501_000, scales.SECOND) == "21:45:01"
    assert scales.clock_time(1_768_081_500_000, scales.HOUR) == "21:45"
    assert scales.clock_time(1_768_003_200_000, scales.HOUR) == "10 Jan"


@given(st.floats(1e-9, 1e18))
def test_ticks_are_round_and_reach_over_the_top(top: float) -> None:
    found = scales.ticks(top)
    assert found[0] == 0
    assert found[-1] >= top * 0.999
    assert found[-1] < top * 2.5 or len(found) == 2
    assert 2 <= len(found) <= 7
    assert f"{found[1]:e}"[0] in "125"


@pytest.mark.parametrize("top", [0, -1, float("nan"), float("inf")])
def test_nothing_has_an_axis_too(top: float) -> None:
    assert scales.ticks(top) == [0, 1]


@given(st.floats(1, 1e9), st.floats(1, 1e9))
def test_ticks_of_a_logarithmic_axis_enclose_the_values(one: float, other: float) -> None:
    low, high = sorted((one, other))
    found = scales.log_ticks(low, high)
    assert found[0] <= low * 1.001
    assert found[-1] >= high * 0.999
    assert 2 <= len(found) <= 8


@given(MOMENTS, st.integers(1000, 10 * 365 * scales.DAY))
def test_ticks_of_time_are_within_the_axis_at_full_steps(first: int, length: int) -> None:
    found = scales.time_ticks(first, first + length)
    assert len(found) <= 7
    assert all(first <= at <= first + length and label for at, label in found)
    assert all(at % 1000 == 0 for at, _ in found)


@given(MOMENTS, st.integers(0, 10 * 365 * scales.DAY))
def test_windows_cover_a_span_and_are_not_many(first: int, length: int) -> None:
    window = scales.fitting_window_ms(length)
    starts = scales.window_starts(first, first + length, window)
    assert starts[0] <= first < starts[0] + window
    assert starts[-1] <= first + length < starts[-1] + window
    assert 1 <= len(starts) <= scales.MOST_WINDOWS + 2
