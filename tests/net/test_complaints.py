"""Log lines about peers are few, whatever the peers do."""

from __future__ import annotations

import pytest

from pyromq.clock import ManualClock
from pyromq.net.rate_limited_log import LINES_PER_WINDOW, MAX_HOSTS, WINDOW_SECONDS, Complaints


def test_a_flood_of_one_host_is_a_few_lines_and_a_number(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    complaints = Complaints(clock)
    for number in range(1000):
        complaints.say("10.0.0.1", f"line {number}")
    complaints.say("10.0.0.2", "somebody else")
    assert len(caplog.messages) == LINES_PER_WINDOW + 1
    assert caplog.messages[-1] == "somebody else"
    clock.advance(WINDOW_SECONDS + 1)
    complaints.settle()
    complaints.settle()
    assert caplog.messages[-1] == "990 more lines about 10.0.0.1 were left out in the last minute"
    complaints.say("10.0.0.1", "again")
    assert caplog.messages[-1] == "again"
    assert len(caplog.messages) == LINES_PER_WINDOW + 3


def test_the_number_is_said_when_the_next_line_comes_if_nobody_settled(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    complaints = Complaints(clock)
    for _ in range(LINES_PER_WINDOW + 2):
        complaints.say("h", "x")
    clock.advance(WINDOW_SECONDS + 1)
    complaints.say("h", "y")
    assert caplog.messages[-2:] == ["2 more lines about h were left out in the last minute", "y"]


def test_a_flood_of_many_hosts_is_bounded_too(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(ManualClock())
    for number in range(3 * MAX_HOSTS):
        complaints.say(f"host {number}", "x")
    assert len(caplog.messages) == MAX_HOSTS + LINES_PER_WINDOW


def test_a_percent_sign_in_a_line_is_a_percent_sign(caplog: pytest.LogCaptureFixture) -> None:
    Complaints(ManualClock()).say("h", "100 %s")
    assert caplog.messages == ["100 %s"]
