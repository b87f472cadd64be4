"""Trust in the wall clock: a decision from readings, and its effect in the store."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.admin.brokers import read_status
from pyromq.admin.directory import BrokerAddress
from pyromq.cli.admin.broker_views import status_facts, status_json
from pyromq.clock import ManualClock, SystemClock, boot_id, uptime
from pyromq.config import RetentionConfig
from pyromq.store.message_store import InlineRunner, MessageStore
from pyromq.store.retention import MAX_REMOVED, newest_ms
from pyromq.store.trusted_clock import TOLERANCE_MS, ClockState, Reading, TrustedClock, judge
from pyromq.testing import SimDisk
from store.support import ROOT, config, open_store, orders

HOUR_MS = 3_600_000
NOW = 1_700_000_000_000
CONFIRM = 12 * HOUR_MS
RETENTION = RetentionConfig(max_age_hours=72)


class World:
    """A machine whose wall clock can be set."""

    def __init__(self, newest_store_ms: int = NOW) -> None:
        self.wall = NOW
        self.uptime = 1_000_000
        self.boot = "first"
        self.newest_store_ms = newest_store_ms
        self.state = ClockState()

    def pass_time(self, ms: int, step_ms: int = HOUR_MS) -> bool:
        while ms > 0:
            step = min(ms, step_ms)
            self.wall += step
            self.uptime += step
            self.look()
            ms -= step
        return self.state.is_trusted

    def jump(self, ms: int) -> bool:
        self.wall += ms
        return self.look()

    def reboot(self, downtime_ms: int, clock_error_ms: int = 0) -> bool:
        self.wall += downtime_ms + clock_error_ms
        self.uptime, self.boot = 5_000, self.boot + "'"
        return self.look()

    def look(self) -> bool:
        now = Reading(self.wall, self.uptime, self.boot)
        self.state = judge(self.state, now, newest_store_ms=self.newest_store_ms, confirm_ms=CONFIRM)
        return self.state.is_trusted


def test_a_clock_that_goes_on_is_believed() -> None:
    world = World()
    assert world.look()
    assert world.pass_time(30 * 24 * HOUR_MS)
    assert world.state.seen_ms == world.wall


def test_eighty_hours_ahead_for_twelve_seconds() -> None:
    world = World()
    world.look()
    assert not world.jump(80 * HOUR_MS)
    assert not world.pass_time(12_000)
    assert world.state.ahead_ms == 80 * HOUR_MS
    assert world.jump(-80 * HOUR_MS)
    assert world.pass_time(HOUR_MS)


@pytest.mark.parametrize("step_ms", [24 * HOUR_MS, 400 * 24 * HOUR_MS], ids=["watched", "not watched"])
def test_a_long_uptime_excuses_no_jump(step_ms: int) -> None:
    world = World()
    world.look()
    assert world.pass_time(400 * 24 * HOUR_MS, step_ms)
    assert not world.jump(80 * HOUR_MS)


def test_a_jump_is_believed_once_it_has_lasted() -> None:
    world = World()
    world.look()
    world.jump(80 * HOUR_MS)
    assert not world.pass_time(CONFIRM - HOUR_MS)
    assert world.pass_time(HOUR_MS)
    assert world.pass_time(100 * HOUR_MS)


def test_a_second_jump_has_to_last_by_itself() -> None:
    world = World()
    world.look()
    world.jump(80 * HOUR_MS)
    world.pass_time(CONFIRM - HOUR_MS)
    assert not world.jump(80 * HOUR_MS)
    assert not world.pass_time(CONFIRM - HOUR_MS)
    assert world.pass_time(HOUR_MS)


def test_small_steps_add_up_to_a_jump() -> None:
    world = World()
    world.look()
    steps = [world.jump(TOLERANCE_MS // 2) for _ in range(4)]
    assert steps == [True, True, False, False]


def test_a_clock_that_runs_twice_as_fast_is_found_out() -> None:
    world = World()
    world.look()
    for _ in range(100):
        world.wall += 60_000
        world.pass_time(60_000)
    assert not world.state.is_trusted


def test_backwards_is_believed_and_the_way_back_is_a_jump() -> None:
    world = World()
    world.look()
    world.pass_time(HOUR_MS)
    assert world.jump(-50 * HOUR_MS)
    assert not world.jump(50 * HOUR_MS)


def test_a_suspended_machine_has_uptime() -> None:
    world = World()
    world.look()
    assert world.pass_time(96 * HOUR_MS, step_ms=96 * HOUR_MS)


@pytest.mark.parametrize(
    ("downtime_ms", "error_ms", "believed"),
    [
        (0, 0, True),
        (TOLERANCE_MS, 0, True),
        (0, 80 * HOUR_MS, False),
        (4 * 24 * HOUR_MS, 0, False),  # nothing tells it from a wrong clock: it has to last
        (0, -5 * HOUR_MS, True),
    ],
)
def test_after_a_reboot(downtime_ms: int, error_ms: int, believed: bool) -> None:
    world = World()
    world.look()
    world.pass_time(24 * HOUR_MS)
    assert world.reboot(downtime_ms, error_ms) is believed
    assert world.pass_time(CONFIRM)


def test_a_suspicion_does_not_survive_a_reboot_unconfirmed_nor_is_it_forgotten() -> None:
    world = World()
    world.look()
    world.jump(80 * HOUR_MS)
    world.pass_time(CONFIRM - HOUR_MS)
    assert not world.reboot(1000)
    assert not world.pass_time(CONFIRM - HOUR_MS)
    assert world.pass_time(HOUR_MS)


@pytest.mark.parametrize(("newest", "believed"), [(0, True), (NOW, True), (NOW - 80 * HOUR_MS, False)])
def test_a_store_without_a_state_is_compared_with_its_newest_record(newest: int, believed: bool) -> None:
    world = World(newest)
    assert world.look() is believed
    assert world.pass_time(CONFIRM)


@given(st.lists(st.tuples(st.sampled_from(["pass", "jump", "reboot"]), st.integers(-100, 100)), max_size=30))
def test_expiry_never_runs_ahead_of_the_time_that_passed_unless_confirmed(story: list[tuple[str, int]]) -> None:
    """Whatever happens, a believed clock is at most the tolerance ahead of real time, or stood for `CONFIRM`."""
    world = World()
    world.look()
    unconfirmed_ms = 0
    for what, hours in story:
        if what == "pass":
            world.pass_time(abs(hours) * HOUR_MS // 10)
            unconfirmed_ms += abs(hours) * HOUR_MS // 10
        elif what == "jump":
            before = world.state.seen_ms
            believed = world.jump(hours * HOUR_MS)
            assert not (believed and world.wall - before > TOLERANCE_MS + unconfirmed_ms * 0.01 + 1) or hours <= 0
        else:
            before = world.state.seen_ms
            believed = world.reboot(0, hours * HOUR_MS)
            assert not believed or world.wall - before <= TOLERANCE_MS


# --- in a store ------------------------------------------------------------------------------------------------------


def filled(disk: SimDisk, clock: ManualClock, count: int = 600) -> MessageStore:
    store = open_store(disk, clock, retention=RETENTION)
    store.append(orders(count))
    store.dispatch()
    store.flush()
    disk.mark()
    store.clean()
    assert len(store.log.files.segments) > 2
    return store


def test_a_clock_that_jumps_removes_nothing_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    disk = SimDisk(clock)
    store = filled(disk, clock)
    clock.jump(80 * 3600)
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            clock.advance(10)
            store.clean()
    assert store.min_offset("orders", 0) == 0
    assert len([line for line in caplog.messages if "80.0 hours ahead" in line]) == 1, "once, however often it looks"
    assert "80.0 hours ahead" in store.cleaner.why_nothing_expires
    clock.jump(-80 * 3600)
    store.clean()
    assert not store.cleaner.why_nothing_expires
    clock.advance(71 * 3600)
    store.clean()
    assert store.min_offset("orders", 0) == 0
    store.close()


def test_a_restart_while_the_clock_is_wrong_removes_nothing() -> None:
    clock = ManualClock()
    disk = SimDisk(clock)
    filled(disk, clock).close()
    clock.jump(80 * 3600)
    for _ in range(3):
        store = open_store(disk, clock, retention=RETENTION)
        store.clean()
        assert store.min_offset("orders", 0) == 0
        assert store.cleaner.why_nothing_expires
        store.close()


def test_a_store_that_never_saved_a_time_removes_nothing_either() -> None:
    clock = ManualClock()
    disk = SimDisk(clock)
    filled(disk, clock).close()
    disk.remove(ROOT / "trustedclock")
    clock.jump(80 * 3600)
    store = open_store(disk, clock, retention=RETENTION)
    store.append(orders(5))  # stored with the wrong time
    store.clean()
    assert store.min_offset("orders", 0) == 0
    assert store.cleaner.why_nothing_expires
    store.close()


def test_an_idle_broker_expires_its_data_after_four_days() -> None:
    clock = ManualClock()
    store = filled(SimDisk(clock), clock)
    for _ in range(97):
        clock.advance(3600)
        store.clean()
    assert len(store.log.files.segments) == 1
    store.close()


def test_a_broker_that_was_off_for_four_days_expires_its_data_after_the_time_to_confirm() -> None:
    clock = ManualClock()
    disk = SimDisk(clock)
    filled(disk, clock).close()
    clock.jump(96 * 3600)  # a reboot: the uptime tells nothing of it
    store = open_store(disk, clock, retention=RETENTION)
    store.clean()
    assert store.min_offset("orders", 0) == 0
    for _ in range(13):
        clock.advance(3600)
        store.clean()
    assert len(store.log.files.segments) == 1
    store.close()


def test_a_bounded_number_of_segments_goes_at_a_time() -> None:
    clock = ManualClock()
    disk = SimDisk(clock)
    store = filled(disk, clock, count=3 * MAX_REMOVED * 100)
    before = len(store.log.files.segments)
    assert before > 2 * MAX_REMOVED
    clock.advance(73 * 3600)
    store.clean()
    assert len(store.log.files.segments) == before - MAX_REMOVED
    asyncio.run(store.clean_soon())
    assert len(store.log.files.segments) == 1, "who asks for it gets all of it, in rounds"
    store.close()


def test_a_segment_is_as_old_as_its_newest_record() -> None:
    """The time of the file may be anything: a copy made by hand keeps no times, or those of another clock."""
    clock = ManualClock()
    disk = SimDisk(clock)
    store = filled(disk, clock)
    for path in disk.files():
        if path.parent == ROOT / "commitlog":
            disk._file(path).modified_ms = NOW - 1000 * HOUR_MS
    store.clean()
    assert store.min_offset("orders", 0) == 0
    clock.advance(73 * 3600)
    store.clean()
    assert store.min_offset("orders", 0) > 0
    store.close()


@pytest.mark.parametrize(
    ("stored", "modified", "expected"),
    [(5, 3, 5), (3, 5, 5), (200, 5, 5), (200, 300, 300), (0, 7, 7), (100, 0, 100)],
)
def test_the_later_time_counts_and_a_future_store_time_does_not(stored: int, modified: int, expected: int) -> None:
    assert newest_ms(stored, modified, 100) == expected


def test_a_state_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    disk, clock = SimDisk(), ManualClock()
    for damage in (b"", b"{", b"[]", b'{"anchor": 5}', b'{"anchor": [1]}', b'{"seenMs": "x"}', b"null"):
        disk.plant(ROOT / "trustedclock", damage)
        trusted = TrustedClock(disk, ROOT / "trustedclock", clock)
        trusted.start(0)
        assert trusted.state == ClockState()
        assert trusted.look(12)


def test_the_state_is_kept(tmp_path: Path) -> None:
    disk, clock = SimDisk(), ManualClock()
    trusted = TrustedClock(disk, ROOT / "trustedclock", clock)
    trusted.start(0)
    trusted.look(12)
    clock.jump(50 * 3600)
    trusted.look(12)
    trusted.save_if_due()
    again = TrustedClock(disk, ROOT / "trustedclock", clock)
    again.start(0)
    assert again.state == replace(trusted.state)
    assert not again.look(12)
    disk.full = True
    clock.jump(-50 * 3600)
    assert again.look(12)
    again.save_if_due()  # no room: the stricter state stays on the disk


def test_the_real_clocks(tmp_path: Path) -> None:
    assert 0 < uptime() <= uptime()
    assert boot_id() == boot_id() != ""
    with MessageStore(config(root=tmp_path), clock=SystemClock(), runner=InlineRunner()) as store:
        store.append(orders(3))
        store.clean()
        assert store.cleaner.trusted_clock.state.is_trusted
    assert (tmp_path / "trustedclock").exists()


def test_the_cluster_view_tells_of_it() -> None:
    store = filled(SimDisk(clock := ManualClock()), clock)
    clock.jump(80 * 3600)
    store.clean()
    address = BrokerAddress("cluster", "broker-a", 0, "127.0.0.1:10911")
    status = read_status(address, {"pyromq.retentionPaused": store.cleaner.why_nothing_expires})
    assert "80.0 hours ahead" in status.retention_paused
    assert status_json(status)["retention_paused"] == status.retention_paused
    assert "80.0 hours ahead" in "".join(
        str(cell) for column in status_facts(status, 0).columns for cell in column.cells
    )
    store.close()
