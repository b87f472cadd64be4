"""The choice of the next leader and its explanation, as cases that an operator meets. No network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from admin.members import address_of, away, master, member, slave
from pyromq.admin.brokers import BrokerStatus
from pyromq.admin.promotion import Member, choose, what_may_be_missing
from pyromq.errors import NotFound, NotNow, NotSupported


def test_a_master_that_lives_hands_over_and_nothing_is_missing() -> None:
    plan = choose([member(master(1500)), member(slave(lag_bytes=500))])
    assert (plan.is_hand_over, plan.slave.address, plan.epoch) == (True, address_of(1), 2)
    assert what_may_be_missing(plan) == [
        "The master at 10.0.0.1:10911 lives and hands over: nothing will be missing; the slave lacks 500 bytes, and "
        "gets them first."
    ]


def test_of_two_slaves_without_a_master_the_one_with_more_leads() -> None:
    plan = choose([member(slave(1, 1000)), member(slave(2, 1200))])
    assert (plan.slave.address, plan.better, plan.master) == (address_of(2), (), None)
    assert what_may_be_missing(plan)[0] == "No name server that answers knows a master: it is taken for gone."


def test_among_equals_the_smallest_number_leads() -> None:
    assert choose([member(slave(2)), member(slave(1))]).slave.address == address_of(1)


def test_a_newer_epoch_counts_more_than_a_longer_log() -> None:
    longer, newer = member(slave(1, 5000, epoch=2)), member(slave(2, 1000, epoch=3), (2, 0), (3, 900))
    assert choose([longer, newer]).slave is newer
    # An epoch that begins behind its log's end was lost with a crash: it says nothing for it.
    shortened = member(slave(2, 800, epoch=3), (2, 0), (3, 900))
    plan = choose([longer, shortened])
    assert plan.slave is longer
    assert plan.epoch == 4, "every number that anybody knows is below"


def test_the_worse_slave_may_be_named_and_the_better_one_is_shown() -> None:
    plan = choose([member(slave(1, 1000, connected=False)), member(slave(2, 1200))], broker_id=1)
    assert [one.address for one in plan.better] == [address_of(2)]
    assert "Slave 2" not in " ".join(what_may_be_missing(plan))
    assert what_may_be_missing(plan)[2] == (
        "slave 2 at 10.0.0.3:10911 has a better log (the log up to byte 1,200 in epoch 1): what it has more would be "
        "put aside."
    )


def test_a_master_that_is_away_is_told_apart_from_one_that_is_gone() -> None:
    plan = choose([member(away(0)), member(slave(connected=False, master_end=1300, lag_ms=4200)), member(away(2))])
    assert not plan.is_hand_over
    assert what_may_be_missing(plan) == [
        "The master at 10.0.0.1:10911 does not answer: if it lives all the same, what it takes from now on is put "
        "aside when it comes back.",
        "Slave 1 at 10.0.0.2:10911 has the log up to byte 1,000 in epoch 1; its master had at least 300 bytes more 4.2 "
        "s ago. What the master took after that is missing, unless it waited for this slave (sync master).",
        "slave 2 at 10.0.0.3:10911 does not answer, and may have more.",
    ]


def test_a_master_that_only_we_do_not_reach_is_told_of() -> None:
    told = what_may_be_missing(choose([member(away(0)), member(slave(connected=True))]))
    assert told[1] == "Slave 1 at 10.0.0.2:10911 is still connected with it: it lives, or has gone only just now."


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "what its master had beyond that is not known here. "),
        ({"master_end": 1000, "lag_ms": 180_000}, "it had all that its master had sent 3 min ago. "),
    ],
)
def test_what_the_master_had_is_said_as_far_as_it_is_known(more: dict[str, int], words: str) -> None:
    plan = choose([member(slave(connected=False, **more))])
    assert words in what_may_be_missing(plan)[1]


@pytest.mark.parametrize(
    ("members", "named", "error", "words"),
    [
        ([master()], {}, NotFound, "has no slave that a name server knows"),
        ([master(), slave()], {"broker_id": 0}, NotNow, "the master at 10.0.0.1:10911 is the master already"),
        ([master(), slave()], {"address": address_of(0)}, NotNow, "is the master already"),
        ([master(), slave()], {"broker_id": 7}, NotFound, "has no slave 7: there is slave 1 at 10.0.0.2:10911"),
        ([slave()], {"address": "1.1.1.1:1"}, NotFound, "has no slave at 1.1.1.1:1: there is slave 1"),
        ([away(1), away(2)], {}, NotNow, "no slave of 'pair' answers: nobody listens there"),
        ([slave(), away(2)], {"broker_id": 2}, NotNow, "slave 2 at 10.0.0.3:10911 of 'pair' does not answer"),
        ([BrokerStatus("c", "pair", 1, address_of(1))], {}, NotSupported, "is no PyroMQ, or an old one"),
        ([master(), slave(connected=False)], {}, NotNow, "does not copy its master now, and the master lives"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(
    members: list[BrokerStatus], named: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        choose([member(one) for one in members], **named)  # type: ignore[arg-type]


def test_a_slave_that_leads_already_and_is_not_registered_so_yet() -> None:
    promoted = replace(slave(), copying=master(slaves=()).copying)
    with pytest.raises(NotNow, match="leads already, and registers so in a moment"):
        choose([member(promoted)])


# --- two logs that were led separately -------------------------------------------------------------------------------


def forked() -> list[Member]:
    held = member(slave(1, 1500, epoch=2, connected=False), (1, 0), (2, 1000))
    return [member(master(3000)), replace(held, epochs=replace(held.epochs, held_for="a")), member(away(2))]


@pytest.mark.parametrize("kept", [0, 1])
def test_either_log_of_a_fork_may_be_kept_and_none_is_handed_over(kept: int) -> None:
    plan = choose(forked(), address=address_of(kept))
    assert (plan.slave.address, plan.is_fork, plan.is_hand_over, plan.better, plan.epoch) == (
        address_of(kept), True, False, (), 3,
    )  # fmt: skip
    (told,) = what_may_be_missing(plan)
    assert f"at {address_of(kept)} (the log up to byte {(3000, 1500)[kept]:,} in epoch {kept + 1}) is kept" in told
    assert f"at {address_of(1 - kept)} (the log up to byte {(3000, 1500)[1 - kept]:,}" in told
    assert "moved to quarantine" in told


@pytest.mark.parametrize(("named", "why"), [({}, f"its address, {address_of(0)} or"), ({"broker_id": 2}, "not answer")])
def test_the_log_of_a_fork_that_is_kept_has_to_be_named_and_there(named: dict[str, int], why: str) -> None:
    with pytest.raises(NotNow, match=why):
        choose(forked(), **named)
