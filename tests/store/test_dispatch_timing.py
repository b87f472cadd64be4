"""Dispatch timing: once for all due records, at once for a waiting reader, in batches otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from pyromq.store.dispatch_timing import DispatchTiming
from pyromq.store.watermarks import Watermark, Watermarks

LINGER_S = 0.002


class Timer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """Its turns and its clock are moved by the test."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], None]] = []
        self._timers: list[Timer] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        assert seconds == LINGER_S
        self._timers.append(Timer(call))
        return self._timers[-1]

    def turn(self) -> None:
        calls, self._soon = self._soon, []
        for call in calls:
            call()

    def time_passes(self) -> None:
        timers, self._timers = self._timers, []
        for timer in timers:
            if not timer.is_cancelled:
                timer.call()


class Scene:
    """A log whose queues follow as far as readers may see; `promised` holds them back."""

    def __init__(self, *, copies: bool = False, sync_flush: bool = False) -> None:
        self.marks = Watermarks(visible_is_synced=sync_flush)
        self._sync_flush = sync_flush
        self.promised = Watermark("promised")
        if copies:
            self.marks.limit_visible(self.promised)
        self.loop = Loop()
        self.timing = DispatchTiming(self.marks, self._dispatch, lambda: LINGER_S)
        self.timing.start(cast(Any, self.loop))
        self.marks.visible_moved = self.timing.visible_moved
        #: The ends of queues after each dispatch.
        self.followed: list[int] = []

    def _dispatch(self) -> None:
        self.marks.dispatched.advance(max(self.marks.visible, self.marks.dispatched.value))
        self.marks.indexed.advance(self.marks.visible)
        self.timing.dispatched()
        self.followed.append(self.marks.dispatched.value)

    def closed_at(self, position: int, *, awaited: bool = False) -> None:
        self.timing.came(may_be_awaited=awaited)
        self.marks.written.advance(position)
        if self._sync_flush:
            self.timing.synced_moved()
        else:
            self.timing.written_moved()

    def synced_to(self, position: int) -> None:
        self.marks.synced.advance(position)
        self.timing.synced_moved()


def test_what_is_closed_is_followed_in_the_next_turn_once() -> None:
    scene = Scene()
    scene.closed_at(10)
    scene.closed_at(20)
    assert scene.followed == []
    scene.loop.turn()
    scene.loop.turn()
    assert scene.followed == [20]


def test_whoever_asks_before_does_it_and_it_is_not_done_again() -> None:
    scene = Scene()
    scene.closed_at(10)
    scene.timing.if_due()
    scene.loop.turn()
    scene.timing.if_due()
    assert scene.followed == [10]


def test_under_sync_flush_nothing_is_shown_before_it_is_synced() -> None:
    scene = Scene(sync_flush=True)
    scene.closed_at(10)
    scene.closed_at(20, awaited=True)
    scene.loop.turn()
    scene.loop.time_passes()
    scene.timing.if_due()
    assert scene.followed == [], "there is nothing to follow"
    scene.synced_to(10)
    scene.loop.turn()
    assert scene.followed == [10], "a long poll may wait for it: at once"
    scene.synced_to(20)
    scene.loop.turn()
    assert scene.followed == [10, 20]


def test_what_was_synced_waits_for_more_unless_a_long_poll_waits_for_it() -> None:
    scene = Scene(sync_flush=True)
    for position in (10, 20):
        scene.closed_at(position)
        scene.synced_to(position)
    scene.loop.turn()
    assert scene.followed == []
    scene.loop.time_passes()
    assert scene.followed == [20]

    scene.closed_at(30)
    scene.synced_to(30)
    scene.closed_at(40, awaited=True)
    scene.loop.turn()
    assert scene.followed == [20, 30], "what lingered was hurried up"
    scene.synced_to(40)
    scene.loop.turn()
    scene.loop.time_passes()
    assert scene.followed == [20, 30, 40]


def test_a_run_that_was_synced_as_it_was_closed_is_shown_to_the_long_poll_that_waits_for_it() -> None:
    scene = Scene(sync_flush=True)
    scene.marks.written.advance(10)
    scene.synced_to(10)  # the loop did, before the run is closed and known to be awaited
    scene.closed_at(10, awaited=True)
    scene.timing.if_due()
    assert scene.followed == [10]


def test_reports_of_copies_with_nothing_to_show_cost_nothing() -> None:
    scene = Scene(copies=True)
    for position in (10, 20, 30):
        scene.promised.advance(position)
    scene.loop.turn()
    scene.loop.time_passes()
    assert scene.followed == []


def test_what_was_closed_together_is_followed_together_when_its_last_byte_is_copied() -> None:
    scene = Scene(copies=True)
    scene.promised.advance(10)
    scene.closed_at(30)
    scene.timing.batch_closed()
    scene.loop.turn()
    assert scene.followed == []
    scene.promised.advance(20)
    scene.loop.turn()
    assert scene.followed == []
    scene.promised.advance(30)
    scene.loop.turn()
    assert scene.followed == [30]
    scene.loop.time_passes()
    assert scene.followed == [30]


def test_a_slave_that_is_always_a_little_behind_holds_nobody_back() -> None:
    scene = Scene(copies=True)
    scene.closed_at(30)
    scene.promised.advance(20)
    scene.closed_at(50)
    scene.loop.turn()
    assert scene.followed == []
    scene.loop.time_passes()
    assert scene.followed == [20]
    scene.promised.advance(40)
    scene.loop.time_passes()
    assert scene.followed == [20, 40]


def test_whoever_waits_sees_each_message_in_the_turn_in_which_its_copy_is_heard_of() -> None:
    scene = Scene(copies=True)
    scene.closed_at(30, awaited=True)
    scene.promised.advance(20)
    scene.loop.turn()
    assert scene.followed == [20]
    scene.promised.advance(30)
    scene.loop.turn()
    assert scene.followed == [20, 30]

    scene.closed_at(50)
    scene.promised.advance(40)
    scene.loop.turn()
    assert scene.followed == [20, 30], "nobody waits any more"


def test_one_that_begins_to_wait_when_its_message_is_on_its_way_is_told_as_soon_as_its_copy_is_heard_of() -> None:
    scene = Scene(copies=True)
    scene.closed_at(30)
    scene.timing.watched()
    scene.promised.advance(20)
    scene.loop.turn()
    assert scene.followed == [20]


def test_whoever_waits_while_everything_is_in_its_queue_hurries_nothing_up() -> None:
    scene = Scene(copies=True)
    scene.timing.watched()
    scene.closed_at(30)
    scene.promised.advance(20)
    scene.loop.turn()
    assert scene.followed == []


def test_the_key_index_gets_on_when_queues_are_complete_already() -> None:
    scene = Scene(copies=True)
    scene.marks.written.advance(30)
    scene.marks.dispatched.advance(30)
    scene.promised.advance(30)
    scene.loop.turn()
    assert scene.marks.indexed.value == 30


def test_a_run_that_has_lingered_is_followed_at_once_where_nothing_holds_it_back() -> None:
    scene = Scene()
    scene.closed_at(10)
    scene.timing.batch_closed()
    assert scene.followed == [10]


def test_nothing_happens_any_more_once_it_has_stopped() -> None:
    scene = Scene()
    scene.closed_at(10)
    scene.timing.stop()
    scene.closed_at(20)
    scene.loop.turn()
    scene.loop.time_passes()
    assert scene.followed == []
