"""The file that says who leads, and what one broker makes of another's word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.support.fakes import store_config
from pyromq.broker.failover.leadership import FILE, MAX_MEMBERS, Leadership, LeadershipFile, Member, Pending
from pyromq.broker.failover.role import Leading, Verdict, extent_of, forgotten_life, free_id, judge
from pyromq.clock import ManualClock
from pyromq.config import BrokerConfig
from pyromq.errors import CorruptFile, NotNow
from pyromq.model.json_form import from_json
from pyromq.replication.log_matching import Epoch, LogExtent, common_end, has_our_tail
from pyromq.testing import SimDisk
from pyromq.wire.bodies.epochs import BrokerEpochs, EpochEntry

PLACE = Path("/store/config")


def file_on(disk: SimDisk) -> LeadershipFile:
    return LeadershipFile(disk, PLACE, lambda: "me")


def master(disk: SimDisk, life: str = "x", **settings: object) -> Leading:
    config = BrokerConfig(store=store_config(root=Path("/store")), **settings)  # type: ignore[arg-type]
    return Leading(file_on(disk), config, lambda: life)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(ManualClock())


# --- the file --------------------------------------------------------------------------------------------------------


def test_a_store_without_the_file_was_never_part_of_this(disk: SimDisk) -> None:
    leading = master(disk)
    assert (leading.epochs, leading.number, leading.config.role) == ((), 0, "ASYNC_MASTER")
    assert not disk.exists(PLACE / FILE)


def test_every_start_as_master_is_another_life_with_the_same_number(disk: SimDisk) -> None:
    master(disk, "x").begin(0, 0)
    master(disk, "y").begin(0, 500)
    leading = master(disk, "z")
    leading.begin(0, 500)  # nothing came in between: that life has left no byte
    assert leading.epochs == (Epoch(1, 0, "me.x"), Epoch(1, 500, "me.z"))
    assert (leading.known.lives, leading.known.led_as) == (3, ("me.x", "me.y", "me.z"))


def test_what_was_decided_wins_over_the_settings(disk: SimDisk) -> None:
    leading = master(disk)
    leading.begin(0, 100)
    leading.stand_down(4, 2, Member("b:1", 0, "b:2"))
    leading = master(disk)
    assert (leading.config.role, leading.config.broker_id, leading.number) == ("SLAVE", 2, 4)
    assert (leading.was_decided, leading.master) == (True, Member("b:1", 0, "b:2"))
    leading.promote(5, leading.role_if_promoted(None))
    leading = master(disk, "y")
    assert (leading.config.role, leading.config.broker_id, leading.was_decided) == ("ASYNC_MASTER", 0, False)
    assert leading.number == 5
    leading.begin(0, 300)
    assert leading.epochs[-1] == Epoch(5, 300, "me.y")


def test_what_wins_is_said_when_the_settings_say_something_else(
    disk: SimDisk, caplog: pytest.LogCaptureFixture
) -> None:
    slave = master(disk, role="SLAVE", broker_id=1)
    slave.stand_down(4, 1, Member("b:1", 0, "b:2"))
    master(disk, role="SLAVE", broker_id=1)
    assert not caplog.records
    assert master(disk, role="SLAVE", broker_id=2).config.broker_id == 1
    assert "this broker is SLAVE with id 1" in caplog.text
    assert "(they say SLAVE with id 2)" in caplog.text


def test_a_new_master_has_a_new_epoch_though_its_log_had_none_before(disk: SimDisk) -> None:
    leading = master(disk, role="SLAVE", broker_id=1)
    leading.adopt(None)
    assert (leading.number, leading.epochs) == (0, ())
    leading.promote(1, "ASYNC_MASTER")
    assert leading.number == 1
    leading.begin(0, 300)
    assert leading.epochs == (Epoch(1, 300, "me.x"),)


def test_a_slave_that_is_promoted_is_what_its_master_was(disk: SimDisk) -> None:
    leading = master(disk, role="SLAVE", broker_id=1)
    assert leading.role_if_promoted(None) == "ASYNC_MASTER"
    leading.adopt(BrokerEpochs(entries=(EpochEntry(3, 0, 0, "a.1"),), role="SYNC_MASTER", member="a"))
    assert (leading.number, leading.role_if_promoted(None)) == (3, "SYNC_MASTER")
    assert leading.role_if_promoted("ASYNC_MASTER") == "ASYNC_MASTER"


def test_a_copy_of_its_masters_directory_gets_a_name_of_its_own(disk: SimDisk) -> None:
    leading = master(disk, role="SLAVE", broker_id=1)
    leading.adopt(BrokerEpochs(entries=(EpochEntry(1, 0, 0, "me.1"),), member="me"))
    assert leading.known.member != "me"


@pytest.mark.parametrize("damage", [b"", b"{", b'{"member": "me", "lives": -1}', b'{"lives": 3}'])
def test_a_damaged_file_stops_the_start_although_its_copy_is_good(disk: SimDisk, damage: bytes) -> None:
    master(disk, "x").begin(0, 0)
    master(disk, "y").begin(0, 10)
    disk.replace_bytes(PLACE / FILE, damage)
    with pytest.raises(CorruptFile, match="may lack the last change"):
        master(disk)


def test_a_crash_in_the_very_first_save_is_no_damage(disk: SimDisk) -> None:
    master(disk, "x").begin(0, 0)
    disk.remove(PLACE / FILE)
    leading = master(disk, "y")
    leading.begin(0, 0)
    assert leading.epochs[-1] == Epoch(1, 0, "me.y")


def test_a_store_put_back_from_a_snapshot_leads_under_a_name_that_no_life_had() -> None:
    names = set()
    for _ in range(2):
        disk = SimDisk(ManualClock())
        file_on(disk).save(Leadership("me", lives=1, epochs=(Epoch(1, 0, "me.1"),), number=1))
        leading = Leading(file_on(disk), BrokerConfig(store=store_config(root=Path("/store"))))
        leading.begin(0, 500)
        assert leading.epochs[0] == Epoch(1, 0, "me.1"), "a file of an older version is read"
        names.add(leading.epochs[-1].by)
    assert len(names) == 2


def test_a_follower_knows_that_its_leader_was_put_back_to_an_earlier_life(disk: SimDisk) -> None:
    copied = LogExtent(0, 1000, (Epoch(1, 0, "me.x"), Epoch(1, 500, "me.y")))
    master(disk, "x").begin(0, 0)
    leading = master(disk, "z")
    leading.begin(0, 500)
    assert forgotten_life(copied, leading.describe(0, 500, "", "")) == Epoch(1, 500, "me.y")
    assert common_end(leading.extent(0, 900), copied) == 500, "two lives are two logs"
    assert has_our_tail(LogExtent(0, 500, (Epoch(1, 0, "me.x"),)), copied), "before it begins it hands over"


def test_a_life_that_a_crash_left_without_a_byte_is_not_forgotten(disk: SimDisk) -> None:
    copied = LogExtent(0, 1000, (Epoch(1, 0, "me.x"), Epoch(1, 500, "me.y")))
    master(disk, "x").begin(0, 0)
    master(disk, "y").begin(0, 500)
    leading = master(disk, "z")
    leading.begin(0, 500)  # everything since the life y began is lost
    assert forgotten_life(copied, leading.describe(0, 500, "", "")) is None
    assert forgotten_life(copied, BrokerEpochs(member="me")) is None, "an older version does not tell its lives"


# --- a crash is known from the role file -----------------------------------------------------------------------------


def test_a_leading_life_ended_cleanly_only_if_it_says_so_and_the_log_ends_there(disk: SimDisk) -> None:
    leading = master(disk, "x")
    assert not leading.has_crashed(0), "it never led"
    leading.begin(0, 0)
    assert master(disk).has_crashed(700)
    leading.end_cleanly(700)
    assert not master(disk).has_crashed(700)
    assert master(disk).has_crashed(650)
    master(disk, "y").begin(0, 700)
    assert master(disk).has_crashed(700), "the record is void when the next life begins"


def test_a_file_of_an_older_version_does_not_tell_of_crashes(disk: SimDisk) -> None:
    file_on(disk).save(Leadership("me", lives=3, epochs=(Epoch(1, 0, "me.3"),), number=1))
    assert not master(disk).has_crashed(700)


def test_one_that_follows_has_led_no_life_that_could_have_crashed(disk: SimDisk) -> None:
    leading = master(disk)
    leading.begin(0, 0)
    leading.stand_down(2, 1, Member("b:1", 0))
    assert not leading.has_crashed(100)
    leading.end_cleanly(100)  # a slave has no leading life to end
    assert leading.known.clean_end is None


def test_while_it_waits_to_lead_it_is_a_slave_and_the_next_start_knows(disk: SimDisk) -> None:
    leading = master(disk, role="SYNC_MASTER")
    leading.begin(0, 100)
    leading.heard_of([Member("b:1", 1)])
    leading.wait(2)
    leading = master(disk, role="SYNC_MASTER")
    assert (leading.waits, leading.config.role, leading.config.broker_id) == (True, "SLAVE", 2)
    assert (leading.meant.role, leading.role_if_promoted(None)) == ("SYNC_MASTER", "SYNC_MASTER")
    assert "b:1" in leading.why_it_waits
    leading.wait_no_longer()
    assert (leading.waits, leading.config.role) == (False, "SYNC_MASTER")
    leading.wait(2)
    leading.promote(2, "SYNC_MASTER")
    assert not leading.waits
    leading.void_promotion("a test")
    assert (leading.waits, leading.number, len(leading.known.members)) == (True, 1, 1)
    leading.promote(2, "SYNC_MASTER")
    leading = master(disk, "y", role="SYNC_MASTER")
    leading.begin(0, 100)
    assert (leading.waits, leading.known.members) == (False, ()), "nobody waits for it again"


def test_an_id_is_as_large_as_rocketmq_has_them(disk: SimDisk) -> None:
    master(disk).heard_of([Member("b:1", 1 << 40)])
    assert master(disk).known.members == (Member("b:1", 1 << 40),)


epochs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=4).map(
    lambda steps: tuple(
        Epoch(sum(one for one, _ in steps[: at + 1]), sum(two for _, two in steps[: at + 1]), f"m.{at}")
        for at in range(len(steps))
    )
)
members = st.builds(
    Member, st.sampled_from(["a:1", "b:1", "c:1"]), st.integers(0, 3), st.sampled_from(["", "a:2", "b:2"])
)
known = st.builds(
    Leadership,
    member=st.text(min_size=1, max_size=8),
    lives=st.integers(0, 1 << 40),
    number=st.integers(0, 1 << 31),
    epochs=epochs,
    role=st.sampled_from([None, "SLAVE", "ASYNC_MASTER", "SYNC_MASTER"]),
    broker_id=st.none() | st.integers(0, 5),
    master_role=st.sampled_from([None, "ASYNC_MASTER", "SYNC_MASTER"]),
    members=st.lists(members, max_size=3).map(tuple),
    waits_as=st.none() | st.integers(1, 5),
    led_as=st.lists(st.text(max_size=4), max_size=3).map(tuple),
    life=st.none() | st.text(max_size=4),
    clean_end=st.none() | st.integers(0, 1 << 40),
    pending=st.none()
    | st.builds(
        Pending,
        st.integers(0, 9),
        st.integers(0, 9),
        st.integers(0, 9),
        st.sampled_from([None, "SLAVE"]),
        st.none() | st.integers(0, 5),
        st.none() | st.integers(1, 5),
    ),
)


@given(known)
def test_what_is_written_is_read_again(leadership: Leadership) -> None:
    disk = SimDisk(ManualClock())
    file_on(disk).save(leadership)
    assert file_on(disk).load() == leadership
    assert from_json(Leadership, leadership.to_json()) == leadership


@given(st.lists(members, max_size=30))
def test_an_address_has_one_member_and_a_number_one_address(heard: list[Member]) -> None:
    found = Leadership("me").heard_of(heard).members
    assert len({one.address for one in found}) == len({one.broker_id for one in found}) == len(found) <= MAX_MEMBERS
    if heard:
        assert heard[-1] in found
    assert Leadership("me").heard_of(heard).heard_of(found).members == found


@given(st.sets(st.integers(0, 8)))
def test_the_smallest_number_that_nobody_has(taken: set[int]) -> None:
    number = free_id(taken)
    assert number > 0
    assert number not in taken
    assert all(smaller in taken for smaller in range(1, number))


# --- what one makes of another ---------------------------------------------------------------------------------------

COMMON = EpochEntry(1, 0, 0, "a.1")


def broker(number: int, broker_id: int, end: int = 100, *more: EpochEntry) -> BrokerEpochs:
    return BrokerEpochs(broker_id=broker_id, entries=(COMMON, *more), end=end, number=number, member="m")


def verdict(ours: BrokerEpochs, other: BrokerEpochs) -> Verdict:
    return judge(ours.newest, extent_of(ours), other)


brokers = st.builds(
    lambda number, end: broker(number, 0, end, EpochEntry(number, 50, 0, f"x.{number}")),
    st.integers(1, 5), st.integers(50, 200),
)  # fmt: skip


@given(brokers, brokers)
def test_of_two_masters_of_one_log_one_goes_unless_nobody_can_tell(one: BrokerEpochs, other: BrokerEpochs) -> None:
    verdicts = {verdict(one, other), verdict(other, one)}
    if one.newest == other.newest:
        assert verdicts == {Verdict.TWIN}
    else:
        assert verdicts == {Verdict.STAND_DOWN, Verdict.OUTRANKED}


def test_a_slave_that_knows_of_a_later_master_is_believed() -> None:
    assert verdict(broker(1, 0), broker(2, 1)) is Verdict.STAND_DOWN


def test_a_stranger_with_our_name_makes_nobody_a_slave() -> None:
    stranger = replace(broker(7, 0), entries=(EpochEntry(7, 0, 0, "z.1"),))
    assert verdict(broker(1, 0), stranger) is Verdict.TWIN
    assert verdict(broker(1, 0), replace(stranger, broker_id=1)) is Verdict.NOTHING


def test_of_two_who_were_promoted_with_one_number_both_say_which_one_leads() -> None:
    one, other = (broker(2, 0, 100, EpochEntry(2, 50, 0, f"{name}.1")) for name in "bc")
    assert (verdict(one, other), verdict(other, one)) == (Verdict.STAND_DOWN, Verdict.OUTRANKED)
    again = broker(2, 0, 100, EpochEntry(2, 50, 0, "b.1"), EpochEntry(2, 60, 0, "b.2"))
    assert (verdict(again, other), verdict(other, again)) == (Verdict.STAND_DOWN, Verdict.OUTRANKED)


def test_a_slave_that_leads_by_its_settings_replaces_nobody() -> None:
    master_of_both = broker(2, 0, 100, EpochEntry(2, 50, 0, "b.1"))
    by_mistake = broker(2, 0, 100, EpochEntry(2, 50, 0, "b.1"), EpochEntry(2, 70, 0, "c.1"))
    assert {verdict(master_of_both, by_mistake), verdict(by_mistake, master_of_both)} == {Verdict.TWIN}


def test_who_led_both_shows_that_they_belong_together_whichever_life_it_was() -> None:
    """Nothing was stored yet: the slave followed an earlier life of its master."""
    old = BrokerEpochs(broker_id=0, entries=(EpochEntry(1, 0, 0, "a.4"),), number=1)
    promoted = BrokerEpochs(broker_id=0, entries=(EpochEntry(1, 0, 0, "a.1"), EpochEntry(2, 0, 0, "b.1")), number=2)
    assert (verdict(old, promoted), verdict(promoted, old)) == (Verdict.STAND_DOWN, Verdict.OUTRANKED)


def test_a_slave_that_has_what_a_crash_took_from_us_is_to_lead() -> None:
    assert verdict(broker(1, 0, 80), broker(1, 1, 100)) is Verdict.HAND_OVER
    assert verdict(broker(1, 0, 100), broker(1, 1, 100)) is Verdict.NOTHING
    assert verdict(broker(1, 0, 80, EpochEntry(1, 60, 0, "a.2")), broker(1, 1, 100)) is Verdict.NOTHING, (
        "what it has of an earlier life has been led over since"
    )


def test_an_empty_store_does_not_lead_over_a_slave_that_has_messages() -> None:
    assert judge(0, LogExtent(0, 0), broker(3, 1)) is Verdict.HAND_OVER
    assert judge(0, LogExtent(0, 0), replace(broker(3, 1), end=0)) is Verdict.NOTHING
    assert judge(0, LogExtent(0, 0), broker(1, 0)) is Verdict.TWIN, "that one leads: the name is taken"
    assert judge(0, LogExtent(0, 0), broker(3, 0)) is Verdict.STAND_DOWN, "that one was promoted: our disk was replaced"


def test_two_stores_with_one_broker_id_are_both_known(disk: SimDisk) -> None:
    leading = master(disk)
    leading.heard_of([Member("b:1", 1, "b:2", "b"), Member("c:1", 1, "c:2", "c")])
    assert [one.member for one in master(disk).known.members] == ["b", "c"]


def test_a_store_that_moved_has_one_entry_and_an_answer_without_its_id_keeps_it(disk: SimDisk) -> None:
    leading = master(disk)
    leading.heard_of([Member("b:1", 1, "b:2", "b")])
    leading.heard_of([Member("c:1", 1, "c:2", "b")])
    leading.heard_of([Member("c:1", 2, "c:2")])
    assert master(disk).known.members == (Member("c:1", 2, "c:2", "b"),)


def test_a_follower_that_caught_up_takes_the_place_of_others_with_its_broker_id(disk: SimDisk) -> None:
    leading = master(disk)
    leading.write_follower(Member("b:1", 1, "b:2", "b"))
    leading.write_follower(Member("c:1", 1, "c:2", "c"))
    leading.write_follower(Member("d:1", 2, "d:2", "d"))
    assert [one.member for one in leading.known.members] == ["b", "c", "d"]
    leading.follower_caught_up(1, "c")
    assert [one.member for one in master(disk).known.members] == ["c", "d"]


def test_a_follower_is_not_written_down_in_the_place_of_another_one(disk: SimDisk) -> None:
    leading = master(disk)
    for number in range(MAX_MEMBERS):
        leading.write_follower(Member(f"{number}:1", number + 1, "", f"m{number}"))
    with pytest.raises(NotNow, match="none is forgotten"):
        leading.write_follower(Member("new:1", 99, "", "new"))
    leading.write_follower(Member("moved:1", 1, "", "m0"))
    assert len(master(disk).known.members) == MAX_MEMBERS
