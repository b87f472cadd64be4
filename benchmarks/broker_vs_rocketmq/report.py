"""From samples to medians, ratios and verdicts, as tables for people and as JSON. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from broker_vs_rocketmq.loads import (
    ANONYMOUS_MIB_MAX,
    CPU_SHARE_MAX,
    OURS,
    READABLE_SPEED_MIN,
    START_SECONDS_MAX,
    TAIL_SHARE_MAX,
    THEIRS,
    Load,
)
from broker_vs_rocketmq.measure import Footprint, Sample

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """One load against one broker over all rounds: medians, and the best rate."""

    rate: float
    best_rate: float
    cpu_us: float
    p50: float
    p99: float
    p999: float
    errors: int


@dataclass(frozen=True, slots=True)
class Check:
    """A figure of ours beside what is wanted of it; `wanted` is None where nothing is."""

    what: str
    value: float
    unit: str
    at_least: bool
    wanted: float | None
    #: The same of the best rounds instead of the medians.
    best: float | None = None

    @property
    def met(self) -> bool | None:
        if self.wanted is None:
            return None
        return self.value >= self.wanted if self.at_least else self.value <= self.wanted


def summary(samples: Sequence[Sample]) -> Summary:
    def middle(figure: Callable[[Sample], float]) -> float:
        return median(map(figure, samples))

    return Summary(
        rate=middle(lambda sample: sample.result.rate),
        best_rate=max(sample.result.rate for sample in samples),
        cpu_us=middle(lambda sample: sample.cpu_us_per_message),
        p50=middle(lambda sample: sample.result.p50),
        p99=middle(lambda sample: sample.result.p99),
        p999=middle(lambda sample: sample.result.p999),
        errors=sum(sample.result.errors for sample in samples),
    )


def summaries(samples: Sequence[Sample], load: Load) -> tuple[Summary, Summary] | None:
    """Ours and theirs; None when the load was not run."""
    found = [[one for one in samples if (one.load, one.system) == (load.name, name)] for name in (OURS, THEIRS)]
    return (summary(found[0]), summary(found[1])) if all(found) else None


# --- Verdicts ------------------------------------------------------------------------------------------------------


def load_checks(load: Load, ours: Summary, theirs: Summary, kernel: str) -> list[Check]:
    """Ratios PyroMQ : RocketMQ. The readable form is only asked to be as fast, and only with sends."""
    compiled = kernel == "compiled"
    speed_min = load.speed_min if compiled else READABLE_SPEED_MIN if load.kind == "send" else None
    best = _ratio(ours.best_rate, theirs.best_rate)
    found = [
        Check(f"{load.name}: speed", _ratio(ours.rate, theirs.rate), "×", True, speed_min, best),
        _share(f"{load.name}: processor time", ours.cpu_us, theirs.cpu_us, CPU_SHARE_MAX if compiled else None),
        _share(f"{load.name}: p99.9", ours.p999, theirs.p999, TAIL_SHARE_MAX if compiled else None),
    ]
    if load.rate_min is not None and compiled:
        found.append(Check(f"{load.name}: messages", ours.rate, "/s", True, load.rate_min, ours.best_rate))
    if ours.errors or theirs.errors:
        found.append(Check(f"{load.name}: our refusals", ours.errors, "", False, 0))
    return found


def _share(what: str, ours: float, theirs: float, wanted: float | None) -> Check:
    return Check(what, _ratio(ours, theirs), "×", False, wanted)


def footprint_checks(footprints: Sequence[Footprint], kernel: str, *, loaded: bool) -> list[Check]:
    """The worst of every life: these are limits, not averages. Memory says something only after a load."""
    ours = [one for one in footprints if one.system == OURS]
    if not ours:
        return []
    compiled = kernel == "compiled"
    start = max(one.start_seconds for one in ours)
    anonymous = max(one.anonymous_mib for one in ours)
    found = [
        Check("start until a message is stored", start, " s", False, START_SECONDS_MAX if compiled else None),
        Check("anonymous memory after the load", anonymous, " MiB", False, ANONYMOUS_MIB_MAX if compiled else None),
    ]
    return found if loaded else found[:1]


def checks(
    loads: Sequence[Load], samples: Sequence[Sample], footprints: Sequence[Footprint], kernel: str
) -> list[Check]:
    pairs = [(load, pair) for load in loads if (pair := summaries(samples, load))]
    found = [check for load, (ours, theirs) in pairs for check in load_checks(load, ours, theirs, kernel)]
    return found + footprint_checks(footprints, kernel, loaded=bool(samples))


def _ratio(ours: float, theirs: float) -> float:
    return ours / theirs if theirs else float("inf")


# --- Tables and JSON -----------------------------------------------------------------------------------------------

LOAD_COLUMNS = ("load", "broker", "msg/s", "best", "µs/msg", "p50 ms", "p99 ms", "p99.9 ms", "errors")
FOOTPRINT_COLUMNS = ("broker", "flush", "start s", "resident MiB", "anonymous MiB")
CHECK_COLUMNS = ("PyroMQ : RocketMQ", "measured", "best", "wanted", "met")


def load_rows(loads: Sequence[Load], samples: Sequence[Sample]) -> list[Row]:
    rows = []
    for load in loads:
        for name, one in zip((OURS, THEIRS), summaries(samples, load) or (), strict=False):
            times = (f"{value:.3f}" for value in (one.p50, one.p99, one.p999))
            rates = (f"{one.rate:,.0f}", f"{one.best_rate:,.0f}", f"{one.cpu_us:.1f}")
            rows.append((load.name if name == OURS else "", name, *rates, *times, str(one.errors)))
    return rows


def footprint_rows(footprints: Sequence[Footprint]) -> list[Row]:
    """Medians over the rounds."""
    rows = []
    for system, flush in dict.fromkeys((one.system, one.flush) for one in footprints):
        lives = [one for one in footprints if (one.system, one.flush) == (system, flush)]
        start = median(one.start_seconds for one in lives)
        memory = (median(one.resident_mib for one in lives), median(one.anonymous_mib for one in lives))
        rows.append((system, flush, f"{start:.2f}", *(f"{mib:,.0f}" for mib in memory)))
    return rows


def check_rows(found: Sequence[Check]) -> list[Row]:
    verdicts = {True: "yes", False: "NO", None: ""}
    return [
        (one.what, _figure(one.value, one), _figure(one.best, one), _wanted(one), verdicts[one.met]) for one in found
    ]


def _figure(value: float | None, check: Check) -> str:
    if value is None:
        return ""
    return f"{value:,.2f}{check.unit}" if value < 100 else f"{value:,.0f}{check.unit}"


def _wanted(check: Check) -> str:
    if check.wanted is None:
        return ""
    return f"{'≥' if check.at_least else '≤'} {check.wanted:,g}{check.unit}"


def as_json(
    setting: dict[str, Any],
    loads: Sequence[Load],
    samples: Sequence[Sample],
    footprints: Sequence[Footprint],
    found: Sequence[Check],
) -> dict[str, Any]:
    """Everything that was measured, so that a table can be made again without measuring again."""
    pairs = {load.name: pair for load in loads if (pair := summaries(samples, load))}
    return {
        "setting": setting,
        "loads": {name: {OURS: asdict(ours), THEIRS: asdict(theirs)} for name, (ours, theirs) in pairs.items()},
        "checks": [{**asdict(check), "met": check.met} for check in found],
        "samples": [asdict(one) for one in samples],
        "footprints": [asdict(one) for one in footprints],
    }
