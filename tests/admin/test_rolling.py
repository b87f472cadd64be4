"""A roll decides who goes when, waits for each, stops at the first thing that is not well. The cluster is a table."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from admin.members import address_of, away, master, slave
from pyromq.admin import leading as leading_module
from pyromq.admin.brokers import Brokers, BrokerStatus
from pyromq.admin.leading import Leading
from pyromq.admin.rolling import Rolling, steps_of, teams_of
from pyromq.errors import NotFound, NotNow, NotSupported, Unreachable


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading_module, "LOOK_AGAIN_SECONDS", 0.001)


class Cluster:
    """Scripted name servers and brokers. Records each action; a restarted broker misses some rounds."""

    def __init__(self, *members: BrokerStatus) -> None:
        self.by_address = {one.address: one for one in members}
        self.done: list[str] = []
        #: By address: how many rounds until it answers again, and how many until it is level again.
        self.away: dict[str, int] = {}
        self.late: dict[str, int] = {}
        self.stuck: set[str] = set()

    # --- as Brokers ---

    async def members(self, name: str) -> Sequence[BrokerStatus]:
        if any(self.away.values()):
            self.away = {address: max(left - 1, 0) for address, left in self.away.items()}
            raise Unreachable("the name server restarts too")
        self.late = {address: left - 1 for address, left in self.late.items() if left > 1}
        return [self._as_seen(one) for one in sorted(self.by_address.values(), key=lambda one: one.broker_id)]

    def _as_seen(self, one: BrokerStatus) -> BrokerStatus:
        if one.copying is None or one.broker_id:
            return one
        copies = tuple(replace(copy, is_in_sync=copy.address not in self.late) for copy in one.copying.slaves)
        return replace(one, copying=replace(one.copying, slaves=copies))

    # --- as Leading ---

    async def restart(self, address: str, reason: str = "") -> None:
        self.done.append(f"restart {address}")
        self._starts_again(address)

    def _starts_again(self, address: str) -> None:
        if address not in self.stuck:
            before = self.by_address[address]
            self.by_address[address] = replace(before, started_ms=before.started_ms + 1)
            self.away[address], self.late[address] = 2, 3

    async def hand_over(self, old: str, new: str, *, reason: str = "") -> None:
        self.done.append(f"hand over {old} {new}")
        one, other = self.by_address[old], self.by_address[new]
        assert one.copying is not None
        copies = tuple(replace(copy, address=old if copy.address == new else copy.address)
                       for copy in one.copying.slaves)  # fmt: skip
        self.by_address[new] = replace(other, broker_id=0, copying=replace(one.copying, slaves=copies))
        self.by_address[old] = replace(one, broker_id=other.broker_id, copying=other.copying)
        self._starts_again(old)

    async def until_leads(self, name: str, address: str, timeout_s: float) -> BrokerStatus:
        return self.by_address[address]

    # --- the roll ---

    def roll(self, **more: Any) -> None:
        async def story() -> None:
            (team,) = teams_of(await self.members("pair"))
            rolling = Rolling(cast(Brokers, self), cast(Leading, self), timeout_s=0.5, **more)
            for step in steps_of(team):
                await rolling.take(step)

        asyncio.run(story())


def test_slaves_go_first_and_the_master_hands_over_to_the_one_that_was_first() -> None:
    cluster = Cluster(master(slaves=(1, 2)), slave(1), slave(2))
    cluster.roll()
    assert cluster.done == [
        f"restart {address_of(1)}",
        f"restart {address_of(2)}",
        f"hand over {address_of(0)} {address_of(1)}",
    ]
    assert [one.broker_id for one in cluster.by_address.values()] == [1, 0, 2]


def test_by_command_the_old_master_starts_once_more_as_a_slave() -> None:
    cluster, ran = Cluster(master(), slave()), list[str]()

    async def restart(broker: BrokerStatus) -> None:
        ran.append(f"{broker.address} as {broker.broker_id}")
        cluster._starts_again(broker.address)

    cluster.roll(restart=restart)
    assert ran == [f"{address_of(1)} as 1", f"{address_of(0)} as 1"]
    assert cluster.done == [f"hand over {address_of(0)} {address_of(1)}"]


def test_a_master_alone_is_restarted_and_waited_for() -> None:
    cluster = Cluster(master(slaves=()))
    cluster.roll()
    assert cluster.done == [f"restart {address_of(0)}"]


def test_one_that_does_not_restart_stops_the_roll_before_the_next() -> None:
    cluster = Cluster(master(slaves=(1, 2)), slave(1), slave(2))
    cluster.stuck.add(address_of(1))
    with pytest.raises(NotNow, match=r"10\.0\.0\.2:10911 was told to restart, and is not back after 0\.5 s"):
        cluster.roll()
    assert cluster.done == [f"restart {address_of(1)}"]


def test_one_that_does_not_catch_up_stops_the_roll_too() -> None:
    cluster = Cluster(master(end=2000), slave(end=1000))
    with pytest.raises(NotNow, match=r"is back, and has not caught up with its master after 0\.5 s"):
        cluster.roll()
    assert cluster.done == [f"restart {address_of(1)}"]


@pytest.mark.parametrize(
    ("members", "error", "words"),
    [
        ([master(), away(1)], NotNow, "10.0.0.2:10911 does not answer .nobody listens there.: nothing is restarted"),
        ([slave()], NotNow, "has no master: `pyromq broker promote pair` makes one"),
        ([master(slaves=()), slave()], NotNow, "slave 1 at 10.0.0.2:10911 is not in sync with its master: nothing"),
        ([BrokerStatus("c", "pair", 0, "h:1")], NotSupported, "h:1 is no PyroMQ"),
        ([], NotFound, "a name server knows none at all"),
    ],
)
def test_nothing_is_restarted_unless_all_are_well(
    members: list[BrokerStatus], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        teams_of(members)


def test_a_roll_may_be_of_one_cluster_or_one_name() -> None:
    other = replace(master(slaves=()), name="solo", cluster="d")
    every = [master(), slave(), other]
    assert [team.name for team in teams_of(every)] == ["pair", "solo"]
    assert [team.name for team in teams_of(every, cluster="d")] == ["solo"]
    assert [team.brokers for team in teams_of(every, broker="pair")] == [2]
    with pytest.raises(NotFound, match="there is no such broker: a name server knows c/pair, d/solo"):
        teams_of(every, broker="pear")


def test_steps_say_what_they_are() -> None:
    (team,) = teams_of([master(), slave()])
    assert [str(step) for step in steps_of(team)] == [
        "pair: restart slave 1 at 10.0.0.2:10911",
        "pair: hand over from 10.0.0.1:10911 to 10.0.0.2:10911",
    ]
