"""Histories as a whole: random good ones pass, whatever is broken in them is found, files and speed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from late import in_time
from pyromq.clock import ManualClock
from pyromq.errors import CorruptFile
from pyromq.testing import History, check
from pyromq.testing.history.events import (
    KINDS,
    Committed,
    Delivered,
    Event,
    Handled,
    Read,
    SendFailed,
    SendOk,
    from_json,
    to_json,
)
from testing.history_stories import Q0, three_read
from testing.history_world import GROUP, TOPIC, World

SEEDS = st.integers(0, 2**32)


@given(seed=SEEDS, steps=st.integers(0, 150), ordered=st.booleans(), faults=st.booleans())
@settings(max_examples=150, deadline=None)
def test_whatever_happens_in_a_good_world_passes(seed: int, steps: int, ordered: bool, faults: bool) -> None:
    world = World(random.Random(seed), ordered=ordered, faults=faults)
    report = check(world.run(steps))
    assert report.ok, str(report)
    counts = report.counts
    assert counts.reads == sum(map(len, world.log.values()))
    assert faults or (counts.stored_duplicates, counts.delivered_duplicates) == (0, 0)


# --- one thing broken ------------------------------------------------------------------------------------------------

Break = Callable[[list[Event], random.Random], None]


def one_of(events: list[Event], kind: type[Event], rng: random.Random) -> int:
    return rng.choice([number for number, event in enumerate(events) if isinstance(event, kind)])


def lose_a_read(events: list[Event], rng: random.Random) -> None:
    """And what consumers had of the message."""
    lost = events[one_of(events, Read, rng)].message_id  # type: ignore[union-attr]
    of_it = {event.op for event in events if getattr(event, "message_id", "") == lost and hasattr(event, "op")}
    assert of_it
    events[:] = [
        event for event in events
        if not (isinstance(event, Read | Delivered | Handled) and event.message_id == lost)
    ]  # fmt: skip


def invent_a_message(events: list[Event], rng: random.Random) -> None:
    at = one_of(events, Read, rng)
    events[at] = events[at]._replace(message_id="invented")


def change_a_body(events: list[Event], rng: random.Random) -> None:
    sent = {event.message_id for event in events if getattr(event, "key", "")}
    at = next(number for number, event in enumerate(events) if isinstance(event, Read) and event.message_id in sent)
    events[at] = events[at]._replace(digest="changed")


def swap_two_acks(events: list[Event], rng: random.Random) -> None:
    plain = {event.op for event in events if getattr(event, "key", "")}
    one, two = [number for number, event in enumerate(events) if isinstance(event, SendOk) and event.op in plain][:2]
    a, b = events[one], events[two]
    assert isinstance(a, SendOk)
    assert isinstance(b, SendOk)
    events[one] = a._replace(queue=b.queue, offset=b.offset)
    events[two] = b._replace(queue=a.queue, offset=a.offset)


def forget_a_delivery(events: list[Event], rng: random.Random) -> None:
    gone = events[one_of(events, SendOk, rng)].op  # type: ignore[union-attr]
    [message] = [event.message_id for event in events if getattr(event, "op", None) == gone and hasattr(event, "key")]
    events[:] = [
        event for event in events if not (isinstance(event, Delivered | Handled) and event.message_id == message)
    ]


def go_back(events: list[Event], rng: random.Random) -> None:
    last = max(number for number, event in enumerate(events) if isinstance(event, Committed) and event.offset)
    commit = events[last]
    assert isinstance(commit, Committed)
    events.insert(last + 1, commit._replace(offset=commit.offset - 1))


def say_it_failed(events: list[Event], rng: random.Random) -> None:
    plain = {event.op for event in events if getattr(event, "key", "")}
    at = next(number for number, event in enumerate(events) if isinstance(event, SendOk) and event.op in plain)
    ok = events[at]
    assert isinstance(ok, SendOk)
    events[at] = SendFailed(ok.at, ok.op)


BROKEN: dict[str, tuple[Break, set[str]]] = {
    "a lost message": (lose_a_read, {"H1", "H3", "H5", "H8"}),
    "an invented message": (invent_a_message, {"H2"}),
    "a changed body": (change_a_body, {"H2"}),
    "acknowledgements that were mixed up": (swap_two_acks, {"H3"}),
    "a forgotten delivery": (forget_a_delivery, {"H5"}),
    "progress that went back": (go_back, {"H11"}),
    "a failed send that is there": (say_it_failed, {"H2"}),
}


@pytest.mark.parametrize("name", BROKEN)
@given(seed=SEEDS)
@settings(max_examples=15, deadline=None)
def test_what_is_broken_in_a_random_history_is_found(name: str, seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng)
    for _ in range(3):
        world.send()
    events = world.run(80).events
    break_it, rules = BROKEN[name]
    break_it(events, rng)
    if name == "a forgotten delivery" and check(events).ok:
        return  # it was a half message that was rolled back: no consumer was to receive it
    assert check(events).broken_rules & rules


# --- writing, files, speed -------------------------------------------------------------------------------------------


def test_a_history_is_written_with_the_time_at_which_things_happen() -> None:
    clock = ManualClock(1000)
    history = History(clock=clock)
    op = history.send_called("p", TOPIC, "m1")
    clock.advance(2)
    history.send_ok(op, Q0, 0)
    history.read("reader", Q0, 0, "m1")
    assert [event.at for event in history] == [1.0, 3.0, 3.0]
    assert len(history) == 3
    assert check(history).ok


def test_several_threads_may_write() -> None:
    history = History()

    def work(name: str) -> None:
        for number in range(200):
            history.send_unknown(history.send_called(name, TOPIC, f"{name}-{number}"))

    threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert check(history).ok
    assert check(history).counts.unknown == 800


def test_files_give_back_what_was_written(tmp_path: Path) -> None:
    history = World(random.Random(3)).run(500)
    history.dead_lettered(GROUP, "m1")
    history.reset(GROUP, Q0, 0)
    assert {type(event) for event in history} == set(KINDS.values())
    history.save(tmp_path / "history.jsonl")
    loaded = History.load(tmp_path / "history.jsonl")
    assert loaded.events == history.events
    assert [type(event) for event in loaded] == [type(event) for event in history]
    assert loaded.send_called("p", TOPIC, "new") not in {getattr(event, "op", 0) for event in history}


def test_a_line_that_is_no_event_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    History(three_read().events).save(path)
    for bad in ("{", "[]", '{"event": "Guess"}', '{"event": "Fault", "when": 1}'):
        path.write_text(path.read_text().splitlines()[0] + "\n" + bad + "\n")
        with pytest.raises(CorruptFile, match="line 2, is no event"):
            History.load(path)


def test_an_event_in_words() -> None:
    told = to_json(SendOk(1.5, 7, Q0, 3))
    assert told == {"event": "SendOk", "at": 1.5, "op": 7, "queue": ["orders", "broker-a", 0], "offset": 3}
    assert from_json(told) == SendOk(1.5, 7, Q0, 3)


def test_a_large_history_is_checked_quickly() -> None:
    """The target is a million events in 30 s; a tenth of it is enough to see a check that is not linear."""
    history = World(random.Random(1), queues=8).run(30_000)
    assert len(history) > 100_000
    began = perf_counter()
    report = check(history)
    seconds = perf_counter() - began
    assert report.ok, str(report)
    in_time(seconds / len(history) * 1_000_000, 30, "a million events")
