"""Says whether brokers and clients kept their promises, from nothing but what clients saw.

    report = check(history)
    report.raise_if_bad()

The rules are in `history_report.RULES`. It is pure, and looks at a million events in a few seconds. That replicas are
the same byte by byte (H10) is not for clients to see: `history_replicas`.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Set
from itertools import accumulate, pairwise

from pyromq.model.queue import MessageQueue
from pyromq.testing.history.events import Event, QueueEnd, Read, SendOk
from pyromq.testing.history.facts import Facts, Sent
from pyromq.testing.history.groups import GroupStory
from pyromq.testing.history.report import Report, Violation

__all__ = ["Report", "Violation", "check"]


def check(
    history: Iterable[Event],
    *,
    drained: bool = True,
    max_duplicate_share: float | None = None,
    max_lateness_s: float = 1.0,
    passed: Set[tuple[str, MessageQueue, int]] = frozenset(),
) -> Report:
    """Hold a history against every rule.

    `drained`: at its end everything was read and every group has caught up, so that an unseen message is lost.
    `max_duplicate_share`: of read and delivered messages; without it duplicates are only counted where there were
    faults. `max_lateness_s` is for delayed messages, and holds where there were none. `passed`: groups with offsets of
    queues that they may pass without receiving the message there. They received another message there, which was
    lost when a slave took over (and is not part of the history).
    """
    report = Report()
    facts = Facts(history, report)
    if drained:
        _check_nothing_is_lost(facts)
    _check_reads(facts)
    _check_keys(facts)
    for group in facts.of_groups.keys() | facts.subscriptions.keys():
        GroupStory(facts, group, passed).check(drained=drained)
    _check_duplicates(facts, max_duplicate_share)
    _check_ends(facts)
    _check_transactions(facts, drained=drained)
    _check_delays(facts, max_lateness_s)
    return report


def _check_nothing_is_lost(facts: Facts) -> None:
    """H1. Where a queue was read as a log, the offset counts; elsewhere any receipt of the message is enough."""
    for sent in facts.by_id.values():
        ack = sent.ack
        if ack is None or sent.called.transaction or not sent.is_owed(facts.ended_at):
            continue
        if sent.first_seen is None:
            facts.report.found("H1", f"{sent} was acknowledged, and nobody ever found it", sent.called, ack)
        elif sent.is_plain and ack.queue in facts.read_queues and not facts.queues[ack.queue][ack.offset].was_read:
            facts.report.found("H1", f"{sent} was acknowledged at offset {ack.offset}, which is not there", ack)


def _check_reads(facts: Facts) -> None:
    """H3 and H4: a reader of a queue finds consecutive offsets."""
    for reads in facts.reads.values():
        for before, after in pairwise(reads):
            if after.offset <= before.offset:
                facts.report.found("H4", f"offset {after.offset} was read after {before.offset}", before, after)
            else:
                _check_neighbours(facts.report, before, after)


def _check_neighbours(report: Report, before: Read, after: Read) -> None:
    if after.offset > before.offset + 1:
        report.found("H3", f"there is a gap between the offsets {before.offset} and {after.offset}", before, after)
    if 0 <= after.position <= before.position:
        report.found("H3", f"offset {after.offset} is in the log before offset {before.offset}", before, after)


def _check_keys(facts: Facts) -> None:
    """H4: of one client and key, a message sent after another's acknowledgement has the higher offset of one queue."""
    by_key: defaultdict[tuple[str, str], list[Sent]] = defaultdict(list)
    for sent in facts.by_id.values():
        if sent.called.key and sent.is_plain and sent.ack is not None:
            by_key[sent.called.client, sent.called.key].append(sent)
    for sends in by_key.values():
        _check_key(facts.report, sends)


def _check_key(report: Report, sends: list[Sent]) -> None:
    under_way: list[tuple[float, int, SendOk]] = []
    highest: dict[MessageQueue, SendOk] = {}
    for sent in sends:
        ack = sent.ack
        assert ack is not None
        while under_way and under_way[0][0] <= sent.called.at:
            done = heapq.heappop(under_way)[2]
            if done.queue not in highest or done.offset > highest[done.queue].offset:
                highest[done.queue] = done
        before = highest.get(ack.queue)
        if before is not None and ack.offset < before.offset:
            report.found(
                "H4", f"{sent} was sent after another of its key was acknowledged, and is before it in the queue",
                before, sent.called, ack,
            )  # fmt: skip
        heapq.heappush(under_way, (ack.at, ack.op, ack))


def _check_duplicates(facts: Facts, most: float | None) -> None:
    """H6. Of half messages H8 says how often they may be there."""
    counts = facts.counts
    for sent in facts.by_id.values():
        if len(sent.places) > 1:
            counts.stored_duplicates += len(sent.places) - 1
            if facts.is_fault_free and not sent.called.transaction:
                facts.report.found("H6", f"{sent} is there {len(sent.places)} times without any fault", sent.called)
    if most is not None and counts.duplicate_share > most:
        facts.report.found("H6", f"{counts.duplicate_share:.2%} are duplicates, above the limit of {most:.2%}")


def _check_ends(facts: Facts) -> None:
    """H7: no queue ends before an acknowledged message."""
    ends: defaultdict[MessageQueue, list[QueueEnd]] = defaultdict(list)
    for end in facts.ends:
        ends[end.queue].append(end)
    for queue, told in ends.items():
        acks = sorted(facts.acks.get(queue, []), key=lambda ack: ack.at)
        times = [ack.at for ack in acks]
        highest = list(accumulate(acks, _higher))
        for end in told:
            before = bisect_left(times, end.at)
            if before and highest[before - 1].offset >= end.end:
                _ends_early(facts.report, highest[before - 1], end)


def _higher(one: SendOk, other: SendOk) -> SendOk:
    return one if one.offset >= other.offset else other


def _ends_early(report: Report, ack: SendOk, end: QueueEnd) -> None:
    report.found(
        "H7", f"{end.client} was told that {end.queue} ends at {end.end}, after offset {ack.offset} was acknowledged",
        ack, end,
    )  # fmt: skip


def _check_transactions(facts: Facts, *, drained: bool) -> None:
    """H8. Each commit that was told may put the message there once; a broker that dies may have heard it before."""
    for sent in facts.by_id.values():
        if sent.called.transaction:
            _check_transaction(facts.report, sent, is_owed=drained and sent.is_owed(facts.ended_at))


def _check_transaction(report: Report, sent: Sent, *, is_owed: bool) -> None:
    commits = [one for one in sent.decisions if one.commit]
    if commits and len(commits) < len(sent.decisions):
        report.found("H8", f"{sent} was decided both ways", sent.called, *sent.decisions)
    elif sent.first_seen is None:
        if is_owed:
            report.found("H8", f"{sent} was committed, and nobody ever found it", sent.called, *commits)
    elif not commits:
        what = "was rolled back" if sent.decisions else "was never decided"
        report.found("H8", f"{sent} {what}, and is there", sent.called, *sent.decisions, sent.first_seen)
    elif sent.seen_at < commits[0].at:
        report.found("H8", f"{sent} was seen before it was committed", sent.first_seen, *commits)
    elif len(sent.places) > len(commits):
        report.found(
            "H8", f"{sent} was committed {len(commits)} times, and is there {len(sent.places)} times", *commits
        )


def _check_delays(facts: Facts, max_lateness_s: float) -> None:
    """H9."""
    lateness: list[tuple[float, int]] = []
    for op, sent in facts.by_op.items():
        if sent.called.due is None or sent.first_seen is None:
            continue
        late = sent.seen_at - sent.called.due
        lateness.append((late, op))
        if late < 0:
            facts.report.found("H9", f"{sent} was seen {-late:.3f} s before it was due", sent.called, sent.first_seen)
    if lateness:
        _check_lateness(facts, sorted(lateness), max_lateness_s)


def _check_lateness(facts: Facts, lateness: list[tuple[float, int]], most: float) -> None:
    late, op = lateness[min(len(lateness) - 1, int(len(lateness) * 0.99))]
    facts.counts.lateness_p99_s = late
    if facts.is_fault_free and late > most:
        sent = facts.by_op[op]
        facts.report.found("H9", f"1 % were {late:.3f} s late or more without any fault, such as {sent}", sent.called)
