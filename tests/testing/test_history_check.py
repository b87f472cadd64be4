"""The history checker finds what it is there to find: bad histories, each with the rule that it breaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyromq.testing.history.check import check
from pyromq.testing.history.events import (
    Committed,
    DeadLettered,
    Decided,
    Delivered,
    Event,
    Fault,
    Handled,
    QueueEnd,
    Read,
    Reset,
    SendCalled,
    SendFailed,
    SendOk,
    SendUnknown,
)
from pyromq.testing.history.report import KEPT_PER_RULE, RULES
from testing.history_stories import Q0, Q1, RETRIES, Story, three_consumed, three_messages, three_read


def half(*decisions: bool) -> Story:
    """m1, a half message that was stored and decided so."""
    story = Story().add(SendCalled(0, "p", 1, "orders", "m1", transaction=True), SendOk(1, 1, Q0, 7))
    return story.add(*(Decided(2 + number, 1, commit) for number, commit in enumerate(decisions)))


def delayed(due: float) -> Story:
    return Story().add(SendCalled(0, "p", 1, "orders", "m1", due=due), SendOk(1, 1, Q0, 3))


BAD: dict[str, tuple[str, Callable[[], Story]]] = {
    "an acknowledged message is nowhere": ("H1", lambda: three_messages().read(1, Q0, 0).read(2, Q0, 1)),
    "the end of a queue is lost": ("H1", lambda: three_messages().read(1, Q0, 0).read(3, Q1, 0)),
    "a queue was read, and the message is only with a consumer": (
        "H1",
        lambda: three_messages().read(1, Q0, 0).read(3, Q1, 0).give(2, Q0, 1),
    ),
    "a delayed message never came": ("H1", lambda: delayed(10).add(Fault(11, "killed"))),
    "a message that nobody sent": ("H2", lambda: three_read().read(9, Q1, 1)),
    "a delivered message that nobody sent": ("H2", lambda: three_read().give(9, Q1, 1)),
    "a message whose send had failed": (
        "H2",
        lambda: (
            three_read().add(SendCalled(9, "p", 4, "orders", "m4"), SendFailed(10, 4, "no permission")).read(4, Q1, 1)
        ),
    ),
    "a body that was changed": (
        "H2",
        lambda: Story().send(1, Q0, 0, digest="aa").add(Read(5, "reader", Q0, 0, "m1", digest="bb")),
    ),
    "a message in another topic": (
        "H2",
        lambda: three_read().add(Read(20, "reader", Q0._replace(topic="payments"), 0, "m1")),
    ),
    "a message in another queue than it was sent to": (
        "H2",
        lambda: Story().add(SendCalled(0, "p", 1, "orders", "m1", queue=Q1), SendUnknown(1, 1)).read(1, Q0, 0),
    ),
    "one offset given to two messages": ("H3", lambda: Story().send(1, Q0, 0).send(2, Q0, 0)),
    "another message at an acknowledged offset": ("H3", lambda: three_messages().read(2, Q0, 0)),
    "an offset that changed between two readings": (
        "H3",
        lambda: three_read().read(1, Q0, 0, "again").read(3, Q0, 1, "again"),
    ),
    "a gap in a queue": ("H3", lambda: Story().send(1, Q0, 0).send(2, Q0, 2).read(1, Q0, 0).read(2, Q0, 2)),
    "a queue that is not in the order of the log": (
        "H3",
        lambda: three_messages().add(
            Read(6, "reader", Q0, 0, "m1", position=500), Read(7, "reader", Q0, 1, "m2", position=400)
        ),
    ),
    "a queue read backwards": ("H4", lambda: three_messages().read(2, Q0, 1).read(1, Q0, 0).read(3, Q1, 0)),
    "a key whose later message is before the earlier": (
        "H4",
        lambda: Story().send(1, Q0, 1, key="k").send(2, Q0, 0, key="k").read(2, Q0, 0).read(1, Q0, 1),
    ),
    "an ordered group that skips and comes back": (
        "H4",
        lambda: Story().subscribe(ordered=True).add(*three_messages().events).handle(2, Q0, 1).handle(1, Q0, 0),
    ),
    "an ordered group that does not wait": (
        "H4",
        lambda: (
            Story()
            .subscribe(ordered=True)
            .add(*three_messages().events)
            .give(1, Q0, 0)
            .give(2, Q0, 1)
            .done(1, Q0, 0)
            .done(2, Q0, 1)
        ),
    ),
    "an ordered group that goes on after a failure": (
        "H4",
        lambda: (
            Story()
            .subscribe(ordered=True)
            .add(*three_messages().events)
            .handle(1, Q0, 0, again=True)
            .handle(2, Q0, 1)
            .handle(1, Q0, 0, attempt=2)
        ),
    ),
    "a key handled out of order over two queues": (
        "H4",
        lambda: (
            Story()
            .subscribe(ordered=True)
            .send(1, Q0, 0, key="k")
            .send(2, Q1, 0, key="k")
            .handle(2, Q1, 0)
            .handle(1, Q0, 0)
        ),
    ),
    "progress that passes what was never given": (
        "H5",
        lambda: Story().subscribe().add(*three_messages().events).handle(2, Q0, 1).commit(Q0, 2).handle(1, Q0, 0),
    ),
    "progress that passes what is not handled": (
        "H5",
        lambda: Story().subscribe().add(*three_messages().events).give(1, Q0, 0).commit(Q0, 1).done(1, Q0, 0),
    ),
    "a message that a group never had": (
        "H5",
        lambda: Story().subscribe().add(*three_read().events).handle(1, Q0, 0).handle(2, Q0, 1),
    ),
    "a message that failed and never came again": (
        "H5",
        lambda: Story().subscribe().send(1, Q0, 0).handle(1, Q0, 0, again=True).commit(Q0, 1),
    ),
    "a group that was given nothing at all": ("H5", lambda: Story().subscribe().add(*three_read().events)),
    "a message stored twice without a fault": ("H6", lambda: three_read().read(1, Q0, 2)),
    "a message delivered twice without a fault": ("H6", lambda: three_consumed().handle(1, Q0, 0)),
    "a queue that ends before what was acknowledged": (
        "H7",
        lambda: three_read().add(QueueEnd(20, "reader", Q0, 1)),
    ),
    "a queue that was empty after an acknowledgement": (
        "H7",
        lambda: three_read().add(QueueEnd(6, "reader", Q1, 0)),
    ),
    "a rolled back message that is there": ("H8", lambda: half(False).read(1, Q0, 0)),
    "a message that nobody committed": ("H8", lambda: half().read(1, Q0, 0)),
    "a committed message that is nowhere": ("H8", lambda: half(True)),
    "a committed message that is there twice": ("H8", lambda: half(True).read(1, Q0, 0).read(1, Q0, 1)),
    "a half message seen before it was committed": (
        "H8",
        lambda: Story().add(Read(0.5, "reader", Q0, 0, "m1")).add(*half(True).events),
    ),
    "a message decided both ways": ("H8", lambda: half(True, False).read(1, Q0, 0)),
    "a delayed message that is early": ("H9", lambda: delayed(10).add(Read(9.5, "reader", Q0, 0, "m1"))),
    "a delayed message stored too early and read late": (
        "H9",
        lambda: delayed(10).add(Read(99, "reader", Q0, 0, "m1", stored_at=9.9)),
    ),
    "a delayed message that is late without a fault": (
        "H9",
        lambda: delayed(10).add(Read(12, "reader", Q0, 0, "m1")),
    ),
    "progress that goes back": ("H11", lambda: three_consumed().commit(Q0, 1)),
    "progress that goes back in the hands of another": (
        "H11",
        lambda: three_consumed().add(Committed(99, "other", "billing", Q1, 0)),
    ),
    "an outcome of nothing": ("H0", lambda: three_read().add(SendOk(9, 77, Q1, 5))),
    "two outcomes of one send": ("H0", lambda: three_read().add(SendUnknown(9, 1))),
    "one message sent twice as new": ("H0", lambda: three_read().add(SendCalled(9, "p", 8, "orders", "m1"))),
    "an end of what is no half message": ("H0", lambda: three_read().add(Decided(9, 1, commit=True))),
    "a message handled and never delivered": ("H0", lambda: three_read().done(1, Q0, 0)),
}
#: A story that does without something cannot help breaking a second rule with it.
ALSO: dict[str, set[str]] = {
    "an offset that changed between two readings": {"H6"},
    "a message in another topic": {"H6"},
    "a half message seen before it was committed": {"H2"},
}
IGNORED_AT_THE_END = {"H1", "H5"}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_flagged_by_its_rule(name: str) -> None:
    rule, story = BAD[name]
    report = check(story().events)
    assert rule in report.broken_rules, str(report)
    assert report.broken_rules <= {rule} | ALSO.get(name, set()) | (IGNORED_AT_THE_END if rule != "H0" else set())
    [first, *_] = [one for one in report.violations if one.rule == rule]
    assert first.events, "it names the events concerned"
    assert first.sentence in str(report)
    with pytest.raises(AssertionError, match=rule):
        report.raise_if_bad()


GOOD: dict[str, Callable[[], Story]] = {
    "nothing happened": Story,
    "everything was read": three_read,
    "everything was read twice": lambda: three_read().read(1, Q0, 0, "again").read(2, Q0, 1, "again"),
    "everything was consumed": three_consumed,
    "everything was consumed in order": lambda: three_consumed(ordered=True),
    "a message came again because it was asked for, from the retry topic": lambda: (
        Story().subscribe().send(1, Q0, 0).handle(1, Q0, 0, again=True).commit(Q0, 1).handle(1, RETRIES, 0, attempt=2)
    ),
    "an ordered message tried again in its place": lambda: (
        Story()
        .subscribe(ordered=True)
        .send(1, Q0, 0)
        .send(2, Q0, 1)
        .handle(1, Q0, 0, again=True)
        .handle(1, Q0, 0, attempt=2)
        .handle(2, Q0, 1)
    ),
    "a message given up": lambda: (
        Story()
        .subscribe(ordered=True)
        .send(1, Q0, 0)
        .send(2, Q0, 1)
        .handle(1, Q0, 0, again=True)
        .add(DeadLettered(9, "billing", "m1"))
        .handle(2, Q0, 1)
    ),
    "an unknown send that is there": lambda: (
        Story().add(SendCalled(0, "p", 1, "orders", "m1"), SendUnknown(1, 1)).read(1, Q0, 0)
    ),
    "an unknown send that is not there": lambda: (
        three_read().add(SendCalled(9, "p", 4, "orders", "m4"), SendUnknown(10, 4))
    ),
    "a send that never ended": lambda: three_read().add(SendCalled(9, "p", 4, "orders", "m4")),
    "a failed send that is not there": lambda: (
        three_read().add(SendCalled(9, "p", 4, "orders", "m4"), SendFailed(10, 4))
    ),
    "a retried send stored twice, with a fault": lambda: (
        Story().add(Fault(0, "cut")).add(*three_read().events).read(1, Q0, 2)
    ),
    "an ordered consumer that died, and its heir begins where it had committed": lambda: (
        Story()
        .subscribe(ordered=True)
        .add(Fault(0, "killed"))
        .send(1, Q0, 0)
        .send(2, Q0, 1)
        .handle(1, Q0, 0)
        .give(2, Q0, 1)
        .give(1, Q0, 0, client="heir")
        .done(1, Q0, 0, client="heir")
        .give(2, Q0, 1, client="heir")
        .done(2, Q0, 1, client="heir")
    ),
    "a key's message that a line held back, stored once more behind a later one": lambda: (
        Story()
        .subscribe(ordered=True)
        .add(Fault(0, "cut"))
        .send(1, Q0, 0, key="k")
        .send(2, Q0, 1, key="k")
        .handle(1, Q0, 0)
        .handle(2, Q0, 1)
        .handle(1, Q0, 2)
    ),
    "keys of which two were on their way at once": lambda: Story().add(
        SendCalled(0, "p", 1, "orders", "m1", key="k", sequence=1),
        SendCalled(1, "p", 2, "orders", "m2", key="k", sequence=2),
        SendOk(2, 2, Q0, 0), SendOk(3, 1, Q0, 1),
        Read(4, "r", Q0, 0, "m2"), Read(5, "r", Q0, 1, "m1"),
    ),
    "a queue that had not yet what was on its way": lambda: (
        three_read().add(QueueEnd(4.5, "reader", Q1, 0), QueueEnd(50, "reader", Q0, 2))
    ),
    "a committed half message": lambda: half(True).read(1, Q0, 0),
    "one that was committed twice because nobody knew": lambda: half(True, True).read(1, Q0, 0).read(1, Q0, 1),
    "a rolled back one": lambda: half(False, False),
    "one that is still open": half,
    "a delayed one that is not due yet": lambda: delayed(10),
    "a delayed one in time": lambda: delayed(10).add(Read(10.5, "reader", Q0, 0, "m1")),
    "a late one with a fault": lambda: (
        delayed(10).add(Fault(3, "killed")).add(Read(70, "reader", Q0, 0, "m1"))
    ),
    "progress that was reset": lambda: (
        three_consumed().add(Reset(30, "billing", Q0, 0)).commit(Q0, 0).handle(1, Q0, 0).handle(2, Q0, 1).commit(Q0, 2)
    ),
    "progress that a killed broker forgot": lambda: (
        three_consumed().add(Fault(30, "kill -9", forgets_progress=True)).commit(Q0, 1)
    ),
    "a group that came late and wants only what is new": lambda: (
        three_read().subscribe(from_first=False).send(4, Q0, 2).read(4, Q0, 2).handle(4, Q0, 2).commit(Q0, 3)
    ),
    "a group that only tells what it was given": lambda: (
        Story().subscribe().send(1, Q0, 0).give(1, Q0, 0).commit(Q0, 1)
    ),
    "a group that never said what it wants": lambda: three_read().give(1, Q0, 0).commit(Q0, 5),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_passes(name: str) -> None:
    drained = name != "one that is still open"
    report = check(GOOD[name]().events, drained=drained)
    assert report.ok, str(report)
    assert "every promise was kept" in str(report)
    report.raise_if_bad()


def test_a_group_may_pass_a_place_where_it_was_given_what_is_lost() -> None:
    story = Story().add(Fault(0, "promotion")).subscribe().send(1, Q0, 0).send(2, Q0, 1).handle(1, Q0, 0).commit(Q0, 2)
    story.read(1, Q0, 0).read(2, Q0, 1)
    assert check(story.events).totals == {"H5": 2}  # passed, and never handled
    assert check(story.events, passed={("another", Q0, 1)}).totals == {"H5": 2}
    assert check(story.events, passed={("billing", Q0, 1)}).ok


def test_every_rule_has_a_bad_history() -> None:
    assert {rule for rule, _ in BAD.values()} == RULES.keys()
    assert len(BAD) >= 20


def test_before_everything_was_read_nothing_is_lost_yet() -> None:
    story = three_messages().read(1, Q0, 0)
    assert not check(story.events).ok
    assert check(story.events, drained=False).ok
    assert check(half(True).events, drained=False).ok


def test_everything_is_counted() -> None:
    story = Story().add(Fault(0, "cut"))
    story.add(*three_consumed().events)
    story.handle(1, Q0, 0).read(1, Q0, 0).read(2, Q0, 1).read(1, Q0, 2)
    story.add(SendCalled(30, "p", 4, "orders", "m4"), SendCalled(31, "p", 5, "orders", "m5"), SendFailed(32, 5))
    counts = check(story.events).counts
    assert (counts.sends, counts.acknowledged, counts.failed, counts.unknown) == (5, 3, 1, 1)
    assert (counts.reads, counts.deliveries, counts.handled, counts.faults) == (3, 4, 4, 1)
    assert (counts.stored_duplicates, counts.delivered_duplicates) == (1, 1)
    assert counts.duplicate_share == 2 / 7
    assert counts.events == len(story.events)


def test_duplicates_may_have_a_limit() -> None:
    events: list[Event] = [Fault(0, "cut"), *three_read().read(1, Q0, 2).events]
    assert check(events, max_duplicate_share=0.25).ok
    assert check(events, max_duplicate_share=0.24).broken_rules == {"H6"}


def test_a_very_bad_history_has_a_short_report() -> None:
    report = check([Read(at, "reader", Q0, at, f"phantom-{at}") for at in range(1000)])
    assert report.totals["H2"] == 1000
    assert len(report.violations) == KEPT_PER_RULE
    assert "1000 times" in str(report)


def test_a_bad_body_is_seen_in_a_delivery_too() -> None:
    story = Story().send(1, Q0, 0, digest="aa").add(Delivered(5, "c", "g", Q0, 0, "m1", digest="bb"))
    assert check(story.add(Handled(6, "c", "g", Q0, 0, "m1")).events).broken_rules == {"H2"}
    assert Q1 != Q0
