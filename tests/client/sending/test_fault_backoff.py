"""Slow and failing brokers are left alone, for longer every time, and tried again with one send at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.client.sending.fault_backoff import FaultBackoff, avoided_for
from pyromq.clock import ManualClock


def scene() -> tuple[ManualClock, FaultBackoff]:
    clock = ManualClock()
    return clock, FaultBackoff(clock)


@pytest.mark.parametrize(
    ("latency_s", "avoided_s"),
    [(0.0, 0), (0.049, 0), (0.1, 0), (0.549, 0), (0.55, 2), (1.8, 5), (2.9, 5), (3, 6), (5, 10), (15, 30), (99, 30)],
)
def test_the_slower_an_answer_the_longer_its_broker_is_avoided(latency_s: float, avoided_s: float) -> None:
    assert avoided_for(latency_s) == avoided_s


def test_nothing_is_avoided_as_long_as_answers_are_quick() -> None:
    clock, backoff = scene()
    backoff.answered("a", clock.monotonic(), 0.02)
    assert not backoff
    assert not backoff.avoids("a")


def test_a_failed_broker_is_avoided_and_the_others_are_not() -> None:
    clock, backoff = scene()
    backoff.failed("a", clock.monotonic())
    assert backoff.avoids("a")
    assert not backoff.avoids("b")


def test_after_its_time_one_probe_goes_out_and_an_answer_clears_the_broker() -> None:
    clock, backoff = scene()
    backoff.failed("a", clock.monotonic())
    clock.advance(2.1)
    assert not backoff.avoids("a")
    backoff.chosen("a")
    began = clock.monotonic()
    assert backoff.avoids("a"), "the others wait for what the probe finds"
    clock.advance(0.01)
    backoff.answered("a", began, 0.01)
    assert not backoff.avoids("a")
    assert not backoff


def test_a_probe_that_fails_makes_the_time_longer_each_time() -> None:
    clock, backoff = scene()
    waited = []
    for _ in range(7):
        backoff.failed("a", clock.monotonic())
        seconds = 0.0
        while backoff.avoids("a"):
            clock.advance(0.5)
            seconds += 0.5
        backoff.chosen("a")
        waited.append(seconds)
    assert waited == sorted(waited)
    assert waited[0] == 2.0
    assert waited[-1] == 30.0


def test_a_lost_probe_does_not_block_the_next_one_for_ever() -> None:
    clock, backoff = scene()
    backoff.failed("a", clock.monotonic())
    clock.advance(2.1)
    backoff.chosen("a")
    assert backoff.avoids("a")
    clock.advance(3.1)
    assert not backoff.avoids("a")


def test_a_broken_connection_that_fails_a_thousand_sends_is_one_fault() -> None:
    clock, backoff = scene()
    began = clock.monotonic()
    clock.advance(0.01)
    for _ in range(1000):
        backoff.failed("a", began)
    clock.advance(2.1)
    assert not backoff.avoids("a")


def test_a_late_answer_to_an_old_send_does_not_clear_a_broker() -> None:
    clock, backoff = scene()
    began = clock.monotonic()
    clock.advance(0.1)
    backoff.failed("a", clock.monotonic())
    backoff.answered("a", began, 0.1)
    assert backoff.avoids("a")


def test_a_slow_answer_is_a_fault_too() -> None:
    clock, backoff = scene()
    began = clock.monotonic()
    clock.advance(4)
    backoff.answered("a", began, 4.0)
    clock.advance(5.9)
    assert backoff.avoids("a")
    clock.advance(0.2)
    assert not backoff.avoids("a")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["fail", "slow", "quick", "wait"])), max_size=60))
def test_whatever_happens_no_broker_is_avoided_for_longer_than_a_probe_and_half_a_minute(
    events: list[tuple[str, str]],
) -> None:
    clock, backoff = scene()
    for broker, event in events:
        if event == "fail":
            backoff.failed(broker, clock.monotonic())
        elif event == "slow":
            backoff.answered(broker, clock.monotonic(), 20.0)
        elif event == "quick":
            backoff.answered(broker, clock.monotonic(), 0.001)
        else:
            backoff.chosen(broker)
            clock.advance(1.3)
    clock.advance(33.1)
    assert not any(backoff.avoids(broker) for broker in "abc")
