"""From samples to medians, costs and verdicts, as tables for people and as JSON. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from broker_vs_rocketmq.loads import OURS, THEIRS
from broker_vs_rocketmq.report import CHECK_COLUMNS, Check, check_rows

from replication_vs_rocketmq.measure import CatchUp, Lag, Sample
from replication_vs_rocketmq.wanted import (
    ALONE,
    ASYNC,
    ASYNC_COST_MAX,
    CATCH_UP_MIN_MB_S,
    CORES_TO_SPARE,
    LAG_P99_MAX_MS,
    LOADS,
    MODES,
    SYNC,
    SYNC_COST_MAX,
)

__all__ = ["CHECK_COLUMNS", "COST_COLUMNS", "LOAD_COLUMNS", "OTHER_COLUMNS", "as_json", "checks", "cost_rows"]

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """Medians of one load in one mode."""

    rate: float
    p99_ms: float
    master_us: float
    both_us: float
    errors: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What one mode takes from the one that it is compared with; shares of 1, negative when there is a gain."""

    rate: float
    #: More processor time of the master for a message.
    master: float


Summaries = dict[tuple[str, str, str], Summary]


def summaries(samples: Sequence[Sample]) -> Summaries:
    """By load, system and mode."""
    keys = dict.fromkeys((one.load, one.system, one.mode) for one in samples)
    return {key: _summary([one for one in samples if (one.load, one.system, one.mode) == key]) for key in keys}


def _summary(samples: Sequence[Sample]) -> Summary:
    return Summary(
        median(one.rate for one in samples),
        median(one.p99_ms for one in samples),
        median(one.master_us for one in samples),
        median(one.both_us for one in samples),
        sum(one.errors for one in samples),
    )


def cost(samples: Sequence[Sample], load: str, system: str, mode: str, beside: str) -> Cost | None:
    """The median of what each turn gave; None when none of them has both."""
    turns = [
        {one.round: one for one in samples if (one.load, one.system, one.mode) == (load, system, which)}
        for which in (mode, beside)
    ]
    pairs = [(one, turns[1][number]) for number, one in turns[0].items() if number in turns[1]]
    pairs = [(one, other) for one, other in pairs if other.rate and other.master_us]
    if not pairs:
        return None
    return Cost(
        1 - median(one.rate / other.rate for one, other in pairs),
        median(one.master_us / other.master_us for one, other in pairs) - 1,
    )


# --- Verdicts ------------------------------------------------------------------------------------------------------


def checks(samples: Sequence[Sample], lags: Sequence[Lag], catch_ups: Sequence[CatchUp], cores: int) -> list[Check]:
    found = _cost_checks(samples, cores)
    if ours := [one for one in lags if one.system == OURS]:
        p99 = median(one.p99_ms for one in ours)
        best = min(one.p99_ms for one in ours)
        found.append(Check("lag of a slave, p99", p99, " ms", False, LAG_P99_MAX_MS, best))
    if copied := [one for one in catch_ups if one.system == OURS]:
        rates = [one.rate for one in copied]
        found.append(Check("catch-up of a cold slave", median(rates), " MB/s", True, CATCH_UP_MIN_MB_S, max(rates)))
    return found


def _cost_checks(samples: Sequence[Sample], cores: int) -> list[Check]:
    """Throughput is what is asked for where every process has a core; elsewhere it is the master's processor time."""
    by_rate = cores >= CORES_TO_SPARE
    verdicts = []
    for load in LOADS:
        for mode, beside, most in ((ASYNC, ALONE, ASYNC_COST_MAX), (SYNC, ASYNC, SYNC_COST_MAX)):
            if (taken := cost(samples, load.name, OURS, mode, beside)) is not None:
                what = f"{load.name}: {mode} beside {beside}"
                by = (("throughput lost", taken.rate, by_rate), ("master's processor time", taken.master, not by_rate))
                verdicts += [Check(f"{what}, {name}", 100 * value, " %", False, 100 * most if asked else None)
                             for name, value, asked in by]  # fmt: skip
    return verdicts


# --- Tables and JSON -----------------------------------------------------------------------------------------------

LOAD_COLUMNS = ("load", "broker", "master", "msg/s", "p99 ms", "master µs", "both µs", "errors")
COST_COLUMNS = ("load", "broker", "mode", "throughput lost", "master's processor time")
OTHER_COLUMNS = ("what", "PyroMQ", "RocketMQ")


def load_rows(samples: Sequence[Sample]) -> list[Row]:
    found = summaries(samples)
    rows = []
    for load, system, mode in _keys(found):
        one = found[load, system, mode]
        figures = (f"{one.rate:,.0f}", f"{one.p99_ms:.2f}", f"{one.master_us:.2f}", f"{one.both_us:.2f}")
        rows.append((load, system, mode, *figures, str(one.errors)))
    return rows


def _keys(found: Summaries) -> list[tuple[str, str, str]]:
    order = [(load.name, system, mode) for load in LOADS for system in (OURS, THEIRS) for mode in MODES]
    return [key for key in order if key in found]


def cost_rows(samples: Sequence[Sample]) -> list[Row]:
    rows = []
    for load in LOADS:
        for mode, beside in ((ASYNC, ALONE), (SYNC, ASYNC)):
            for system in (OURS, THEIRS):
                if (taken := cost(samples, load.name, system, mode, beside)) is not None:
                    shown = (f"{100 * value:+.1f} %" for value in (taken.rate, taken.master))
                    rows.append((load.name, system, f"{mode} beside {beside}", *shown))
    return rows


def other_rows(lags: Sequence[Lag], catch_ups: Sequence[CatchUp]) -> list[Row]:
    """Medians, ours and theirs."""
    behind = [("lag, messages/s", "rate", ",.0f"), ("lag p50, ms", "p50_ms", ".1f"), ("lag p99, ms", "p99_ms", ".1f")]
    copied = [
        ("catch-up, MB", "megabytes", ",.0f"),
        ("catch-up, MB/s", "rate", ",.0f"),
        ("queues complete, s later", "queues_seconds", ".2f"),
        ("master's processor time, ms/MB", "master_ms", ".2f"),
        ("slave's processor time, ms/MB", "slave_ms", ".2f"),
    ]
    return [
        (what, *(_middle([one for one in found if one.system == system], name, form) for system in (OURS, THEIRS)))
        for found, figures in ((lags, behind), (catch_ups, copied))
        for what, name, form in figures
        if found
    ]


def _middle(found: Sequence[Lag | CatchUp], name: str, form: str) -> str:
    return format(median(getattr(one, name) for one in found), form) if found else ""


def verdict_rows(found: Sequence[Check]) -> list[Row]:
    return check_rows(found)


def as_json(
    setting: dict[str, Any],
    samples: Sequence[Sample],
    lags: Sequence[Lag],
    catch_ups: Sequence[CatchUp],
    found: Sequence[Check],
) -> dict[str, Any]:
    """Everything that was measured, so that a table can be made again without measuring again."""
    return {
        "setting": setting,
        "checks": [{**asdict(check), "met": check.met} for check in found],
        "samples": [asdict(one) for one in samples],
        "lags": [asdict(one) for one in lags],
        "catch_ups": [asdict(one) | {"rate": one.rate} for one in catch_ups],
    }
