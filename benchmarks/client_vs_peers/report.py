"""From samples to tables and a file: medians over the rounds, ratios to ours, and what is written beside them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from client_vs_peers.contestants import (
    OURS,
    OURS_BATCHING,
    WANTED,
    WHAT_DIFFERS,
    Contestant,
    Line,
    Wanted,
)
from client_vs_peers.running import Sample

Row = tuple[str, ...]

#: Of the client's process alone, all its threads, for a message; it says more than a rate where a machine is shared.
CPU = "cpu_us"

COLUMNS = ("line", "client", "median", "best", "× ours", "its µs/msg")
WANTED_COLUMNS = ("PyroMQ", "measured", "wanted", "met")
SETTING_COLUMNS = ("client", "how it sends", "what an acknowledgement promises")


def middle(samples: Sequence[Sample], line: str, contestant: str, figure: str) -> float | None:
    """The median over the rounds; None when there is none."""
    found = _values(samples, line, contestant, figure)
    return median(found) if found else None


def best(samples: Sequence[Sample], line: Line, contestant: str, figure: str) -> float | None:
    found = _values(samples, line.key, contestant, figure)
    if not found:
        return None
    return max(found) if line.higher_is_better else min(found)


def _values(samples: Sequence[Sample], line: str, contestant: str, figure: str) -> list[float]:
    of_this = (one for one in samples if (one.line, one.contestant) == (line, contestant))
    return [one.figures[figure] for one in of_this if figure in one.figures]


def ahead(samples: Sequence[Sample], line: Line, contestant: str) -> bool:
    """Whether a peer's median beats both of our lines on any figure."""
    for figure in line.figures:
        theirs = middle(samples, line.key, contestant, figure)
        ours = [value for key in (OURS, OURS_BATCHING) if (value := middle(samples, line.key, key, figure))]
        if theirs is None or not ours:
            continue
        if theirs > max(ours) if line.higher_is_better else theirs < min(ours):
            return True
    return False


# --- Tables ----------------------------------------------------------------------------------------------------------


def rows(lines: Sequence[Line], contestants: Sequence[Contestant], samples: Sequence[Sample]) -> list[Row]:
    found: list[Row] = []
    for line in lines:
        title = f"{line.title}, {line.unit}"
        for contestant in contestants:
            if line.key in contestant.lines:
                found.append((title, contestant.name, *_cells(line, contestant, samples)))
                title = ""
    return found


def _cells(line: Line, contestant: Contestant, samples: Sequence[Sample]) -> Row:
    medians = [middle(samples, line.key, contestant.key, figure) for figure in line.figures]
    if None in medians:
        failed = any(one.failure for one in samples if (one.line, one.contestant) == (line.key, contestant.key))
        return ("failed" if failed else "–", "", "", "")
    bests = [best(samples, line, contestant.key, figure) for figure in line.figures]
    ours = [middle(samples, line.key, OURS, figure) for figure in line.figures]
    ratios = [one / our for one, our in zip(medians, ours, strict=True) if one is not None and our]
    cells = (" / ".join(texts) for texts in (map(shown, medians), map(shown, bests), map(_ratio, ratios)))
    return (*cells, shown(middle(samples, line.key, contestant.key, CPU)))


def shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _ratio(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def verdicts(samples: Sequence[Sample]) -> list[tuple[Wanted, float]]:
    """What is wanted of us, beside the median; not what was not measured."""
    measured = ((one, middle(samples, one.line, one.who, one.figure)) for one in WANTED)
    return [(one, value) for one, value in measured if value is not None]


def verdict_rows(samples: Sequence[Sample]) -> list[Row]:
    names = {OURS: "", OURS_BATCHING: " with auto_batch"}
    return [
        (
            f"{one.line}{names[one.who]}: {one.figure}",
            shown(value),
            f"{'≥' if one.at_least else '≤'} {one.limit:,g}",
            "yes" if one.met(value) else "NO",
        )
        for one, value in verdicts(samples)
    ]


def setting_rows(contestants: Sequence[Contestant]) -> list[Row]:
    return [(one.name, one.sends, one.promise) for one in contestants]


def notes(lines: Sequence[Line], contestants: Sequence[Contestant], samples: Sequence[Sample]) -> list[str]:
    """Who is ahead of us and what differs there, and what went wrong: the first reason of each."""
    found = [
        f"{one.name} is ahead on “{line.title}”: {WHAT_DIFFERS.get((line.key, one.key), 'not explained yet')}"
        for line in lines
        for one in contestants
        if one.server != OURS and ahead(samples, line, one.key)
    ]
    failures: dict[tuple[str, str], str] = {}
    for sample in samples:
        if sample.failure:
            failures.setdefault((sample.line, sample.contestant), sample.failure)
    return found + [f"{who} failed on {line}: {failure}" for (line, who), failure in failures.items()]


# --- The file --------------------------------------------------------------------------------------------------------


def as_json(
    setting: Mapping[str, Any],
    lines: Sequence[Line],
    contestants: Sequence[Contestant],
    samples: Sequence[Sample],
    absent: Mapping[str, str],
) -> dict[str, Any]:
    """Everything that was measured, so that a table can be made again without measuring again."""
    medians = {
        line.key: {
            one.key: {figure: middle(samples, line.key, one.key, figure) for figure in (*line.figures, CPU)}
            for one in contestants
            if line.key in one.lines
        }
        for line in lines
    }
    return {
        "setting": dict(setting),
        "medians": medians,
        "wanted": [{**asdict(one), "measured": value, "met": one.met(value)} for one, value in verdicts(samples)],
        "notes": notes(lines, contestants, samples),
        "absent": dict(absent),
        "contestants": [asdict(one) for one in contestants],
        "samples": [asdict(one) for one in samples],
    }
