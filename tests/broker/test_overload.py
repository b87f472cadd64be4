"""Overload: the signs of a busy broker, and that it continues to store while it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyromq.broker.overload import MAX_REFUSED_TURNS, PROBES, Overload
from pyromq.clock import ManualClock
from pyromq.config import OverloadConfig
from pyromq.errors import SystemBusy
from pyromq.store.watermarks import Watermarks


class Scene:
    def __init__(self, **limits: int) -> None:
        self.marks = Watermarks()
        self.limits = OverloadConfig(**limits)
        self.overload = Overload(lambda: self.limits, self.marks, ManualClock())

    def late(self, ms: float, times: int = 1) -> list[bool]:
        """So late is the loop, so often; whether sends are refused after each."""
        refused = []
        for _ in range(times):
            self.overload.probed(ms / 1000)
            refused.append(self.overload.reason() is not None)
        return refused


def test_nothing_is_refused_at_rest() -> None:
    scene = Scene()
    scene.overload.check()
    assert scene.late(0, 10) == [False] * 10


def test_a_machine_that_stood_still_for_a_moment_is_no_overload() -> None:
    scene = Scene()
    assert scene.late(5000, PROBES - 1) == [False] * (PROBES - 1)
    assert scene.late(0) == [False]
    assert scene.late(5000, PROBES - 1) == [False] * (PROBES - 1)


def test_a_late_loop_refuses_every_other_turn_and_says_why() -> None:
    scene = Scene()
    assert scene.late(300, PROBES + 4) == [False, False, True, False, True, False, True]
    with pytest.raises(SystemBusy, match=r"300 ms behind \(limit 200 ms\).*not stored"):
        scene.overload.check()


def test_the_later_it_is_the_more_are_refused_but_never_all() -> None:
    scene = Scene()
    scene.late(0, PROBES)
    refused = scene.late(60_000, PROBES - 1 + 4 * (MAX_REFUSED_TURNS + 1))[PROBES - 1 :]
    assert refused == ([True] * MAX_REFUSED_TURNS + [False]) * 4


def test_it_is_over_with_the_first_probe_in_time() -> None:
    scene = Scene()
    assert scene.late(900, PROBES)[-1]
    assert scene.late(0) == [False]
    assert scene.overload.lag_ms == 0


def test_a_limit_of_zero_switches_a_sign_off() -> None:
    scene = Scene(loop_lag_ms=0, unsynced_bytes=0, undispatched_bytes=0, waiting_sends=0)
    scene.overload.count_waiting(lambda: 1 << 40)
    scene.marks.appended.advance(1 << 50)
    scene.marks.written.advance(1 << 50)
    assert not any(scene.late(60_000, 10))


def test_a_disk_or_a_dispatcher_that_is_behind() -> None:
    scene = Scene(unsynced_bytes=1000, undispatched_bytes=500)
    scene.marks.appended.advance(1001)
    assert scene.overload.reason() == "1001 bytes wait for the disk (limit 1000)"
    scene.marks.synced.advance(1001)
    assert scene.overload.reason() is None
    scene.marks.written.advance(1001)
    assert scene.overload.reason() == "1001 bytes are not in their queues yet (limit 500)"
    scene.marks.dispatched.advance(600)
    assert scene.overload.reason() is None


def test_sends_that_wait_for_the_disk_are_counted_together() -> None:
    scene = Scene(waiting_sends=10)
    waiting = [4, 5]
    for number in range(2):
        scene.overload.count_waiting(lambda number=number: waiting[number])  # type: ignore[misc]
    assert scene.overload.reason() is None
    waiting[1] = 6
    assert scene.overload.reason() == "10 sends wait for the disk (limit 10)"
    scene.limits = replace(scene.limits, waiting_sends=11)
    assert scene.overload.reason() is None
