"""Numbers for people: amounts with units, ticks of axes at round values, windows of time that suit a span. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from pyromq.spark.decode.rules import FIRST_MS, LAST_MS

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

#: Spans that people think in.
STEPS_MS = (
    SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 15 * SECOND, 30 * SECOND,
    MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE,
    HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY,
)  # fmt: skip
#: Windows of one page: enough to see a shape, wide enough to be hit with a finger.
MOST_WINDOWS = 120


# --- amounts ---------------------------------------------------------------------------------------------------------


def amount(value: float) -> str:
    """1234567 is 1.23 M."""
    return _with_unit(value, 1000, ("", " k", " M", " G", " T"))


def size(value: float) -> str:
    return _with_unit(value, 1000, (" B", " kB", " MB", " GB", " TB", " PB"))


def duration(ms: float) -> str:
    """12 ms, 1.5 s, 3 min, 2 h, 5 d."""
    for least, unit, word in (
        (2 * DAY, DAY, "d"),
        (2 * HOUR, HOUR, "h"),
        (2 * MINUTE, MINUTE, "min"),
        (999.5, 1000, "s"),
    ):
        if ms >= least:
            return f"{_digits(ms / unit)} {word}"
    return f"{_digits(ms)} ms"


def percent(share: float) -> str:
    if 0 < share < 0.01:
        return "under 1 %"
    if 0.99 < share < 1:
        return "over 99 %"
    return f"{share * 100:.0f} %"


def times(factor: float) -> str:
    """Return a factor as text: 4 times, 1.5 times."""
    return f"{_digits(round(factor, 1)) if factor < 10 else f'{factor:.0f}'} times"


def counted(number: int, one: str, many: str | None = None) -> str:
    return f"{amount(number)} {one if number == 1 else many or one + 's'}"


def _with_unit(value: float, base: int, units: Sequence[str]) -> str:
    unit = 0
    while abs(value) >= base * 0.9995 and unit < len(units) - 1:
        value /= base
        unit += 1
    return f"{_digits(value)}{units[unit]}"


def _digits(value: float) -> str:
    """Three of them that count, and no zeros that say nothing."""
    decimals = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    text = f"{value:.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-0", "0", text in ("-0", "-0.0", "-0.00"))


def moment(at_ms: float) -> str:
    """10 Jan 2026 21:45 UTC; with seconds where there are any."""
    at = _utc(at_ms)
    return f"{at.day} {at:%b %Y} {at:%H:%M:%S} UTC" if at.second else f"{at.day} {at:%b %Y} {at:%H:%M} UTC"


def clock_time(at_ms: float, step_ms: int) -> str:
    """As short as it can be told from its neighbours `step_ms` away."""
    at = _utc(at_ms)
    if step_ms >= DAY or (at.hour, at.minute, at.second) == (0, 0, 0):
        return f"{at.day} {at:%b}"
    return f"{at:%H:%M:%S}" if step_ms < MINUTE else f"{at:%H:%M}"


def _utc(at_ms: float) -> datetime:
    """Windows may begin before the first moment that a calendar has, and end behind the last."""
    return datetime.fromtimestamp(min(max(at_ms, FIRST_MS), LAST_MS) / 1000, UTC)


# --- windows ---------------------------------------------------------------------------------------------------------


def fitting_window_ms(span_ms: float, most: int = MOST_WINDOWS) -> int:
    """Return the smallest usual window that divides the span into at most `most` windows."""
    for step in STEPS_MS:
        if span_ms / step <= most:
            return step
    return DAY * math.ceil(span_ms / most / DAY)


def window_starts(first_ms: int, last_ms: int, window_ms: int) -> range:
    """All windows from the one that has the first moment to the one that has the last."""
    return range(first_ms - first_ms % window_ms, last_ms + 1, window_ms)


# --- ticks -----------------------------------------------------------------------------------------------------------

# Below it a tick's distance has no power of ten that a float can hold.
SMALLEST_TOP = 1e-300


def ticks(top: float, wanted: int = 5) -> list[float]:
    """Round values from 0 on, the last at or above `top`: 1, 2 or 5 times a power of ten apart."""
    if not SMALLEST_TOP <= top < math.inf:
        return [0.0, 1.0]
    rough = top / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999999)
    return [step * number for number in range(math.ceil(top / step - 1e-9) + 1)]


def log_ticks(low: float, high: float, wanted: int = 6) -> list[float]:
    """Return powers of ten around the range; every n-th if there are many."""
    first = math.floor(math.log10(low) + 1e-9)
    last = max(math.ceil(math.log10(high) - 1e-9), first + 1)
    step = math.ceil((last - first) / wanted)
    return [10.0**power for power in range(first, last + step, step)]


def time_ticks(first_ms: float, last_ms: float, wanted: int = 6) -> list[tuple[float, str]]:
    """Moments at full hours, minutes or days, and what stands below them."""
    step = next((one for one in STEPS_MS if (last_ms - first_ms) / one <= wanted), None)
    step = step or DAY * math.ceil((last_ms - first_ms) / wanted / DAY)
    begin = math.ceil(first_ms / step) * step
    count = max(int((last_ms - begin) // step) + 1, 0)
    return [(begin + number * step, clock_time(begin + number * step, step)) for number in range(count)]
