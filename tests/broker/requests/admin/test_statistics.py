"""Traffic counts: rates over windows, and bounded memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.broker.statistics import traffic as module
from pyromq.broker.statistics.traffic import Statistics
from pyromq.clock import ManualClock

NOON_MS = 1_700_000_000_000


def running(clock: ManualClock, statistics: Statistics, seconds: int, each_second: int = 0) -> None:
    for _ in range(seconds):
        if each_second:
            statistics.sent("orders", each_second, each_second * 100)
        clock.advance(1)
        statistics.sample()


def test_a_steady_flow_has_its_rate_in_every_window() -> None:
    clock = ManualClock(NOON_MS)
    statistics = Statistics(clock)
    running(clock, statistics, 4000, each_second=5)
    for rate in statistics.rates("TOPIC_PUT_NUMS", "orders") or ():
        assert rate.per_second == pytest.approx(5, rel=0.01)
        assert rate.each == 5
    assert statistics.topic_tps("orders") == pytest.approx(5, rel=0.01)
    for seconds in (10, 60, 600):
        assert statistics.put.tps(clock.now_ms(), seconds) == pytest.approx(5, rel=0.01)


def test_windows_forget_what_was_before_them() -> None:
    clock = ManualClock(NOON_MS)
    statistics = Statistics(clock)
    running(clock, statistics, 60, each_second=10)
    running(clock, statistics, 120)
    minute, hour, day = statistics.rates("TOPIC_PUT_SIZE", "orders") or ()
    assert (minute.total, hour.total, day.total) == (0, 60_000, 60_000)
    assert statistics.put.tps(clock.now_ms(), 60) == 0
    running(clock, statistics, 2 * 3600)
    _, hour, day = statistics.rates("TOPIC_PUT_SIZE", "orders") or ()
    assert (hour.total, day.total) == (0, 60_000)


def test_a_single_message_is_no_thousand_a_second() -> None:
    clock = ManualClock(NOON_MS)
    statistics = Statistics(clock)
    statistics.sent("orders", 1, 100)
    assert statistics.topic_tps("orders") == 0.1
    assert statistics.put.tps(clock.now_ms(), 600) == 0.1


def test_groups_take_and_give_back() -> None:
    statistics = Statistics(ManualClock(NOON_MS))
    statistics.got("shop", "orders", 8, 800)
    statistics.got("shop", "orders", 4, 400)
    statistics.sent_back("shop", "orders", 1)
    statistics.got_nothing()
    statistics.send_failed()
    (taken, _, _) = statistics.rates("GROUP_GET_NUMS", "orders@shop") or ()
    assert (taken.total, taken.each) == (12, 6)
    assert (statistics.rates("GROUP_GET_SIZE", "orders@shop") or ())[0].total == 1200
    assert (statistics.rates("SNDBCK_PUT_NUMS", "orders@shop") or ())[0].total == 1
    assert (statistics.rates("BROKER_GET_NUMS", "DefaultCluster") or ())[0].total == 12
    assert (statistics.rates("BROKER_PUT_NUMS", "DefaultCluster") or ())[0].total == 0
    assert statistics.group_tps("shop", "orders") == 1.2
    assert (statistics.found.messages, statistics.missed.messages, statistics.failed_puts) == (2, 1, 1)
    statistics.forget_group("shop")
    assert statistics.rates("GROUP_GET_NUMS", "orders@shop") is None
    assert statistics.rates("NO_SUCH_NAME", "orders") is None


def test_totals_of_the_last_two_mornings() -> None:
    clock = ManualClock(NOON_MS)
    statistics = Statistics(clock)
    statistics.sent("orders", 7, 0)
    for _ in range(2):
        clock.advance(86_400)
        statistics.sample()
        statistics.sent("orders", 1, 0)
    assert (statistics.put_mornings.yesterday, statistics.put_mornings.today, statistics.put.messages) == (7, 8, 9)


def test_what_is_not_used_for_a_day_is_forgotten() -> None:
    clock = ManualClock(NOON_MS)
    statistics = Statistics(clock)
    statistics.sent("old", 1, 1)
    for _ in range(26):
        statistics.sent("busy", 1, 1)
        clock.advance(3600)
        statistics.sample()
    assert statistics.rates("TOPIC_PUT_NUMS", "old") is None
    assert statistics.rates("TOPIC_PUT_NUMS", "busy") is not None


def test_there_is_a_limit_to_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FLOWS", 3)
    statistics = Statistics(ManualClock(NOON_MS))
    for number in range(10):
        statistics.sent(f"t{number}", 1, 1)
        statistics.got(f"g{number}", "orders", 1, 1)
    assert len(statistics._topics) + len(statistics._groups) == 3
    assert statistics.put.messages == 10, "in all it is counted nevertheless"


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 5000)), max_size=60))
def test_no_window_ever_says_more_than_was_counted(steps: list[tuple[int, int]]) -> None:
    clock = ManualClock(NOON_MS)
    statistics = Statistics(clock)
    counted = 0
    for messages, seconds in steps:
        statistics.sent("orders", messages, 1)
        counted += messages
        clock.advance(seconds)
        statistics.sample()
        rates = statistics.rates("TOPIC_PUT_NUMS", "orders")
        assert rates is not None
        assert 0 <= rates[0].total <= rates[1].total <= rates[2].total <= counted
