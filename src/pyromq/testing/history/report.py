"""The result of checking a history: sentences with their events, and counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pyromq.testing.history.events import Event

#: The rules, as reports name them.
RULES = {
    "H0": "the history itself makes sense",
    "H1": "what was acknowledged is there",
    "H2": "nothing is there that nobody sent, and nothing is changed",
    "H3": "an offset has one message for ever, and offsets have no gaps",
    "H4": "order: of a queue, of a producer's key, of a group that handles in order",
    "H5": "each group is given every message before its progress passes it, and handles it in the end",
    "H6": "duplicates: none without a fault, few with one",
    "H7": "what was acknowledged is visible at once",
    "H8": "a half message is seen once when it was committed, and never when it was not",
    "H9": "nothing delayed comes early, nor much too late",
    "H11": "a group's progress goes back only on purpose",
}
#: Violations of one rule that are kept in words; all of them are counted.
KEPT_PER_RULE = 20


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    #: The fault, for people.
    sentence: str
    #: The events that show it.
    events: tuple[Event, ...]

    def __str__(self) -> str:
        return f"{self.rule}: {self.sentence}"


@dataclass(slots=True)
class Counts:
    """The counts of a history."""

    events: int = 0
    sends: int = 0
    acknowledged: int = 0
    failed: int = 0
    #: Sends with an unknown outcome, those without any outcome too.
    unknown: int = 0
    reads: int = 0
    deliveries: int = 0
    handled: int = 0
    dead_lettered: int = 0
    faults: int = 0
    #: Further places in the log at which a message was found.
    stored_duplicates: int = 0
    #: Deliveries that a group had already had and not asked for again.
    delivered_duplicates: int = 0
    #: The lateness of delayed messages, 99th percentile. None if there were none.
    lateness_p99_s: float | None = None

    @property
    def duplicate_share(self) -> float:
        """Of all that was read and delivered."""
        seen = self.reads + self.deliveries
        return (self.stored_duplicates + self.delivered_duplicates) / seen if seen else 0.0


@dataclass(slots=True)
class Report:
    """Return `ok`, or the faults."""

    #: At most twenty of each rule.
    violations: list[Violation] = field(default_factory=list)
    #: All of them, by rule.
    totals: Counter[str] = field(default_factory=Counter)
    counts: Counts = field(default_factory=Counts)

    @property
    def ok(self) -> bool:
        return not self.totals

    @property
    def broken_rules(self) -> set[str]:
        return set(self.totals)

    def found(self, rule: str, sentence: str, *events: Event) -> None:
        self.totals[rule] += 1
        if self.totals[rule] <= KEPT_PER_RULE:
            self.violations.append(Violation(rule, sentence, events))

    def raise_if_bad(self) -> None:
        """Raises AssertionError with the sentences."""
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        counts = self.counts
        head = (
            f"{counts.acknowledged} of {counts.sends} sends acknowledged, {counts.reads} reads, "
            f"{counts.deliveries} deliveries, {counts.stored_duplicates} stored and {counts.delivered_duplicates} "
            f"delivered duplicates, {counts.faults} faults"
        )
        if self.ok:
            return f"every promise was kept: {head}"
        lines = [f"{rule} ({RULES[rule]}): {total} times" for rule, total in sorted(self.totals.items())]
        return "\n".join([f"promises were broken: {head}", *lines, *map(str, self.violations)])
